"""Operations on runs: start, follow, answer, send, cancel and fork."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from pydantic.alias_generators import to_camel
from starlette.responses import Response

from rxloop.errors import ConfigurationError
from rxloop.operators.views.after import after as after_cursor
from rxloop.operators.views.filters import until_final
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.envelope import EVENT_TYPES
from rxloop.protocol.events import AnyEvent, Event, StatusUpdateEvent
from rxloop.protocol.http_api import CancelRun, ForkRun, ResumeRun, SendMessage, StartRun, make_messages
from rxloop.protocol.ids import UNKNOWN, read_cursor
from rxloop.protocol.settings import ModelSettings
from rxloop.protocol.visibility import PUBLIC_METADATA
from rxloop.recorded.follow import OVER, is_over
from rxloop.recorded.replay import replay
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Gateway
from rxloop.server.core.runs import (
    AT_REST,
    answer_run,
    cancel_abandoned_run,
    cancel_run,
    parse_client_tools,
    read_idempotency_key,
    resolve_agent,
    start_run,
)
from rxloop.server.core.stream import INTERNAL, EventStream, FrameWriter
from rxloop.server.http.reads import cursor_of, deltas_of, info_of, wait_until_idle
from rxloop.server.http.requests import (
    ApiCall,
    EventsQuery,
    Query,
    StartQuery,
    chosen,
    format_of_events,
    selected,
    streams_in,
    written,
)
from rxloop.stream.stream import Stream
from rxloop.tools.client_tool import ClientTool

DELTAS = "rxloop-deltas"
"""Response header for delta availability, see `deltas_of`."""


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
    """Return a streaming response with a run's events."""
    gateway, task_id = call.gateway, record.task_id
    cancels = (query.on_disconnect or call.adapter.on_disconnect) == "cancel"
    return call.stream(
        await _stream(gateway, task_id, query),
        writer if query.visibility == "public" else INTERNAL[writer.media_type],
        on_disconnect=partial(cancel_abandoned_run, gateway, task_id) if cancels else None,
        headers={DELTAS: deltas_of(gateway, record, replayed=query.speed is not None)},
    )


async def _stream(gateway: Gateway, task_id: str, query: EventsQuery) -> Stream[AnyEvent]:
    """Return events selected by a query, either live or from the log."""
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
    """True if events remain for the client or may still be published.

    With an unknown cursor, the client needs a full replay, unless the query selects no events.
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
    """Return the events after a cursor, or None if the cursor belongs to another run or to a lost part of the log."""
    cursor = read_cursor(after, strict=False)
    if cursor.task_id != task_id or not cursor.seq:
        return None
    found = await read_log(gateway.runtime.log.read, task_id, after_seq=cursor.seq - 1)
    return found[1:] if found and (found[0].seq, found[0].attempt) == (cursor.seq, cursor.attempt) else None


async def start(call: ApiCall[StartRun, StartQuery]) -> Response:
    """Start a run."""
    gateway, body = call.gateway, call.body
    _check_stream(call)
    agent = resolve_agent(gateway, body.agent)
    record = await start_run(
        gateway,
        call.principal,
        agent,
        make_messages(body.input),
        key=read_idempotency_key(call.request),
        request=body.model_dump_json().encode(),
        when_busy=body.when_busy,
        context_id=body.context_id,
        metadata={PUBLIC_METADATA: body.metadata} if body.metadata else {},
        settings=_settings(call),
        client_tools=_tools(gateway, agent, body),
    )
    return await _answer_when_idle(call, record, None)


async def resume(call: ApiCall[ResumeRun, StartQuery]) -> Response:
    """Answer questions of a run, which goes on."""
    record = await call.record()
    _check_stream(call)
    await answer_run(call.gateway, record, call.body.inputs)
    return await _answer_when_idle(call, record, cursor_of(record))


def _check_stream(call: ApiCall[Any, StartQuery]) -> None:
    """Check the stream limit first, because a client refused later would not know that its run has been resumed."""
    if call.query.wait or streams_in(call.request) is not None:
        call.gateway.check_stream(call.principal)


async def _answer_when_idle(call: ApiCall[Any, StartQuery], record: RunRecord, after: str | None) -> Response:
    writer = streams_in(call.request)
    if writer is not None:
        asked = {"after": after, "until": "attempt", "onDisconnect": call.query.on_disconnect}
        return await streamed(call, record, EventsQuery.model_validate(asked), writer)
    seq = record.seq
    last: StatusUpdateEvent | None = None
    # The run has started, so return its id even if no stream slot is available for waiting.
    with suppress(Refused):
        record, last = await wait_until_idle(call, record, call.query.wait, after)
    info = await info_of(call, record, last)
    if info.pending and after is not None and (record.seq == seq or not info.is_idle):
        # The answers are in the inbox, waiting to be processed by the owner.
        left = [each for each in info.pending if each.input_id not in call.body.inputs]
        info = info.model_copy(update={"pending": left, "state": record.state if left else "working"})
    location = {"location": call.path("runs", record.task_id)}
    return written(info, 200 if info.is_idle else 202, location)


async def say(call: ApiCall[SendMessage, Query]) -> Response:
    """Say something to a run that goes on."""
    record = await call.record()
    [message] = make_messages(call.body.input)
    await call.gateway.runtime.send(record.task_id, message, interrupt=call.body.interrupt)
    return written(await info_of(call, await call.record()), 202)


async def cancel(call: ApiCall[CancelRun, Query]) -> Response:
    """Cancel a run."""
    record = await call.record()
    await cancel_run(call.gateway, record.task_id, call.body.reason)
    info = await info_of(call, await call.record())
    return written(info, 200 if info.state in OVER else 202)


async def fork(call: ApiCall[ForkRun, Query]) -> Response:
    """Begin a new run with a part of another one."""
    record = await call.record()
    body = call.body
    prompt = None if body.input is None else make_messages(body.input)
    async with call.gateway.reserve_run(call.principal):
        try:
            made = await call.gateway.runtime.fork(record.task_id, body.at, prompt=prompt, results=body.results)
        except ConfigurationError:
            # The error message could contain internal call names.
            raise Refused(422, "invalid", "the run has no such event, or no such call before it") from None
    return written(await info_of(call, made), 202, {"location": call.path("runs", made.task_id)})


def _settings(call: ApiCall[StartRun, Any]) -> ModelSettings | None:
    """Return the requested model settings after checking permissions."""
    given = call.body.settings
    if given is None:
        return None
    refused = [name for name in given.model_fields_set if name not in call.settings]
    if refused:
        fields = {f"settings.{to_camel(name)}": "it is not for clients to set" for name in refused}
        raise Refused(422, "invalid", "these settings are the server's", fields=fields)
    return ModelSettings.model_validate(given.model_dump(exclude_unset=True))


def _tools(gateway: Gateway, agent: str, body: StartRun) -> Sequence[ClientTool] | None:
    try:
        return parse_client_tools(gateway, agent, [each.model_dump() for each in body.tools])
    except ConfigurationError as error:
        raise Refused(422, "invalid", "the tools cannot be used", fields={"tools": str(error)}) from None
