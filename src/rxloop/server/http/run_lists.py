"""List of runs with filters, text search and summaries."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import aclosing, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any

from starlette.responses import Response

from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event
from rxloop.protocol.http_api import RunInfo, RunPage
from rxloop.recorded.follow import read_chunks, read_first
from rxloop.recorded.summary import RunSummary, SummaryFold, contains_text, summarize_start
from rxloop.server.http import reads
from rxloop.server.http.inspection import Outlines
from rxloop.server.http.requests import ApiCall, RunsQuery, write_json

MAX_SECONDS = 0.5
"""Seconds after which a request reads no further runs for a search, and no further events for summaries."""

_SCAN_SIZE = 100
"""Number of records read at once for filters that the log does not support."""

_MAX_SCANNED = 2_000
"""Maximum number of records examined by a request."""

_MAX_SUMMARIES = 1_000
"""Maximum number of summaries in memory."""


class Summaries:
    """Cache of run summaries, extended when a run has new events."""

    def __init__(self) -> None:
        self._known = OrderedDict[str, tuple[Event, RunSummary, SummaryFold]]()

    def find(self, record: RunRecord) -> RunSummary | None:
        """Return the summary of a run, or None if it is unknown or outdated."""
        known = self._known.get(record.task_id)
        if known is None or _describe(known[0]) != (record.seq, record.attempt, record.updated):
            return None
        self._known.move_to_end(record.task_id)
        return known[1]

    async def read(self, log: EventLog, record: RunRecord) -> RunSummary:
        """Read new events of a run and return its summary."""
        # Another request for this run must not extend the same fold.
        known = self._known.pop(record.task_id, None)
        fold = SummaryFold() if known is None or known[0].seq > record.seq else known[2]
        last, outlines = fold.last, log.local.get(Outlines)
        after_seq = 0 if last is None else last.seq - 1
        async with aclosing(read_chunks(log, record.task_id, after_seq=after_seq, last_seq=record.seq)) as chunks:
            async for chunk in chunks:
                if last is not None:
                    if _describe(chunk[0]) != _describe(last):
                        # The log was rolled back.
                        return await self.read(log, record)
                    last, chunk = None, chunk[1:]
                await outlines.compute(partial(fold.add, chunk))
        summary = fold.make_summary(record.task_id)
        if fold.last is not None:
            self._known[record.task_id] = fold.last, summary, fold
            if len(self._known) > _MAX_SUMMARIES:
                self._known.popitem(last=False)
        return summary


def _describe(event: Event) -> tuple[int, int, int]:
    return event.seq, event.attempt, event.timestamp


async def runs(call: ApiCall[None, RunsQuery]) -> Response:
    """List the caller's runs, newest first."""
    query = call.query
    if query.is_plain:
        return await reads.runs(call)
    reads_events = query.details or query.q is not None
    with call.gateway.reserve_stream(call.principal) if reads_events else nullcontext():
        records, next_cursor = await _find_runs(call)
        infos = (
            await _describe_runs(call, records)
            if query.details
            else [reads.make_short_info(call, record) for record in records]
        )
    return write_json(RunPage(runs=infos, next=next_cursor))


async def _find_runs(call: ApiCall[None, RunsQuery]) -> tuple[list[RunRecord], str | None]:
    """Return a page of matching runs and the cursor of the next page.

    The page of a search may have fewer runs than requested, or none, although another page follows.
    """
    query, log = call.query, call.gateway.runtime.log
    if query.after is not None:
        await call.gateway.find_run(call.principal, query.after)
    owner = query.owner if "others" in call.principal.scopes else call.principal.id
    if query.owner not in (None, owner):
        return [], None
    is_filtered = query.model is not None or query.q is not None
    filters: dict[str, Any] = {
        "owner": owner if owner or log.accepts_empty_owner else None,
        "context_id": query.context_id,
        "agent_name": query.agent,
        "states": None if query.state is None else (query.state,),
        "since": query.since,
        "until": query.until,
        "unfinished": query.unfinished,
        "newest_first": True,
        "limit": _SCAN_SIZE if is_filtered or owner == "" else query.limit + 1,
    }
    deadline, scanned, after = asyncio.get_running_loop().time() + MAX_SECONDS, 0, query.after
    found: list[RunRecord] = []
    while True:
        records = await read_log(log.list_runs, **filters, after=after)
        for record in records:
            if len(found) == query.limit or scanned >= _MAX_SCANNED:
                return found, after
            if scanned and query.q is not None and asyncio.get_running_loop().time() > deadline:
                return found, after
            after, scanned = record.task_id, scanned + 1
            if call.principal.may_see(record) and await _matches(log, record, query):
                found.append(record)
        if len(records) < filters["limit"]:
            return found, None


async def _matches(log: EventLog, record: RunRecord, query: RunsQuery) -> bool:
    """Check the filters that the log does not support."""
    if query.owner == "" and record.owner:
        return False
    if query.model is not None and record.model != query.model:
        return False
    if query.q is None:
        return True
    text = query.q.casefold()
    if any(text in name.casefold() for name in (record.task_id, record.context_id, record.agent_name)):
        return True
    async with aclosing(read_chunks(log, record.task_id, last_seq=record.seq)) as chunks:
        async for chunk in chunks:
            if await log.local.get(Outlines).compute(partial(contains_text, chunk, text)):
                return True
    return False


async def _describe_runs(call: ApiCall[None, RunsQuery], records: Sequence[RunRecord]) -> list[RunInfo]:
    """Return the details of runs. If there is not enough time, some runs lack the details that need all events."""
    log = call.gateway.runtime.log
    summaries, loop = log.local.get(Summaries), asyncio.get_running_loop()
    deadline = loop.time() + MAX_SECONDS
    infos: list[RunInfo] = []
    for record in records:
        summary = summaries.find(record)
        if summary is None and loop.time() < deadline:
            summary = await summaries.read(log, record)
        elif summary is None:
            summary = summarize_start(await read_first(log, record.task_id))
        seconds = max(record.updated - record.created, 0) / 1000
        details = {**asdict(summary), "model": record.model or None, "seconds": seconds}
        infos.append(reads.make_short_info(call, record).model_copy(update=details))
    return infos
