"""Imports JSONL into SQLite with Python's sqlite3: python_import.py json|orjson FOLDER DATABASE"""

import importlib
import itertools
import pathlib
import sqlite3
import sys

BATCH = 10_000

module, folder, database = sys.argv[1:]
json = importlib.import_module(module)


def text(value):
    """Returns JSON as short as that of orjson: no escapes, no spaces."""
    if module == "orjson":
        return json.dumps(value).decode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def cell(value):
    return text(value) if isinstance(value, (dict, list)) else value


def add(table, columns, rows):
    """Inserts rows. Tables and columns are created when their keys first occur."""
    for name in dict.fromkeys(key for row in rows for key in row):
        if not columns:
            key = " INTEGER PRIMARY KEY" if isinstance(rows[0][name], int) else ""
            connection.execute(f'CREATE TABLE "{table}" ("{name}"{key})')
        elif name not in columns:
            connection.execute(f'ALTER TABLE "{table}" ADD COLUMN "{name}"')
        columns.setdefault(name)
    names = ", ".join(f'"{name}"' for name in columns)
    marks = ", ".join("?" * len(columns))
    values = ([cell(row.get(name)) for name in columns] for row in rows)
    connection.executemany(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', values)


connection = sqlite3.connect(database)
with connection:
    for file in sorted(pathlib.Path(folder).glob("*.jsonl")):
        columns = {}
        with file.open("rb") as lines:
            while batch := list(itertools.islice(lines, BATCH)):
                add(file.stem, columns, list(map(json.loads, batch)))
connection.close()
