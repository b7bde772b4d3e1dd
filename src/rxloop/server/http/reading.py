"""The events of a run for a client: from wherever it is, by one view, until there are no more."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from rxloop.errors import EventLogError
from rxloop.operators.views.after import after as after_cursor
from rxloop.operators.views.after import read_cursor
from rxloop.operators.views.until_final import until_final
from rxloop.pipeline.values import RunRecord
from rxloop.protocol.events import AnyEvent
from rxloop.recorded.replay import replay
from rxloop.recorded.stream import OVER
from rxloop.server.host import Host
from rxloop.server.http.call import Call
from rxloop.server.http.infos import AT_REST
from rxloop.server.http.queries import EventsQuery, chosen, selected
from rxloop.server.streams import INTERNAL, EventStream, Format
from rxloop.state.conversation import read_log
from rxloop.stream.stream import Stream


def streamed(call: Call[Any, Any], record: RunRecord, query: EventsQuery, form: Format) -> EventStream:
    """Answer with the events of a run."""
    runtime, task_id = call.host.runtime, record.task_id
    leave = query.on_disconnect or call.options.on_disconnect

    async def cancel() -> None:
        with suppress(EventLogError):
            await runtime.cancel(task_id, "the client left")

    return EventStream(
        call.host,
        call.principal,
        _stream(call.host, task_id, query),
        form if query.visibility == "public" else INTERNAL[form.media_type],
        heartbeat=call.options.heartbeat,
        on_disconnect=cancel if leave == "cancel" else None,
    )


def _stream(host: Host, task_id: str, query: EventsQuery) -> Stream[AnyEvent]:
    """The events that a query asks for, from wherever the run is."""
    runtime = host.runtime
    view = selected(query)
    if query.speed is not None:
        recorded = replay(runtime.log, task_id, speed=query.speed)
        return recorded.pipe(after_cursor(query.after, strict=False), view) if query.after else recorded.pipe(view)
    followed = runtime.follow(task_id, after=query.after or None, strict=False)
    return followed.pipe(until_final(), view) if query.until == "attempt" else followed.pipe(view)


async def has_more(host: Host, record: RunRecord, query: EventsQuery) -> bool:
    """Whether there is anything left for a client, or may come; by what the log has now."""
    if record.state not in (OVER if query.until == "end" else AT_REST):
        return True
    cursor = read_cursor(query.after or "", strict=False)
    here = cursor.seq if cursor.task_id == record.task_id else 0
    if not here and query.kinds is None and query.branch is None:
        return True
    log = host.runtime.log
    found = await read_log(log.read, record.task_id, after_seq=max(here - 1, 0))
    if here:
        # A cursor that lies in a part of an attempt which was lost is as good as none.
        good = bool(found) and (found[0].seq, found[0].attempt) == (here, cursor.attempt)
        found = found[1:] if good else await read_log(log.read, record.task_id)
    choose = chosen(query)
    return any(choose(event) is not None for event in found)
