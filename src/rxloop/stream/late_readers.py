"""What a stream does not hold any more, out of the place where it is kept."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable

from rxloop.protocol.events import Event, GapEvent
from rxloop.stream.bridges import Push, from_task

log = logging.getLogger("rxloop")

Read = Callable[[int], Awaitable[Sequence[Event]]]


def with_past(source: Observable[Event], read: Read) -> Observable[Event]:
    """Make a stream of events from the first one on, though its source begins later.

    ::

        source       gap d--e--|
        read         abc
        with_past    abc d--e--|

    Where the source begins with `seq` 1 nothing is read. What comes while `read` works waits. If it fails, or has not
    all that is missing, the stream is as its source gives it.

    Args:
        source: The events of a run, maybe with a `gap` at the beginning.
        read: Gives the durable events before that `seq`.
    """

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        waiting: deque[Callable[[], None]] | None = deque()
        gaps: list[GapEvent] = []
        task = SerialDisposable()
        reading = False

        def release() -> None:
            nonlocal waiting
            while waiting:
                waiting.popleft()()
            waiting = None

        async def fetch(push: Push[Event], first: Event) -> None:
            for event in await _missing(read, first) or gaps:
                push(event)
            release()

        def on_next(event: Event) -> None:
            nonlocal reading
            if waiting is None:
                observer.on_next(event)
            elif isinstance(event, GapEvent) and not reading:
                gaps.append(event)
            else:
                waiting.append(lambda: observer.on_next(event))
                if not reading:
                    reading = True
                    begin(event)

        def begin(first: Event) -> None:
            if first.seq <= 1:
                release()
                return
            past: Observable[Event] = from_task(lambda push: fetch(push, first), name="rxloop-past")
            task.disposable = past.subscribe(observer.on_next, observer.on_error, scheduler=scheduler)

        def end(deliver: Callable[[], None]) -> None:
            if waiting is None or not reading:
                deliver()
            else:
                waiting.append(deliver)

        subscription = source.subscribe(
            on_next,
            lambda error: end(lambda: observer.on_error(error)),
            lambda: end(observer.on_completed),
            scheduler=scheduler,
        )
        return CompositeDisposable(subscription, task)

    return Observable(subscribe)


async def _missing(read: Read, first: Event) -> Sequence[Event]:
    """Read all that comes before an event; nothing if not all of it is there."""
    try:
        events = await read(first.seq)
    except Exception:
        log.warning("the log could not be read for a late subscriber of %s", first.task_id, exc_info=True)
        return ()
    return events if events and events[-1].seq == first.seq - 1 else ()
