"""Sent requests of a run, used to record only changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from operator import is_
from typing import Any, Protocol

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import LLMCallEvent
from rxloop.protocol.messages import Message
from rxloop.protocol.model import FrozenDict
from rxloop.protocol.step_events import RecordedPart, RequestRecord
from rxloop.state.history import History, measure_message


class RequestFrame:
    """Request without its history messages, and its record."""

    __slots__ = (
        *("fields", "is_stored", "layer_count", "record", "response_schema", "settings", "shown_settings", "sizes"),
        *("system", "tail", "texts", "tool_count", "tools"),
    )

    def __init__(
        self,
        request: ModelRequest,
        fields: dict[str, Any],
        record: RequestRecord,
        texts: dict[str, Any],
        sizes: list[int],
        shown_settings: dict[str, Any] | None,
    ) -> None:
        self.system, self.tail, self.tools = request.system, request.tail, request.tools
        self.settings, self.response_schema = request.settings, request.response_schema
        self.layer_count, self.tool_count = len(request.system) + len(request.tail), len(request.tools)
        self.shown_settings = shown_settings
        """Settings in the field `settings` of the event, or None."""
        self.fields = fields
        """Fields of the record."""
        self.record = record
        """Record of a request with the whole history, without texts."""
        self.texts = texts
        """All texts by digest."""
        self.sizes = sizes
        """Size of each part in characters, in the order of `PARTS`."""
        self.is_stored = False
        """True if the run has recorded all texts."""


class SentMessages:
    """Messages of a request that differ from the history."""

    __slots__ = ("event", "history", "messages", "position", "refs", "sizes")

    def __init__(
        self,
        event: LLMCallEvent | None,
        history: History,
        messages: Sequence[Message],
        refs: list[int | RecordedPart],
        position: int,
        sizes: list[int],
    ) -> None:
        self.event = event
        self.history = history
        self.messages = messages
        self.refs = refs
        """History index or record of each message."""
        self.position = position
        """Index in the history after the last message."""
        self.sizes = sizes
        """Size of each part in characters, in the order of `PARTS`."""

    def count_same(self, messages: Sequence[Message]) -> int:
        """Return the number of leading messages that the next request has too."""
        same = sum(takewhile(bool, map(is_, messages, self.messages)))
        # Operators that edit messages create new objects for each request.
        for message, previous in zip(messages[same:], self.messages[same:], strict=False):
            if message is not previous and vars(message) != vars(previous):
                break
            same += 1
        return same


class TextRecorder(Protocol):
    """Recorder of a run."""

    @property
    def request_texts(self) -> set[str]:
        """Digests of recorded texts, shared with nested runs."""
        ...


class SentRequests:
    """Requests sent by a run.

    Args:
        recorder: Recorder of the run.
        is_recorded: Whether `llm-call` events contain records of the requests.
    """

    __slots__ = ("_recorder", "frame", "is_recorded", "newest", "pending", "task", "task_size", "task_start")

    def __init__(self, recorder: TextRecorder, *, is_recorded: bool = True) -> None:
        self._recorder, self.is_recorded = recorder, is_recorded
        self.frame: RequestFrame | None = None
        """Frame of the newest request."""
        self.newest: dict[str | None, SentMessages] = {}
        """Messages of the newest request of each branch. Requests with the whole history are not included."""
        self.pending: tuple[LLMCallEvent, RequestFrame, SentMessages | None] | None = None
        """Request that is about to be published, if anything in it is new."""
        self.task: Sequence[Message] = ()
        """Messages that started the run."""
        self.task_size = 0
        """Size of these messages in characters."""
        self.task_start: int | None = None
        """Index of the first one in the history, if known."""

    def set_task(self, messages: Sequence[Message]) -> None:
        """Set the messages that started the run."""
        self.task, self.task_size, self.task_start = messages, sum(map(measure_message, messages)), None

    def find_task(self, history: Sequence[Message]) -> range:
        """Return the indexes of the messages that started the run."""
        if self.task_start is None:
            first = self.task[0] if self.task else None
            indexes = (index for index in range(len(history) - 1, -1, -1) if history[index] is first)
            self.task_start = next(indexes, 0) if first is not None else 0
        return range(self.task_start, self.task_start + len(self.task))

    def select_new(self, texts: Mapping[str, Any]) -> FrozenDict:
        """Return the texts that the run has not recorded yet."""
        recorded = self._recorder.request_texts
        return FrozenDict({digest: text for digest, text in texts.items() if digest not in recorded})

    def confirm(self, event: LLMCallEvent) -> None:
        """Note that an event has been published, so that later events can refer to it."""
        pending, self.pending = self.pending, None
        if pending is None or pending[0] is not event or not event.attempt or event.request is None:
            # An operator has published a copy or nothing. The next event repeats the texts.
            return
        _, frame, messages = pending
        self._recorder.request_texts.update(event.request.texts)
        frame.is_stored = True
        if messages is not None:
            messages.event = event
            self.newest[event.branch] = messages
