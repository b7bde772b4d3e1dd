"""The log of the command, and the runs in it by what a person types."""

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
"""The word for the run that was started last."""
_SHORTEST = 6


def default_database() -> Path:
    """Return where the runs are kept when nobody says where."""
    return platformdirs.user_data_path("rxloop", appauthor=False) / "runs.db"


def file_of(database: str | None) -> Path:
    """Return the file that the address of a database names, or the one where nobody says where.

    Raises:
        ConfigurationError: It is the address of something else, and not to become a folder of that name.
    """
    log = open_log(database or default_database())
    assert isinstance(log, SqliteEventLog)
    return log.path


@asynccontextmanager
async def opened(database: str | None, *, write: bool = False, skip_corrupt: bool = False) -> AsyncGenerator[EventLog]:
    """Open the log in the database; only a command that is going to write makes one.

    Raises:
        ConfigurationError: There is no log for such an address.
        EventLogError: There is none, or its folder cannot be made.
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
    """Open the log in a server, if that is there."""
    log = open_log(address, patience=2)
    try:
        await log.list_runs(limit=1)
        yield log
    finally:
        await log.aclose()


async def check_writable(log: EventLog, path: Path) -> None:
    """Find out whether runs can be kept before a model is asked, and paid, for nothing.

    Raises:
        EventLogError: The file cannot be written, or is another program's.
    """
    # A file that is not our log is refused here, before it is touched.
    await log.list_runs(context_id="")
    with errors_of(path), closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("BEGIN IMMEDIATE")
        # A file that is read-only lets a transaction begin, and refuses the first thing to be written.
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("ROLLBACK")


async def find_run(log: EventLog, given: str) -> RunRecord:
    """Find the run whose id is, begins or ends with what was given; `last` is the one that was started last.

    Raises:
        UnknownRun: There is none.
        ConfigurationError: There are several.
    """
    records = await log.list_runs()
    if given == LAST and records:
        return records[-1]
    task_id = _find(given, [record.task_id for record in records], "run")
    return next(record for record in records if record.task_id == task_id)


async def find_context(log: EventLog, given: str) -> str:
    """Find the conversation whose id is, begins or ends with what was given.

    Raises:
        UnknownRun: There is none.
        ConfigurationError: There are several.
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
    """Find for each id the end of it that can be typed in its place.

    The ends, because the ids of one minute begin alike.
    """
    short: dict[str, str] = {}
    waiting, length = list(ids), _SHORTEST
    while waiting:
        fits = Counter(known[-length:] for known in ids)
        # What one id ends with, another one may begin with.
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
    """Find the end of the run's id that can be typed in its place; None if the log does not have the run."""
    ids = [record.task_id for record in await log.list_runs()]
    return short_ids(ids).get(task_id)


async def first_event(log: EventLog, task_id: str) -> TaskEvent | None:
    """Read what a run was started with, without reading all of it; None where that cannot be read."""
    events = log.follow(task_id)
    try:
        async for event in events:
            return event if isinstance(event, TaskEvent) else None
    except EventLogError as error:
        if error.retryable or isinstance(error, UnknownRun):
            raise
        # What is wrong with one run must not keep the others from being listed.
        return None
    finally:
        await close_iterator(events)
    return None
