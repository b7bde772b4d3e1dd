"""Streamed, awaited and stored answers."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio
import orjson
from starlette.responses import Response

from rxloop.errors import ConflictError, EventLogError
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.recorded.follow import follow
from rxloop.server.core import runs
from rxloop.server.core.chat_fold import ChatFold
from rxloop.server.core.errors import Refused
from rxloop.server.core.stream import SSE, EventStream, Format
from rxloop.server.openai.call import Call, about_of
from rxloop.server.openai.response_fold import ResponseFold
from rxloop.server.openai.response_items import Json, ResponseId
from rxloop.server.openai.views import response_events
from rxloop.stream.stream import Stream

ALL_TURNS = 1 << 30
"""The number of a response that no run has: its fold goes over all of them."""


def _event(event: Json) -> bytes:
    return b"event: " + event["type"].encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"


RESPONSE_EVENTS: Format = replace(SSE, encode=_event, first=b"")


def json(body: Any, status: int = 200) -> Response:
    """An answer in JSON."""
    return Response(orjson.dumps(body), status, {"cache-control": "no-store"}, media_type="application/json")


async def folded(call: Call, record: RunRecord, which: ResponseId) -> ResponseFold:
    """A response as it stands in the log."""
    fold = ResponseFold(about_of(record, call.host.runtime), which, lambda event: None)
    chat = ChatFold(fold.take)
    for event in await read_log(call.host.runtime.log.read, record.task_id):
        shown = event.for_clients()
        if shown is not None:
            chat.take(shown)
    return fold


def response_stream(call: Call, record: RunRecord, which: ResponseId, *, after: int = -1) -> Stream[Json]:
    """The events of a response.

    One in the background has them out of the log alone, wherever it is read, so that each event has one number for
    ever; and so it has deltas only where the log keeps them. The others are as live as they can be: nobody goes on
    reading those.
    """
    about, runtime = about_of(record, call.host.runtime), call.host.runtime
    view = response_events(about, which, after=after)
    if about.background:
        deltas = runtime.log.keeps_deltas
        return follow(runtime.log, record.task_id, deltas=deltas, until="end").pipe(view)
    return runtime.follow(record.task_id).pipe(view)


def cancelling(call: Call, record: RunRecord, which: ResponseId) -> Callable[[], Coroutine[Any, Any, None]]:
    """What is done when a client leaves whose response nobody else reads: one that has its end leaves it as it is."""

    async def leave() -> None:
        with suppress(EventLogError):
            if not (await folded(call, record, which)).over:
                await runs.cancelling(call.host, record.task_id)()

    return leave


async def cancel(call: Call, record: RunRecord) -> None:
    """Cancel a run, here or elsewhere."""
    with suppress(ConflictError):
        # In its mail, where it stays until somebody has time for it.
        await call.host.runtime.cancel(record.task_id)


Leave = Callable[[], Coroutine[Any, Any, None]] | None


def _error(code: str, message: str) -> bytes:
    return _event({"type": "error", "sequence_number": 0, "code": code, "message": message, "param": None})


_ONCE: Format = replace(
    RESPONSE_EVENTS,
    last=_error("draining", "the server goes away"),
    broken=_error("log", "the log is out of reach"),
)
"""For a response that nobody can read again."""


def streamed(call: Call, events: Stream[Json], leave: Leave, form: Format | None = None) -> EventStream:
    """Answer with a stream.

    Args:
        call: The request.
        events: What is streamed.
        leave: What is done when the client leaves before the end.
        form: How it is written; None is the form of responses.
    """
    heartbeat = call.options.heartbeat
    if form is None:
        # Whoever may read a response again is told to; for the others this is its end.
        form = RESPONSE_EVENTS if leave is None else _ONCE
    return EventStream(call.host, call.principal, events, form, heartbeat=heartbeat, on_disconnect=leave)


class Left(Exception):
    """The client has gone."""


async def waited(call: Call, events: AsyncIterable[Json], leave: Leave) -> bool:
    """Read a stream to its end while the client waits.

    Args:
        call: The request.
        events: What is read; a fold in it keeps what is wanted of it.
        leave: What is done when the client leaves before the end.

    Returns:
        Whether it has come to its end; otherwise the server goes away.

    Raises:
        Left: The client has gone.
        Refused: The principal reads too many streams, or the log is out of reach.
    """
    host = call.host
    host.take_stream(call.principal)
    over = left = lost = False
    scope = anyio.CancelScope()
    with host.streaming(call.principal, scope), scope:
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                nonlocal left
                while (await call.request.receive())["type"] != "http.disconnect":
                    pass
                left = True
                group.cancel_scope.cancel()

            group.start_soon(watch)
            try:
                async for _ in events:
                    pass
                over = True
            except EventLogError:
                # Raised in here, it would come out as one of a group.
                lost = True
            group.cancel_scope.cancel()
    if lost:
        raise Refused(503, "log", "the log is out of reach", headers={"retry-after": "5"})
    if left and not over:
        if leave is not None:
            host.later(leave())
        raise Left
    return over
