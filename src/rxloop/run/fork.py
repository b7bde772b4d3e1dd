"""A fork: a run that begins with a part of another one, and what is different in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rxloop.errors import ConfigurationError, ToolError
from rxloop.protocol.envelope import ROOT
from rxloop.protocol.events import ContentCompleteEvent, Event, MessageAddedEvent, TaskEvent, ToolCompleteEvent
from rxloop.protocol.messages import Message, ToolCall
from rxloop.state.batch import Slot
from rxloop.state.conversation import check_whole
from rxloop.tools import encode_result


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Where a fork leaves the run that it is made of, and what is changed there."""

    task_id: str
    """The run that it is a fork of."""
    at: int
    """The last event that it takes over."""
    messages: tuple[Message, ...] = ()
    """In the place of the user's message where the fork leaves at the first event, else behind what is there."""
    results: Mapping[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Outcomes of tool calls, as fields of their events, by the id of the call or by its slot."""

    def past(
        self,
        events: Sequence[Event],
        before: Sequence[Message],
        *,
        asked: Callable[[Sequence[Message]], list[Message]] = list,
        **envelope: Any,
    ) -> list[Event]:
        """The events that the fork takes over, as its own.

        Args:
            events: Those of the run that it is made of.
            before: The history of the conversation before that run: a fork stands for itself.
            asked: Makes of messages those that a run is started with.
            envelope: Fields of its `task` event.

        Raises:
            ConfigurationError: The run ends before `at`, or has no such call.
            EventLogError: An event up to `at` could not be read.
        """
        check_whole(self.task_id, events, min(self.at, events[-1].seq if events else 1))
        if self.at > len(events):
            raise ConfigurationError(
                f"the run {self.task_id} has {len(events)} events: it cannot be forked at={self.at}"
            )
        taken = events[: self.at]
        outcomes = self._outcomes(taken)
        context_id = events[0].context_id
        ids = {"task_id": envelope["task_id"], "context_id": envelope["context_id"]}
        past: list[Event] = []
        for event in taken:
            changes: dict[str, Any] = {}
            if event.context_id == context_id:
                changes["context_id"] = ids["context_id"]
            if event.task_id == self.task_id:
                changes["task_id"] = ids["task_id"]
            if event.parent_task_id == self.task_id:
                changes["parent_task_id"] = ids["task_id"]
            elif event.parent_task_id is not None:
                changes["metadata"] = {**event.metadata, ROOT: ids["task_id"]}
            elif isinstance(event, TaskEvent):
                messages = [*before, *self._asked(event.messages)]
                changes.update(envelope, messages=asked(messages), fork_of=self.task_id, fork_seq=self.at)
            elif isinstance(event, ToolCompleteEvent):
                changes.update(outcomes.get((event.step or "", event.index), {}))
            past.append(event.model_copy(update=changes))
        return past

    def answers(self, past: Sequence[Event]) -> Iterator[ToolCompleteEvent]:
        """The answers to calls that are open where the fork begins, behind the events that it has taken over."""
        outcomes = self._outcomes(past)
        answered = {(event.step or "", event.index) for event in past if isinstance(event, ToolCompleteEvent)}
        for slot, (call, branch) in _calls(past).items():
            if slot in outcomes and slot not in answered:
                yield ToolCompleteEvent(
                    call=call, step=slot[0], index=slot[1], branch=branch, hidden=call.hidden, **outcomes[slot]
                )

    def added(self) -> Iterator[MessageAddedEvent]:
        """The new messages of the user that stand behind what the fork has taken over."""
        if self.at > 1:
            for message in self.messages:
                role = "system" if message.role == "system" else "user"
                yield MessageAddedEvent(role=role, content=message.content, cause="fork", message_id=message.message_id)

    def _asked(self, messages: Sequence[Message]) -> Sequence[Message]:
        """What the run was started with, with another question where there is one."""
        if self.at > 1 or not self.messages:
            return messages
        place = max((place for place, message in enumerate(messages) if message.role == "user"), default=len(messages))
        return [*messages[:place], *self.messages]

    def _outcomes(self, events: Sequence[Event]) -> dict[Slot, dict[str, Any]]:
        """The given results by the slots of their calls."""
        calls = _calls(events)
        return {_slot(key, calls, self): fields for key, fields in self.results.items()}


class _Call(NamedTuple):
    call: ToolCall
    branch: str | None


def make_fork(task_id: str, at: int, messages: tuple[Message, ...], results: Mapping[str, Any]) -> Fork:
    """A fork, of arguments as a user gives them.

    Raises:
        ConfigurationError: A message or a result cannot be used.
    """
    # Nothing comes before the first event: it is what the run was started with.
    at = max(at, 1)
    wrong = next((message for message in messages if at > 1 and message.role not in ("user", "system")), None)
    if wrong is not None:
        raise ConfigurationError(
            f"the prompt of a fork holds a message of the role {wrong.role!r}: behind the first event only messages "
            "of the user or the system can be added; give results={...} to change what a tool answered"
        )
    return Fork(task_id=task_id, at=at, messages=messages, results={key: _fields(key, results[key]) for key in results})


def _fields(key: str, value: Any) -> dict[str, Any]:
    """The outcome of a call as fields of its event."""
    if isinstance(value, ToolError):
        return {"success": False, "result": None, "error": str(value), "content": str(value)}
    try:
        result, content = encode_result(value)
    except ToolError as error:
        raise ConfigurationError(f"results[{key!r}]={value!r} cannot be written as JSON: give plain data") from error
    return {"success": True, "result": result, "error": None, "content": content}


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
