"""Start, answer, send, cancel and fork."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pydantic.alias_generators import to_camel
from starlette.responses import Response

from rxloop.errors import ConfigurationError, ConflictError
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.http_api import CancelRun, ForkRun, ResumeRun, SayToRun, StartRun, messages_of
from rxloop.protocol.settings import ModelSettings
from rxloop.protocol.visibility import PUBLIC_METADATA
from rxloop.recorded.follow import OVER
from rxloop.server.core import runs
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Host
from rxloop.server.core.runs import agent_of, answer
from rxloop.server.http.call import Call, written
from rxloop.server.http.events import streamed
from rxloop.server.http.queries import EventsQuery, Query, StartQuery, streams_in
from rxloop.server.http.reads import at_rest, cursor_of, info_of
from rxloop.tools.client_tool import ClientTool, client_tools


async def start(call: Call[StartRun, StartQuery]) -> Response:
    """Start a run."""
    host, body = call.host, call.body
    _check_stream(call)
    agent = agent_of(host, body.agent)
    given = call.request.headers.get("idempotency-key")
    record = await runs.start(
        host,
        call.principal,
        agent,
        messages_of(body.input),
        key=None if given is None else _checked_key(given),
        request=body.model_dump_json().encode(),
        when_busy=body.when_busy,
        context_id=body.context_id,
        metadata={PUBLIC_METADATA: body.metadata} if body.metadata else {},
        settings=_settings(call),
        client_tools=_tools(host, agent, body) or None,
    )
    return await _goes_on(call, record, None)


async def resume(call: Call[ResumeRun, StartQuery]) -> Response:
    """Answer questions of a run, which goes on."""
    record = await call.record()
    _check_stream(call)
    await answer(call.host, record, call.body.inputs)
    return await _goes_on(call, record, cursor_of(record))


def _check_stream(call: Call[Any, StartQuery]) -> None:
    """See that there is a stream for the answer: refused later, a client would not know that its run goes on."""
    if call.query.wait or streams_in(call.request) is not None:
        call.host.check_stream(call.principal)


async def _goes_on(call: Call[Any, StartQuery], record: RunRecord, after: str | None) -> Response:
    form = streams_in(call.request)
    if form is not None:
        asked = {"after": after, "until": "attempt", "onDisconnect": call.query.on_disconnect}
        return await streamed(call, record, EventsQuery.model_validate(asked), form)
    seq = record.seq
    record = await at_rest(call, record, call.query.wait, after)
    info = await info_of(call, record)
    if info.pending and after is not None and (record.seq == seq or not info.at_rest):
        # Its answers wait in its mail, and whoever drives it takes them.
        left = [each for each in info.pending if each.input_id not in call.body.inputs]
        info = info.model_copy(update={"pending": left, "state": record.state if left else "working"})
    location = {"location": call.path("runs", record.task_id)}
    return written(info, 200 if info.at_rest else 202, location)


async def say(call: Call[SayToRun, Query]) -> Response:
    """Say something to a run that goes on."""
    record = await call.record()
    [message] = messages_of(call.body.input)
    await call.host.runtime.send(record.task_id, message, interrupt=call.body.interrupt)
    return written(await info_of(call, await call.record()), 202)


async def cancel(call: Call[CancelRun, Query]) -> Response:
    """Cancel a run."""
    record = await call.record()
    with suppress(ConflictError):
        # In its mail, where it stays until somebody has time for it.
        await call.host.runtime.cancel(record.task_id, call.body.reason)
    info = await info_of(call, await call.record())
    return written(info, 200 if info.state in OVER else 202)


async def fork(call: Call[ForkRun, Query]) -> Response:
    """Begin a new run with a part of another one."""
    record = await call.record()
    body = call.body
    prompt = None if body.input is None else messages_of(body.input)
    async with call.host.starting(call.principal):
        try:
            made = await call.host.runtime.fork(record.task_id, body.at, prompt=prompt, results=body.results)
        except ConfigurationError:
            # It names what the run has, calls that are not for clients included.
            raise Refused(422, "invalid", "the run has no such event, or no such call before it") from None
    return written(await info_of(call, made), 202, {"location": call.path("runs", made.task_id)})


def _settings(call: Call[StartRun, Any]) -> ModelSettings | None:
    """What a client sets of the model calls, where the server lets it."""
    given = call.body.settings
    if given is None:
        return None
    refused = [name for name in given.model_fields_set if name not in call.options.settings]
    if refused:
        fields = {f"settings.{to_camel(name)}": "it is not for clients to set" for name in refused}
        raise Refused(422, "invalid", "these settings are the server's", fields=fields)
    return ModelSettings.model_validate(given.model_dump(exclude_unset=True))


def _tools(host: Host, agent: str, body: StartRun) -> Sequence[ClientTool]:
    """The tools that a client brings with it; of a name that is taken by a hidden tool nothing is said."""
    message = "the tools cannot be used"
    try:
        made = client_tools([each.model_dump() for each in body.tools])
    except ConfigurationError as error:
        # It speaks of nothing but what the client has sent.
        raise Refused(422, "invalid", message, fields={"tools": str(error)}) from None
    for name in {each.name for each in body.tools} & {*host.runtime.agents[agent].tool_names}:
        raise Refused(422, "invalid", message, fields={"tools": f"the agent has a tool called {name!r}"})
    return made


def _checked_key(key: str) -> str:
    if not 0 < len(key) <= 200:
        raise Refused(422, "invalid", "an Idempotency-Key has 1 to 200 characters")
    return key
