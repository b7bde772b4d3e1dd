"""Forks: runs starting from a copied part of another run, with changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from rxloop.errors import ConfigurationError, NotPermitted, ToolError, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.log_retry import check_complete, read_log
from rxloop.protocol.envelope import ROOT, STARTED_CALLS
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    MessageAddedEvent,
    StatusUpdateEvent,
    SubtaskEvent,
    TaskEvent,
    ToolCompleteEvent,
    normalise,
)
from rxloop.protocol.ids import make_nested_id
from rxloop.protocol.messages import Message, ToolCall
from rxloop.protocol.model import EMPTY_LIST, share_field_names
from rxloop.state.copied_calls import Call, RunCalls
from rxloop.state.earlier_attempts import EarlierAttempts
from rxloop.state.history import Slot
from rxloop.support.garbage import free_in_parts
from rxloop.thinking.graph import ThoughtGraph
from rxloop.tools.client_tool import ClientTool
from rxloop.tools.result import encode_with_parts, failure_fields, make_parts_field


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Position at which to fork a run, and the changes to apply."""

    task_id: str
    """Id of the original run."""
    at: int
    """Sequence number of the last event to copy."""
    messages: tuple[Message, ...] = ()
    """New messages. They replace the user's prompt when forking at the first event, and are appended otherwise."""
    results: Mapping[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Changed tool results as event fields, keyed by call id or slot."""
    restricted: bool = False
    """True if the fork must not repeat effects of the original run, or replace results of server tools."""

    @property
    def added(self) -> list[MessageAddedEvent]:
        """Events for new messages, to be added after the copied events."""
        if self.at == 1:
            return []
        return [
            MessageAddedEvent(
                role="system" if message.role == "system" else "user",
                content=message.content,
                cause="fork",
                message_id=message.message_id,
            )
            for message in self.messages
        ]

    async def read_originals(self, event_log: EventLog) -> list[Sequence[Event]]:
        """Read the original run. For a restricted fork, also read the runs from which the copied events were copied."""
        events = await read_log(event_log.read, self.task_id)
        check_complete(self.task_id, events, 1)
        originals = [events]
        while (
            self.restricted
            and isinstance(task := events[0], TaskEvent)
            and task.fork_of
            and self.at <= (task.fork_seq or 0)
        ):
            try:
                events = await read_log(event_log.read, task.fork_of)
            except UnknownRun:
                # Deleted since then.
                break
            if not events:
                break
            originals.append(events)
        return originals

    def copy_and_free(self, originals: list[Sequence[Event]], *arguments: Any, **options: Any) -> CopiedRun:
        """Copy events like `copy`. Then remove the original runs from the list, and free their events in parts."""
        copied = self.copy(originals, *arguments, **options)
        while originals:
            free_in_parts(list(originals.pop()))
        return copied

    def copy(
        self,
        originals: Sequence[Sequence[Event]],
        before: Sequence[Message],
        *,
        prepare: Callable[[Sequence[Message]], list[Message]],
        tools: Mapping[str, Tool],
        **envelope: Any,
    ) -> CopiedRun:
        """Copy events from the original run.

        Args:
            originals: Events of the original run. If it is a fork as well, and `at` is in the part that it copied, they
                are followed by the events of its own original run, and so on.
            before: Conversation history before the original run, which the fork copies.
            prepare: Function preparing the initial messages of a run.
            tools: Current tools by name, excluding toolsets.
            envelope: Fields of the new `task` event.

        Raises:
            ConfigurationError: The run ends before `at`, or doesn't have the call for a result.
            NotPermitted: A restricted fork replaces the result of a server tool.
            EventLogError: An event up to `at` can't be read.
        """
        events = originals[0]
        last = events[-1].seq
        check_complete(self.task_id, events, min(self.at, last))
        if self.at > last:
            raise ConfigurationError(
                f"at must not exceed {last}, the number of events in run {self.task_id}, got {self.at}"
            )
        copied = [event for event in events if event.seq <= self.at]
        calls = _find_calls(copied)
        outcomes = self._find_outcomes(calls, RunCalls(events), tools) if self.results else {}
        envelope.update(fork_of=self.task_id, fork_seq=self.at)
        past: list[Event] = []
        answered: set[Slot] = set()
        ids = {self.task_id: envelope["task_id"]}
        for event in copied:
            changes = self._replace_ids(event, events[0].context_id, envelope["context_id"], ids)
            if event.parent_task_id is None:
                if isinstance(event, TaskEvent):
                    changes |= {**envelope, "messages": prepare([*before, *self._replace_prompt(event.messages)])}
                elif isinstance(event, ToolCompleteEvent):
                    answered.add((event.step or "", event.index))
                    changes |= outcomes.get((event.step or "", event.index), {})
            copy = event.model_copy(update=changes)
            share_field_names(copy)
            # Doing this later would create a large number of objects between two garbage collections.
            normalise(copy)
            past.append(copy)
        results = [
            ToolCompleteEvent(call=call, step=step, index=index, branch=branch, hidden=call.hidden, **fields)
            for (step, index), (call, branch) in calls.items()
            if (step, index) not in answered and (fields := outcomes.get((step, index))) is not None
        ]
        copied_calls = RunCalls(past)
        started = copied_calls.list_started_calls()
        for run in originals if self.restricted else ():
            for call, key in RunCalls(run).list_later_calls(copied_calls).items():
                started[call] = key if started.get(call, key) is not None else None
        keys = {copied_calls.own_key(call): key for call, key in started.items()}
        return CopiedRun(past, results, copied_calls.find_discarded(), keys)

    def _find_outcomes(
        self, calls: Mapping[Slot, _Call], original: RunCalls, tools: Mapping[str, Tool]
    ) -> dict[Slot, dict[str, Any]]:
        """Return the changed results by slot."""
        if not self.restricted:
            return {_find_slot(key, calls, self): fields for key, fields in self.results.items()}
        public_calls = {slot: each for slot, each in calls.items() if not each.call.hidden}
        outcomes: dict[Slot, dict[str, Any]] = {}
        for key, fields in self.results.items():
            slot = _find_slot(key, public_calls, self)
            name, call = calls[slot].call.name, Call("", *slot)
            is_unused_client_tool = call not in original.keys and isinstance(tools.get(name), ClientTool)
            if not (original.is_for_client(call) or is_unused_client_tool):
                raise NotPermitted(
                    f"results[{key!r}] must be the result of a client tool in a restricted fork, got the tool {name!r}"
                )
            outcomes[slot] = fields
        return outcomes

    def _replace_ids(self, event: Event, old: str, context_id: str, ids: dict[str, str]) -> dict[str, Any]:
        """Return the new ids for an event. `ids` maps old to new ids, including nested runs."""
        changes: dict[str, Any] = {}
        if event.context_id == old:
            changes["context_id"] = context_id
        if event.task_id in ids:
            changes["task_id"] = ids[event.task_id]
        if isinstance(event, SubtaskEvent) and event.task_id in ids:
            # Must match the id created when the nested run is resumed.
            new = make_nested_id(ids[event.task_id], event.step, event.index)
            changes["subtask_id"] = ids.setdefault(event.subtask_id, new)
        if event.parent_task_id in ids:
            changes["parent_task_id"] = ids[event.parent_task_id]
        if isinstance(event, StatusUpdateEvent) and (started := event.metadata.get(STARTED_CALLS)):
            keys = {_replace_run(key, ids): value for key, value in started.items()}
            changes["metadata"] = {**event.metadata, STARTED_CALLS: keys}
        if event.parent_task_id is not None and event.parent_task_id != self.task_id:
            changes["metadata"] = {**event.metadata, ROOT: ids[self.task_id]}
        return changes

    def _replace_prompt(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the initial messages, replacing the user's message if there is a new one."""
        if self.at > 1 or not self.messages:
            return messages
        end = max((index for index, message in enumerate(messages) if message.role == "user"), default=len(messages))
        return [*messages[:end], *self.messages]


class CopiedRun(NamedTuple):
    """First part of a fork."""

    events: list[Event]
    """Copied events."""
    results: list[ToolCompleteEvent]
    """Results for calls left open by the copied events."""
    discarded: list[str]
    """Ids of copied questions that the fork asks again."""
    started_calls: dict[str, str | None]
    """Open calls that the original run started; see `STARTED_CALLS`."""

    def fold(self) -> tuple[EarlierAttempts, ThoughtGraph]:
        """Fold the copied events."""
        return EarlierAttempts(self.events), ThoughtGraph.of(self.events)


class _Call(NamedTuple):
    call: ToolCall
    branch: str | None


def _replace_run(key: str, ids: Mapping[str, str]) -> str:
    """Replace the run id in the idempotency key of a call."""
    task_id, _, slot = key.partition(":")
    return f"{ids.get(task_id, task_id)}:{slot}"


def make_fork(
    task_id: str, seq: int, messages: tuple[Message, ...], results: Mapping[str, Any], *, restricted: bool
) -> Fork:
    """Create a fork from validated user arguments.

    Raises:
        ConfigurationError: An argument is invalid.
    """
    if not isinstance(cast("Any", restricted), bool):
        raise ConfigurationError(f"restricted must be True or False, got {restricted!r}")
    invalid = next((message for message in messages if seq > 1 and message.role not in ("user", "system")), None)
    if invalid is not None:
        raise ConfigurationError(
            f"prompt must only contain user or system messages unless at=1, got a message with role {invalid.role!r}; "
            "use results={...} to change tool results"
        )
    fields = {key: _to_fields(key, results[key]) for key in results}
    return Fork(task_id=task_id, at=seq, messages=messages, results=fields, restricted=restricted)


def _to_fields(key: str, value: Any) -> dict[str, Any]:
    """Convert a tool result to event fields."""
    if isinstance(value, ToolError):
        return {"result": None, "parts": EMPTY_LIST, **failure_fields(value)}
    try:
        result, content, media = encode_with_parts(value)
        parts = make_parts_field(media).get("parts", EMPTY_LIST)
    except ToolError as error:
        raise ConfigurationError(f"results[{key!r}] must be JSON serializable, got {value!r}") from error
    return {"success": True, "result": result, "error": None, "code": None, "content": content, "parts": parts}


def _find_calls(events: Sequence[Event]) -> dict[Slot, _Call]:
    """Return a run's tool calls, keyed by slot."""
    return {
        (event.step or "", index): _Call(call, event.branch)
        for event in events
        if isinstance(event, ContentCompleteEvent) and event.parent_task_id is None
        for index, call in enumerate(event.tool_calls)
    }


def _find_slot(key: str, calls: Mapping[Slot, _Call], fork: Fork) -> Slot:
    by_id = [slot for slot, (call, _) in calls.items() if call.id == key]
    by_name = [slot for slot in calls if _format_slot(slot) == key]
    if len(by_id) > 1 and not by_name:
        names = " or ".join(map(_format_slot, by_id))
        raise ConfigurationError(f"results[{key!r}] must be a slot, because {len(by_id)} calls have this id: {names}")
    if not by_id and not by_name:
        existing = ", ".join(f"{call.id!r} ({call.name}, {_format_slot(slot)})" for slot, (call, _) in calls.items())
        raise ConfigurationError(
            f"results[{key!r}] must be a call of run {fork.task_id} up to event {fork.at}: {existing or 'none'}"
        )
    return by_id[0] if len(by_id) == 1 else by_name[0]


def _format_slot(slot: Slot) -> str:
    return f"{slot[0]}/{slot[1]}"
