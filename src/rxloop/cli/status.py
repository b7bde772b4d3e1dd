"""What a run is doing at the moment, in a few words."""

from __future__ import annotations

from typing import Any

from reactivex import Observable, Subject, abc
from reactivex.disposable import CompositeDisposable
from rich.text import Text

from rxloop.cli.render import many
from rxloop.operators import Stats, View, stats
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    LLMCallEvent,
    ThoughtDeltaEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    UsageEvent,
)
from rxloop.protocol.messages import Usage
from rxloop.thoughts.drawing import one_line
from rxloop.tools.think_aloud import NAME as THINK_ALOUD

_GAP = " · "
_SHOWN = 2
"""The tools that are named when many work at once."""


class _Facts:
    """What the figures of `op.stats` leave out: what is at work, and the tokens of the message that is not complete."""

    def __init__(self) -> None:
        self._tools: dict[tuple[Any, ...], str] = {}
        self._waiting: set[tuple[Any, ...]] = set()
        self._streamed: dict[tuple[Any, ...], int] = {}
        self._tokens = 0

    def take(self, event: Event) -> bool:
        """Take an event, and return whether something begins or ends with it."""
        step = (event.task_id, event.branch, event.step)
        match event:
            case ContentDeltaEvent() | ThoughtDeltaEvent() | ToolCallDeltaEvent():
                self._streamed[step] = self._streamed.get(step, 0) + 1
                if step not in self._waiting:
                    return False
                self._waiting.discard(step)
            case LLMCallEvent():
                self._waiting.add(step)
            case ContentCompleteEvent():
                self._waiting.discard(step)
            case UsageEvent():
                # The provider's own word in the place of the count.
                self._streamed.pop(step, None)
                self._tokens += event.output_tokens
            case ToolStartEvent() if event.for_clients() is not None and event.name != THINK_ALOUD:
                self._tools[*step, event.index] = one_line(event.name, 30)
            case ToolCompleteEvent():
                self._tools.pop((*step, event.index), None)
            case _:
                return False
        return True

    def text(self, figures: Stats) -> Text:
        """Write the status, the most important first: what does not fit is cut off."""
        parts = [f"{figures.seconds:.0f} s"]
        if self._tools:
            names = list(self._tools.values())
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            parts.append(", ".join(names[:_SHOWN]) + more)
        elif self._waiting:
            parts.append("waiting for the model")
        if tokens := self._tokens + sum(self._streamed.values()):
            parts.append(many(tokens, "token"))
        rate = round(figures.tokens_per_second)
        if rate and not self._tools:
            parts.append(f"{rate:,}/s")
        if figures.dollars:
            parts.append(f"${figures.dollars:.4f}")
        return Text(_GAP.join(parts), "dim")


def status(window: float = 1.0) -> View[Event, Text]:
    """Show the status of a run: when a call begins or ends, and once a window while it goes on.

    ::

        source      --t--l--d--d--d--(uc)--s-S------x---X--F|     s, S tool-start, x, X tool-complete
        status(3)   -----S--S--S--S--S--S-SS--S--S--SS-SS|

    Args:
        window: The seconds between two values.
    """

    def operator(source: Observable[Event]) -> Observable[Text]:
        def subscribe(
            observer: abc.ObserverBase[Text], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            facts = _Facts()
            events = Subject[Event]()
            figures = Stats(0, 0, None, 0, 0, 0, Usage(), None)
            shown: Text | None = None

            def tell(newest: Stats) -> None:
                nonlocal figures, shown
                figures, before = newest, shown
                shown = facts.text(figures)
                if shown != before:
                    observer.on_next(shown)

            def on_next(event: Event) -> None:
                changed = facts.take(event)
                events.on_next(event)
                if changed:
                    tell(figures)

            ticking = stats(window)(events).subscribe(tell, observer.on_error, scheduler=scheduler)
            subscription = source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)
            return CompositeDisposable(subscription, ticking)

        return Observable(subscribe)

    return operator
