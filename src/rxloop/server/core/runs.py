"""Runs that clients start, answer and leave, in conversations that are theirs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from hashlib import sha256
from typing import Any, Literal

from typing_extensions import Unpack

from rxloop.errors import ConflictError, EventLogError, InvalidInput, NotAsked, RunOver, UnknownRun
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import MessageAddedEvent, PendingInput, StatusUpdateEvent, TaskEvent, ends_attempt
from rxloop.protocol.messages import Message, Prompt, as_messages, public_question
from rxloop.recorded.replay import history
from rxloop.run import sending
from rxloop.runtime.runtime import StartOptions
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Host, Principal

AT_REST = ("completed", "failed", "canceled", "input-required", "auth-required")
"""The states in which nothing goes on."""


async def last_update(host: Host, record: RunRecord) -> StatusUpdateEvent | None:
    """What ended the last attempt of a run, if nothing has come since: that is all that has to be read."""
    if record.state not in AT_REST:
        return None
    found = await read_log(host.runtime.log.read, record.task_id, after_seq=record.seq - 1)
    last = found[-1] if found else None
    return last if isinstance(last, StatusUpdateEvent) and ends_attempt(last) else None


async def open_questions(host: Host, record: RunRecord) -> Sequence[PendingInput]:
    """Return the questions that a run waits for, or asks while its other calls are at work.

    Some of them are not for clients; see `public_question`.
    """
    if record.state == "working":
        return await sending.open_questions(host.runtime.log, record.task_id)
    last = await last_update(host, record)
    return last.pending if last is not None else ()


async def answer(host: Host, record: RunRecord, inputs: Mapping[str, Any], messages: Sequence[Message] = ()) -> None:
    """Answer questions of a run that the principal may see, by their `input_id`; it goes on.

    Args:
        host: Has the run.
        record: The run.
        inputs: The answers.
        messages: What the person says with the answers; a run that refuses an answer gets none of it.

    Raises:
        Refused: It does not wait for that, or the answer does not fit; with no word of a question that is not for
            clients.
    """
    host.check_open()
    try:
        await host.runtime.answer(record.task_id, inputs, messages=list(messages))
    except NotAsked:
        message = (
            "the run does not wait for this answer, or has another one already: its `pending` says what it waits for"
        )
        raise Refused(409, "not_waiting", message) from None
    except InvalidInput as error:
        pending = await open_questions(host, record)
        open_to_all = bool(pending) and all(public_question(each) is each for each in pending)
        message = str(error) if open_to_all else "the answer does not fit the question"
        raise Refused(422, "invalid_input", message) from None


Choose = Callable[[Sequence[Message] | None], list[Message]]
"""Chooses the messages that a run is started with, by those that its conversation has."""
REQUEST = "request"
"""In the metadata of a run that was started with a key: a digest of the request, for whoever uses the key again."""


async def start(
    host: Host,
    principal: Principal,
    agent: str,
    prompt: Prompt | Choose,
    *,
    key: str | None = None,
    request: bytes = b"",
    when_busy: Literal["wait", "refuse"] = "wait",
    again: bool = False,
    locked: bool = False,
    **options: Unpack[StartOptions],
) -> RunRecord:
    """Start a run of a principal, in a conversation that is its own or nobody's; once for each key.

    A message whose id the conversation has already is not stored again. What is new is decided under a lease of the
    conversation, so that of two requests at the same moment the second one finds the messages of the first.

    Args:
        host: Has the runtime, and the limits.
        principal: Who starts it, and owns it.
        agent: The name of the agent, which there is.
        prompt: What is asked; a function chooses it by the messages that the conversation has, which are None where
            there is no such conversation.
        key: What tells the request apart from the others of the principal; sent again, it is the same run.
        request: What the key stands for.
        when_busy: What is done while the conversation has a run under way.
        again: Whether a message that is known is asked once more, if the run that answered it is at rest.
        locked: Whether the caller has the lease of `Host.in_context`.
        options: As for `Runtime.start`; the owner is the principal.

    Returns:
        The run; the earlier one that has the messages, where all of them are known.

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
            async with AsyncExitStack() as leases:
                everywhere = callable(prompt) or _has_ids(prompt)
                if not locked:
                    await leases.enter_async_context(host.in_context(context_id, everywhere=everywhere))
                begun = context_id is not None and await host.check_context(principal, context_id)
                if context_id is not None and everywhere:
                    host.check_open()
                    stored = await history(runtime.log, context_id, public=True) if begun else None
                    prompt, last = _new_of(prompt, stored)
                    earlier, is_answered = await _run_of(host, context_id, last) if last is not None else (None, False)
                    # A message that came with a later one never had an answer of its own: its request came late.
                    if earlier is not None and not (again and is_answered and earlier.state in AT_REST):
                        return earlier
                if context_id is not None and begun:
                    await _check_idle(host, context_id, when_busy)
                async with host.starting(principal):
                    record = await runtime.start(agent, _chosen(prompt), key=key, **options)
        except Refused:
            # The same request may have come twice at once: what stands in the way is the run that it has begun.
            record = await known(host, principal, agent, key)
            if record is None:
                raise
    elif record.state == "submitted":
        # Nobody may have begun it.
        record = await runtime.start(agent, _chosen(prompt), key=key, **options)
    else:
        host.check_open()
    if context_id is not None:
        await _check_first(host, principal, record)
    if key is not None and record.metadata.get(REQUEST) != digest:
        raise Refused(422, "key_used", "the key stands for another request")
    return record


def _chosen(prompt: Prompt | Choose) -> Prompt:
    return prompt(None) if callable(prompt) else prompt


def _has_ids(prompt: Prompt) -> bool:
    return any(message.message_id is not None for message in as_messages(prompt))


def _new_of(prompt: Prompt | Choose, stored: Sequence[Message] | None) -> tuple[Prompt, Message | None]:
    """Leave out the messages of a prompt that a conversation has.

    Returns:
        The prompt, which is its last message where the conversation has all of them; and that message, only then.
    """
    messages = as_messages(prompt(stored) if callable(prompt) else prompt)
    known = {(message.message_id, message.text) for message in stored or () if message.role == "user"}
    new = [each for each in messages if each.message_id is None or (each.message_id, each.text) not in known]
    if new or not messages:
        return new, None
    return messages[-1:], messages[-1]


async def _run_of(host: Host, context_id: str, message: Message) -> tuple[RunRecord | None, bool]:
    """Find the newest run of a conversation that has a message, as one that it was begun with or that was said to it.

    Returns:
        The run, and whether the message is the last one that it was begun with, or was said to it.
    """
    for record in await read_log(host.runtime.log.list_runs, context_id=context_id, newest_first=True):
        for event in await read_log(host.runtime.log.read, record.task_id):
            asked = [each.message_id for each in event.messages] if isinstance(event, TaskEvent) else []
            said = event.message_id if isinstance(event, MessageAddedEvent) else None
            if message.message_id == said or message.message_id in asked:
                return record, message.message_id in (said, *asked[-1:])
    return None, False


def digest_of(request: bytes) -> str:
    """What a run that was started with a key has in its metadata, under `REQUEST`."""
    return sha256(request).hexdigest()


async def known(host: Host, principal: Principal, agent: str, key: str | None) -> RunRecord | None:
    """The run that a principal has started with a key, if there is one."""
    if key is not None:
        with suppress(UnknownRun):
            return await host.runtime.get_record(host.runtime.id_of(agent, key, principal.id or None))
    return None


async def _check_idle(host: Host, context_id: str, when_busy: Literal["wait", "refuse"]) -> None:
    if when_busy == "refuse":
        runs = host.runtime.log.list_runs
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
            if (await host.runtime.get_record(task_id)).state in ("submitted", "working"):
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
