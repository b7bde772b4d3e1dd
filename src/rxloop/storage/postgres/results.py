"""Query results with many rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from rxloop.errors import EventLogError
from rxloop.pipeline.records import RunEvents
from rxloop.protocol.events import Event
from rxloop.state.run_state import RunFold
from rxloop.storage.postgres.address import Cursor, Row
from rxloop.storage.sql_rows import RunRow
from rxloop.support.garbage import ignore_large_data
from rxloop.support.threads import Threads, compute

T = TypeVar("T")

MAX_ROWS = 500
"""Maximum number of rows that are received or created before other tasks run."""

_BYTES_PER_STEP = 500
"""Size of a typical event in bytes."""


_CONVERTING = Threads(max_running=4)
"""Threads for converting rows. They must not wait for other computations or for user functions, which may in turn wait
for the log, because the caller has reserved a connection."""


async def fetch_rows(cursor: Cursor) -> list[Row]:
    """Return all rows of a result. Other tasks run in between, because creating many rows takes long."""
    part = await cursor.fetchmany(MAX_ROWS)
    rows = [*part]
    with ignore_large_data(len(rows)):
        while len(part) == MAX_ROWS:
            await asyncio.sleep(0)
            part = await cursor.fetchmany(MAX_ROWS)
            rows += part
    return rows


async def convert(function: Callable[[Sequence[Row]], T], rows: Sequence[Row]) -> T:
    """Call a function with event rows, in a thread if the rows are many or large."""
    # A single event may contain a long history.
    steps = len(rows) + sum(len(row[-1]) for row in rows[:MAX_ROWS]) // _BYTES_PER_STEP
    return await compute(partial(function, rows), steps=steps, threads=_CONVERTING)


def parse_events(task_id: str, rows: Iterable[Row]) -> list[Event]:
    """Parse event rows.

    Args:
        task_id: Run ID.
        rows: Rows that end with `seq`, `sub` and the JSON text.

    Raises:
        EventLogError: If an event cannot be parsed.
    """
    events: list[Event] = []
    for *_, seq, _, data in rows:
        try:
            events.append(Event.from_json(data))
        except Exception as error:
            raise EventLogError(
                f"Cannot read event {seq} of run {task_id}: {error}. Other runs are not affected.",
                retryable=False,
            ) from error
    return events


def make_parts(
    covered_runs: Iterable[tuple[RunRow, RunFold | None]], event_rows: Sequence[Row]
) -> list[RunFold | RunEvents]:
    """Return the parts of a conversation page. Runs without a fold are returned as events.

    Args:
        covered_runs: Runs with their folds.
        event_rows: Rows of the events of the other runs, in the order of the runs. They start with the run number.

    Raises:
        EventLogError: If an event cannot be parsed.
    """
    rows_of_runs = {number: [*rows] for number, rows in groupby(event_rows, key=itemgetter(0))}
    parts: list[RunFold | RunEvents] = []
    for run, fold in covered_runs:
        # Later events are not included in the `seq` of the run row.
        rows = [] if fold else [row for row in rows_of_runs.get(run.number, ()) if row[1] <= run.seq]
        events = parse_events(run.task_id, rows)
        parts.append(fold or RunEvents(run.task_id, run.idle and len(events) == run.seq, events))
    return parts
