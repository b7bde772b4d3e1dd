"""Starting, answering and cancelling runs on behalf of clients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Literal

from starlette.requests import HTTPConnection
from typing_extensions import Unpack

from rxloop.coordination.answers import read_snapshot
from rxloop.coordination.order import is_idle
from rxloop.errors import ConfigurationError, ConflictError, EventLogError, RunOver, UnknownRun
from rxloop.pipeline.log_retry import process_events, read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event, MessageAddedEvent, TaskEvent
from rxloop.protocol.messages import Message, Prompt, to_messages
from rxloop.recorded.questions import IDLE_STATES
from rxloop.recorded.replay import read_public_messages
from rxloop.runtime.validation import StartOptions
from rxloop.server.core.caller_trace import find_trace_context
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Gateway, Principal
from rxloop.support.threads import compute
from rxloop.tools.client_definitions import ClientTools, client_tools
from rxloop.tools.client_tool import ClientTool

log = logging.getLogger("rxloop")

MAX_KEY_LENGTH = 200

_SUFFIX_LENGTH = 4
"""Number of characters that differ in the new name of a client tool."""

_MAX_NAMES = 100
"""Maximum number of new names that are tried."""


SelectMessages = Callable[[Sequence[Message] | None], list[Message]]
"""Callback for selecting run messages from conversation messages."""
REQUEST = "request"
"""Metadata key for the request digest of a run with an idempotency key. A later request with that key must match."""


async def start_run(
    gateway: Gateway,
    principal: Principal,
    agent: str,
    prompt: Prompt | SelectMessages,
    *,
    key: str | None = None,
    request: bytes = b"",
    when_busy: Literal["wait", "refuse"] = "wait",
    rerun: bool = False,
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
        rerun: Whether a known message starts a new run if the run that answered the message is idle.
        locked: Whether the caller holds the lock of `Gateway.lock_conversation`.
        options: As for `Runtime.start`. The owner of the run, and therefore of its conversation, is the principal.

    Returns:
        The new run, or the earlier run if the conversation already contains all messages.

    Raises:
        Refused: If the principal has too many active runs, the conversation has an active run and `when_busy` is
            `refuse`, or the key was used for a different request.
    """
    digest = digest_request(request)
    if tools := options.get("client_tools"):
        options["client_tools"] = _rename_hidden_names(gateway, agent, client_tools(tools))
    metadata = {**find_trace_context(), **(options.get("metadata") or {})}
    options["metadata"] = metadata if key is None else {**metadata, REQUEST: digest}
    if principal.id:
        options["owner"] = principal.id
    start = _Start(gateway, principal, agent, prompt, key, when_busy, rerun, options)
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
    if key is not None:
        check_digest(record, digest)
    return record


@dataclass(slots=True)
class _Start:
    """Arguments and progress of a `start_run` call."""

    gateway: Gateway
    principal: Principal
    agent: str
    prompt: Prompt | SelectMessages
    key: str | None
    when_busy: Literal["wait", "refuse"]
    rerun: bool
    options: StartOptions
    is_known: bool = False
    """True if the conversation contains all messages, so that `create` returned the run with the last message."""

    @property
    def conversation(self) -> str | None:
        """Key of the conversation, or None for a new conversation."""
        context_id = self.options.get("context_id")
        return None if context_id is None else self.principal.get_conversation(context_id)

    async def create(self, *, locked: bool) -> RunRecord:
        """Start the run under the conversation's lock, or return an earlier run with the same messages."""
        gateway, key = self.gateway, self.conversation
        # Only messages with ids can be known to the conversation by another process.
        has_ids = callable(self.prompt) or any(each.message_id is not None for each in to_messages(self.prompt))
        is_shared = has_ids or self.when_busy == "refuse"
        async with nullcontext() if locked else gateway.lock_conversation(key, across_processes=is_shared):
            if key is not None and has_ids:
                earlier = await self._select_messages(key)
                if earlier is not None:
                    self.is_known = True
                    return earlier
            if key is not None and self.when_busy == "refuse":
                await self._check_idle(key)
            async with gateway.reserve_run(self.principal):
                return await self.submit()

    async def submit(self) -> RunRecord:
        prompt = self.prompt(None) if callable(self.prompt) else self.prompt
        return await self.gateway.runtime.start(self.agent, prompt, key=self.key, **self.options)

    async def _select_messages(self, key: str) -> RunRecord | None:
        """Remove known messages from the prompt. If all messages are known, return the run with the last message."""
        self.gateway.check_accepting()
        log = self.gateway.runtime.log
        exists = bool(await read_log(log.list_conversation, key, limit=1))
        stored = await read_public_messages(log, key) if exists else None
        self.prompt, last = await compute(partial(_find_new, self.prompt, stored), steps=len(stored or ()))
        if last is None:
            return None
        earlier, is_answered = await _find_message_run(self.gateway, key, last)
        # This message was followed by another one and never answered separately, so return its run.
        if earlier is not None and self.rerun and is_answered and earlier.state in IDLE_STATES:
            return None
        return earlier

    async def _check_idle(self, key: str) -> None:
        list_runs = self.gateway.runtime.log.list_conversation
        if await read_log(list_runs, key, states=("submitted", "working"), limit=1):
            raise Refused(409, "context_busy", "the conversation already has an active run")


def _find_new(prompt: Prompt | SelectMessages, stored: Sequence[Message] | None) -> tuple[Prompt, Message | None]:
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


async def _find_message_run(gateway: Gateway, key: str, message: Message) -> tuple[RunRecord | None, bool]:
    """Return the latest run that received a message, in its prompt or later.

    Returns:
        The run, and True if the message was sent to the run or is the last prompt message.
    """
    event_log = gateway.runtime.log
    for record in await read_log(event_log.list_conversation, key, newest_first=True):
        is_answered = await process_events(event_log, record.task_id, partial(_find_message, message))
        if is_answered is not None:
            return record, is_answered
    return None, False


def _find_message(message: Message, events: Sequence[Event]) -> bool | None:
    """Find a message in the events of a run.

    Returns:
        True if the message was sent to the run or is the last prompt message, None if the run did not receive it.
    """
    for event in events:
        prompt_ids = [each.message_id for each in event.messages] if isinstance(event, TaskEvent) else []
        sent_id = event.message_id if isinstance(event, MessageAddedEvent) else None
        if message.message_id == sent_id or message.message_id in prompt_ids:
            return message.message_id in (sent_id, *prompt_ids[-1:])
    return None


def digest_request(request: bytes) -> str:
    """Return a request digest for the `REQUEST` metadata."""
    return sha256(request).hexdigest()


def check_digest(record: RunRecord, digest: str) -> None:
    """Check that a run with an idempotency key was created by the same request.

    Raises:
        Refused: If the key was used for a different request.
    """
    if record.metadata.get(REQUEST) != digest:
        raise Refused(422, "key_used", "the key was used for a different request")


def _rename_hidden_names(gateway: Gateway, agent: str, tools: ClientTools) -> ClientTools:
    """Rename client tools that have the name of a hidden tool.

    Refusing them would reveal the hidden names. Replacing the hidden tools would allow clients to forge their results.
    The new names have the same length, so that the number of tools and of estimated tokens does not differ either.
    """
    collection = gateway.runtime.agents[agent].definition.tools
    if not any(tool.definition.name in collection.plain_tools for tool in tools):
        return tools
    taken = {*collection.plain_tools, *(tool.definition.name for tool in tools)}
    renamed: list[ClientTool] = []
    for tool in tools:
        name = tool.definition.name
        if not (name in collection.plain_tools and collection.hides(name)):
            renamed.append(tool)
            continue
        log.info("Renaming the client tool %r: agent %r has a hidden tool with this name", name, agent)
        digests = (sha256(f"{name} {number}".encode()).hexdigest() for number in range(_MAX_NAMES))
        kept = name[: max(len(name) - _SUFFIX_LENGTH, 0)]
        candidates = (f"{kept}{digest[: len(name) - len(kept)]}" for digest in digests)
        new_name = next((each for each in candidates if each not in taken), None)
        if new_name is not None:
            taken.add(new_name)
            renamed += client_tools([{**tool.to_definition(), "name": new_name}])
    return client_tools(renamed)


async def find_started_run(gateway: Gateway, principal: Principal, agent: str, key: str | None) -> RunRecord | None:
    """Look up a principal's run by idempotency key."""
    if key is not None:
        with suppress(UnknownRun):
            return await gateway.runtime.get_record(gateway.runtime.derive_run_id(agent, key, principal.id or None))
    return None


async def cancel_run(gateway: Gateway, task_id: str, reason: str | None = None) -> None:
    """Cancel a run in any process.

    If the owner does not confirm in time, the command stays in the run's inbox.
    """
    with suppress(ConflictError):
        await gateway.runtime.cancel(task_id, reason)


async def cancel_abandoned_run(gateway: Gateway, task_id: str) -> None:
    """Cancel a run after a client disconnect."""
    with suppress(EventLogError, ConflictError, RunOver):
        # The client of an idle run has received all events. If the run waits, a client must answer.
        if not is_idle(await read_snapshot(gateway.runtime.log, task_id)):
            await gateway.runtime.cancel(task_id, "the client disconnected")


def read_idempotency_key(request: HTTPConnection) -> str | None:
    """Read and validate the `Idempotency-Key` header.

    Raises:
        Refused: If the key is empty or too long.
    """
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= MAX_KEY_LENGTH:
        raise Refused(422, "invalid", f"Idempotency-Key must have 1 to {MAX_KEY_LENGTH} characters")
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
        raise ConfigurationError(f"the agent already has a tool named {name!r}")
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
        message = "an agent name is required" if name is None else "the agent does not exist"
        raise Refused(404, "unknown_agent", message, fields={field: f"one of {', '.join(agents)}"})
    return name
