"""Operations on runs: start, follow, answer, send, cancel and fork."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence, Set
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from pydantic.alias_generators import to_camel
from starlette.responses import Response

from rxloop.errors import ConfigurationError
from rxloop.operators.views.after import after as after_cursor
from rxloop.operators.views.filters import until_final
from rxloop.pipeline.records import RunRecord
from rxloop.protocol import http_api as http
from rxloop.protocol.envelope import EVENT_TYPES
from rxloop.protocol.events import AnyEvent, Event, StatusUpdateEvent
from rxloop.protocol.ids import UNKNOWN, read_cursor
from rxloop.protocol.settings import ModelSettings
from rxloop.protocol.visibility import PUBLIC_METADATA
from rxloop.recorded.follow import FINAL_STATES, is_over, read_first, read_pages
from rxloop.recorded.questions import IDLE_STATES
from rxloop.recorded.replay import replay
from rxloop.server.core.adapter import OnDisconnect
from rxloop.server.core.errors import Refused
from rxloop.server.core.existing_runs import answer_run, fork_run, resume_run
from rxloop.server.core.gateway import Gateway
from rxloop.server.core.runs import (
    cancel_abandoned_run,
    cancel_run,
    parse_client_tools,
    read_idempotency_key,
    resolve_agent,
    start_run,
)
from rxloop.server.core.stream import INTERNAL, EventStream, FrameWriter
from rxloop.server.http.reads import get_delta_availability, make_info, wait_until_idle
from rxloop.server.http.requests import (
    ApiCall,
    EventsQuery,
    Query,
    StartQuery,
    choose_event_format,
    find_stream_format,
    make_event_selector,
    make_event_view,
    write_json,
)
from rxloop.stream.stream import Stream
from rxloop.tools.client_tool import ClientTool

DELTAS = "rxloop-deltas"
"""Response header for delta availability, see `get_delta_availability`."""


async def events(call: ApiCall[None, EventsQuery]) -> Response:
    """Stream a run's events."""
    # Check first, because a refusal should not cost a query.
    call.gateway.check_stream(call.principal)
    query, record = call.query, await call.record()
    writer = choose_event_format(call.request)
    check_kinds(query.kinds)
    call.check_visibility(query.visibility)
    last = call.request.headers.get("last-event-id")
    if last:
        if len(last) > 200:
            raise Refused(422, "invalid", "the cursor is invalid", fields={"Last-Event-ID": "too long"})
        query = query.model_copy(update={"after": last})
    if not await has_more(call.gateway, record, query):
        return Response(status_code=204, headers={"cache-control": "no-store"})
    return await stream_events(call, record, query, writer)


def check_kinds(kinds: Sequence[str] | None) -> None:
    """Check that event kinds exist.

    Raises:
        Refused: If a kind does not exist.
    """
    if kinds is not None and (unknown := [kind for kind in kinds if kind not in EVENT_TYPES]):
        raise Refused(422, "invalid", "some event kinds do not exist", fields={"kinds": ", ".join(unknown)})


async def stream_events(
    call: ApiCall[Any, Any], record: RunRecord, query: EventsQuery, writer: FrameWriter[Event]
) -> EventStream:
    """Return a streaming response with a run's events."""
    gateway, task_id = call.gateway, record.task_id
    return call.stream(
        await _stream(gateway, task_id, query),
        writer if query.visibility == "public" else INTERNAL[writer.media_type],
        on_disconnect=_make_disconnect_action(call, task_id, query.on_disconnect),
        headers={DELTAS: get_delta_availability(gateway, record, replayed=query.speed is not None)},
    )


def _make_disconnect_action(
    call: ApiCall[Any, Any], task_id: str, action: OnDisconnect | None
) -> Callable[[], Coroutine[Any, Any, None]] | None:
    """Return a function to call if the client disconnects before the run is idle, or None to keep the run."""
    should_cancel = (action or call.adapter.on_disconnect) == "cancel"
    return partial(cancel_abandoned_run, call.gateway, task_id) if should_cancel else None


async def _stream(gateway: Gateway, task_id: str, query: EventsQuery) -> Stream[AnyEvent]:
    """Return events selected by a query, either live or from the log."""
    runtime = gateway.runtime
    view = make_event_view(query)
    if query.speed is not None:
        recorded = replay(runtime.log, task_id, speed=query.speed)
        if not query.after:
            return recorded.pipe(view)
        position = await _find_position(gateway, task_id, query.after)
        return recorded.pipe(after_cursor(query.after if position is not None else UNKNOWN), view)
    followed = runtime.follow(task_id, after=query.after or None, strict=False)
    return followed.pipe(until_final(), view) if query.until == "attempt" else followed.pipe(view)


async def has_more(gateway: Gateway, record: RunRecord, query: EventsQuery) -> bool:
    """Return True if events remain for the client or may still be published.

    With an unknown cursor, the client needs a full replay, unless the query selects no events.
    """
    if record.state not in IDLE_STATES or (query.until == "end" and not await is_over(gateway.runtime.log, record)):
        return True
    after_seq = await _find_position(gateway, record.task_id, query.after) if query.after else None
    if after_seq is None and query.kinds is None and query.branch is None:
        return True
    choose = make_event_selector(query)
    pages = read_pages(gateway.runtime.log, record.task_id, after_seq=after_seq or 0, last_seq=record.seq)
    async with aclosing(pages) as remaining:
        async for event in remaining:
            if choose(event) is not None:
                return True
    return False


async def _find_position(gateway: Gateway, task_id: str, after: str) -> int | None:
    """Return the seq of a cursor, or None if the cursor belongs to another run or to a lost part of the log."""
    cursor = read_cursor(after, strict=False)
    if cursor.task_id != task_id or not cursor.seq:
        return None
    event = await read_first(gateway.runtime.log, task_id, after_seq=cursor.seq - 1)
    is_known = event is not None and (event.seq, event.attempt) == (cursor.seq, cursor.attempt)
    return cursor.seq if is_known else None


async def start(call: ApiCall[http.StartRun, StartQuery]) -> Response:
    """Start a run."""
    gateway, body = call.gateway, call.body
    _check_stream(call)
    agent = resolve_agent(gateway, body.agent)
    record = await start_run(
        gateway,
        call.principal,
        agent,
        http.make_messages(body.input),
        key=read_idempotency_key(call.request),
        request=body.model_dump_json().encode(),
        when_busy=body.when_busy,
        context_id=body.context_id,
        metadata={PUBLIC_METADATA: body.metadata} if body.metadata else {},
        settings=_check_settings(body.settings, call.settings),
        client_tools=_parse_tools(gateway, agent, body),
    )
    return await _answer_when_idle(call, record, None)


async def resume(call: ApiCall[http.ResumeRun, StartQuery]) -> Response:
    """Answer questions of a run, or resume a run that was canceled or failed with a retryable error."""
    record = await call.record()
    _check_stream(call)
    if call.body.inputs:
        await answer_run(call.gateway, call.principal, record, call.body.inputs)
        return await _answer_when_idle(call, record, record.cursor)
    resumed = await resume_run(call.gateway, call.principal, record, call.body.after)
    return await _answer_when_idle(call, resumed, record.cursor if resumed.seq > record.seq else None)


def _check_stream(call: ApiCall[Any, StartQuery]) -> None:
    """Check the stream limit first, because a client refused later would not know that its run has been resumed."""
    if call.query.wait or find_stream_format(call.request) is not None:
        call.gateway.check_stream(call.principal)


async def _answer_when_idle(call: ApiCall[Any, StartQuery], record: RunRecord, after: str | None) -> Response:
    writer = find_stream_format(call.request)
    if writer is not None:
        events_query = {"after": after, "until": "attempt", "onDisconnect": call.query.on_disconnect}
        return await stream_events(call, record, EventsQuery.model_validate(events_query), writer)
    seq = record.seq
    last: StatusUpdateEvent | None = None
    # The run has started, so return its id even if no stream slot is available for waiting.
    with suppress(Refused):
        leave = _make_disconnect_action(call, record.task_id, call.query.on_disconnect)
        record, last = await wait_until_idle(call, record, call.query.wait, after, leave)
    info = await make_info(call, record, last)
    if info.pending and after is not None and (record.seq == seq or not info.is_idle):
        # The answers are in the inbox, waiting to be processed by the owner.
        pending = [each for each in info.pending if each.input_id not in call.body.inputs]
        info = info.model_copy(update={"pending": pending, "state": record.state if pending else "working"})
    location = {"location": call.path("runs", record.task_id)}
    return write_json(info, 200 if info.is_idle else 202, location)


async def say(call: ApiCall[http.SendMessage, Query]) -> Response:
    """Send a message to an active run."""
    record = await call.record()
    [message] = http.make_messages(call.body.input)
    async with call.gateway.reserve_command(record, len(message.model_dump_json())):
        await call.gateway.runtime.send(record.task_id, message, interrupt=call.body.interrupt)
    return write_json(await make_info(call, await call.record()), 202)


async def goals(call: ApiCall[http.UpdateGoals, Query]) -> Response:
    """Add or change goals of a run."""
    record = await call.record()
    async with call.gateway.reserve_command(record, len(call.body.model_dump_json())):
        try:
            await call.gateway.runtime.update_goals(record.task_id, *call.body.changes)
        except ConfigurationError as error:
            raise Refused(422, "invalid", "the goals are invalid", fields={"changes": str(error)}) from error
    return write_json(await make_info(call, await call.record()), 202)


async def cancel(call: ApiCall[http.CancelRun, Query]) -> Response:
    """Cancel a run."""
    record = await call.record()
    await cancel_run(call.gateway, record.task_id, call.body.reason)
    info = await make_info(call, await call.record())
    return write_json(info, 200 if info.state in FINAL_STATES else 202)


async def fork(call: ApiCall[http.ForkRun, Query]) -> Response:
    """Start a new run from the beginning of another run."""
    record = await call.record()
    body = call.body
    prompt = None if body.input is None else http.make_messages(body.input)
    if body.model is not None and body.model not in call.models:
        raise Refused(422, "invalid", "clients may not choose this model", fields={"model": "not offered"})
    settings = _check_settings(body.settings, call.settings)
    changes: dict[str, Any] = {"prompt": prompt, "results": body.results, "model": body.model, "settings": settings}
    changes |= {"key": read_idempotency_key(call.request), "request": body.model_dump_json().encode()}
    forked = await fork_run(call.gateway, call.principal, record, body.at, **changes)
    return write_json(await make_info(call, forked), 202, {"location": call.path("runs", forked.task_id)})


def _check_settings(settings: http.RunSettings | None, allowed: Set[str]) -> ModelSettings | None:
    """Return the requested model settings after checking permissions."""
    if settings is None:
        return None
    refused_names = [name for name in settings.model_fields_set if name not in allowed]
    if refused_names:
        fields = {f"settings.{to_camel(name)}": "clients may not set this" for name in refused_names}
        raise Refused(422, "invalid", "clients may not set these settings", fields=fields)
    return ModelSettings.model_validate(settings.model_dump(exclude_unset=True))


def _parse_tools(gateway: Gateway, agent: str, body: http.StartRun) -> Sequence[ClientTool] | None:
    try:
        return parse_client_tools(gateway, agent, [dict(each) for each in body.tools])
    except ConfigurationError as error:
        raise Refused(422, "invalid", "the tools are invalid", fields={"tools": str(error)}) from None
