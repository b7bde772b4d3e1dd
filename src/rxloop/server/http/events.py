"""Events of a run from a cursor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from rxloop.operators.views.after import after as after_cursor
from rxloop.operators.views.filters import until_final
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.cursor import UNKNOWN, read_cursor
from rxloop.protocol.envelope import EVENT_TYPES
from rxloop.protocol.events import AnyEvent, Event
from rxloop.recorded.follow import is_over
from rxloop.recorded.replay import replay
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Host
from rxloop.server.core.runs import AT_REST, cancelling
from rxloop.server.core.stream import INTERNAL, EventStream, Format
from rxloop.server.http.call import Call
from rxloop.server.http.queries import EventsQuery, chosen, format_of_events, selected
from rxloop.server.http.reads import deltas_of
from rxloop.stream.stream import Stream

DELTAS = "rxloop-deltas"
"""The header of a stream that says what it has of the deltas: see `deltas_of`."""


async def events(call: Call[None, EventsQuery]) -> Response:
    """Stream the events of a run."""
    query, record = call.query, await call.record()
    form = format_of_events(call.request)
    if query.kinds is not None and (unknown := [kind for kind in query.kinds if kind not in EVENT_TYPES]):
        raise Refused(422, "invalid", "there are no such kinds", fields={"kinds": ", ".join(unknown)})
    call.check_visibility(query.visibility)
    last = call.request.headers.get("last-event-id")
    if last:
        if len(last) > 200:
            raise Refused(422, "invalid", "that is not a cursor", fields={"Last-Event-ID": "it is too long"})
        query = query.model_copy(update={"after": last})
    if not await has_more(call.host, record, query):
        return Response(status_code=204, headers={"cache-control": "no-store"})
    return await streamed(call, record, query, form)


async def streamed(call: Call[Any, Any], record: RunRecord, query: EventsQuery, form: Format) -> EventStream:
    """Answer with the events of a run."""
    task_id = record.task_id
    leave = query.on_disconnect or call.options.on_disconnect
    return EventStream(
        call.host,
        call.principal,
        await _stream(call.host, task_id, query),
        form if query.visibility == "public" else INTERNAL[form.media_type],
        heartbeat=call.options.heartbeat,
        on_disconnect=cancelling(call.host, task_id) if leave == "cancel" else None,
        headers={DELTAS: deltas_of(call.host, record, replayed=query.speed is not None)},
    )


async def _stream(host: Host, task_id: str, query: EventsQuery) -> Stream[AnyEvent]:
    """The events that a query asks for, from wherever the run is."""
    runtime = host.runtime
    view = selected(query)
    if query.speed is not None:
        recorded = replay(runtime.log, task_id, speed=query.speed)
        if not query.after:
            return recorded.pipe(view)
        known = await _from_there(host, task_id, query.after)
        return recorded.pipe(after_cursor(query.after if known is not None else UNKNOWN), view)
    followed = runtime.follow(task_id, after=query.after or None, strict=False)
    return followed.pipe(until_final(), view) if query.until == "attempt" else followed.pipe(view)


async def has_more(host: Host, record: RunRecord, query: EventsQuery) -> bool:
    """Whether there is anything left for a client, or may come; by what the log has now.

    One whose cursor is unknown lacks everything, but nothing if the query selects nothing: it needs no gap then.
    """
    if record.state not in AT_REST or (query.until == "end" and not await is_over(host.runtime.log, record)):
        return True
    found = await _from_there(host, record.task_id, query.after) if query.after else None
    if found is None:
        if query.kinds is None and query.branch is None:
            return True
        found = await read_log(host.runtime.log.read, record.task_id)
    choose = chosen(query)
    return any(choose(event) is not None for event in found)


async def _from_there(host: Host, task_id: str, after: str) -> Sequence[Event] | None:
    """What the log has after a cursor; None if that is not of this run, or lies in a part of it that was lost."""
    cursor = read_cursor(after, strict=False)
    if cursor.task_id != task_id or not cursor.seq:
        return None
    found = await read_log(host.runtime.log.read, task_id, after_seq=cursor.seq - 1)
    return found[1:] if found and (found[0].seq, found[0].attempt) == (cursor.seq, cursor.attempt) else None
