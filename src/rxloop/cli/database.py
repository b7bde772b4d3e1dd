"""Database access and run lookup for commands."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import platformdirs

from rxloop.errors import ConfigurationError, EventLogError, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import TaskEvent
from rxloop.storage import SqliteEventLog
from rxloop.storage.log_urls import is_postgres, open_log
from rxloop.storage.sqlite.database import BUSY_SECONDS, convert_errors
from rxloop.support.tasks import close_iterator

LATEST_ALIAS = "last"
"""Alias for the most recent run."""
_MIN_SUFFIX_LENGTH = 6


def get_default_database() -> Path:
    """Return the path of the default database."""
    return platformdirs.user_data_path("rxloop", appauthor=False) / "runs.db"


def resolve_path(database: str | None) -> Path:
    """Return the file path for a database option, using the default if it is missing.

    Raises:
        ConfigurationError: The option is a URL with an unsupported scheme.
    """
    log = open_log(database or get_default_database())
    assert isinstance(log, SqliteEventLog)
    return log.path


@asynccontextmanager
async def open_database(
    database: str | None, *, write: bool = False, skip_corrupt: bool = False
) -> AsyncGenerator[EventLog]:
    """Open a database. If `write` is True, missing databases are created.

    Raises:
        ConfigurationError: The URL is not supported.
        EventLogError: The database does not exist or cannot be created.
    """
    if is_postgres(database):
        async with _open_server(str(database)) as log:
            yield log
        return
    path = resolve_path(database)
    if write:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EventLogError(
                f"cannot create the folder of the database {path}: {error.strerror}; "
                "set a different path with --db or RXLOOP_DB"
            ) from error
    elif not path.exists():
        raise EventLogError(
            f"no database at {path}; create it with rxloop run, or set a different path with --db or RXLOOP_DB"
        )
    log = SqliteEventLog(path, corrupt="skip" if skip_corrupt else "refuse")
    try:
        if write:
            await check_writable(log, path)
        yield log
    finally:
        await log.aclose()


@asynccontextmanager
async def _open_server(address: str) -> AsyncGenerator[EventLog]:
    """Open a database on a server and check the connection."""
    log = open_log(address, timeout=2)
    try:
        await log.list_runs(limit=1)
        yield log
    finally:
        await log.aclose()


async def check_writable(log: EventLog, path: Path) -> None:
    """Check that the database is writable before spending money on model calls.

    Raises:
        EventLogError: The file is read-only or belongs to another application.
    """
    # Reject files of other applications before writing to them.
    await log.list_runs(context_id="")
    with convert_errors(path), closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("BEGIN IMMEDIATE")
        # For read-only files, only the first write in a transaction fails.
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("ROLLBACK")


async def find_run(log: EventLog, text: str) -> RunRecord:
    """Find a run using its id, or a unique prefix or suffix. `last` returns the most recent run.

    Raises:
        UnknownRun: No conversation matches.
        ConfigurationError: Multiple conversations match.
    """
    records = await log.list_runs()
    if text == LATEST_ALIAS and records:
        return records[-1]
    task_id = _find_id(text, [record.task_id for record in records], "run")
    return next(record for record in records if record.task_id == task_id)


async def find_context(log: EventLog, text: str) -> str:
    """Find a conversation using `last`, its ID, or a unique prefix or suffix.

    Raises:
        UnknownRun: No conversation matches.
        ConfigurationError: Multiple conversations match.
    """
    return (await find_last_run(log, text)).context_id


async def find_last_run(log: EventLog, text: str) -> RunRecord:
    """Find the last run of a conversation, as in `find_context`.

    If several owners have a conversation with this ID, the one with the last run is found.
    """
    records = await log.list_runs()
    if text == LATEST_ALIAS and records:
        return records[-1]
    context_id = _find_id(text, list(dict.fromkeys(record.context_id for record in records)), "conversation")
    return next(record for record in reversed(records) if record.context_id == context_id)


def _find_id(text: str, ids: Sequence[str], noun: str) -> str:
    if text in ids:
        return text
    matches = [candidate for candidate in ids if text and (candidate.startswith(text) or candidate.endswith(text))]
    if not matches:
        raise UnknownRun(f"no {noun} with the id {text!r}; list all runs with rxloop runs")
    if len(matches) > 1:
        short = shorten_ids(ids)
        examples = ", ".join(f"{short[candidate]} ({candidate})" for candidate in matches[-5:])
        more = f", and {len(matches) - 5} more" if len(matches) > 5 else ""
        raise ConfigurationError(f"{text!r} matches {len(matches)} {noun}s: {examples}{more}")
    return matches[0]


def shorten_ids(ids: Sequence[str]) -> dict[str, str]:
    """Return the shortest unique suffix for each id.

    Prefixes are less suitable, because ids created around the same time have equal prefixes.
    """
    short: dict[str, str] = {}
    pending, length = list(ids), _MIN_SUFFIX_LENGTH
    while pending:
        counts = Counter(candidate[-length:] for candidate in ids)
        # Suffixes must not match prefixes of other ids either.
        counts.update({candidate[:length] for candidate in ids if len(candidate) > length})
        ambiguous: list[str] = []
        for candidate in pending:
            suffix = candidate[-length:]
            own_count = 1 + (len(candidate) > length and candidate.startswith(suffix))
            if length >= len(candidate) or counts[suffix] <= own_count:
                short[candidate] = suffix
            else:
                ambiguous.append(candidate)
        pending, length = ambiguous, length + 1
    return short


async def find_short_id(log: EventLog, task_id: str) -> str | None:
    """Return the shortest unique suffix of a run id, or None if the run does not exist."""
    ids = [record.task_id for record in await log.list_runs()]
    return shorten_ids(ids).get(task_id)


async def read_first_event(log: EventLog, task_id: str) -> TaskEvent | None:
    """Read only the first event of a run. Returns None if the event is corrupt."""
    events = log.follow(task_id)
    try:
        async for event in events:
            return event if isinstance(event, TaskEvent) else None
    except EventLogError as error:
        if error.retryable or isinstance(error, UnknownRun):
            raise
        # A corrupt run should not prevent listing other runs.
        return None
    finally:
        await close_iterator(events)
    return None
