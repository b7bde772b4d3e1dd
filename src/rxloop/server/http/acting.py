"""What clients do with runs: start, answer, say, cancel, fork."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from hashlib import sha256
from typing import Any

import orjson
from pydantic.alias_generators import to_camel
from starlette.responses import Response

from rxloop.errors import ConfigurationError, ConflictError, UnknownRun
from rxloop.pipeline.values import RunRecord
from rxloop.protocol.http import CancelRun, ForkRun, ResumeRun, SayToRun, StartRun, messages_of
from rxloop.protocol.settings import ModelSettings
from rxloop.protocol.visibility import PUBLIC_METADATA
from rxloop.recorded.stream import OVER
from rxloop.server.host import Host
from rxloop.server.http.call import Call, written
from rxloop.server.http.infos import at_rest, info_of
from rxloop.server.http.queries import EventsQuery, Query, StartQuery, streams_in
from rxloop.server.http.reading import streamed
from rxloop.server.questions import answer
from rxloop.server.refusals import Refused
from rxloop.state.conversation import read_log
from rxloop.tools.client_tool import ClientTool, client_tools

REQUEST = "request"
"""In the metadata of a run that was started with a key: a digest of the body, for whoever uses the key again."""


async def start(call: Call[StartRun, StartQuery]) -> Response:
    """Start a run."""
    host, body = call.host, call.body
    agent = _agent(host, body.agent)
    owner = call.principal.id or None
    metadata: dict[str, Any] = {PUBLIC_METADATA: body.metadata} if body.metadata else {}
    given = call.request.headers.get("idempotency-key")
    key = None if given is None else orjson.dumps([owner, _checked_key(given)]).decode()
    if key is not None:
        metadata[REQUEST] = sha256(body.model_dump_json().encode()).hexdigest()
    known = await _known(host, agent, key, owner)
    if known is None or known.state == "submitted":
        # Of one that was submitted before, nobody may have begun it.
        async with host.starting(call.principal) if known is None else nullcontext():
            if known is None:
                await _check_context(call, body)
            record = await host.runtime.start(
                agent,
                messages_of(body.input),
                key=key,
                context_id=body.context_id,
                owner=owner,
                metadata=metadata,
                settings=_settings(call),
                client_tools=_tools(host, agent, body) or None,
            )
            if body.context_id is not None:
                await _check_first(call, record)
    else:
        host.check_open()
        record = known
    if key is not None and record.metadata.get(REQUEST) != metadata[REQUEST]:
        raise Refused(422, "key_used", "this Idempotency-Key stands for another request")
    return await _goes_on(call, record, None)


async def resume(call: Call[ResumeRun, StartQuery]) -> Response:
    """Answer questions of a run, which goes on."""
    record = await call.record()
    await answer(call.host, record, call.body.inputs)
    return await _goes_on(call, record, f"{record.task_id}/{record.attempt}.{record.seq}.0")


async def _goes_on(call: Call[Any, StartQuery], record: RunRecord, after: str | None) -> Response:
    form = streams_in(call.request)
    if form is not None:
        asked = {"after": after, "until": "attempt", "onDisconnect": call.query.on_disconnect}
        return await streamed(call, record, EventsQuery.model_validate(asked), form)
    seq = record.seq
    record = await at_rest(call, record, call.query.wait, after)
    info = await info_of(call, record)
    if info.pending and record.seq == seq and after is not None:
        # Its answers wait in its mail, and whoever drives it takes them.
        left = [each for each in info.pending if each.input_id not in call.body.inputs]
        info = info.model_copy(update={"pending": left, "state": record.state if left else "working"})
    location = {"location": call.path("runs", record.task_id)}
    return written(info, 200 if info.at_rest else 202, location)


async def say(call: Call[SayToRun, Query]) -> Response:
    """Say something to a run that goes on."""
    record = await call.record()
    [message] = messages_of(call.body.input)
    await call.host.runtime.say(record.task_id, message, interrupt=call.body.interrupt)
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


def _agent(host: Host, name: str | None) -> str:
    agents = host.runtime.agents
    if name is None and len(agents) == 1:
        return next(iter(agents))
    if name is None or name not in agents:
        message = "name one of the agents" if name is None else "there is no such agent"
        raise Refused(404, "unknown_agent", message, fields={"agent": f"one of {', '.join(agents)}"})
    return name


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


async def _known(host: Host, agent: str, key: str | None, owner: str | None) -> RunRecord | None:
    """The run that a key stands for, if there is one."""
    with suppress(UnknownRun):
        return None if key is None else await host.runtime.record(host.runtime.id_of(agent, key, owner))
    return None


async def _check_context(call: Call[Any, Any], body: StartRun) -> None:
    """See that the conversation is nobody else's, and has nothing under way where that is refused."""
    if body.context_id is None:
        return
    host = call.host
    if await host.check_context(call.principal, body.context_id) and body.when_busy == "refuse":
        states = ("submitted", "working")
        if await read_log(host.runtime.log.runs, context_id=body.context_id, states=states, limit=1):
            raise Refused(409, "context_busy", "the conversation has a run under way")


async def _check_first(call: Call[Any, Any], record: RunRecord) -> None:
    """See that nobody else has begun the conversation at the same moment."""
    try:
        await call.host.check_context(call.principal, record.context_id)
    except Refused:
        await call.host.runtime.cancel(record.task_id, "the conversation is somebody else's")
        raise
