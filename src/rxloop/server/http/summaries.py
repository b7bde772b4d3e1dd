"""Cached summaries and problems of runs, which are extended by the new events of a run."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Generator
from contextlib import aclosing, contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from rxloop.errors import EventLogError, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event
from rxloop.protocol.http_api import RunInfo
from rxloop.protocol.http_api.inspection import RunProblem
from rxloop.recorded.follow import read_chunks
from rxloop.recorded.summary import RunSummary, SummaryFold, summarize_start
from rxloop.server.http import reads
from rxloop.server.http.inspection import Outlines
from rxloop.server.http.requests import ApiCall

_MAX_SUMMARIES = 1_000
"""Maximum number of summaries in memory."""

MAX_SIZE = 500_000
"""Maximum number of values in all summaries in memory, such as the problems of runs."""


log = logging.getLogger("rxloop")


@contextmanager
def skip_unreadable(record: RunRecord) -> Generator[None]:
    """Continue after the block if a run cannot be read or was removed, because lists must contain the other runs."""
    try:
        yield
    except EventLogError as error:
        if error.retryable:
            raise
        if not isinstance(error, UnknownRun):
            log.warning("Skipping run %s: %s", record.task_id, error)


class Summaries:
    """Cache of run summaries, extended when a run has new events."""

    def __init__(self) -> None:
        self._known = OrderedDict[tuple[str, bool], tuple[Event, RunSummary, SummaryFold]]()
        self._sizes: dict[tuple[str, bool], int] = {}
        self._size = 0

    def find(self, record: RunRecord) -> RunSummary | None:
        """Return the summary of a run, or None if it is unknown or outdated."""
        known = self._known.get((record.task_id, False))
        if known is None or _describe(known[0]) != (record.seq, record.attempt, record.updated):
            return None
        self._known.move_to_end((record.task_id, False))
        return known[1]

    async def read(self, log: EventLog, record: RunRecord) -> RunSummary:
        """Read new events of a run and return its summary, which is empty if the run cannot be read."""
        with skip_unreadable(record):
            return (await self._read(log, record, internal=False))[0]
        return RunSummary()

    async def find_or_start(self, log: EventLog, record: RunRecord) -> RunSummary:
        """Return the known summary of a run, or else read its first events only."""
        summary = self.find(record)
        if summary is None:
            with skip_unreadable(record):
                return await summarize_start(log, record)
        return summary or RunSummary()

    async def read_problems(
        self, log: EventLog, record: RunRecord, *, internal: bool, now: int | None
    ) -> tuple[RunSummary, list[RunProblem]]:
        """Read new events of a run and return its summary and problems.

        Args:
            log: Event log.
            record: Record of the run.
            internal: Whether to include problems that clients must not receive.
            now: Current time in milliseconds, used to find a stall after the last event.
        """
        summary, fold = await self._read(log, record, internal=internal)
        collect = partial(fold.collect_problems, record.task_id, now=now)
        return summary, await log.local.get(Outlines).compute(collect)

    async def _read(self, log: EventLog, record: RunRecord, *, internal: bool) -> tuple[RunSummary, SummaryFold]:
        # Another request for this run must not extend the same fold.
        key = (record.task_id, internal)
        known = self._known.pop(key, None)
        self._size -= self._sizes.pop(key, 0)
        fold = SummaryFold(internal=internal) if known is None or known[0].seq > record.seq else known[2]
        last, outlines = fold.last, log.local.get(Outlines)
        after_seq = 0 if last is None else last.seq - 1
        async with aclosing(read_chunks(log, record.task_id, after_seq=after_seq, last_seq=record.seq)) as chunks:
            async for chunk in chunks:
                if last is not None:
                    if _describe(chunk[0]) != _describe(last):
                        # The log was rolled back.
                        return await self._read(log, record, internal=internal)
                    last, chunk = None, chunk[1:]
                await outlines.compute(partial(fold.add, chunk))
        summary = fold.make_summary(record.task_id)
        if fold.last is not None:
            self._known[key] = fold.last, summary, fold
            self._limit(key, fold.size)
        return summary, fold

    def _limit(self, key: tuple[str, bool], size: int) -> None:
        """Remove the least recently used folds if the folds in memory are too large."""
        self._size += size - self._sizes.pop(key, 0)
        self._sizes[key] = size
        while self._known and (len(self._known) > _MAX_SUMMARIES or self._size > MAX_SIZE):
            oldest, _ = self._known.popitem(last=False)
            self._size -= self._sizes.pop(oldest, 0)


def _describe(event: Event) -> tuple[int, int, int]:
    return event.seq, event.attempt, event.timestamp


def make_detailed_info(call: ApiCall[Any, Any], record: RunRecord, summary: RunSummary) -> RunInfo:
    """Return a run's state with the details of its summary."""
    details = {**asdict(summary), "model": record.model or None}
    if summary.seconds is None:
        details["seconds"] = max(record.updated - record.created, 0) / 1000
    return reads.make_short_info(call, record).model_copy(update=details)
