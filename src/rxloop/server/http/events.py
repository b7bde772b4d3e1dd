"""Events of a run from a cursor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.responses import Response

from rxloop.operators.views.filters import after as after_cursor
from rxloop.operators.views.filters import until_final
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.envelope import EVENT_TYPES
from rxloop.protocol.events import AnyEvent, Event
from rxloop.protocol.ids import UNKNOWN, read_cursor
from rxloop.recorded.follow import is_over
from rxloop.recorded.replay import replay
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Gateway
from rxloop.server.core.runs import AT_REST, cancel_abandoned_run
from rxloop.server.core.stream import INTERNAL, EventStream, FrameWriter
from rxloop.server.http.reads import deltas_of
from rxloop.server.http.requests import ApiCall, EventsQuery, chosen, format_of_events, selected
from rxloop.stream.stream import Stream

DELTAS = "rxloop-deltas"
"""The header of a stream that says what it has of the deltas: see `deltas_of`."""


async def events(call: ApiCall[None, EventsQuery]) -> Response:
    """Stream the events of a run."""
    query, record = call.query, await call.record()
    writer = format_of_events(call.request)
    if query.kinds is not None and (unknown := [kind for kind in query.kinds if kind not in EVENT_TYPES]):
        raise Refused(422, "invalid", "there are no such kinds", fields={"kinds": ", ".join(unknown)})
    call.check_visibility(query.visibility)
    last = call.request.headers.get("last-event-id")
    if last:
        if len(last) > 200:
            raise Refused(422, "invalid", "that is not a cursor", fields={"Last-Event-ID": "it is too long"})
        query = query.model_copy(update={"after": last})
    if not await has_more(call.gateway, record, query):
        return Response(status_code=204, headers={"cache-control": "no-store"})
    return await streamed(call, record, query, writer)


async def streamed(
    call: ApiCall[Any, Any], record: RunRecord, query: EventsQuery, writer: FrameWriter[Event]
) -> EventStream:
    """Answer with the events of a run."""
    gateway, task_id = call.gateway, record.task_id
    cancels = (query.on_disconnect or call.adapter.on_disconnect) == "cancel"
    return call.stream(
        await _stream(gateway, task_id, query),
        writer if query.visibility == "public" else INTERNAL[writer.media_type],
        on_disconnect=partial(cancel_abandoned_run, gateway, task_id) if cancels else None,
        headers={DELTAS: deltas_of(gateway, record, replayed=query.speed is not None)},
    )


async def _stream(gateway: Gateway, task_id: str, query: EventsQuery) -> Stream[AnyEvent]:
    """The events that a query asks for, from wherever the run is."""
    runtime = gateway.runtime
    view = selected(query)
    if query.speed is not None:
        recorded = replay(runtime.log, task_id, speed=query.speed)
        if not query.after:
            return recorded.pipe(view)
        known = await _from_there(gateway, task_id, query.after)
        return recorded.pipe(after_cursor(query.after if known is not None else UNKNOWN), view)
    followed = runtime.follow(task_id, after=query.after or None, strict=False)
    return followed.pipe(until_final(), view) if query.until == "attempt" else followed.pipe(view)


async def has_more(gateway: Gateway, record: RunRecord, query: EventsQuery) -> bool:
    """Whether there is anything left for a client, or may come; by what the log has now.

    One whose cursor is unknown lacks everything, but nothing if the query selects nothing: it needs no gap then.
    """
    if record.state not in AT_REST or (query.until == "end" and not await is_over(gateway.runtime.log, record)):
        return True
    found = await _from_there(gateway, record.task_id, query.after) if query.after else None
    if found is None:
        if query.kinds is None and query.branch is None:
            return True
        found = await read_log(gateway.runtime.log.read, record.task_id)
    choose = chosen(query)
    return any(choose(event) is not None for event in found)


async def _from_there(gateway: Gateway, task_id: str, after: str) -> Sequence[Event] | None:
    """What the log has after a cursor; None if that is not of this run, or lies in a part of it that was lost."""
    cursor = read_cursor(after, strict=False)
    if cursor.task_id != task_id or not cursor.seq:
        return None
    found = await read_log(gateway.runtime.log.read, task_id, after_seq=cursor.seq - 1)
    return found[1:] if found and (found[0].seq, found[0].attempt) == (cursor.seq, cursor.attempt) else None
