"""Number of messages and open tool calls of a run after each event, without the messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    LLMCallEvent,
    MessageAddedEvent,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
)
from rxloop.protocol.messages import Message
from rxloop.protocol.visibility import select_public_messages


class Count(NamedTuple):
    """Number of items, including and excluding those that clients must not receive."""

    all: int = 0
    public: int = 0

    def plus(self, other: Count) -> Count:
        """Return the sum."""
        return Count(self.all + other.all, self.public + other.public)


_NONE = Count()


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """Batch of tool calls that is not completely answered."""

    step: str | None
    open: frozenset[int]
    """Indexes of unanswered calls, as in events."""
    hidden: frozenset[int]
    """Indexes of hidden calls."""
    messages: Count
    """Messages that are added to the history when all calls are answered."""

    @property
    def calls(self) -> Count:
        """Number of unanswered calls."""
        return Count(len(self.open), len(self.open - self.hidden))


@dataclass(frozen=True, slots=True)
class HistoryCounts:
    """Numbers of messages and open calls. They are equal to those of the folded run state."""

    messages: Count = _NONE
    """Messages in the history."""
    held: Count = _NONE
    """Messages to add after the open message and its batch."""
    is_answering: bool = False
    """True if a model call is open."""
    batch: OpenBatch | None = None

    @property
    def calls(self) -> Count:
        """Number of open calls."""
        return _NONE if self.batch is None else self.batch.calls

    def add(self, event: Event) -> HistoryCounts:
        """Return the numbers after the next event."""
        if event.parent_task_id is not None or event.branch is not None:
            return self
        match event:
            case TaskEvent():
                waiting = _NONE if self.batch is None else self.batch.messages
                return HistoryCounts(self.messages.plus(waiting).plus(self.held).plus(count_messages(event.messages)))
            case StatusUpdateEvent(resumed=True) if self.is_answering:
                return self._release(self.messages, is_answering=True)
            case LLMCallEvent():
                return replace(self, is_answering=True)
            case MessageAddedEvent():
                added = Count(1, int(event.role == "user"))
                if self.batch is not None or self.is_answering:
                    return replace(self, held=self.held.plus(added))
                return replace(self, messages=self.messages.plus(added))
            case ContentCompleteEvent():
                return self._add_answer(event)
            case ToolCompleteEvent():
                return self._complete_call(event)
            case _:
                return self

    def _release(self, messages: Count, *, is_answering: bool = False) -> HistoryCounts:
        """Add the held messages to the history."""
        return replace(self, messages=messages.plus(self.held), held=_NONE, is_answering=is_answering)

    def _add_answer(self, event: ContentCompleteEvent) -> HistoryCounts:
        if event.finish_reason == "canceled":
            return self._release(self.messages)
        if event.finish_reason == "interrupted":
            return self._release(self.messages.plus(Count(1, 1) if event.content.strip() else _NONE))
        has_text = bool(event.content or event.files or event.reasoning)
        if not event.tool_calls:
            if event.left_out and not has_text:
                return replace(self, is_answering=False)
            return self._release(self.messages.plus(Count(1, int(has_text))))
        # Logs of imported public events lack the hidden calls. Their indexes are skipped.
        every = len(event.tool_calls) + len(event.left_out)
        indexes = [index for index in range(every) if index not in event.left_out]
        hidden = frozenset(index for index, call in zip(indexes, event.tool_calls, strict=True) if call.hidden)
        visible = len(indexes) - len(hidden)
        messages = Count(1 + len(indexes), int(has_text or visible > 0) + visible)
        batch = OpenBatch(event.step or "", frozenset(indexes), hidden, messages)
        return replace(self, is_answering=False, batch=batch)

    def _complete_call(self, event: ToolCompleteEvent) -> HistoryCounts:
        batch = self.batch
        if batch is None or batch.step != event.step or event.index not in batch.open:
            return self
        messages = batch.messages.plus(count_messages(event.messages))
        remaining = batch.open - {event.index}
        if remaining:
            return replace(self, batch=replace(batch, open=remaining, messages=messages))
        return replace(self, batch=None)._release(self.messages.plus(messages), is_answering=self.is_answering)


def count_messages(messages: Iterable[Message]) -> Count:
    """Return the number of messages, and of those that clients may receive."""
    listed = list(messages)
    return Count(len(listed), len(select_public_messages(listed)))
