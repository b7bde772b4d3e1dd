"""Streamed, awaited and stored answers."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
from starlette.responses import Response

from rxloop.errors import EventLogError
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.recorded.follow import follow
from rxloop.server.core.chat_fold import ChatFold
from rxloop.server.core.errors import Refused
from rxloop.server.core.runs import cancel_abandoned_run
from rxloop.server.core.stream import SSE, EventStream, FrameWriter, read_to_end, wait_disconnected
from rxloop.server.openai.call import OpenAiCall, about_of
from rxloop.server.openai.response_fold import ResponseFold, response_events
from rxloop.server.openai.response_items import Json, ResponseId
from rxloop.stream.stream import Stream

ALL_TURNS = 1 << 30
"""The number of a response that no run has: its fold goes over all of them."""


def _event(event: Json) -> bytes:
    return b"event: " + event["type"].encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"


RESPONSE_EVENTS = FrameWriter(SSE.media_type, _event, draining=SSE.draining)


def json(body: Any, status: int = 200) -> Response:
    """An answer in JSON."""
    return Response(orjson.dumps(body), status, {"cache-control": "no-store"}, media_type="application/json")


async def folded(call: OpenAiCall[Any], record: RunRecord, which: ResponseId) -> ResponseFold:
    """A response as it stands in the log."""
    fold = ResponseFold(about_of(record, call.gateway.runtime), which, lambda event: None)
    chat = ChatFold(fold.take)
    for event in await read_log(call.gateway.runtime.log.read, record.task_id):
        shown = event.to_public()
        if shown is not None:
            chat.take(shown)
    return fold


def response_stream(call: OpenAiCall[Any], record: RunRecord, which: ResponseId, *, after: int = -1) -> Stream[Json]:
    """The events of a response.

    One in the background has them out of the log alone, wherever it is read, so that each event has one number for
    ever; and so it has deltas only where the log keeps them. The others are as live as they can be: nobody goes on
    reading those.
    """
    about, runtime = about_of(record, call.gateway.runtime), call.gateway.runtime
    view = response_events(about, which, after=after)
    if about.background:
        deltas = runtime.log.keeps_deltas
        return follow(runtime.log, record.task_id, deltas=deltas, until="end").pipe(view)
    return runtime.follow(record.task_id).pipe(view)


async def abandon(call: OpenAiCall[Any], record: RunRecord, which: ResponseId) -> None:
    """Cancel the run of a client that left and whose response nobody else reads, unless the response is over."""
    with suppress(EventLogError):
        if not (await folded(call, record, which)).over:
            await cancel_abandoned_run(call.gateway, record.task_id)


Leave = Callable[[], Coroutine[Any, Any, None]] | None


def _error(code: str, message: str) -> bytes:
    return _event({"type": "error", "sequence_number": 0, "code": code, "message": message, "param": None})


_ONCE = replace(
    RESPONSE_EVENTS,
    draining=_error("draining", "the server goes away"),
    broken=_error("log", "the log is out of reach"),
)
"""For a response that nobody can read again."""


def streamed(
    call: OpenAiCall[Any], events: Stream[Json], leave: Leave, writer: FrameWriter[Json] | None = None
) -> EventStream:
    """Answer with a stream.

    Args:
        call: The request.
        events: What is streamed.
        leave: What is done when the client leaves before the end.
        writer: How it is written; None is the form of responses.
    """
    if writer is None:
        # Whoever may read a response again is told to; for the others this is its end.
        writer = RESPONSE_EVENTS if leave is None else _ONCE
    return call.stream(events, writer, on_disconnect=leave)


class Left(Exception):
    """The client has gone."""


async def waited(call: OpenAiCall[Any], events: AsyncIterable[Json], leave: Leave) -> bool:
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
    with call.gateway.reserve_stream(call.principal) as slot:
        try:
            end = await read_to_end(slot, events, disconnected=partial(wait_disconnected, call.request.receive))
        except EventLogError:
            raise Refused(503, "log", "the log is out of reach", headers={"retry-after": "5"}) from None
    if end == "disconnected":
        if leave is not None:
            call.gateway.spawn(leave())
        raise Left
    return end == "complete"
