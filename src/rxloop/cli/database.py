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
from rxloop.storage.opening import is_postgres, open_log
from rxloop.storage.sqlite.database import BUSY_SECONDS, errors_of
from rxloop.support.tasks import close_iterator

LAST = "last"
"""Alias for the most recent run."""
_SHORTEST = 6


def default_database() -> Path:
    """Return the path of the default database."""
    return platformdirs.user_data_path("rxloop", appauthor=False) / "runs.db"


def file_of(database: str | None) -> Path:
    """Return the file path for a database option, using the default if it is missing.

    Raises:
        ConfigurationError: The option is a URL with an unsupported scheme.
    """
    log = open_log(database or default_database())
    assert isinstance(log, SqliteEventLog)
    return log.path


@asynccontextmanager
async def opened(database: str | None, *, write: bool = False, skip_corrupt: bool = False) -> AsyncGenerator[EventLog]:
    """Open a database. If `write` is True, missing databases are created.

    Raises:
        ConfigurationError: The URL is not supported.
        EventLogError: The database does not exist or cannot be created.
    """
    if is_postgres(database):
        async with _served(str(database)) as log:
            yield log
        return
    path = file_of(database)
    if write:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EventLogError(
                f"the folder of the database {path} cannot be made: {error.strerror}; "
                "--db or RXLOOP_DB names another one"
            ) from error
    elif not path.exists():
        raise EventLogError(
            f"there are no runs yet: {path} does not exist. rxloop run makes it; --db or RXLOOP_DB names another one"
        )
    log = SqliteEventLog(path, corrupt="skip" if skip_corrupt else "refuse")
    try:
        if write:
            await check_writable(log, path)
        yield log
    finally:
        await log.aclose()


@asynccontextmanager
async def _served(address: str) -> AsyncGenerator[EventLog]:
    """Open a database on a server and check the connection."""
    log = open_log(address, patience=2)
    try:
        await log.list_runs(limit=1)
        yield log
    finally:
        await log.aclose()


async def check_writable(log: EventLog, path: Path) -> None:
    """Check that the database is writable before spending money on model calls.

    Raises:
        EventLogError: The file is read-only, or belongs to another application.
    """
    # Reject files of other applications before writing to them.
    await log.list_runs(context_id="")
    with errors_of(path), closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("BEGIN IMMEDIATE")
        # For read-only files, only the first write in a transaction fails.
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("ROLLBACK")


async def find_run(log: EventLog, given: str) -> RunRecord:
    """Find a run using its id, or a unique prefix or suffix. `last` returns the most recent run.

    Raises:
        UnknownRun: There are no matches.
        ConfigurationError: There are multiple matches.
    """
    records = await log.list_runs()
    if given == LAST and records:
        return records[-1]
    task_id = _find(given, [record.task_id for record in records], "run")
    return next(record for record in records if record.task_id == task_id)


async def find_context(log: EventLog, given: str) -> str:
    """Find a conversation using its id, or a unique prefix or suffix.

    Raises:
        UnknownRun: There are no matches.
        ConfigurationError: There are multiple matches.
    """
    records = await log.list_runs()
    return _find(given, list(dict.fromkeys(record.context_id for record in records)), "conversation")


def _find(given: str, ids: Sequence[str], noun: str) -> str:
    if given in ids:
        return given
    found = [known for known in ids if given and (known.startswith(given) or known.endswith(given))]
    if not found:
        raise UnknownRun(f"no {noun} has an id like {given!r}; rxloop runs lists those that there are")
    if len(found) > 1:
        short = short_ids(ids)
        shown = ", ".join(f"{short[known]} ({known})" for known in found[-5:])
        more = f", and {len(found) - 5} more" if len(found) > 5 else ""
        raise ConfigurationError(f"{given!r} fits {len(found)} {noun}s: {shown}{more}")
    return found[0]


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """Return the shortest unique suffix for each id.

    Prefixes are less suitable, because ids created around the same time have equal prefixes.
    """
    short: dict[str, str] = {}
    waiting, length = list(ids), _SHORTEST
    while waiting:
        fits = Counter(known[-length:] for known in ids)
        # Suffixes must not match prefixes of other ids either.
        fits.update({known[:length] for known in ids if len(known) > length})
        rest: list[str] = []
        for known in waiting:
            end = known[-length:]
            own = 1 + (len(known) > length and known.startswith(end))
            if length >= len(known) or fits[end] <= own:
                short[known] = end
            else:
                rest.append(known)
        waiting, length = rest, length + 1
    return short


async def short_id(log: EventLog, task_id: str) -> str | None:
    """Return the shortest unique suffix of a run id, or None if the run does not exist."""
    ids = [record.task_id for record in await log.list_runs()]
    return short_ids(ids).get(task_id)


async def first_event(log: EventLog, task_id: str) -> TaskEvent | None:
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
