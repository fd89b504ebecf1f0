"""Imports JSONL into SQLite with DuckDB and its extension: duckdb_import.py FOLDER DATABASE

Each file is read twice, as DuckDB itself does: once for the types of its columns, over all lines, and once for the
rows. In between, nested values are declared as JSON, so that their text is kept, and dates as text.
"""

import pathlib
import sys

import duckdb
import duckdb_extension_sqlite_scanner

NESTED = ("STRUCT", "MAP", "JSON")
SIMPLE = ("BIGINT", "UBIGINT", "HUGEINT", "DOUBLE", "BOOLEAN")


def column_type(kind):
    if kind.startswith(NESTED) or kind.endswith("[]"):
        return "JSON"
    return kind if kind in SIMPLE else "VARCHAR"


folder, database = sys.argv[1:]
package = pathlib.Path(duckdb_extension_sqlite_scanner.__file__).parent
extension = next(package.rglob("sqlite_scanner.duckdb_extension"))
duck = duckdb.connect()
duck.execute(f"LOAD '{extension}'")
duck.execute(f"ATTACH '{database}' AS target (TYPE sqlite)")
duck.execute("BEGIN")
for file in sorted(pathlib.Path(folder).glob("*.jsonl")):
    read = f"read_json('{file}', format = 'newline_delimited'"
    found = duck.execute(f"DESCRIBE SELECT * FROM {read}, sample_size = -1, maximum_depth = 2)").fetchall()
    columns = ", ".join(f"\"{name}\": '{column_type(kind)}'" for name, kind, *_ in found)
    duck.execute(f'CREATE TABLE target."{file.stem}" AS SELECT * FROM {read}, columns = {{{columns}}})')
duck.execute("COMMIT")
