"""The tool calls of one message, and what the model reads of those that come to no result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rxloop.protocol.events import PendingInput, ToolCompleteEvent
from rxloop.protocol.frozen import FrozenList
from rxloop.protocol.messages import Content, Media, Message, TextPart, ToolCall
from rxloop.protocol.unchecked import unchecked
from rxloop.state.history import Ledger

_message = unchecked(Message)

THINK_ALOUD = "think_aloud"
CANCELED_CALL = "The call was cancelled before it had a result."
NEVER_BEGAN = "The call was cancelled before it began: nothing was done."
UNKNOWN_EFFECT = "effect unknown: it was started, and it is not known whether it had its effect"
FIND_OUT = "Find out what happened before you repeat it."
INTERRUPTED = f"This call was interrupted, {UNKNOWN_EFFECT}. It was not made again. {FIND_OUT}"
Slot = tuple[str, int]


def content_with(text: str, parts: Sequence[Media]) -> Content:
    """Make the content of a message of its text and of what follows it."""
    return FrozenList([TextPart(text=text), *parts] if text else parts)


@dataclass(frozen=True, slots=True)
class Batch:
    """The tool calls of one assistant message that are not all answered yet."""

    step: str
    message: Message
    answers: Ledger[int, ToolCompleteEvent] = field(default_factory=Ledger[int, ToolCompleteEvent])
    begun: int = 0
    """The calls that were started, a bit for each place, but for those that an attempt has left at a question."""
    left_out: tuple[int, ...] = ()
    """In what clients get: the places of the calls that are not for them, which the message lacks."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All calls that the message has, in its order."""
        return self.message.tool_calls

    @property
    def open(self) -> list[int]:
        """The places of the calls that have no answer."""
        return [index for index in range(len(self.calls)) if index not in self.answers]

    def awaits(self, index: int) -> bool:
        """Tell whether the call at a place has no answer."""
        return 0 <= index < len(self.message.tool_calls) and index not in self.answers

    def index_of(self, place: int) -> int:
        """Where the call is that events name by its place, among those that the message has; -1 if it lacks it."""
        if not self.left_out:
            return place
        return -1 if place in self.left_out else place - sum(each < place for each in self.left_out)

    def _places(self) -> Iterable[int]:
        """The places of the calls, as events name them."""
        every = range(len(self.calls) + len(self.left_out))
        return (place for place in every if place not in self.left_out) if self.left_out else every

    @property
    def thought_only(self) -> bool:
        """Whether every call is `think_aloud`."""
        return all(call.name == THINK_ALOUD for call in self.calls)

    def messages(self, pending: Iterable[PendingInput] = ()) -> list[Message]:
        """Return the assistant message, one result for each call, in call order, and what the tools say beside that."""
        asking = self.asking(pending)
        results = [
            _message(
                role="tool",
                tool_call_id=call.id,
                content=self._answer(index, asking),
                message_id=f"{self.message.message_id}:{place}",
            )
            for index, (place, call) in enumerate(zip(self._places(), self.calls, strict=False))
        ]
        return [self.message, *results, *self._beside()]

    def _beside(self) -> Iterable[Message]:
        for index, place in enumerate(self._places()):
            said = self.answers[index].messages if index in self.answers else ()
            for number, message in enumerate(said):
                name = message.message_id or f"{self.message.message_id}:{place}:{number}"
                yield message.model_copy(update={"message_id": name})

    def _answer(self, index: int, asking: int) -> Content:
        if index not in self.answers:
            return self.unanswered(index, asking)
        answer = self.answers[index]
        return content_with(answer.content, answer.parts) if answer.parts else answer.content

    def unanswered(self, index: int, asking: int, *, idempotent: bool = False) -> str:
        """Return what the model reads of a call that comes to no result.

        Args:
            index: The place of the call.
            asking: The calls that wait for an answer, a bit for each place.
            idempotent: Whether the call may be made again in any case.
        """
        if asking >> index & 1:
            return CANCELED_CALL
        if not self.begun >> index & 1:
            return NEVER_BEGAN
        return CANCELED_CALL if idempotent else INTERRUPTED

    def asking(self, pending: Iterable[PendingInput]) -> int:
        """Return those of the calls that wait for an answer, a bit for each place."""
        places = 0
        for question in pending:
            if question.call is not None and question.task_id is None and question.step == self.step:
                index = self.index_of(question.index)
                places |= 1 << index if index >= 0 else 0
        return places
