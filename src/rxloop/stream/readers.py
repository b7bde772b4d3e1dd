"""Merged streams, events from before a subscription, server-sent events."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable, SingleAssignmentDisposable

from rxloop.errors import ConfigurationError
from rxloop.protocol.events import Event, GapEvent
from rxloop.stream.back_pressure import Gates, Overflow, Silence
from rxloop.stream.rx import RunScheduler, running_loop
from rxloop.stream.sources import Push, from_task
from rxloop.stream.stream import Hold, Readable, Reader, Stream, check_reader

T = TypeVar("T")

A = TypeVar("A", bound=Readable, covariant=True)


class HasStream(Protocol[A]):
    """Something with a stream, such as a run."""

    @property
    def events(self) -> Stream[A]:
        """The stream."""
        ...


def merge(
    *sources: HasStream[A] | Stream[A] | Observable[A], overflow: Overflow = "coalesce", buffer: int = 1024
) -> Stream[A]:
    """Merge runs, and streams of runs, into one stream.

    ::

        a               --1-----2-----3|
        b               ----x#
        merge(a, b)     --1-x---2-----3#

    It starts all of them when it is first used, and ends with the last one. How a run fails is told by its final
    event, and the others go on; an error of a source, such as that of a run which was refused, comes when all have
    ended. Dropping or closing the stream lets go of the runs that it holds: one that nobody else holds is cancelled.

    Args:
        *sources: Runs, streams, and other Observables, whose time operators then go by the event loop. Runs that such
            an Observable makes by `agent.observe` are held back, too, by a reader that blocks.
        overflow: As for `Run.stream`. With `block`, one slow reader holds all runs back.
        buffer: The number of items that may wait to be read.

    Returns:
        A stream. Its error is that of the source that failed, or an `ExceptionGroup` of several.

    Raises:
        ConfigurationError: A source is none, or `overflow` or `buffer` is wrong.
    """
    check_reader(overflow, buffer)
    streams = [_observable(source) for source in sources]
    held = [(each._source, each._hold) if isinstance(each, Stream) else (each, None) for each in streams]  # pyright: ignore[reportPrivateUsage]
    holds = Holds([hold for _, hold in held if hold is not None])
    return Stream(_merged([source for source, _ in held]), holds, overflow=overflow, buffer=buffer)


def _observable(source: Any) -> Observable[Any]:
    found: Any = getattr(source, "events", source)
    if not isinstance(found, Observable):
        raise ConfigurationError(f"merge(*sources) takes runs, streams and Observables, not {source!r}")
    return cast("Observable[Any]", found)


class Holds:
    """The holds of several runs as one; of none, where the runs are made by the subscription."""

    def __init__(self, holds: Sequence[Hold] = ()) -> None:
        self.gate = Gates(hold.gate for hold in holds)
        self._holds = holds

    def scheduler(self) -> abc.SchedulerBase:
        """Start the runs."""
        loop = running_loop("a merged stream, or one of agent.observe or agent.map,")
        for hold in self._holds:
            hold.scheduler()
        return RunScheduler(loop, for_readers=True, gates=self.gate)

    def keep(self) -> Callable[[], None]:
        """Keep the runs going until the function that is returned is called."""
        releases = [hold.keep() for hold in self._holds]

        def release() -> None:
            for each in releases:
                each()

        return release


def _merged(sources: Sequence[Observable[T]]) -> Observable[T]:
    """All that the sources give, and their errors when all have ended."""

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        merging = Merging(observer, scheduler)
        for source in sources:
            merging.add(source)
        merging.no_more()
        return merging.subscriptions

    return Observable(subscribe)


class Merging(Generic[T]):
    """The sources of one subscription, to which others may come: all that they give, in one order for its subscriber.

    Not the stock `merge`, which ends with the first error, subscribes on a trampoline, and lets an event that comes
    while another one is delivered overtake it.
    """

    def __init__(self, observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> None:
        """Merge nothing yet.

        Args:
            observer: The subscriber.
            scheduler: With which the sources are subscribed.
        """
        self.subscriptions = CompositeDisposable()
        """Those to the sources."""
        self._observer = observer
        self._scheduler = scheduler
        self._waiting: deque[T] = deque()
        self._errors: list[Exception] = []
        self._count = 0
        self._under_way = 1
        self._delivering = False

    def add(self, source: Observable[T]) -> None:
        """Subscribe one source more."""
        subscription = SingleAssignmentDisposable()

        def ended(error: Exception | None = None) -> None:
            # One that has ended is not kept, however many come.
            self.subscriptions.remove(subscription)
            self._ended(error)

        self._count += 1
        self._under_way += 1
        self.subscriptions.add(subscription)
        subscription.disposable = source.subscribe(self._on_next, ended, ended, scheduler=self._scheduler)

    def no_more(self) -> None:
        """End with the last of the sources."""
        self._ended()

    def _on_next(self, item: T) -> None:
        self._waiting.append(item)
        self._deliver()

    def _ended(self, error: Exception | None = None) -> None:
        self._under_way -= 1
        if error is not None:
            self._errors.append(error)
        self._deliver()

    def _deliver(self) -> None:
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._waiting:
                self._observer.on_next(self._waiting.popleft())
        finally:
            self._delivering = False
        if not self._under_way:
            self._end()

    def _end(self) -> None:
        if len(self._errors) > 1:
            text = f"{len(self._errors)} of {self._count} merged streams failed"
            self._observer.on_error(ExceptionGroup(text, self._errors))
        elif self._errors:
            self._observer.on_error(self._errors[0])
        else:
            self._observer.on_completed()


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


HEARTBEAT = b": heartbeat\n\n"

_wire_of: Callable[[Event], bytes] = vars(Event)["_wire"].__get__


def frame(event: Event) -> bytes:
    """Write an event as a frame: its cursor as the id, its kind as the event name, its public JSON as the data.

    Encoded once, however many readers there are.
    """
    try:
        # The slot itself: where it is empty, pydantic would look for the name in other places first.
        return _wire_of(event)
    except AttributeError:
        pass
    encoded = framed(event, event.to_json(public=True))
    object.__setattr__(event, "_wire", encoded)
    return encoded


def framed(event: Event, data: bytes) -> bytes:
    """Put the JSON of an event into a frame; it is one line whatever is in it, since JSON escapes line ends."""
    place, kind = event.cursor, event.kind
    if not (place + kind).isprintable():
        place, kind = _one_line(place), _one_line(kind)
    # A gap is not a place to come back to: with an id it would move the client's cursor.
    head = f"event: {kind}\n" if isinstance(event, GapEvent) else f"id: {place}\nevent: {kind}\n"
    return b"%bdata: %b\n\n" % (head.encode(), data)


def _one_line(text: str) -> str:
    """Put a text on one line: ids and kinds are checked where they come in, and a frame is safe by itself, too."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


class Frames(AsyncIterator[bytes]):
    """Each event as a frame, and a heartbeat after each silence.

    A class and not a generator, which ends when one `anext` is cancelled: `wait_for(anext(frames), seconds)` polls.
    """

    def __init__(self, events: Reader[Event], heartbeat: float | None) -> None:
        """Take the events.

        Args:
            events: What is written.
            heartbeat: The seconds of silence; None for no heartbeat.
        """
        self._events = events
        self._heartbeat = heartbeat

    async def __anext__(self) -> bytes:
        try:
            return frame(await self._events.within(self._heartbeat))
        except Silence:
            return HEARTBEAT

    async def aclose(self) -> None:
        """End the subscription, and let go of the run."""
        await self._events.aclose()
