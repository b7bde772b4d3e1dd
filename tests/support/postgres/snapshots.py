"""Snapshots for rolling back a log that is in use."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Protocol

import psycopg

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
_COUNTED = (
    "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = %s AND is_identity = 'YES'"
)

_STORED = (
    "SELECT string_agg(quote_ident(column_name), ', ') FROM information_schema.columns"
    " WHERE table_schema = %s AND table_name = %s AND is_generated = 'NEVER'"
)
"""Columns that are not computed from others."""


class Snapshot(Protocol):
    """Copy of a log."""

    def take(self) -> None:
        """Copy the log."""
        ...

    def restore(self) -> None:
        """Replace the log with the copy."""
        ...


class PostgresSnapshot:
    """Snapshot of a schema. Connections stay open, so clients are not notified, and sequences restart."""

    def __init__(self, address: str, schema: str) -> None:
        self._address, self._schema, self._copy = address, schema, f"{schema}_copy"

    def take(self) -> None:
        with psycopg.connect(self._address) as connection:
            connection.execute(f"CREATE SCHEMA {self._copy}".encode())
            for (table,) in connection.execute(_TABLES, (self._schema,)).fetchall():
                connection.execute(f"CREATE TABLE {self._copy}.{table} AS TABLE {self._schema}.{table}".encode())

    def restore(self) -> None:
        with psycopg.connect(self._address) as connection:
            for (table,) in connection.execute(_TABLES, (self._copy,)).fetchall():
                connection.execute(f"DELETE FROM {self._schema}.{table}".encode())
                [[columns]] = connection.execute(_STORED, (self._schema, table)).fetchall()
                connection.execute(
                    f"INSERT INTO {self._schema}.{table} ({columns}) OVERRIDING SYSTEM VALUE"
                    f" SELECT {columns} FROM {self._copy}.{table}".encode()
                )
            for table, column in connection.execute(_COUNTED, (self._schema,)).fetchall():
                qualified_name = f"{self._schema}.{table}"
                connection.execute(
                    f"SELECT setval(pg_get_serial_sequence('{qualified_name}', '{column}'),"
                    f" (SELECT coalesce(max({column}), 0) + 1 FROM {qualified_name}), false)".encode()
                )


class SqliteSnapshot:
    """Snapshot of a database file by SQLite's backup API. Open connections remain valid."""

    def __init__(self, path: Path) -> None:
        self._path, self._copy = path, path.with_suffix(".copy")

    def take(self) -> None:
        _copy_database(self._path, self._copy)

    def restore(self) -> None:
        _copy_database(self._copy, self._path)


def _copy_database(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as source_connection, closing(sqlite3.connect(target)) as target_connection:
        source_connection.backup(target_connection)
