"""Runs that clients start, answer and leave, in conversations that are theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from starlette.requests import HTTPConnection
from typing_extensions import Unpack

from rxloop.errors import ConfigurationError, ConflictError, EventLogError, InvalidInput, NotAsked, RunOver, UnknownRun
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import MessageAddedEvent, PendingInput, StatusUpdateEvent, TaskEvent, ends_attempt
from rxloop.protocol.messages import Message, Prompt, public_question, to_messages
from rxloop.recorded.replay import history
from rxloop.run.ownership import read_open_questions
from rxloop.runtime.runtime import StartOptions
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Gateway, Principal
from rxloop.tools.client_tool import ClientTool, client_tools

AT_REST = ("completed", "failed", "canceled", "input-required", "auth-required")
"""The states in which nothing goes on."""
MAX_KEY_LENGTH = 200


async def find_last_update(gateway: Gateway, record: RunRecord) -> StatusUpdateEvent | None:
    """What ended the last attempt of a run, if nothing has come since: that is all that has to be read."""
    if record.state not in AT_REST:
        return None
    found = await read_log(gateway.runtime.log.read, record.task_id, after_seq=record.seq - 1)
    last = found[-1] if found else None
    return last if isinstance(last, StatusUpdateEvent) and ends_attempt(last) else None


async def list_pending_inputs(gateway: Gateway, record: RunRecord) -> Sequence[PendingInput]:
    """Return the questions that a run waits for, or asks while its other calls are at work.

    Some of them are not for clients; see `public_question`.
    """
    if record.state == "working":
        return await read_open_questions(gateway.runtime.log, record.task_id)
    last = await find_last_update(gateway, record)
    return last.pending if last is not None else ()


async def answer_run(
    gateway: Gateway, record: RunRecord, inputs: Mapping[str, Any], messages: Sequence[Message] = ()
) -> None:
    """Answer questions of a run that the principal may see, by their `input_id`; it goes on.

    Args:
        gateway: Has the run.
        record: The run.
        inputs: The answers.
        messages: What the person says with the answers; a run that refuses an answer gets none of it.

    Raises:
        Refused: It does not wait for that, or the answer does not fit; with no word of a question that is not for
            clients.
    """
    gateway.check_accepting()
    try:
        await gateway.runtime.answer(record.task_id, inputs, messages=list(messages))
    except NotAsked:
        message = (
            "the run does not wait for this answer, or has another one already: its `pending` says what it waits for"
        )
        raise Refused(409, "not_waiting", message) from None
    except InvalidInput as error:
        pending = await list_pending_inputs(gateway, record)
        open_to_all = bool(pending) and all(public_question(each) is each for each in pending)
        message = str(error) if open_to_all else "the answer does not fit the question"
        raise Refused(422, "invalid_input", message) from None


Choose = Callable[[Sequence[Message] | None], list[Message]]
"""Chooses the messages that a run is started with, by those that its conversation has."""
REQUEST = "request"
"""In the metadata of a run that was started with a key: a digest of the request, for whoever uses the key again."""


async def start_run(
    gateway: Gateway,
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
    """Start a run of a principal, in a conversation that is its own or new; once for each key.

    A message whose id the conversation has already is not stored again. New messages are determined under a lease of
    the conversation, so that the second of two simultaneous requests finds the messages of the first.

    Args:
        gateway: Has the runtime, and the limits.
        principal: Starts the run, and owns it.
        agent: The name of the agent, which exists.
        prompt: The messages; or a function that chooses them by the messages of the conversation, which are None if
            there is no such conversation.
        key: Distinguishes the request from the others of the principal; sent again, it is the same run.
        request: The content of the request: a key with another content is refused.
        when_busy: Whether to wait if a run of the conversation is under way.
        again: Whether a known message starts a new run, if the run that answered it is idle.
        locked: Whether the caller holds the lease of `Gateway.lock_context`.
        options: As for `Runtime.start`; the owner is the principal.

    Returns:
        The run; or the earlier one, if the conversation has all of the messages.

    Raises:
        Refused: The conversation is somebody else's, too many runs go on, or the key stands for another request.
    """
    digest = digest_request(request)
    if key is not None:
        options["metadata"] = {**(options.get("metadata") or {}), REQUEST: digest}
    if principal.id:
        options["owner"] = principal.id
    start = _Start(gateway, principal, agent, prompt, key, when_busy, again, options)
    record = await find_started_run(gateway, principal, agent, key)
    if record is None:
        try:
            record = await start.create(locked=locked)
        except Refused:
            # The same request may have come twice at once: the obstacle is the run that it has started.
            record = await find_started_run(gateway, principal, agent, key)
            if record is None:
                raise
        if start.is_known:
            return record
    elif record.state == "submitted":
        # Its process may have died before the run began.
        record = await start.submit()
    else:
        gateway.check_accepting()
    if start.context_id is not None and not start.in_own_context:
        await _check_first(gateway, principal, record)
    if key is not None and record.metadata.get(REQUEST) != digest:
        raise Refused(422, "key_used", "the key stands for another request")
    return record


@dataclass(slots=True)
class _Start:
    """The start of one run."""

    gateway: Gateway
    principal: Principal
    agent: str
    prompt: Prompt | Choose
    key: str | None
    when_busy: Literal["wait", "refuse"]
    again: bool
    options: StartOptions
    is_known: bool = False
    """Whether the conversation has all of the messages, so that `create` returned the run that has the last one."""
    in_own_context: bool = False
    """True if the principal had the conversation before this run. So another principal cannot have begun it since."""

    @property
    def context_id(self) -> str | None:
        return self.options.get("context_id")

    async def create(self, *, locked: bool) -> RunRecord:
        """Start the run under the lease of its conversation, or return the earlier one that has its messages."""
        gateway, context_id = self.gateway, self.context_id
        # Only messages with ids can be known to the conversation by another process.
        everywhere = callable(self.prompt) or any(each.message_id is not None for each in to_messages(self.prompt))
        async with nullcontext() if locked else gateway.lock_context(context_id, everywhere=everywhere):
            if context_id is not None:
                exists = self.in_own_context = await gateway.find_context(self.principal, context_id)
                earlier = await self._select_messages(context_id, exists=exists) if everywhere else None
                if earlier is not None:
                    self.is_known = True
                    return earlier
                if exists and self.when_busy == "refuse":
                    await self._check_idle(context_id)
            async with gateway.reserve_run(self.principal):
                return await self.submit()

    async def submit(self) -> RunRecord:
        prompt = self.prompt(None) if callable(self.prompt) else self.prompt
        return await self.gateway.runtime.start(self.agent, prompt, key=self.key, **self.options)

    async def _select_messages(self, context_id: str, *, exists: bool) -> RunRecord | None:
        """Remove the known messages from the prompt; return the run that has the last one if all are known."""
        self.gateway.check_accepting()
        stored = await history(self.gateway.runtime.log, context_id, public=True) if exists else None
        self.prompt, last = _find_new(self.prompt, stored)
        if last is None:
            return None
        earlier, is_answered = await _find_run_with(self.gateway, context_id, last)
        # A message that came with a later one never had an answer of its own: its request came late.
        if earlier is not None and self.again and is_answered and earlier.state in AT_REST:
            return None
        return earlier

    async def _check_idle(self, context_id: str) -> None:
        list_runs = self.gateway.runtime.log.list_runs
        if await read_log(list_runs, context_id=context_id, states=("submitted", "working"), limit=1):
            raise Refused(409, "context_busy", "the conversation has a run under way")


def _find_new(prompt: Prompt | Choose, stored: Sequence[Message] | None) -> tuple[Prompt, Message | None]:
    """Leave out the messages of a prompt that a conversation has.

    Returns:
        The prompt, which is its last message where the conversation has all of them; and that message, only then.
    """
    messages = to_messages(prompt(stored) if callable(prompt) else prompt)
    known = {(message.message_id, message.text) for message in stored or () if message.role == "user"}
    new = [each for each in messages if each.message_id is None or (each.message_id, each.text) not in known]
    if new or not messages:
        return new, None
    return messages[-1:], messages[-1]


async def _find_run_with(gateway: Gateway, context_id: str, message: Message) -> tuple[RunRecord | None, bool]:
    """Find the newest run of a conversation that has a message, as one that it was begun with or that was said to it.

    Returns:
        The run, and whether the message is the last one that it was begun with, or was said to it.
    """
    for record in await read_log(gateway.runtime.log.list_runs, context_id=context_id, newest_first=True):
        for event in await read_log(gateway.runtime.log.read, record.task_id):
            asked = [each.message_id for each in event.messages] if isinstance(event, TaskEvent) else []
            said = event.message_id if isinstance(event, MessageAddedEvent) else None
            if message.message_id == said or message.message_id in asked:
                return record, message.message_id in (said, *asked[-1:])
    return None, False


def digest_request(request: bytes) -> str:
    """What a run that was started with a key has in its metadata, under `REQUEST`."""
    return sha256(request).hexdigest()


async def find_started_run(gateway: Gateway, principal: Principal, agent: str, key: str | None) -> RunRecord | None:
    """The run that a principal has started with a key, if there is one."""
    if key is not None:
        with suppress(UnknownRun):
            return await gateway.runtime.get_record(gateway.runtime.id_of(agent, key, principal.id or None))
    return None


async def _check_first(gateway: Gateway, principal: Principal, record: RunRecord) -> None:
    """See that nobody else has begun the conversation at the same moment, in another process."""
    try:
        await gateway.find_context(principal, record.context_id)
    except Refused:
        await gateway.runtime.cancel(record.task_id, "the conversation is somebody else's")
        raise


async def cancel_run(gateway: Gateway, task_id: str, reason: str | None = None) -> None:
    """Cancel a run, in whatever process it is executed.

    If its process does not confirm it in time, the command stays in the inbox of the run.
    """
    with suppress(ConflictError):
        await gateway.runtime.cancel(task_id, reason)


async def cancel_abandoned_run(gateway: Gateway, task_id: str) -> None:
    """Cancel a run whose client left before its end."""
    with suppress(EventLogError, ConflictError, RunOver):
        # The client of a paused run has got everything, and has to answer.
        if (await gateway.runtime.get_record(task_id)).state in ("submitted", "working"):
            await gateway.runtime.cancel(task_id, "the client left")


def read_idempotency_key(request: HTTPConnection) -> str | None:
    """Return the `Idempotency-Key` of a request.

    Raises:
        Refused: It is empty or too long.
    """
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= MAX_KEY_LENGTH:
        raise Refused(422, "invalid", f"an Idempotency-Key has 1 to {MAX_KEY_LENGTH} characters")
    return key


def parse_client_tools(
    gateway: Gateway, agent: str, definitions: Sequence[Mapping[str, Any]]
) -> Sequence[ClientTool] | None:
    """Return the tools that a client executes; None if it has none.

    Raises:
        ConfigurationError: A definition is wrong, or its name is taken by a tool that clients may know of. The text
            contains only what the client sent.
    """
    tools = client_tools(definitions)
    for name in {each.definition.name for each in tools} & {*gateway.runtime.agents[agent].definition.tool_names}:
        raise ConfigurationError(f"the agent has a tool called {name!r}")
    return tools or None


def resolve_agent(gateway: Gateway, name: str | None, field: str = "agent") -> str:
    """The agent that a request names; it may be left out where there is one.

    Raises:
        Refused: There is none of that name.
    """
    agents = gateway.runtime.agents
    if name is None and len(agents) == 1:
        return next(iter(agents))
    if name is None or name not in agents:
        message = "name one of the agents" if name is None else "there is no such agent"
        raise Refused(404, "unknown_agent", message, fields={field: f"one of {', '.join(agents)}"})
    return name
