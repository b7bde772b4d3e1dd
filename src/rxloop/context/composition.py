"""Several compressors as one."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace
from inspect import isawaitable

from rxloop.context._marks import Marks
from rxloop.errors import ConfigurationError
from rxloop.pipeline.seams import Budget, Compressor
from rxloop.protocol.messages import Message


class ChainedCompressor(Marks):
    """Asks one compressor after the other, until the budget is met.

    Each sees what the one before it left, without its summary: there is one summary in the end, and it covers all that
    was left out.

    Args:
        compressors: The gentlest first.
        max_tokens: What a whole request may take; None is the least that one of them states.
        high: The part of it at which the history is cut.
        low: The part of it that the request has after a cut.
    """

    def __init__(
        self, *compressors: Compressor, max_tokens: int | None = None, high: float = 1.0, low: float = 0.6
    ) -> None:
        if not compressors:
            raise ConfigurationError("ChainedCompressor() has nothing to ask: give it compressors")
        least = min(compressor.max_tokens for compressor in compressors)
        super().__init__(least if max_tokens is None else max_tokens, high=high, low=low)
        windows = [
            most for compressor in compressors if (most := getattr(compressor, "max_messages", None)) is not None
        ]
        self.max_messages = min(windows, default=None)
        self.compressors = compressors

    def compress(self, messages: Sequence[Message], budget: Budget) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Choose the messages to send instead of the history."""
        return self._ask_from(0, messages, messages, budget)

    def _ask_from(
        self, first: int, history: Sequence[Message], messages: Sequence[Message], budget: Budget
    ) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        for place in range(first, len(self.compressors)):
            given = budget if place == 0 else _remaining_budget(history, messages, budget)
            asked = messages if place == 0 else _without_summary(history, messages)
            made = self.compressors[place].compress(asked, given)
            if isawaitable(made):
                return self._ask_rest_after(place, history, made, budget)
            messages = made
            if budget.counter.count(messages) <= budget.target:
                break
        return messages

    async def _ask_rest_after(
        self, place: int, history: Sequence[Message], made: Awaitable[Sequence[Message]], budget: Budget
    ) -> Sequence[Message]:
        messages = await made
        if budget.counter.count(messages) <= budget.target:
            return messages
        rest = self._ask_from(place + 1, history, messages, budget)
        return await rest if isawaitable(rest) else rest


def _without_summary(history: Sequence[Message], messages: Sequence[Message]) -> list[Message]:
    own = {id(message) for message in history}
    return [message for message in messages if id(message) in own or message.role in ("tool", "assistant")]


def _remaining_budget(history: Sequence[Message], messages: Sequence[Message], budget: Budget) -> Budget:
    """Give the next compressor its budget: with what is gone already, and where pinned messages stand now."""
    pins = {id(history[place]) for place in budget.pinned if place < len(history)}
    left = _without_summary(history, messages)
    there = {id(message) for message in left}
    return replace(
        budget,
        pinned=frozenset(place for place, message in enumerate(left) if id(message) in pins),
        dropped=[message for message in history if id(message) not in there],
    )
