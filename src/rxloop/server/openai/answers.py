"""Streaming, synchronous and stored responses."""

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
"""Turn number for folding all responses of a run."""


def _event(event: Json) -> bytes:
    return b"event: " + event["type"].encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"


RESPONSE_EVENTS = FrameWriter(SSE.media_type, _event, draining=SSE.draining)


def json(body: Any, status: int = 200) -> Response:
    """Create a JSON response."""
    return Response(orjson.dumps(body), status, {"cache-control": "no-store"}, media_type="application/json")


async def folded(call: OpenAiCall[Any], record: RunRecord, which: ResponseId) -> ResponseFold:
    """Fold a response from the stored events."""
    fold = ResponseFold(about_of(record, call.gateway.runtime), which, lambda event: None)
    chat = ChatFold(fold.take)
    for event in await read_log(call.gateway.runtime.log.read, record.task_id):
        shown = event.to_public()
        if shown is not None:
            chat.take(shown)
    return fold


def response_stream(call: OpenAiCall[Any], record: RunRecord, which: ResponseId, *, after: int = -1) -> Stream[Json]:
    """Return the events of a response.

    Background responses are read only from the log, so that sequence numbers are stable. They contain deltas only if
    the log stores deltas. Other responses are streamed live, because they cannot be read again.
    """
    about, runtime = about_of(record, call.gateway.runtime), call.gateway.runtime
    view = response_events(about, which, after=after)
    if about.background:
        deltas = runtime.log.keeps_deltas
        return follow(runtime.log, record.task_id, deltas=deltas, until="end").pipe(view)
    return runtime.follow(record.task_id).pipe(view)


async def abandon(call: OpenAiCall[Any], record: RunRecord, which: ResponseId) -> None:
    """Cancel a run after its client disconnected, unless the response is complete."""
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
"""Writer for non-resumable responses."""


def streamed(
    call: OpenAiCall[Any], events: Stream[Json], leave: Leave, writer: FrameWriter[Json] | None = None
) -> EventStream:
    """Create a streaming response.

    Args:
        call: Current request.
        events: Events to stream.
        leave: Called if the client disconnects before the end.
        writer: Frame writer; None uses the format of the Responses API.
    """
    if writer is None:
        # Tell the client to reconnect only if the response can be read again.
        writer = RESPONSE_EVENTS if leave is None else _ONCE
    return call.stream(events, writer, on_disconnect=leave)


class Left(Exception):
    """Raised if the client has disconnected."""


async def waited(call: OpenAiCall[Any], events: AsyncIterable[Json], leave: Leave) -> bool:
    """Read a stream to its end while the client is connected.

    Args:
        call: Current request.
        events: Stream whose fold collects the response.
        leave: Called if the client disconnects before the end.

    Returns:
        True if the stream completed, False if the server is draining.

    Raises:
        Left: If the client has disconnected.
        Refused: If the principal has too many open streams, or the log is unavailable.
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
