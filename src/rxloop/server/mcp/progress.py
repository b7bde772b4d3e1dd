"""What a client of MCP hears of a run while it waits for the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reactivex import Observable, abc

from rxloop.protocol.events import (
    AnyEvent,
    Event,
    StageEvent,
    StatusUpdateEvent,
    SubtaskEvent,
    ThoughtStreamEvent,
    ToolProgressEvent,
    ToolStartEvent,
    ends_attempt,
)

_LONGEST = 500
"""Characters of a message."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A step forward."""

    message: str
    passing: bool = False
    """Whether it may be left out where there are many."""


Heard = Progress | StatusUpdateEvent
"""A step forward, or the end of an attempt as clients may see it."""


def heard() -> Callable[[Observable[AnyEvent]], Observable[Heard]]:
    """Give what the client of one call hears of a run, up to the end of the attempt.

    ::

        source     --w--s--p--i--h--x--w--w--|     s a call, p its progress, i of a hidden tool, h a thought
        heard()    -----1--2-----3-----w|          1 to 3 messages, w the end of the attempt

    Returns:
        A view of the messages, and of the event that ends the attempt.
    """

    def operator(source: Observable[AnyEvent]) -> Observable[Heard]:
        def subscribe(
            observer: abc.ObserverBase[Heard], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_next(event: AnyEvent) -> None:
                shown = event.for_clients()
                if shown is None:
                    return
                if isinstance(shown, StatusUpdateEvent):
                    if ends_attempt(shown):
                        observer.on_next(shown)
                        observer.on_completed()
                    return
                told = _told(shown)
                if told is not None:
                    observer.on_next(told)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator


def _told(event: Event) -> Progress | None:
    match event:
        case ToolProgressEvent():
            share = "" if event.fraction is None else f" ({event.fraction:.0%})"
            text = f"{event.name}: {event.message}{share}"
        case ToolStartEvent() | ThoughtStreamEvent() | StageEvent() | SubtaskEvent():
            text = event.describe()
        case _:
            return None
    who = " > ".join(event.agent_path)
    line = " ".join(f"{who}: {text}".split() if who else text.split())
    return Progress(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…", isinstance(event, ToolProgressEvent))
