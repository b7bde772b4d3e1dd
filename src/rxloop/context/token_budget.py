"""Old results go first, then the oldest blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rxloop.context._layout import Layout, brief, marked, without_media
from rxloop.context._marks import Marks
from rxloop.pipeline.seams import Budget
from rxloop.protocol.messages import Message

_SAME = "[left out: a later result says the same]"
_GONE = "[left out: {n} characters]"
_BRIEF = 400


class TokenBudgetCompressor(Marks):
    """Shortens old tool results, blanks them, and then drops the oldest blocks, as far as it must; and keeps the facts.

    What was called, and what the model said to it, stays longer than with a window; the results go first: those that a
    later one repeats, then the middle of long ones, then the old ones whole.
    """

    def compress(self, messages: Sequence[Message], budget: Budget) -> list[Message]:
        """Choose the messages to send instead of the history."""
        layout = Layout(messages, budget)
        repeats = _repeats(messages)
        forms: dict[int, Sequence[Message]] = {}
        over = sum(layout.costs[index] for index in layout.free) - layout.room
        steps: list[Callable[[Message], Message]] = [partial(_unrepeated, repeats), _brief, _blank]
        for shorten in steps:
            over = _shorten(layout, forms, shorten, over)
        layout.keep_newest(forms)
        return layout.messages()


def _shorten(
    layout: Layout, forms: dict[int, Sequence[Message]], shorten: Callable[[Message], Message], over: int
) -> int:
    """Shorten the results of free blocks, the oldest first, until nothing is over; what is over then."""
    for index in layout.free:
        if over <= 0:
            break
        block = layout.blocks[index]
        if not block.calls:
            continue
        old = forms.get(index, block.messages)
        new = [shorten(message) if message.role == "tool" else message for message in old]
        cost = layout.budget.count(*new)
        if cost < layout.costs[index]:
            over -= layout.costs[index] - cost
            layout.costs[index] = cost
            forms[index] = new
    return over


def _repeats(messages: Sequence[Message]) -> set[int]:
    """Find the results that a later one repeats, by their identity; two images are taken for different ones."""
    seen: set[str] = set()
    found: set[int] = set()
    for message in reversed(messages):
        if message.role == "tool" and not message.media:
            if message.text in seen:
                found.add(id(message))
            seen.add(message.text)
    return found


def _unrepeated(repeats: set[int], message: Message) -> Message:
    return marked(message, _SAME) if id(message) in repeats and len(message.text) > len(_SAME) else message


def _brief(message: Message) -> Message:
    return brief(message, _BRIEF) if len(message.text) > 2 * _BRIEF else message


def _blank(message: Message) -> Message:
    text = message.text
    if len(text) > 2 * len(_GONE):
        return marked(message, _GONE.format(n=len(text)))
    return without_media(message)
