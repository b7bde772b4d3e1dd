"""Starting, answering and cancelling runs on behalf of clients."""

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
"""Idle run states."""
MAX_KEY_LENGTH = 200


async def find_last_update(gateway: Gateway, record: RunRecord) -> StatusUpdateEvent | None:
    """Return the status event that ended the last attempt of an idle run, or None if a later event exists."""
    if record.state not in AT_REST:
        return None
    found = await read_log(gateway.runtime.log.read, record.task_id, after_seq=record.seq - 1)
    last = found[-1] if found else None
    return last if isinstance(last, StatusUpdateEvent) and ends_attempt(last) else None


async def list_pending_inputs(gateway: Gateway, record: RunRecord) -> Sequence[PendingInput]:
    """Return a run's open questions, even if other calls are still in progress.

    Some questions are internal; see `public_question`.
    """
    if record.state == "working":
        return await read_open_questions(gateway.runtime.log, record.task_id)
    last = await find_last_update(gateway, record)
    return last.pending if last is not None else ()


async def answer_run(
    gateway: Gateway, record: RunRecord, inputs: Mapping[str, Any], messages: Sequence[Message] = ()
) -> None:
    """Answer a run's questions by `input_id`, which resumes the run. The principal must have access to the run.

    Args:
        gateway: Gateway of the run.
        record: Record of the run.
        inputs: Answers by `input_id`.
        messages: User messages to add. If an answer is rejected, no message is added.

    Raises:
        Refused: If the run does not wait for an answer, or an answer is invalid. The error message reveals nothing
            about internal questions.
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
"""Callback for selecting run messages from conversation messages."""
REQUEST = "request"
"""Metadata key for the request digest of a run with an idempotency key. A later request with that key must match."""


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
    """Start a run of a principal in a new or existing conversation, once per idempotency key.

    Messages whose id is already in the conversation are not stored again. New messages are selected under a lease of
    the conversation, so that concurrent requests see each other's messages.

    Args:
        gateway: Gateway with the runtime and the limits.
        principal: Owner of the run.
        agent: Name of an existing agent.
        prompt: Messages, or a function that selects them from the messages of the conversation (None if the
            conversation does not exist).
        key: Idempotency key, unique per principal. A repeated request returns the existing run.
        request: Content of the request. The key cannot be reused with different content.
        when_busy: Either `wait` or `refuse`, for a conversation with an active run.
        again: Whether a known message starts a new run if the run that answered the message is idle.
        locked: Whether the caller holds the lock of `Gateway.lock_context`.
        options: As for `Runtime.start`; the owner is the principal.

    Returns:
        The new run, or the earlier run if the conversation already contains all messages.

    Raises:
        Refused: If the conversation belongs to another principal, the principal has too many active runs, or the key
            was used for a different request.
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
            # The conflict may be caused by a concurrent request with the same key.
            record = await find_started_run(gateway, principal, agent, key)
            if record is None:
                raise
        if start.is_known:
            return record
    elif record.state == "submitted":
        # A previous process may have crashed before starting the run.
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
    """State of a `start_run` call."""

    gateway: Gateway
    principal: Principal
    agent: str
    prompt: Prompt | Choose
    key: str | None
    when_busy: Literal["wait", "refuse"]
    again: bool
    options: StartOptions
    is_known: bool = False
    """True if the conversation contains all messages, so that `create` returned the run with the last message."""
    in_own_context: bool = False
    """True if the principal owned the conversation before this run, so no other principal can have created it since."""

    @property
    def context_id(self) -> str | None:
        return self.options.get("context_id")

    async def create(self, *, locked: bool) -> RunRecord:
        """Start the run under the conversation's lock, or return an earlier run with the same messages."""
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
        """Remove known messages from the prompt. If all messages are known, return the run with the last message."""
        self.gateway.check_accepting()
        stored = await history(self.gateway.runtime.log, context_id, public=True) if exists else None
        self.prompt, last = _find_new(self.prompt, stored)
        if last is None:
            return None
        earlier, is_answered = await _find_run_with(self.gateway, context_id, last)
        # This message was followed by another one and never answered separately, so return its run.
        if earlier is not None and self.again and is_answered and earlier.state in AT_REST:
            return None
        return earlier

    async def _check_idle(self, context_id: str) -> None:
        list_runs = self.gateway.runtime.log.list_runs
        if await read_log(list_runs, context_id=context_id, states=("submitted", "working"), limit=1):
            raise Refused(409, "context_busy", "the conversation has a run under way")


def _find_new(prompt: Prompt | Choose, stored: Sequence[Message] | None) -> tuple[Prompt, Message | None]:
    """Remove the messages that a conversation already contains from a prompt.

    Returns:
        The remaining prompt and None. If the conversation contains all messages, the last message as prompt, and the
        same message.
    """
    messages = to_messages(prompt(stored) if callable(prompt) else prompt)
    known = {(message.message_id, message.text) for message in stored or () if message.role == "user"}
    new = [each for each in messages if each.message_id is None or (each.message_id, each.text) not in known]
    if new or not messages:
        return new, None
    return messages[-1:], messages[-1]


async def _find_run_with(gateway: Gateway, context_id: str, message: Message) -> tuple[RunRecord | None, bool]:
    """Return the latest run that received a message, in its prompt or later.

    Returns:
        The run, and True if the message was sent to the run or is the last prompt message.
    """
    for record in await read_log(gateway.runtime.log.list_runs, context_id=context_id, newest_first=True):
        for event in await read_log(gateway.runtime.log.read, record.task_id):
            asked = [each.message_id for each in event.messages] if isinstance(event, TaskEvent) else []
            said = event.message_id if isinstance(event, MessageAddedEvent) else None
            if message.message_id == said or message.message_id in asked:
                return record, message.message_id in (said, *asked[-1:])
    return None, False


def digest_request(request: bytes) -> str:
    """Return a request digest for the `REQUEST` metadata."""
    return sha256(request).hexdigest()


async def find_started_run(gateway: Gateway, principal: Principal, agent: str, key: str | None) -> RunRecord | None:
    """Look up a principal's run by idempotency key."""
    if key is not None:
        with suppress(UnknownRun):
            return await gateway.runtime.get_record(gateway.runtime.id_of(agent, key, principal.id or None))
    return None


async def _check_first(gateway: Gateway, principal: Principal, record: RunRecord) -> None:
    """Cancel the run if another principal has concurrently created the conversation."""
    try:
        await gateway.find_context(principal, record.context_id)
    except Refused:
        await gateway.runtime.cancel(record.task_id, "the conversation is somebody else's")
        raise


async def cancel_run(gateway: Gateway, task_id: str, reason: str | None = None) -> None:
    """Cancel a run in any process.

    If the owner does not confirm in time, the command stays in the run's inbox.
    """
    with suppress(ConflictError):
        await gateway.runtime.cancel(task_id, reason)


async def cancel_abandoned_run(gateway: Gateway, task_id: str) -> None:
    """Cancel a run after a client disconnect."""
    with suppress(EventLogError, ConflictError, RunOver):
        # The client of a waiting run has received all events and must answer.
        if (await gateway.runtime.get_record(task_id)).state in ("submitted", "working"):
            await gateway.runtime.cancel(task_id, "the client left")


def read_idempotency_key(request: HTTPConnection) -> str | None:
    """Read and validate the `Idempotency-Key` header.

    Raises:
        Refused: If the key is empty or too long.
    """
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= MAX_KEY_LENGTH:
        raise Refused(422, "invalid", f"an Idempotency-Key has 1 to {MAX_KEY_LENGTH} characters")
    return key


def parse_client_tools(
    gateway: Gateway, agent: str, definitions: Sequence[Mapping[str, Any]]
) -> Sequence[ClientTool] | None:
    """Parse the definitions of client tools, returning None if there are none.

    Raises:
        ConfigurationError: If a definition is invalid, or its name is already used by a public tool. The error message
            contains only data that the client sent.
    """
    tools = client_tools(definitions)
    for name in {each.definition.name for each in tools} & {*gateway.runtime.agents[agent].definition.tool_names}:
        raise ConfigurationError(f"the agent has a tool called {name!r}")
    return tools or None


def resolve_agent(gateway: Gateway, name: str | None, field: str = "agent") -> str:
    """Return the name of the requested agent. The name is optional if the runtime has only one agent.

    Raises:
        Refused: If the agent is unknown.
    """
    agents = gateway.runtime.agents
    if name is None and len(agents) == 1:
        return next(iter(agents))
    if name is None or name not in agents:
        message = "name one of the agents" if name is None else "there is no such agent"
        raise Refused(404, "unknown_agent", message, fields={field: f"one of {', '.join(agents)}"})
    return name
