"""Problems and texts found in a run, or in all runs that the caller may read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.responses import Response

from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event
from rxloop.protocol.http_api import RunInfo
from rxloop.protocol.http_api.inspection import (
    ProblemList,
    ProblemPage,
    RunProblem,
    RunProblems,
    SearchHit,
    SearchPage,
    SearchResults,
)
from rxloop.recorded.follow import read_chunks
from rxloop.recorded.problems import find_severest
from rxloop.recorded.questions import IDLE_STATES
from rxloop.recorded.search import make_pattern, search_events
from rxloop.recorded.summary import RunSummary
from rxloop.server.http.inspection import Outlines, respond_in_thread
from rxloop.server.http.operations import check_kinds
from rxloop.server.http.requests import (
    ApiCall,
    RecentProblemsQuery,
    SearchQuery,
    SearchRunsQuery,
    VisibilityQuery,
    write_json,
)
from rxloop.server.http.summaries import Summaries, make_detailed_info, skip_unreadable

SEARCH_SECONDS = 0.2
"""Seconds after which a search stops, so that the client can display the first hits."""

PROBLEM_SECONDS = 0.5
"""Seconds after which a request for the problems of all runs reads no further runs."""

ORPHANED_AFTER = 10.0
"""Seconds without an event after which an active run is checked for an owner."""

MAX_PROBLEMS = 20
"""Maximum number of problems of a run in the list of all runs."""

MAX_HITS = 5
"""Maximum number of hits of a run when all runs are searched."""

_SCAN_SIZE = 100
"""Number of records read at once."""


# -- problems


async def problems(call: ApiCall[None, VisibilityQuery]) -> Response:
    """List the problems of a run, such as failures, retries, stalls and open questions."""
    record, internal = await call.record(), call.query.visibility == "all"
    call.check_visibility(call.query.visibility)
    with call.gateway.reserve_stream(call.principal):
        _, found = await _find_problems(call.gateway.runtime.log, record, internal=internal)
        problem_list = ProblemList(task_id=record.task_id, seq=record.seq, problems=found)
        return await respond_in_thread(call, lambda: problem_list)


async def recent_problems(call: ApiCall[None, RecentProblemsQuery]) -> Response:
    """List the problems of all runs that the caller may read, newest runs first."""
    query, log, loop = call.query, call.gateway.runtime.log, asyncio.get_running_loop()
    call.check_visibility(query.visibility)
    if query.after is not None:
        await call.gateway.find_run(call.principal, query.after)
    deadline, after, next_cursor = loop.time() + PROBLEM_SECONDS, query.after, None
    found: list[RunProblems] = []
    with call.gateway.reserve_stream(call.principal):
        async with aclosing(scan_runs(call, query.since, query.after)) as records:
            async for record in records:
                if len(found) == query.limit or (after != query.after and loop.time() > deadline):
                    next_cursor = after
                    break
                after = record.task_id
                if not call.principal.may_see(record):
                    continue
                each: list[RunProblem] = []
                summary = RunSummary()
                with skip_unreadable(record):
                    summary, each = await _find_problems(log, record, internal=query.visibility == "all")
                if each:
                    info = make_detailed_info(call, record, summary).model_copy(update={"problems": len(each)})
                    severest = await log.local.get(Outlines).compute(partial(find_severest, each, MAX_PROBLEMS))
                    found.append(RunProblems(run=info, problems=severest))
    return write_json(ProblemPage(runs=found, next=next_cursor))


async def _find_problems(log: EventLog, record: RunRecord, *, internal: bool) -> tuple[RunSummary, list[RunProblem]]:
    now = time.time_ns() // 1_000_000
    summary, found = await log.local.get(Summaries).read_problems(
        log, record, internal=internal, now=None if record.state in IDLE_STATES else now
    )
    seconds = (now - record.updated) / 1000
    if record.state == "working" and seconds >= ORPHANED_AFTER and await read_log(log.is_orphaned, record.task_id):
        text = "no process owns this run"
        orphaned = RunProblem(code="orphaned", task_id=record.task_id, seq=record.seq, seconds=seconds, text=text)
        found = [*found, orphaned]
    return summary, found


async def scan_runs(call: ApiCall[None, Any], since: int | None, after: str | None) -> AsyncGenerator[RunRecord]:
    """Yield runs, newest first. The caller must check whether the principal has access to them."""
    log, owner = call.gateway.runtime.log, find_owner(call)
    while True:
        records = await read_log(
            log.list_runs, owner=owner, since=since, newest_first=True, after=after, limit=_SCAN_SIZE
        )
        for record in records:
            yield record
            after = record.task_id
        if len(records) < _SCAN_SIZE:
            return
        # Reading a log in memory does not suspend.
        await asyncio.sleep(0)


def find_owner(call: ApiCall[None, Any]) -> str | None:
    """Return the owner of the runs that the caller may read. None means that all runs must be examined.

    That is the case if the caller has access to other owners, or if the log cannot select runs without an owner.
    """
    principal = call.principal
    may_select = "others" not in principal.scopes and (principal.id or call.gateway.runtime.log.accepts_empty_owner)
    return principal.id if may_select else None


# -- search


async def search(call: ApiCall[None, SearchQuery]) -> Response:
    """Search the texts of a run."""
    record, query = await call.record(), call.query
    call.check_visibility(query.visibility)
    task = _Search(call.gateway.runtime.log, query, query.kinds)
    with call.gateway.reserve_stream(call.principal):
        hits, searched = await task.search_run(record, query.after, query.limit)
    next_cursor = searched if searched < record.seq else None
    return write_json(SearchPage(hits=hits, searched=searched, next=next_cursor))


async def search_runs(call: ApiCall[None, SearchRunsQuery]) -> Response:
    """Search the texts of all runs that the caller may read, newest runs first."""
    query, log = call.query, call.gateway.runtime.log
    call.check_visibility(query.visibility)
    task = _Search(log, query, query.kinds)
    hits: list[SearchHit] = []
    runs: list[RunInfo] = []
    next_cursor: str | None = None
    with call.gateway.reserve_stream(call.principal):
        async with aclosing(_list_remaining_runs(call)) as records:
            async for record, after in records:
                if len(hits) >= query.limit or (next_cursor is not None and task.is_late):
                    break
                next_cursor = f"{record.task_id}/{record.seq}"
                if not call.principal.may_see(record):
                    continue
                count = min(MAX_HITS, query.limit - len(hits))
                found, searched = list[SearchHit](), record.seq
                with skip_unreadable(record):
                    found, searched = await task.search_run(record, after, count)
                if found:
                    hits += found[:count]
                    summary = await log.local.get(Summaries).find_or_start(log, record)
                    runs.append(make_detailed_info(call, record, summary))
                if searched < record.seq and len(found) < MAX_HITS:
                    # The time or the limit of hits was reached inside this run.
                    next_cursor = f"{record.task_id}/{searched}"
                    break
            else:
                next_cursor = None
    return write_json(SearchResults(hits=hits, runs=runs, next=next_cursor))


async def _list_remaining_runs(call: ApiCall[None, SearchRunsQuery]) -> AsyncGenerator[tuple[RunRecord, int]]:
    """Yield runs, newest first, with the number of their last event that was searched before.

    Raises:
        Refused: The run of the cursor is unknown or belongs to another principal.
    """
    query, first = call.query, None
    if query.after is not None:
        task_id, _, seq = query.after.rpartition("/")
        first = await call.gateway.find_run(call.principal, task_id)
        if int(seq) < first.seq:
            yield first, int(seq)
    async with aclosing(scan_runs(call, query.since, None if first is None else first.task_id)) as records:
        async for record in records:
            yield record, 0


class _Search:
    """Search for a text, with the time at which it stops."""

    def __init__(self, log: EventLog, query: SearchQuery | SearchRunsQuery, kinds: Sequence[str] | None) -> None:
        """Create a search.

        Raises:
            Refused: An event kind does not exist.
        """
        check_kinds(kinds)
        self._log, self._pattern = log, make_pattern(query.q)
        self._options: dict[str, Any] = {"kinds": kinds, "internal": query.visibility == "all"}
        self._deadline = asyncio.get_running_loop().time() + SEARCH_SECONDS

    @property
    def is_late(self) -> bool:
        """True if the search should stop."""
        return asyncio.get_running_loop().time() > self._deadline

    async def search_run(self, record: RunRecord, after: int, limit: int) -> tuple[list[SearchHit], int]:
        """Search a run until there are enough hits.

        Returns:
            Hits, and the number of the last event that was searched. At least a part of the run is searched.
        """
        hits: list[SearchHit] = []

        def add(events: Sequence[Event]) -> int:
            for event in events:
                hits.extend(search_events((event,), self._pattern, record.task_id, **self._options))
                if len(hits) >= limit:
                    return event.seq
            return events[-1].seq

        log, searched = self._log, min(after, record.seq)
        async with aclosing(read_chunks(log, record.task_id, after_seq=searched, last_seq=record.seq)) as chunks:
            async for chunk in chunks:
                searched = await log.local.get(Outlines).compute(partial(add, chunk))
                if len(hits) >= limit or self.is_late:
                    break
        return hits, searched
