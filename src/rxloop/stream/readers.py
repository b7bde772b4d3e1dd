"""Merged streams, replay of past events, and server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable, SingleAssignmentDisposable

from rxloop.errors import ConfigurationError
from rxloop.protocol.events import Event, GapEvent
from rxloop.stream.back_pressure import EVENTS_PER_TURN, Gates, Overflow, ReadTimeout
from rxloop.stream.rx import RunScheduler
from rxloop.stream.scope import get_running_loop
from rxloop.stream.sources import Push, from_task
from rxloop.stream.stream import Hold, Readable, Reader, Stream, check_reader

T = TypeVar("T")

A = TypeVar("A", bound=Readable, covariant=True)


class HasStream(Protocol[A]):
    """Object with a stream."""

    @property
    def events(self) -> Stream[A]:
        """Stream of the object."""
        ...


def merge(
    *sources: HasStream[A] | Stream[A] | Observable[A], overflow: Overflow = "coalesce", buffer: int = 1024
) -> Stream[A]:
    """Merge runs, and streams of runs, into one stream.

    ::

        a               --1-----2-----3|
        b               ----x#
        merge(a, b)     --1-x---2-----3#

    All sources are started when the stream is first used, and it ends with the last of them. If a run fails, its final
    event says so, and the others continue. If a source raises an error, for example because its run was refused, the
    error is delivered when all sources have ended. When the stream is dropped or closed, it releases its runs. A run
    is canceled if no other holder remains.

    Args:
        *sources: Runs, streams, and other Observables. Time operators in Observables use the event loop. Runs that they
            create with `agent.observe` are also slowed down by a blocking reader.
        overflow: Overflow policy, see `Run.stream`. With `block`, one slow reader slows down all runs.
        buffer: Maximum number of unread items.

    Returns:
        A stream. Its error is the error of the failed source, or an `ExceptionGroup` if several sources failed.

    Raises:
        ConfigurationError: A source has the wrong type, or `overflow` or `buffer` is invalid.
    """
    check_reader(overflow, buffer)
    streams = [_observable(source) for source in sources]
    pairs = [(each._source, each._hold) if isinstance(each, Stream) else (each, None) for each in streams]  # pyright: ignore[reportPrivateUsage]
    holds = Holds([hold for _, hold in pairs if hold is not None])
    return Stream(_merge_sources([source for source, _ in pairs]), holds, overflow=overflow, buffer=buffer)


def _observable(source: Any) -> Observable[Any]:
    stream: Any = getattr(source, "events", source)
    if not isinstance(stream, Observable):
        raise ConfigurationError(f"sources must be runs, streams or Observables, got {source!r}")
    return cast("Observable[Any]", stream)


class Holds:
    """Combined hold of several runs. It is empty if the subscription creates the runs."""

    def __init__(self, holds: Sequence[Hold] = ()) -> None:
        self.gate = Gates(hold.gate for hold in holds)
        self._holds = holds

    def scheduler(self) -> abc.SchedulerBase:
        """Start all runs and return a scheduler."""
        loop = get_running_loop("a stream of merge, agent.observe or agent.map")
        for hold in self._holds:
            hold.scheduler()
        return RunScheduler(loop, detached=True, gates=self.gate)

    def keep(self) -> Callable[[], None]:
        """Keep the runs alive until the returned function is called."""
        releases = [hold.keep() for hold in self._holds]

        def release() -> None:
            for each in releases:
                each()

        return release


def _merge_sources(sources: Sequence[Observable[T]]) -> Observable[T]:
    """Merge sources. Errors are delivered after all sources have ended."""

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        merger = Merger(observer, scheduler)
        for source in sources:
            merger.add(source)
        merger.close()
        return merger.subscriptions

    return Observable(subscribe)


class Merger(Generic[T]):
    """Dynamic set of sources, merged in one order for a single subscriber.

    The standard `merge` ends with the first error, subscribes on a trampoline, and reorders events that arrive while
    another event is being delivered.
    """

    def __init__(self, observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> None:
        """Create a merger without sources.

        Args:
            observer: Subscriber of the merged stream.
            scheduler: Scheduler for subscribing to the sources.
        """
        self.subscriptions = CompositeDisposable()
        """Subscriptions to the sources."""
        self._observer = observer
        self._scheduler = scheduler
        self._queue: deque[T] = deque()
        self._errors: list[Exception] = []
        self._count = 0
        self._open_count = 1
        self._delivering = False

    def add(self, source: Observable[T]) -> None:
        """Subscribe to another source."""
        subscription = SingleAssignmentDisposable()

        def end(error: Exception | None = None) -> None:
            # Remove completed subscriptions to save memory.
            self.subscriptions.remove(subscription)
            self._end_source(error)

        self._count += 1
        self._open_count += 1
        self.subscriptions.add(subscription)
        subscription.disposable = source.subscribe(self._on_next, end, end, scheduler=self._scheduler)

    def close(self) -> None:
        """Complete the stream after all sources have ended."""
        self._end_source()

    def _on_next(self, item: T) -> None:
        self._queue.append(item)
        self._deliver()

    def _end_source(self, error: Exception | None = None) -> None:
        self._open_count -= 1
        if error is not None:
            self._errors.append(error)
        self._deliver()

    def _deliver(self) -> None:
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._queue:
                self._observer.on_next(self._queue.popleft())
        finally:
            self._delivering = False
        if not self._open_count:
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


def prepend_past(source: Observable[Event], read: Read) -> Observable[Event]:
    """Add missing events to the beginning of a stream.

    ::

        source          gap d--e--|
        read            abc
        prepend_past    abc d--e--|

    Nothing is read if the source begins with `seq` 1. Events that arrive during the read are queued. If the read fails
    or some events are missing, the source's own events are delivered unchanged.

    Args:
        source: Events of a run, possibly starting with a `gap` event.
        read: Async function that returns the durable events before the given `seq`.
    """

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        queue: deque[Callable[[], None]] | None = deque()
        gaps: list[GapEvent] = []
        task = SerialDisposable()
        reading = False

        def release() -> None:
            nonlocal queue
            while queue:
                queue.popleft()()
            queue = None

        async def fetch(push: Push[Event], first: Event) -> None:
            # Yield to other tasks between batches of events.
            past = deque(await _read_missing(read, first) or gaps)
            while past or queue:
                for _ in range(EVENTS_PER_TURN):
                    if past:
                        push(past.popleft())
                    elif queue:
                        queue.popleft()()
                await asyncio.sleep(0)
            release()

        def on_next(event: Event) -> None:
            nonlocal reading
            if queue is None:
                observer.on_next(event)
            elif isinstance(event, GapEvent) and not reading:
                gaps.append(event)
            else:
                queue.append(lambda: observer.on_next(event))
                if not reading:
                    reading = True
                    start(event)

        def start(first: Event) -> None:
            if first.seq <= 1:
                release()
                return
            past: Observable[Event] = from_task(lambda push: fetch(push, first), name="rxloop-past")
            task.disposable = past.subscribe(observer.on_next, observer.on_error, scheduler=scheduler)

        def end(deliver: Callable[[], None]) -> None:
            if queue is None or not reading:
                deliver()
            else:
                queue.append(deliver)

        subscription = source.subscribe(
            on_next,
            lambda error: end(lambda: observer.on_error(error)),
            lambda: end(observer.on_completed),
            scheduler=scheduler,
        )
        return CompositeDisposable(subscription, task)

    return Observable(subscribe)


async def _read_missing(read: Read, first: Event) -> Sequence[Event]:
    """Read all events before the given one. Return an empty sequence if some of them are missing."""
    try:
        events = await read(first.seq)
    except Exception:
        log.warning("Reading the log for a late subscriber of run %s failed", first.task_id, exc_info=True)
        return ()
    return events if events and events[-1].seq == first.seq - 1 else ()


HEARTBEAT = b": heartbeat\n\n"

_cached_frame: Callable[[Event], bytes] = vars(Event)["_wire"].__get__


def encode_frame(event: Event) -> bytes:
    """Return an event's frame for server-sent events, with its cursor, kind and public JSON.

    The frame is cached and shared by all readers.
    """
    try:
        # Read the slot directly, because pydantic searches other places first if the slot is empty.
        return _cached_frame(event)
    except AttributeError:
        pass
    encoded = make_frame(event, event.to_json(public=True))
    object.__setattr__(event, "_wire", encoded)
    return encoded


def make_frame(event: Event, data: bytes) -> bytes:
    """Return a frame for the given JSON, which is always a single line because JSON escapes line ends."""
    cursor, kind = event.cursor, event.kind
    if not (cursor + kind).isprintable():
        cursor, kind = _replace_controls(cursor), _replace_controls(kind)
    # Do not send an id for gaps, because clients should not resume there.
    head = f"event: {kind}\n" if isinstance(event, GapEvent) else f"id: {cursor}\nevent: {kind}\n"
    return b"%bdata: %b\n\n" % (head.encode(), data)


def _replace_controls(text: str) -> str:
    """Replace control characters and line ends. Ids and kinds are already validated, so this is a second safeguard."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


class Frames(AsyncIterator[bytes]):
    """Server-sent event frames, including heartbeats.

    It is a class because a canceled `anext` would end a generator, and `wait_for(anext(frames), seconds)` cancels it.
    """

    def __init__(self, events: Reader[Event], heartbeat: float | None) -> None:
        """Create an iterator.

        Args:
            events: Reader of the stream.
            heartbeat: Silence in seconds before a heartbeat, or None to disable heartbeats.
        """
        self._events = events
        self._heartbeat = heartbeat

    async def __anext__(self) -> bytes:
        try:
            return encode_frame(await self._events.read(self._heartbeat))
        except ReadTimeout:
            return HEARTBEAT

    async def aclose(self) -> None:
        """Unsubscribe and release the run."""
        await self._events.aclose()
