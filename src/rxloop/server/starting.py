"""Runs that clients start, in conversations that are theirs, and leave."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from hashlib import sha256
from typing import Any, Literal

from typing_extensions import Unpack

from rxloop.errors import ConflictError, EventLogError, RunOver, UnknownRun
from rxloop.pipeline.values import RunRecord
from rxloop.protocol.messages import Prompt
from rxloop.runtime.runtime import StartOptions
from rxloop.server.access import Principal
from rxloop.server.host import Host
from rxloop.server.refusals import Refused
from rxloop.state.conversation import read_log

REQUEST = "request"
"""In the metadata of a run that was started with a key: a digest of the request, for whoever uses the key again."""


async def start(
    host: Host,
    principal: Principal,
    agent: str,
    prompt: Prompt,
    *,
    key: str | None = None,
    request: bytes = b"",
    when_busy: Literal["wait", "refuse"] = "wait",
    **options: Unpack[StartOptions],
) -> RunRecord:
    """Start a run of a principal, in a conversation that is its own or nobody's; once for each key.

    Args:
        host: Has the runtime, and the limits.
        principal: Who starts it, and owns it.
        agent: The name of the agent, which there is.
        prompt: What is asked.
        key: What tells the request apart from the others of the principal; sent again, it is the same run.
        request: What the key stands for.
        when_busy: What is done while the conversation has a run under way.
        options: As for `Runtime.start`; the owner is the principal.

    Raises:
        Refused: The conversation is somebody else's, too many runs go on, or the key stands for another request.
    """
    runtime, owner = host.runtime, principal.id or None
    context_id = options.get("context_id")
    digest = digest_of(request)
    if key is not None:
        options["metadata"] = {**(options.get("metadata") or {}), REQUEST: digest}
    if owner is not None:
        options["owner"] = owner
    record = await known(host, principal, agent, key)
    if record is None:
        try:
            async with host.starting(principal), host.in_context(context_id):
                if context_id is not None and await host.check_context(principal, context_id):
                    await _check_idle(host, context_id, when_busy)
                record = await runtime.start(agent, prompt, key=key, **options)
        except Refused:
            # The same request may have come twice at once: what stands in the way is the run that it has begun.
            record = await known(host, principal, agent, key)
            if record is None:
                raise
    elif record.state == "submitted":
        # Nobody may have begun it.
        record = await runtime.start(agent, prompt, key=key, **options)
    else:
        host.check_open()
    if context_id is not None:
        await _check_first(host, principal, record)
    if key is not None and record.metadata.get(REQUEST) != digest:
        raise Refused(422, "key_used", "the key stands for another request")
    return record


def digest_of(request: bytes) -> str:
    """What a run that was started with a key has in its metadata, under `REQUEST`."""
    return sha256(request).hexdigest()


async def known(host: Host, principal: Principal, agent: str, key: str | None) -> RunRecord | None:
    """The run that a principal has started with a key, if there is one."""
    if key is not None:
        with suppress(UnknownRun):
            return await host.runtime.record(host.runtime.id_of(agent, key, principal.id or None))
    return None


async def _check_idle(host: Host, context_id: str, when_busy: Literal["wait", "refuse"]) -> None:
    if when_busy == "refuse":
        runs = host.runtime.log.runs
        if await read_log(runs, context_id=context_id, states=("submitted", "working"), limit=1):
            raise Refused(409, "context_busy", "the conversation has a run under way")


async def _check_first(host: Host, principal: Principal, record: RunRecord) -> None:
    """See that nobody else has begun the conversation at the same moment, in another process."""
    try:
        await host.check_context(principal, record.context_id)
    except Refused:
        await host.runtime.cancel(record.task_id, "the conversation is somebody else's")
        raise


def cancelling(host: Host, task_id: str) -> Callable[[], Coroutine[Any, Any, None]]:
    """Make what cancels a run whose client has left before its end."""

    async def cancel() -> None:
        with suppress(EventLogError, ConflictError, RunOver):
            # One that pauses has told its client all, and waits for an answer.
            if (await host.runtime.record(task_id)).state in ("submitted", "working"):
                await host.runtime.cancel(task_id, "the client left")

    return cancel


def agent_of(host: Host, name: str | None, field: str = "agent") -> str:
    """The agent that a request names; it may be left out where there is one.

    Raises:
        Refused: There is none of that name.
    """
    agents = host.runtime.agents
    if name is None and len(agents) == 1:
        return next(iter(agents))
    if name is None or name not in agents:
        message = "name one of the agents" if name is None else "there is no such agent"
        raise Refused(404, "unknown_agent", message, fields={field: f"one of {', '.join(agents)}"})
    return name
