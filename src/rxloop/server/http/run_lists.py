"""List of runs with filters, text search and summaries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, nullcontext, suppress
from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from rxloop.errors import UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import FINISHED, RunRecord
from rxloop.protocol.http_api import RunInfo, RunPage
from rxloop.recorded.follow import read_chunks
from rxloop.recorded.summary import contains_text
from rxloop.server.core.errors import Refused
from rxloop.server.core.stream import SSE, FrameWriter
from rxloop.server.http import reads
from rxloop.server.http.inspection import Outlines
from rxloop.server.http.requests import ApiCall, RunsQuery, prefers_events, write_json
from rxloop.server.http.summaries import Summaries, make_detailed_info, skip_unreadable
from rxloop.stream.sources import Push, from_task
from rxloop.stream.stream import ReadOnlyHold, Stream

MAX_SECONDS = 0.5
"""Seconds after which a request reads no further runs for a search, and no further events for summaries."""

_SCAN_SIZE = 100
"""Number of records read at once for filters that the log does not support."""

_MAX_SCANNED = 2_000
"""Maximum number of records examined by a request."""

POLL_SECONDS = 1.0
"""Seconds between two reads of a live list."""

MAX_WATCHED = 100
"""Number of the newest runs whose changes are found by a live list."""


async def runs(call: ApiCall[None, RunsQuery]) -> Response:
    """List the caller's runs, newest first."""
    query = call.query
    if prefers_events(call.request):
        return await _stream_runs(call)
    reads_events = query.details or query.q is not None
    with call.gateway.reserve_stream(call.principal) if reads_events else nullcontext():
        page = await _make_page(call)
    return write_json(page)


async def _make_page(call: ApiCall[None, RunsQuery]) -> RunPage:
    records, next_cursor = await _find_runs(call)
    return RunPage(runs=await _describe_runs(call, records), next=next_cursor)


def _find_owner(call: ApiCall[None, RunsQuery]) -> str | None:
    """Return the owner of all visible runs that match the query. None includes every owner."""
    return call.query.owner if "others" in call.principal.scopes else call.principal.id


def _make_filters(call: ApiCall[None, RunsQuery]) -> dict[str, Any]:
    """Return the filters that the log supports, with the number of records to read at once."""
    query, owner = call.query, _find_owner(call)
    is_scan = query.model is not None or query.q is not None or owner == ""
    return {
        "owner": owner if owner or call.gateway.runtime.log.accepts_empty_owner else None,
        "context_id": query.context_id,
        "agent_name": query.agent,
        "states": None if query.state is None else (query.state,),
        "since": query.since,
        "until": query.until,
        "unfinished": query.unfinished,
        "newest_first": True,
        "limit": _SCAN_SIZE if is_scan else query.limit + 1,
    }


async def _find_runs(call: ApiCall[None, RunsQuery]) -> tuple[list[RunRecord], str | None]:
    """Return a page of matching runs and the cursor of the next page.

    The page of a search may have fewer runs than requested, or none, although another page follows.
    """
    query, log = call.query, call.gateway.runtime.log
    if query.after is not None:
        await call.gateway.find_run(call.principal, query.after)
    if query.owner not in (None, _find_owner(call)):
        return [], None
    filters = _make_filters(call)
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
        # Reading a log in memory does not suspend.
        await asyncio.sleep(0)


async def _matches(log: EventLog, record: RunRecord, query: RunsQuery) -> bool:
    """Check the filters that the log does not support."""
    if not _matches_record(record, query):
        return False
    if query.q is None:
        return True
    text = query.q.casefold()
    if any(text in name.casefold() for name in (record.task_id, record.context_id, record.agent_name)):
        return True
    with skip_unreadable(record):
        async with aclosing(read_chunks(log, record.task_id, last_seq=record.seq)) as chunks:
            async for chunk in chunks:
                if await log.local.get(Outlines).compute(partial(contains_text, chunk, text)):
                    return True
    return False


def _matches_record(record: RunRecord, query: RunsQuery) -> bool:
    return not (query.owner == "" and record.owner) and query.model in (None, record.model)


async def _describe_runs(call: ApiCall[None, RunsQuery], records: Sequence[RunRecord]) -> list[RunInfo]:
    """Return the requested data of runs.

    If there is not enough time, some runs lack the details that need all events.
    """
    if not call.query.details:
        return [reads.make_short_info(call, record) for record in records]
    log = call.gateway.runtime.log
    summaries, loop = log.local.get(Summaries), asyncio.get_running_loop()
    deadline = loop.time() + MAX_SECONDS
    infos: list[RunInfo] = []
    for record in records:
        summary = summaries.find(record)
        if summary is None and loop.time() < deadline:
            summary = await summaries.read(log, record)
        elif summary is None:
            summary = await summaries.find_or_start(log, record)
        infos.append(make_detailed_info(call, record, summary))
    return infos


# -- live lists


def _encode_frame(frame: tuple[str, BaseModel]) -> bytes:
    name, model = frame
    return f"event: {name}\ndata: {model.model_dump_json(by_alias=True)}\n\n".encode()


_LIST_WRITER = FrameWriter[tuple[str, BaseModel]](
    "text/event-stream", _encode_frame, b"retry: 2000\n\n", draining=SSE.draining
)


async def _stream_runs(call: ApiCall[None, RunsQuery]) -> Response:
    """Stream a page of runs, and then each run that is new or has changed."""
    if call.query.q is not None:
        fields = {"q": "cannot be combined with a stream"}
        raise Refused(422, "invalid", "a live list cannot be searched", fields=fields)
    call.gateway.check_stream(call.principal)
    hold, watch = ReadOnlyHold(), _Watch(call)
    # Read the page before the response starts, so that errors have a status.
    await watch.start()

    async def work(push: Push[tuple[str, BaseModel]]) -> None:
        push(("page", watch.page))
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for info in await watch.poll():
                push(("run", info))
            if hold.gate.closed:
                await hold.gate.wait()

    source = from_task(work, name="rxloop-run-list")
    return call.stream(Stream(source, hold, overflow="block"), _LIST_WRITER)


class _Watch:
    """Runs of a live list, and their records sent last."""

    page: RunPage

    def __init__(self, call: ApiCall[None, RunsQuery]) -> None:
        self._call = call
        self._records: dict[str, RunRecord] = {}

    async def start(self) -> None:
        """Read the page, and the records for finding later changes.

        Raises:
            Refused: The client has no access to the run of the cursor.
        """
        self._records = {record.task_id: record for record in await self._read_newest()}
        records, next_cursor = await _find_runs(self._call)
        self._records.update((record.task_id, record) for record in records)
        self.page = RunPage(runs=await _describe_runs(self._call, records), next=next_cursor)
        self._sent = {record.task_id for record in records}

    async def _read_newest(self) -> Sequence[RunRecord]:
        # A run must also be found after it has left the requested state.
        limits: dict[str, Any] = {"states": None, "unfinished": False, "limit": MAX_WATCHED}
        filters = _make_filters(self._call) | limits
        if self._call.query.owner not in (None, _find_owner(self._call)):
            return []
        records = await read_log(self._call.gateway.runtime.log.list_runs, **filters)
        return [record for record in records if self._call.principal.may_see(record)]

    async def poll(self) -> list[RunInfo]:
        """Return the runs that have changed, oldest first."""
        log = self._call.gateway.runtime.log
        newest = {record.task_id: record for record in await self._read_newest()}
        older = [task_id for task_id in self._sent - newest.keys() if self._records[task_id].state not in FINISHED]
        for task_id in older[:MAX_WATCHED]:
            with suppress(UnknownRun):
                newest[task_id] = await read_log(log.get_record, task_id)
        changed: list[RunRecord] = []
        for record in newest.values():
            if self._records.get(record.task_id) == record:
                continue
            # Runs that no longer match are sent, too, because the client displays them.
            if record.task_id in self._sent or self._matches(record):
                changed.append(record)
        # Finished runs are dropped when they are no longer among the newest runs.
        self._records = newest
        self._sent = {task_id for task_id in newest if task_id in self._sent} | {each.task_id for each in changed}
        return await _describe_runs(self._call, sorted(changed, key=lambda record: record.created))

    def _matches(self, record: RunRecord) -> bool:
        query = self._call.query
        if query.state not in (None, record.state) or (query.unfinished and record.state in FINISHED):
            return False
        return _matches_record(record, query)
