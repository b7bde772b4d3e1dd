"""Start, answer, send, cancel and fork."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pydantic.alias_generators import to_camel
from starlette.responses import Response

from rxloop.errors import ConfigurationError
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import StatusUpdateEvent
from rxloop.protocol.http_api import CancelRun, ForkRun, ResumeRun, SendMessage, StartRun, make_messages
from rxloop.protocol.settings import ModelSettings
from rxloop.protocol.visibility import PUBLIC_METADATA
from rxloop.recorded.follow import OVER
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Gateway
from rxloop.server.core.runs import (
    answer_run,
    cancel_run,
    parse_client_tools,
    read_idempotency_key,
    resolve_agent,
    start_run,
)
from rxloop.server.http.events import streamed
from rxloop.server.http.reads import cursor_of, info_of, wait_until_idle
from rxloop.server.http.requests import ApiCall, EventsQuery, Query, StartQuery, streams_in, written
from rxloop.tools.client_tool import ClientTool


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
    """See that there is a stream for the answer: refused later, a client would not know that its run goes on."""
    if call.query.wait or streams_in(call.request) is not None:
        call.gateway.check_stream(call.principal)


async def _answer_when_idle(call: ApiCall[Any, StartQuery], record: RunRecord, after: str | None) -> Response:
    writer = streams_in(call.request)
    if writer is not None:
        asked = {"after": after, "until": "attempt", "onDisconnect": call.query.on_disconnect}
        return await streamed(call, record, EventsQuery.model_validate(asked), writer)
    seq = record.seq
    last: StatusUpdateEvent | None = None
    # The run has started, so the client must get its id although there is no slot to wait in.
    with suppress(Refused):
        record, last = await wait_until_idle(call, record, call.query.wait, after)
    info = await info_of(call, record, last)
    if info.pending and after is not None and (record.seq == seq or not info.is_idle):
        # Its answers wait in its mail, and whoever drives it takes them.
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
            # It names what the run has, calls that are not for clients included.
            raise Refused(422, "invalid", "the run has no such event, or no such call before it") from None
    return written(await info_of(call, made), 202, {"location": call.path("runs", made.task_id)})


def _settings(call: ApiCall[StartRun, Any]) -> ModelSettings | None:
    """What a client sets of the model calls, where the server lets it."""
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
