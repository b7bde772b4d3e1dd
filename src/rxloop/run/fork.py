"""A fork: a run that begins with a part of another one, and what is different in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rxloop.errors import ConfigurationError, ToolError
from rxloop.pipeline.log_retry import check_whole
from rxloop.protocol.envelope import ROOT
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    MessageAddedEvent,
    SubtaskEvent,
    TaskEvent,
    ToolCompleteEvent,
)
from rxloop.protocol.ids import make_nested_id
from rxloop.protocol.messages import Message, ToolCall
from rxloop.protocol.model import EMPTY_LIST
from rxloop.state.history import Slot
from rxloop.tools.result import collect_iterator, encode_with_parts, failure_fields, make_parts_field


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Where a fork leaves the run that it is made of, and what is changed there."""

    task_id: str
    """The run that it is a fork of."""
    at: int
    """The last event that it takes over."""
    messages: tuple[Message, ...] = ()
    """In the place of the user's message where the fork leaves at the first event, else after what is there."""
    results: Mapping[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Outcomes of tool calls, as fields of their events, by the id of the call or by its slot."""

    @property
    def added(self) -> list[MessageAddedEvent]:
        """The new messages of the user that stand after what the fork has taken over."""
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

    def copy(
        self,
        events: Sequence[Event],
        before: Sequence[Message],
        *,
        asked: Callable[[Sequence[Message]], list[Message]],
        **envelope: Any,
    ) -> tuple[list[Event], list[ToolCompleteEvent]]:
        """The events that the fork takes over, as its own, and the answers to calls that are open after them.

        Args:
            events: Those of the run that it is made of.
            before: The history of the conversation before that run: a fork stands for itself.
            asked: Makes of messages those that a run is started with.
            envelope: Fields of its `task` event.

        Raises:
            ConfigurationError: The run ends before `at`, or has no such call.
            EventLogError: An event up to `at` could not be read.
        """
        last = events[-1].seq
        check_whole(self.task_id, events, min(self.at, last))
        if self.at > last:
            raise ConfigurationError(f"the run {self.task_id} has {last} events: it cannot be forked at={self.at}")
        taken = [event for event in events if event.seq <= self.at]
        calls = _calls(taken)
        outcomes = {_slot(key, calls, self): fields for key, fields in self.results.items()}
        envelope.update(fork_of=self.task_id, fork_seq=self.at)
        past: list[Event] = []
        answered: set[Slot] = set()
        ids = {self.task_id: envelope["task_id"]}
        for event in taken:
            changes = self._new_ids(event, events[0].context_id, envelope["context_id"], ids)
            if event.parent_task_id is None:
                if isinstance(event, TaskEvent):
                    changes |= {**envelope, "messages": asked([*before, *self._asked(event.messages)])}
                elif isinstance(event, ToolCompleteEvent):
                    answered.add((event.step or "", event.index))
                    changes |= outcomes.get((event.step or "", event.index), {})
            past.append(event.model_copy(update=changes))
        answers = [
            ToolCompleteEvent(call=call, step=step, index=index, branch=branch, hidden=call.hidden, **fields)
            for (step, index), (call, branch) in calls.items()
            if (step, index) not in answered and (fields := outcomes.get((step, index))) is not None
        ]
        return past, answers

    def _new_ids(self, event: Event, old: str, context_id: str, ids: dict[str, str]) -> dict[str, Any]:
        """The ids of an event in the fork; `ids` has those of the run and of the runs that are nested in it."""
        changes: dict[str, Any] = {}
        if event.context_id == old:
            changes["context_id"] = context_id
        if event.task_id in ids:
            changes["task_id"] = ids[event.task_id]
        if isinstance(event, SubtaskEvent) and event.task_id in ids:
            # As it is made of the slot that called it first, by whoever goes on with it.
            new = make_nested_id(ids[event.task_id], event.step, event.index)
            changes["subtask_id"] = ids.setdefault(event.subtask_id, new)
        if event.parent_task_id in ids:
            changes["parent_task_id"] = ids[event.parent_task_id]
        if event.parent_task_id is not None and event.parent_task_id != self.task_id:
            changes["metadata"] = {**event.metadata, ROOT: ids[self.task_id]}
        return changes

    def _asked(self, messages: Sequence[Message]) -> Sequence[Message]:
        """What the run was started with, with another question where there is one."""
        if self.at > 1 or not self.messages:
            return messages
        place = max((place for place, message in enumerate(messages) if message.role == "user"), default=len(messages))
        return [*messages[:place], *self.messages]


class _Call(NamedTuple):
    call: ToolCall
    branch: str | None


def make_fork(task_id: str, at: int, messages: tuple[Message, ...], results: Mapping[str, Any]) -> Fork:
    """A fork, of arguments as a user gives them.

    Raises:
        ConfigurationError: A message or a result cannot be used.
    """
    wrong = next((message for message in messages if at > 1 and message.role not in ("user", "system")), None)
    if wrong is not None:
        raise ConfigurationError(
            f"the prompt of a fork holds a message of the role {wrong.role!r}: after the first event only messages "
            "of the user or the system can be added; give results={...} to change what a tool answered"
        )
    return Fork(task_id=task_id, at=at, messages=messages, results={key: _fields(key, results[key]) for key in results})


def _fields(key: str, value: Any) -> dict[str, Any]:
    """The outcome of a call as fields of its event."""
    if isinstance(value, ToolError):
        return {"result": None, "parts": EMPTY_LIST, **failure_fields(value)}
    try:
        value = collect_iterator(value)
        result, content, found = encode_with_parts(value)
        parts = make_parts_field(found).get("parts", EMPTY_LIST)
    except ToolError as error:
        raise ConfigurationError(f"results[{key!r}]={value!r} cannot be written as JSON: give plain data") from error
    return {"success": True, "result": result, "error": None, "content": content, "parts": parts}


def _calls(events: Sequence[Event]) -> dict[Slot, _Call]:
    """The tool calls of a run by their slots."""
    return {
        (event.step or "", index): _Call(call, event.branch)
        for event in events
        if isinstance(event, ContentCompleteEvent) and event.parent_task_id is None
        for index, call in enumerate(event.tool_calls)
    }


def _slot(key: str, calls: Mapping[Slot, _Call], fork: Fork) -> Slot:
    found = [slot for slot, (call, _) in calls.items() if call.id == key]
    named = [slot for slot in calls if _name(slot) == key]
    if len(found) > 1 and not named:
        names = " or ".join(map(_name, found))
        raise ConfigurationError(
            f"results: {len(found)} calls of the run {fork.task_id} have the id {key!r}; name one by its slot: {names}"
        )
    if not found and not named:
        there = ", ".join(f"{call.id!r} ({call.name}, {_name(slot)})" for slot, (call, _) in calls.items())
        raise ConfigurationError(
            f"results: the run {fork.task_id} has no call {key!r} up to event {fork.at}; "
            f"its calls are {there or 'none'}"
        )
    return found[0] if len(found) == 1 else named[0]


def _name(slot: Slot) -> str:
    return f"{slot[0]}/{slot[1]}"
