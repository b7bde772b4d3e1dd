"""The view that compares a run with a recorded one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from reactivex import Observable, abc

from rxloop.errors import RecordingMismatch
from rxloop.operators.views._comparing import comparable, fact, line, parted
from rxloop.operators.views._types import EventView
from rxloop.operators.views.record import Recording, read_recording
from rxloop.protocol.events import Event


def compare(recording: Recording) -> EventView:
    """Pass all events, and fail at the end of the stream if they are not what was recorded.

    What is compared is what happened, as `rxloop.diff` does it: messages, calls, results, thoughts, models, the end.
    Ids, numbers, times, tokens and deltas do not count, and neither does the order in which the calls of one message
    ended, nor how lines of a strategy are mixed that went on side by side. The error is a `RecordingMismatch`, which
    is an `AssertionError`, and shows both sides of the first difference.

    ::

        source              --t--w--l--d--c--F|
        compare(same)       --t--w--l--d--c--F|
        compare(other)      --t--w--l--d--c--F#

    Example:
        >>> await Agent(recorded("run.jsonl"), tools=tools).run("Weather?").pipe(op.compare("run.jsonl"))

    Args:
        recording: The recorded events, or the JSONL file that `op.record` made of them.

    Returns:
        A view of all events, in order.

    Raises:
        ConfigurationError: The file cannot be read; raised at once.
    """
    recorded = comparable([event for event in read_recording(recording) if event.durable])

    def operator(source: Observable[Event]) -> Observable[Event]:
        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            seen: list[Event] = []

            def on_next(event: Event) -> None:
                if event.durable:
                    seen.append(event)
                observer.on_next(event)

            def on_completed() -> None:
                try:
                    _check(recorded, comparable(seen))
                except RecordingMismatch as error:
                    observer.on_error(error)
                else:
                    observer.on_completed()

            return source.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return cast("EventView", operator)


def _check(recorded: Sequence[Event], seen: Sequence[Event]) -> None:
    """Compare event by event.

    Raises:
        RecordingMismatch: At the first difference.
    """
    left, right = parted(recorded, seen)
    if not left and not right:
        return
    expected, happened = next(iter(left), None), next(iter(right), None)
    place = len(recorded) - len(left)
    message = [
        f"the run parts from the recording at event {place + 1} of {len(recorded)} that count",
        f"recorded  {line(expected).lstrip() if expected is not None else 'had ended'}",
        f"happened  {line(happened).lstrip() if happened is not None else 'has ended'}",
    ]
    if expected is not None and happened is not None and expected.kind == happened.kind:
        then, now = fact(expected, ()), fact(happened, ())
        message += [f"  {name}: {then[name]!r} != {now[name]!r}" for name in then if then[name] != now.get(name)]
    raise RecordingMismatch("\n".join(message), place=place, expected=expected, happened=happened)
