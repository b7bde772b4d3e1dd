"""SQLite connections, schema migrations and transactions."""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from rxloop.errors import EventLogError

Fsync = Literal["normal", "full"]

APPLICATION_ID = 0x72786C70
"""ASCII code of `rxlp`, stored in the file header."""

BUSY_SECONDS = 5.0

_RETRY_SECONDS = 0.005

_SEPARATOR = "char(31)"
"""Separator in conversation keys, see `make_conversation_key`."""

SCHEMA = (
    """
    CREATE TABLE runs (
        number INTEGER PRIMARY KEY,
        task_id TEXT NOT NULL UNIQUE,
        context_id TEXT NOT NULL,
        agent_name TEXT NOT NULL,
        state TEXT NOT NULL,
        at_rest INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        created INTEGER NOT NULL,
        updated INTEGER NOT NULL
    );
    CREATE INDEX runs_by_context ON runs (context_id, created, number);
    CREATE INDEX runs_unfinished ON runs (created, number) WHERE state NOT IN ('completed', 'failed');
    CREATE TABLE events (
        run INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        sub INTEGER NOT NULL,
        json BLOB NOT NULL,
        PRIMARY KEY (run, seq, sub)
    ) WITHOUT ROWID;
    """,
    # Older files contain tables for thinking sessions, which no migration drops yet.
    "",
    """
    ALTER TABLE runs ADD COLUMN owner TEXT NOT NULL DEFAULT '';
    DROP INDEX runs_by_context;
    DROP INDEX runs_unfinished;
    CREATE INDEX runs_by_context ON runs (context_id, number);
    CREATE INDEX runs_unfinished ON runs (number) WHERE state NOT IN ('completed', 'failed');
    """,
    "",
    """
    ALTER TABLE runs RENAME COLUMN owner TO writer;
    ALTER TABLE runs ADD COLUMN model TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN owner TEXT;
    ALTER TABLE runs ADD COLUMN metadata TEXT;
    ALTER TABLE runs ADD COLUMN usage TEXT;
    ALTER TABLE runs ADD COLUMN error TEXT;
    CREATE TEMP VIEW ends AS
        SELECT run, seq, CASE WHEN json_valid(CAST(json AS TEXT)) THEN CAST(json AS TEXT) ELSE '{}' END AS json
        FROM events WHERE sub = 0;
    UPDATE runs SET (model, metadata) = (
        SELECT ifnull(json_extract(json, '$.model'), ''), json_extract(json, '$.metadata')
        FROM ends WHERE run = number AND seq = 1
    ) WHERE EXISTS (SELECT 1 FROM ends WHERE run = number AND seq = 1);
    UPDATE runs SET (usage, error) = (
        SELECT json_extract(json, '$.usage'), json_extract(json, '$.error')
        FROM ends WHERE run = number AND ends.seq = runs.seq
    ) WHERE at_rest = 1;
    DROP VIEW ends;
    CREATE INDEX runs_by_owner ON runs (owner, number) WHERE owner IS NOT NULL;
    CREATE INDEX runs_under_way ON runs (number) WHERE at_rest = 0;
    CREATE TABLE holders (
        holder TEXT PRIMARY KEY,
        process TEXT NOT NULL,
        beat REAL NOT NULL,
        lease REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE turns (
        context_id TEXT PRIMARY KEY,
        task_id TEXT NOT NULL,
        holder TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX turns_by_holder ON turns (holder);
    CREATE TABLE mail (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        run INTEGER NOT NULL,
        json BLOB NOT NULL
    );
    CREATE INDEX mail_by_run ON mail (run, number);
    """,
    """
    CREATE INDEX runs_by_time ON runs (created);
    CREATE TABLE folds (
        number INTEGER PRIMARY KEY,
        context_id TEXT NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        runs INTEGER NOT NULL,
        events INTEGER NOT NULL,
        version INTEGER NOT NULL,
        crc INTEGER NOT NULL,
        summary BLOB NOT NULL,
        messages BLOB NOT NULL
    );
    CREATE INDEX folds_by_context ON folds (context_id, first);
    """,
    """
    CREATE TABLE artifacts (
        number INTEGER PRIMARY KEY,
        context_id TEXT NOT NULL,
        artifact_id TEXT NOT NULL,
        version INTEGER NOT NULL,
        name TEXT NOT NULL,
        media_type TEXT NOT NULL,
        created INTEGER NOT NULL,
        updated INTEGER NOT NULL,
        size INTEGER NOT NULL,
        chunks INTEGER NOT NULL,
        complete INTEGER NOT NULL,
        key TEXT NOT NULL,
        UNIQUE (context_id, artifact_id, version)
    );
    CREATE TABLE artifact_chunks (
        artifact INTEGER NOT NULL,
        place INTEGER NOT NULL,
        start INTEGER NOT NULL,
        key TEXT NOT NULL,
        data BLOB NOT NULL
    );
    CREATE UNIQUE INDEX artifact_chunks_by_key ON artifact_chunks (artifact, key);
    CREATE INDEX artifact_chunks_by_start ON artifact_chunks (artifact, start, place);
    """,
    """
    ALTER TABLE runs ADD COLUMN arrived REAL NOT NULL DEFAULT 0;
    """,
    # SQLite cannot rename an index.
    """
    ALTER TABLE runs RENAME COLUMN at_rest TO idle;
    ALTER TABLE runs RENAME COLUMN arrived TO inserted_at;
    DROP INDEX runs_under_way;
    CREATE INDEX runs_active ON runs (number) WHERE idle = 0;
    ALTER TABLE holders RENAME TO lease_holders;
    ALTER TABLE lease_holders RENAME COLUMN holder TO holder_id;
    ALTER TABLE lease_holders RENAME COLUMN beat TO heartbeat_at;
    ALTER TABLE lease_holders RENAME COLUMN lease TO lease_seconds;
    ALTER TABLE turns RENAME TO leases;
    ALTER TABLE leases RENAME COLUMN holder TO holder_id;
    DROP INDEX turns_by_holder;
    CREATE INDEX leases_by_holder ON leases (holder_id);
    ALTER TABLE mail RENAME TO commands;
    DROP INDEX mail_by_run;
    CREATE INDEX commands_by_run ON commands (run, number);
    UPDATE commands SET json = CAST('{"kind":"message"' || substr(CAST(json AS TEXT), 14) AS BLOB)
        WHERE substr(CAST(json AS TEXT), 1, 13) = '{"kind":"say"';
    ALTER TABLE artifact_chunks RENAME COLUMN place TO position;
    """,
    # Folds and artifacts of a conversation belong to the owner of its first run. Folds with runs of several owners are
    # deleted.
    f"""
    ALTER TABLE runs ADD COLUMN conversation TEXT GENERATED ALWAYS AS (
        CASE WHEN ifnull(owner, '') = '' THEN context_id ELSE {_SEPARATOR} || owner || {_SEPARATOR} || context_id END
    ) VIRTUAL;
    CREATE INDEX runs_by_conversation ON runs (conversation, number);
    DELETE FROM folds WHERE (
        SELECT count(DISTINCT conversation) FROM runs WHERE runs.context_id = folds.context_id
    ) > 1;
    UPDATE folds SET context_id = (SELECT conversation FROM runs WHERE runs.number = folds.first)
        WHERE EXISTS (SELECT 1 FROM runs WHERE runs.number = folds.first AND runs.conversation <> folds.context_id);
    UPDATE leases SET context_id = (SELECT conversation FROM runs WHERE runs.task_id = leases.task_id)
        WHERE EXISTS (SELECT 1 FROM runs WHERE runs.task_id = leases.task_id AND runs.owner <> '');
    UPDATE artifacts SET context_id = (
        SELECT conversation FROM runs WHERE runs.context_id = artifacts.context_id ORDER BY number LIMIT 1
    ) WHERE EXISTS (SELECT 1 FROM runs WHERE runs.context_id = artifacts.context_id);
    """,
)
"""Schema migrations. The schema version is the number of applied migrations."""

_HINTS = {
    "SQLITE_FULL": "the disk is full: free some space or move the log",
    "SQLITE_READONLY": "the file is not writable: check the permissions of the file and its folder",
    "SQLITE_CANTOPEN": "cannot open the file: check that its folder exists and is writable",
    "SQLITE_BUSY": f"another process has locked the file for more than {BUSY_SECONDS:g} s",
    "SQLITE_LOCKED": f"another process has locked the file for more than {BUSY_SECONDS:g} s",
    "SQLITE_NOTADB": "this is not a SQLite file: choose another path",
    "SQLITE_CORRUPT": "the file is damaged: move it away and recover its data with `sqlite3 FILE .recover`",
    "SQLITE_IOERR": "the disk cannot be read or written",
}

_OTHER_TABLES = ("no such table", "no such column", "has no column named")
"""Message fragments of SQLite for missing tables and columns, which have no separate error code."""

_OTHER_VERSION = "another version of rxloop has changed the tables: restart this program with that version"

_NO_DESCRIPTOR = (
    "this process is out of file descriptors: raise the limit (ulimit -n), or start fewer runs at a time, for example "
    "with limited(model, concurrent=...)"
)

_PERMANENT = ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_PERM", "SQLITE_AUTH")
"""Errors that a retry cannot fix. A full disk or a locked file may be temporary."""


@contextmanager
def convert_errors(path: Path) -> Generator[None]:
    """Convert SQLite and OS errors to `EventLogError`, with the file path and a hint."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        name = str(getattr(error, "sqlite_errorname", ""))
        hint = next((hint for code, hint in _HINTS.items() if name.startswith(code)), None)
        retryable = not name.startswith(_PERMANENT)
        if any(words in str(error) for words in _OTHER_TABLES):
            hint, retryable = _OTHER_VERSION, False
        if name.startswith("SQLITE_CANTOPEN") or isinstance(error, OSError):
            # SQLite reports a missing folder and a lack of file descriptors with the same code.
            if is_out_of_descriptors(error):
                hint, retryable = _NO_DESCRIPTOR, True
            elif path.is_file() and os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK):
                retryable = True
        text = f"the event log {path}: {error}" + (f"; {hint}" if hint else "")
        raise EventLogError(text, retryable=retryable) from error


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Return True if the database is locked by another writer."""
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def is_out_of_descriptors(error: BaseException) -> bool:
    """Return True if the process or system has run out of file descriptors."""
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE)
    try:
        # Do not open the database file itself, because closing it would release SQLite's locks.
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as failure:
        return failure.errno in (errno.EMFILE, errno.ENFILE)
    return False


def connect(path: Path, fsync: Fsync) -> sqlite3.Connection:
    """Open or create the file and migrate its schema.

    Raises:
        EventLogError: If the file belongs to another program or a newer version of rxloop. Its content is not changed.
    """
    # Conversations are private. SQLite copies the file mode to the WAL.
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        # SQLite reports other errors with more detail. Usually the file already exists.
        if is_out_of_descriptors(error):
            raise
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return _connect(path, fsync)
        except sqlite3.OperationalError as error:
            # If several processes enable WAL mode concurrently, SQLite ignores the busy timeout for all but one.
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)


def _connect(path: Path, fsync: Fsync) -> sqlite3.Connection:
    # Only one thread at a time uses the connection, but not always the thread that opened it.
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _check(connection, path)
        if _read_pragma(connection, "user_version") < len(SCHEMA):
            _migrate(connection, path)
        connection.execute(f"PRAGMA synchronous = {fsync}")
        # Deleted texts must not remain in free pages.
        connection.execute("PRAGMA secure_delete = ON").fetchall()
        # Automatic checkpoints would block a commit on the event loop while writing to the disk.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Check the application ID and schema version before writing."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    owner, version = _read_pragma(connection, "application_id"), _read_pragma(connection, "user_version")
    if owner != APPLICATION_ID and (tables or owner):
        raise EventLogError(
            f"{path} belongs to another program. Use a separate file for the event log.",
            retryable=False,
        )
    if version > len(SCHEMA):
        raise EventLogError(
            f"{path} was written by a newer version of rxloop (schema {version}, supported {len(SCHEMA)}). "
            "Install that version.",
            retryable=False,
        )


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Apply pending migrations in one transaction."""
    if _read_pragma(connection, "user_version") == 0:
        # SQLite only accepts this setting before the first table is created.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Check again, because another process may have migrated the file.
        _check(connection, path)
        for step in SCHEMA[_read_pragma(connection, "user_version") :]:
            for statement in step.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(SCHEMA)}")
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def begin(connection: sqlite3.Connection, wait: float) -> None:
    """Begin a write transaction, waiting up to `wait` seconds for other writers."""
    connection.execute(f"PRAGMA busy_timeout = {round(wait * 1000)}")
    connection.execute("BEGIN IMMEDIATE")


def checkpoint(connection: sqlite3.Connection, *, truncate: bool) -> None:
    """Copy pages from the WAL to the database without waiting for readers, and optionally truncate the WAL."""
    # The passive checkpoint does most of the work without blocking writers. Truncation does not wait for readers.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    if not truncate:
        return
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.execute(f"PRAGMA busy_timeout = {round(BUSY_SECONDS * 1000)}")


def roll_back(connection: sqlite3.Connection) -> None:
    """Roll back a failed transaction, unless SQLite has already done so."""
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def _read_pragma(connection: sqlite3.Connection, pragma: str) -> int:
    (value,) = connection.execute(f"PRAGMA {pragma}").fetchone()
    return value


@contextmanager
def transaction(connection: sqlite3.Connection, *, wait: float | None = None) -> Generator[None]:
    """Run the block in a write transaction. Other connections can only read.

    Args:
        connection: SQLite connection.
        wait: Maximum time in seconds to wait for other writers. None uses the default.
    """
    begin(connection, BUSY_SECONDS if wait is None else wait)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise
