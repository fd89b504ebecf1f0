"""JSONL into SQLite with DuckDB and its extension: duck.py FOLDER DATABASE

Each file is read twice, as DuckDB itself would: once to see what its columns hold, in all lines, and once for the rows.
Between the two, what is nested is declared as JSON, so that its text is kept, and dates as text.
"""

import pathlib
import sys

import duckdb
import duckdb_extension_sqlite_scanner

NESTED = ("STRUCT", "MAP", "JSON")
SIMPLE = ("BIGINT", "UBIGINT", "HUGEINT", "DOUBLE", "BOOLEAN")


def declared(kind):
    if kind.startswith(NESTED) or kind.endswith("[]"):
        return "JSON"
    return kind if kind in SIMPLE else "VARCHAR"


folder, database = sys.argv[1:]
package = pathlib.Path(duckdb_extension_sqlite_scanner.__file__).parent
extension = next(package.rglob("sqlite_scanner.duckdb_extension"))
duck = duckdb.connect()
duck.execute(f"LOAD '{extension}'")
duck.execute(f"ATTACH '{database}' AS answer (TYPE sqlite)")
duck.execute("BEGIN")
for file in sorted(pathlib.Path(folder).glob("*.jsonl")):
    read = f"read_json('{file}', format = 'newline_delimited'"
    found = duck.execute(f"DESCRIBE SELECT * FROM {read}, sample_size = -1, maximum_depth = 2)").fetchall()
    columns = ", ".join(f"\"{name}\": '{declared(kind)}'" for name, kind, *_ in found)
    duck.execute(f'CREATE TABLE answer."{file.stem}" AS SELECT * FROM {read}, columns = {{{columns}}})')
duck.execute("COMMIT")
