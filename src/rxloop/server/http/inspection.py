"""Handlers used to inspect recorded runs and permissions."""

from __future__ import annotations

import gzip
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from hashlib import sha256
from typing import Any, Literal, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from rxloop._version import __version__
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event
from rxloop.protocol.http_api.inspection import AccessInfo, LogInfo, Permissions
from rxloop.recorded.follow import is_over, read_chunks, read_first
from rxloop.recorded.outline import OutlineFold, OutlineState
from rxloop.recorded.problems import ProblemFold
from rxloop.recorded.summary import make_state_info, redact_state
from rxloop.server.core.errors import Refused
from rxloop.server.core.request_slots import check_connected
from rxloop.server.core.stream import INTERNAL
from rxloop.server.http import operations
from rxloop.server.http.omissions import shorten_document, shorten_event
from rxloop.server.http.requests import (
    ApiCall,
    EventsQuery,
    OutlineQuery,
    Query,
    StateQuery,
    choose_event_format,
    make_event_selector,
    write_json,
)
from rxloop.state.fold import fold_all
from rxloop.state.run_state import initial_state
from rxloop.storage.conversation import conversation
from rxloop.support.threads import Threads, run_in_thread

T = TypeVar("T")

MAX_RANGE = 400
"""Maximum number of recorded events in a range."""

_MAX_RANGE_BYTES = 8 << 20
"""Maximum size of a range in bytes, unless it has a single event."""

_MIN_COMPRESSED = 1_000
"""Size in bytes from which responses are compressed."""

_MAX_STATES = 32
"""Maximum number of outlines that a process can continue without reading the start of the run again."""


class Outlines:
    """Cache of outline states, used to continue an outline on the next page, and the thread for computing outlines."""

    def __init__(self) -> None:
        self._states = OrderedDict[tuple[str, int], OutlineState]()
        # One thread leaves the other processors to the event loop and to tools.
        self._threads = Threads(max_running=1)

    async def compute(self, function: Callable[[], T]) -> T:
        """Run a function outside of the event loop.

        Raises:
            Refused: If the client of the current request has disconnected.
        """
        await check_connected()
        return await run_in_thread(function, threads=self._threads)

    def get(self, task_id: str, seq: int) -> OutlineState | None:
        """Return the state after an event, or None if it must be computed."""
        state = self._states.get((task_id, seq))
        if state is not None:
            self._states.move_to_end((task_id, seq))
        return state

    def put(self, task_id: str, state: OutlineState) -> None:
        """Add a state to the cache. If the cache is full, remove the least recently used state."""
        self._states[task_id, state.position.seq] = state
        self._states.move_to_end((task_id, state.position.seq))
        if len(self._states) > _MAX_STATES:
            self._states.popitem(last=False)


async def outline(call: ApiCall[None, OutlineQuery]) -> Response:
    """Return an outline, which describes the structure of a run."""
    record, query, gateway = await call.record(), call.query, call.gateway
    call.check_visibility(query.visibility)
    log, task_id = gateway.runtime.log, record.task_id
    outlines = log.local.get(Outlines)
    after = min(query.after, record.seq)
    last = min(record.seq, after + query.limit)
    with gateway.reserve_stream(call.principal):
        state = await _find_state(log, outlines, task_id, after)
        fold = OutlineFold(state, internal=query.visibility == "all")
        await _add_events(log, fold, task_id, state.position.seq, after)
        fold.reset()
        await _add_events(log, fold, task_id, after, last)
        outlines.put(task_id, fold.state)
        final = last == record.seq and await is_over(log, record)
        make_page = partial(fold.make_page, task_id, seq=record.seq, final=final)
        return await respond_in_thread(call, make_page)


async def _find_state(log: EventLog, outlines: Outlines, task_id: str, after: int) -> OutlineState:
    """Return the state after an event, or an earlier one if the event was replaced by a rollback of the log."""
    state = outlines.get(task_id, after) if after else None
    if state is None:
        return OutlineState()
    event = await read_first(log, task_id, after_seq=after - 1)
    is_same = event is not None and (event.seq, event.attempt, event.timestamp) == state.position
    return state if is_same else OutlineState()


async def _add_events(log: EventLog, fold: OutlineFold | ProblemFold, task_id: str, after: int, last: int) -> None:
    outlines = log.local.get(Outlines)
    async with aclosing(read_chunks(log, task_id, after_seq=after, last_seq=last)) as chunks:
        async for chunk in chunks:
            await outlines.compute(partial(fold.add, chunk))


def encode_response(model: BaseModel, request: Request, max_text: int | None = None) -> Response:
    """Encode a response to JSON, and compress it if the client accepts gzip.

    Args:
        model: Response.
        request: HTTP request.
        max_text: Number of characters to which long values are shortened, if any.
    """
    body = shorten_document(model.model_dump_json(by_alias=True).encode(), max_text)
    headers = {"cache-control": "no-store", "vary": "accept-encoding"}
    if len(body) >= _MIN_COMPRESSED and accepts_gzip(request):
        body, headers["content-encoding"] = gzip.compress(body, 5, mtime=0), "gzip"
    return Response(body, headers=headers, media_type="application/json")


async def respond_in_thread(
    call: ApiCall[Any, Any], make: Callable[[], BaseModel], max_text: int | None = None
) -> Response:
    """Make and encode a large response outside of the event loop."""
    compute = call.gateway.runtime.log.local.get(Outlines).compute
    return await compute(lambda: encode_response(make(), call.request, max_text))


def accepts_gzip(request: Request) -> bool:
    """Return True if the client accepts responses that are compressed with gzip."""
    for each in request.headers.get("accept-encoding", "").lower().split(","):
        coding, *parameters = (part.replace(" ", "") for part in each.split(";"))
        if coding == "gzip":
            return not any(part.rstrip("0") in ("q=", "q=0.") for part in parameters)
    return False


async def events(call: ApiCall[None, EventsQuery]) -> Response:
    """Stream a run's events, or return a range of its recorded events."""
    query = call.query
    if query.first is None and query.last is None:
        return await operations.events(call)
    record = await call.record()
    call.check_visibility(query.visibility)
    if query.after is not None or query.speed is not None or call.request.headers.get("last-event-id"):
        fields = {"from": "cannot be combined with a cursor or a speed"}
        raise Refused(422, "invalid", "a range of events cannot be combined with a cursor or a speed", fields=fields)
    operations.check_kinds(query.kinds)
    return await _read_range(call, record)


async def _read_range(call: ApiCall[None, EventsQuery], record: RunRecord) -> Response:
    """Return the recorded events of a range as a complete response, whether the run continues or not."""
    query, writer = call.query, choose_event_format(call.request)
    first = query.first or 1
    last = min(query.last or first + MAX_RANGE - 1, first + MAX_RANGE - 1, record.seq)
    frames: list[bytes] = []
    choose = make_event_selector(query)
    encode = (writer if query.visibility == "public" else INTERNAL[writer.media_type]).encode
    max_text = query.max_text if writer.media_type == "application/x-ndjson" else None

    def add(events: Sequence[Event]) -> bool:
        """Encode events, and return True if the range is full."""
        size = sum(map(len, frames))
        for event in map(choose, events):
            if event is not None:
                frame = encode(event)
                frames.append(frame if max_text is None or len(frame) <= max_text else shorten_event(frame, max_text))
                size += len(frames[-1])
                if size >= _MAX_RANGE_BYTES:
                    return True
        return False

    log = call.gateway.runtime.log
    with call.gateway.reserve_stream(call.principal):
        async with aclosing(read_chunks(log, record.task_id, after_seq=first - 1, last_seq=last)) as chunks:
            async for chunk in chunks:
                if await log.local.get(Outlines).compute(partial(add, chunk)):
                    break
    body = b"".join(frames)
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    # Browsers may cache the events but must revalidate them.
    headers = {"etag": tag, "cache-control": "private, no-cache", "vary": "accept, authorization"}
    if tag in (each.strip().removeprefix("W/") for each in call.request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=writer.media_type)


async def state(call: ApiCall[None, StateQuery]) -> Response:
    """Return the state of a run after an event, including internal data only if requested and permitted."""
    record, query = await call.record(), call.query
    call.check_visibility(query.visibility)
    seq, start = record.seq if query.seq is None else query.seq, query.messages_from
    if seq > record.seq:
        raise Refused(422, "invalid", "the event does not exist", fields={"seq": f"must be from 1 to {record.seq}"})

    log = call.gateway.runtime.log
    # Other parts of the state do not depend on earlier runs.
    inherited = (await conversation(log, record.conversation, before=record.task_id)).goals
    folded = initial_state().replace(goals=inherited)

    def add(events: Sequence[Event]) -> None:
        nonlocal folded
        folded = fold_all((event for event in events if event.seq <= seq), folded)

    def respond() -> Response:
        info = make_state_info(record.task_id, seq, folded)
        info = info if query.visibility == "all" else redact_state(info)
        if start is not None:
            # Messages are only added, so their indexes do not change.
            later = {"messages": info.messages[start:], "message_count": len(info.messages)}
            info = info.model_copy(update=later)
        return encode_response(info, call.request, query.max_text)

    gateway = call.gateway
    with gateway.reserve_stream(call.principal):
        return await gateway.computations.fold(call.principal.id, log, record, add, respond)


async def me(call: ApiCall[None, Query]) -> Response:
    """Return the permissions of the authenticated principal."""
    principal, runtime = call.principal, call.gateway.runtime
    has_agents = bool(runtime.agents)
    may = Permissions(
        act=has_agents,
        internal="internal" in principal.scopes,
        others="others" in principal.scopes,
        cases=call.cases is not None and "cases" in principal.scopes,
    )
    return write_json(
        AccessInfo(
            principal=principal.id,
            scopes=sorted(principal.scopes),
            may=may,
            log=LogInfo(kind=_find_log_kind(runtime.log), keeps_deltas=runtime.log.keeps_deltas),
            agents=has_agents,
            version=__version__,
        )
    )


def _find_log_kind(log: EventLog) -> Literal["memory", "sqlite", "postgres", "custom"]:
    # Importing the classes would also import database drivers.
    names = {each.__name__ for each in type(log).__mro__ if each.__module__.startswith("rxloop.")}
    if "SqliteEventLog" in names:
        return "sqlite"
    if "PostgresEventLog" in names:
        return "postgres"
    return "memory" if "MemoryEventLog" in names else "custom"
