"""Delivery of responses: streamed, complete, or stored."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
from starlette.responses import Response

from rxloop.errors import EventLogError
from rxloop.pipeline.records import RunRecord
from rxloop.recorded.follow import follow
from rxloop.server.core.chat_fold import ChatFold
from rxloop.server.core.errors import Refused
from rxloop.server.core.runs import cancel_abandoned_run
from rxloop.server.core.stream import SSE, EventStream, FrameWriter, read_to_end, wait_disconnected
from rxloop.server.openai.call import OpenAiCall, get_response_info
from rxloop.server.openai.response_fold import ResponseFold, response_events
from rxloop.server.openai.response_items import Json, ResponseId
from rxloop.stream.stream import Stream

ALL_TURNS = 1 << 30
"""Turn number for folding all responses of a run."""


def _event(event: Json) -> bytes:
    return b"event: " + event["type"].encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"


RESPONSE_EVENTS = FrameWriter(SSE.media_type, _event, draining=SSE.draining)


def json_response(body: Any, status: int = 200) -> Response:
    """Create a JSON response."""
    return Response(orjson.dumps(body), status, {"cache-control": "no-store"}, media_type="application/json")


async def fold_response(call: OpenAiCall[Any], record: RunRecord, id: ResponseId) -> ResponseFold:
    """Fold a response from the stored events."""
    fold = ResponseFold(get_response_info(record, call.gateway.runtime), id, lambda event: None)
    gateway, take = call.gateway, ChatFold(fold.take).take_public
    await gateway.computations.fold_events(gateway.runtime.log, record.task_id, take)
    return fold


def response_stream(call: OpenAiCall[Any], record: RunRecord, id: ResponseId, *, after: int = -1) -> Stream[Json]:
    """Return the events of a response.

    Background responses are read only from the log, so that sequence numbers are stable. They contain deltas only if
    the log stores deltas. Other responses are streamed live, because they cannot be read again.
    """
    info, runtime = get_response_info(record, call.gateway.runtime), call.gateway.runtime
    view = response_events(info, id, after=after)
    if info.background:
        deltas = runtime.log.keeps_deltas
        return follow(runtime.log, record.task_id, deltas=deltas, until="end").pipe(view)
    return runtime.follow(record.task_id).pipe(view)


async def abandon(call: OpenAiCall[Any], record: RunRecord, id: ResponseId) -> None:
    """Cancel an incomplete response after its client has disconnected."""
    with suppress(EventLogError):
        if not (await fold_response(call, record, id)).is_complete:
            await cancel_abandoned_run(call.gateway, record.task_id)


OnDisconnect = Callable[[], Coroutine[Any, Any, None]] | None


def _encode_error(code: str, message: str) -> bytes:
    return _event({"type": "error", "sequence_number": 0, "code": code, "message": message, "param": None})


_LIVE_EVENTS = replace(
    RESPONSE_EVENTS,
    draining=_encode_error("draining", "the server is shutting down"),
    broken=_encode_error("log", "the event log is unavailable"),
)
"""Writer for non-resumable responses."""


def stream_response(
    call: OpenAiCall[Any], events: Stream[Json], on_disconnect: OnDisconnect, writer: FrameWriter[Json] | None = None
) -> EventStream:
    """Create a streaming response.

    Args:
        call: Current request.
        events: Events to stream.
        on_disconnect: Called if the client disconnects before the end.
        writer: Frame writer; None uses the format of the Responses API.
    """
    if writer is None:
        # Tell the client to reconnect only if the response can be read again.
        writer = RESPONSE_EVENTS if on_disconnect is None else _LIVE_EVENTS
    return call.stream(events, writer, on_disconnect=on_disconnect)


class ClientDisconnected(Exception):
    """Raised if the client has disconnected."""


async def wait_complete(call: OpenAiCall[Any], events: AsyncIterable[Json], on_disconnect: OnDisconnect) -> bool:
    """Read a stream to its end while the client is connected.

    Args:
        call: Current request.
        events: Stream whose fold collects the response.
        on_disconnect: Called if the client disconnects before the end.

    Returns:
        True if the stream completed, False if the server is draining.

    Raises:
        ClientDisconnected: If the client has disconnected.
        Refused: If the principal has too many open streams, or the log is unavailable.
    """
    with call.gateway.reserve_stream(call.principal) as slot:
        try:
            end = await read_to_end(slot, events, disconnected=partial(wait_disconnected, call.request.receive))
        except EventLogError:
            raise Refused(503, "log", "the event log is unavailable", headers={"retry-after": "5"}) from None
    if end == "disconnected":
        if on_disconnect is not None:
            call.gateway.spawn(on_disconnect())
        raise ClientDisconnected
    return end == "complete"
