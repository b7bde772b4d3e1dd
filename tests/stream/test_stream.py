from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import reactivex as rx
from reactivex import operators as ops
from reactivex.internal.exceptions import SequenceContainsNoElementsError
from reactivex.observer import Observer
from reactivex.scheduler import CurrentThreadScheduler

from rxloop import op
from rxloop.errors import ConfigurationError, SlowReader
from rxloop.protocol.events import CustomEvent, Event, GapEvent, ToolProgressEvent
from rxloop.protocol.messages import ToolCall
from rxloop.stream.back_pressure import Gate
from rxloop.stream.hub import Hub
from rxloop.stream.rx import RunScheduler
from rxloop.stream.stream import Stream
from support.run_checks import Recorder, run_ready_tasks, wait_until


class Hold:
    """Fake hold that counts starts and open subscriptions."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.started = 0
        self.held = 0

    def scheduler(self) -> rx.abc.SchedulerBase:
        self.started += 1
        return RunScheduler(asyncio.get_running_loop())

    def keep(self) -> Callable[[], None]:
        self.held += 1

        def release() -> None:
            self.held -= 1

        return release


class Source:
    def __init__(self, overflow: Any = "coalesce", buffer: int = 1024) -> None:
        self.hub = Hub()
        self.hold = Hold()
        self.seq = 0
        self.stream: Stream[Event] = Stream(self.hub.events, self.hold, overflow=overflow, buffer=buffer)

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            self.seq += 1
            self.hub.publish(CustomEvent(name=str(self.seq), task_id="t", attempt=1, seq=self.seq))


def get_seq(event: Event) -> int:
    return event.seq


def list_names(events: list[Any]) -> list[str]:
    return [event.name for event in events]


async def test_creating_and_piping_a_stream_starts_nothing() -> None:
    source = Source()
    source.stream.pipe(ops.map(lambda event: event), ops.filter(lambda _: True))
    aiter(source.stream)
    assert source.hold.started == 0
    assert source.hold.held == 0


async def test_subscription_starts_and_holds_the_run_until_its_disposal() -> None:
    source = Source()
    recorder = Recorder(source.stream)
    assert source.hold.started
    assert source.hold.held == 1
    recorder.subscription.dispose()
    assert source.hold.held == 0
    assert source.hub.subscribers == 0


async def test_subscription_with_a_custom_scheduler_starts_the_run() -> None:
    source = Source()
    Recorder(source.stream, scheduler=CurrentThreadScheduler.singleton())
    Recorder(source.stream.pipe(ops.map(lambda event: event)), scheduler=CurrentThreadScheduler.singleton())
    assert source.hold.started >= 2


@pytest.mark.parametrize("ending", ["completion", "error", "take", "raise"])
async def test_subscription_releases_the_run_when_it_ends(ending: str) -> None:
    source = Source()
    views: list[Any] = [ops.take(1)] if ending == "take" else []

    def on_next(_: Event) -> None:
        if ending == "raise":
            raise ZeroDivisionError

    source.stream.pipe(*views).subscribe(on_next, lambda _: None)
    assert source.hold.held == 1
    source.publish()
    if ending == "completion":
        source.hub.complete()
    elif ending == "error":
        source.hub.complete(ValueError("refused"))
    assert source.hold.held == 0
    assert source.hub.subscribers == 0


async def test_subscription_to_a_completed_stream_does_not_hold_the_run() -> None:
    source = Source()
    source.publish()
    source.hub.complete()
    recorder = Recorder(source.stream)
    assert list_names(recorder.events) == ["1"]
    assert recorder.completed
    assert source.hold.held == 0


async def test_failed_subscription_does_not_hold_the_run() -> None:
    source = Source()

    def refuse(_: Any, scheduler: Any = None) -> rx.abc.DisposableBase:
        raise OSError("no room")

    errors: list[Exception] = []
    source.stream.pipe(lambda _: rx.Observable[Any](refuse)).subscribe(on_error=errors.append)
    assert list(map(str, errors)) == ["no room"]
    assert source.hold.held == 0


async def test_iterator_starts_the_run_without_holding_it() -> None:
    source = Source()
    source.publish()
    iterator = aiter(source.stream)
    assert (await anext(iterator)).seq == 1
    assert source.hold.started
    assert source.hold.held == 0
    assert source.hub.subscribers == 1


async def test_every_iterator_starts_from_the_beginning() -> None:  # L12
    source = Source()
    source.publish(2)
    first = aiter(source.stream)
    await anext(first)
    source.publish()
    source.hub.complete()
    assert list_names([event async for event in first]) == ["2", "3"]
    assert list_names([event async for event in source.stream]) == ["1", "2", "3"]


async def test_dropped_iterator_ends_its_subscription() -> None:
    source = Source()
    source.publish(3)
    async for _ in source.stream:
        break
    assert source.hub.subscribers == 0


async def test_iterator_dropped_while_waiting_ends_its_subscription() -> None:
    source = Source()

    async def read() -> None:
        async for _ in source.stream:
            pass

    reader = asyncio.ensure_future(read())
    await wait_until(lambda: source.hub.subscribers)
    reader.cancel()
    await asyncio.wait([reader])
    del reader
    gc.collect()
    assert source.hub.subscribers == 0


async def test_iterator_can_be_closed_twice() -> None:
    source = Source()
    source.publish(2)
    iterator: Any = aiter(source.stream)
    await anext(iterator)
    await iterator.aclose()
    await iterator.aclose()
    assert source.hub.subscribers == 0
    with pytest.raises(StopAsyncIteration):
        await anext(iterator)


async def test_iterator_closed_before_its_start_never_subscribes() -> None:
    source = Source()
    source.publish()
    iterator: Any = aiter(source.stream)
    await iterator.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(iterator)
    assert source.hold.started == 0


async def test_closed_iterator_releases_the_hold() -> None:
    source = Source()
    source.publish()
    iterator: Any = aiter(source.stream.pipe(ops.map(lambda event: event)))
    await anext(iterator)
    await iterator.aclose()
    hold = weakref.ref(source.hold)
    del source
    assert hold() is None


async def test_iterator_keeps_the_hold_alive_until_it_is_dropped() -> None:
    source = Source()
    source.publish(2)
    iterator = aiter(source.stream.pipe(ops.map(lambda event: event)))
    await anext(iterator)
    hold = weakref.ref(source.hold)
    hub = source.hub
    del source
    assert hold() is not None
    del iterator
    gc.collect()
    assert hold() is None
    assert hub.subscribers == 0


async def test_await_returns_the_last_item_and_starts_the_run() -> None:
    source = Source()
    waiting = asyncio.ensure_future(_await(source.stream.pipe(ops.map(get_seq))))
    await wait_until(lambda: source.hold.started)
    assert source.hold.held == 1
    source.publish(3)
    source.hub.complete()
    assert await waiting == 3
    assert source.hold.held == 0


async def _await(awaitable: Any) -> Any:
    return await awaitable


async def test_await_of_an_empty_stream_is_an_error() -> None:
    source = Source()
    source.hub.complete()
    with pytest.raises(SequenceContainsNoElementsError):
        await source.stream


async def test_await_raises_the_error_of_the_stream() -> None:
    source = Source()
    source.hub.complete(ValueError("refused"))
    with pytest.raises(ValueError, match="refused"):
        await source.stream


async def test_cancelled_await_ends_the_subscription() -> None:
    source = Source()
    waiting = asyncio.ensure_future(_await(source.stream))
    await wait_until(lambda: source.hub.subscribers)
    waiting.cancel()
    await run_ready_tasks()
    assert source.hub.subscribers == 0
    assert source.hold.held == 0


@pytest.mark.parametrize(
    "operator",
    [op.call_model(), op.run_tools(), op.checkpoint(), op.iterate(op.compose()), op.compose(op.call_model())],
    ids=lambda operator: operator.__qualname__,
)
def test_loop_operator_is_refused_as_a_view(operator: Any) -> None:
    source = Source()
    with pytest.raises(ConfigurationError, match="must be piped through views") as caught:
        source.stream.pipe(operator)
    assert operator.__qualname__ in str(caught.value)
    assert not source.hold.started


def test_composed_views_are_refused_with_the_function_for_views() -> None:
    composed: Any = op.compose(ops.take(1))
    with pytest.raises(ConfigurationError, match=r"To combine views, use reactivex\.compose"):
        Source().stream.pipe(composed)


async def test_operator_that_returns_a_future_starts_the_run() -> None:
    source = Source()
    future = source.stream.pipe(ops.map(get_seq), ops.to_future())  # pyright: ignore[reportArgumentType]
    assert source.hold.started
    source.publish(2)
    source.hub.complete()
    assert await future == 2


async def test_pipe_returns_a_stream_with_the_same_policy() -> None:
    source = Source(overflow="error", buffer=1)
    piped = source.stream.pipe(ops.map(get_seq))
    assert isinstance(piped, Stream)
    iterator = aiter(piped.pipe(ops.filter(lambda _: True)))
    source.publish()
    await anext(iterator)
    source.publish(3)
    assert await anext(iterator) == 2
    with pytest.raises(SlowReader):
        await anext(iterator)


async def test_reader_that_overflows_on_replayed_events_leaves_no_subscription() -> None:
    source = Source(overflow="error", buffer=1)
    source.publish(5)
    iterator = aiter(source.stream)
    assert (await anext(iterator)).seq == 1
    with pytest.raises(SlowReader):
        await anext(iterator)
    assert source.hub.subscribers == 0


async def test_exception_of_a_view_affects_only_its_own_reader() -> None:  # L14
    def broken(events: rx.Observable[Event]) -> rx.Observable[Event]:
        def subscribe(observer: rx.abc.ObserverBase[Event], scheduler: Any = None) -> rx.abc.DisposableBase:
            def on_next(event: Event) -> None:
                raise ZeroDivisionError

            return events.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return rx.Observable(subscribe)

    source = Source()
    other = Recorder(source.stream)
    reading = asyncio.ensure_future(_collect(source.stream.pipe(broken)))
    await wait_until(lambda: source.hub.subscribers == 2)
    source.publish()
    with pytest.raises(ZeroDivisionError):
        await reading
    source.publish()
    assert list_names(other.events) == ["1", "2"]


async def _collect(stream: Any) -> list[Any]:
    return [item async for item in stream]


async def test_time_operators_use_the_event_loop() -> None:
    source = Source()
    thread = asyncio.ensure_future(_collect(source.stream.pipe(ops.start_with("first"), ops.delay(0.001))))
    await wait_until(lambda: source.hub.subscribers)
    source.publish()
    source.hub.complete()
    first, second = await thread
    assert first == "first"
    assert second.seq == 1


async def test_blocking_reader_closes_the_gate_of_the_hold() -> None:
    source = Source(overflow="block", buffer=2)
    iterator = aiter(source.stream)
    source.publish()
    await anext(iterator)
    source.publish(3)
    assert source.hold.gate.closed
    del iterator
    gc.collect()
    assert not source.hold.gate.closed


async def test_completed_blocking_view_does_not_close_the_gate() -> None:
    source = Source(overflow="block", buffer=1)
    iterator = aiter(source.stream.pipe(ops.take(4)))
    source.publish()
    await anext(iterator)
    source.publish(5)
    assert not source.hold.gate.closed
    assert len([event async for event in iterator]) == 3


async def test_reader_gets_a_gap_as_an_event() -> None:  # L13
    source = Source(overflow="drop_oldest", buffer=2)
    iterator = aiter(source.stream)
    source.publish()
    await anext(iterator)
    call = ToolCall(id="c", name="tool")
    for sub in range(1, 6):
        source.hub.publish(ToolProgressEvent(call=call, message=str(sub), task_id="t", attempt=1, seq=1, sub=sub))
    source.hub.complete()
    gap, *remaining = [event async for event in iterator]
    assert isinstance(gap, GapEvent)
    assert gap.count == 3
    assert [event.sub for event in remaining] == [4, 5]


@pytest.mark.parametrize("name", ["on_next", "on_error", "on_completed"])
def test_async_callback_is_refused(name: str) -> None:
    async def wait(_: object = None) -> None: ...

    class Observing(Observer[int]):
        pass

    stream: Stream[int] = Stream(rx.of(1), Hold())
    callback: Any = wait
    with pytest.raises(ConfigurationError, match="async for"):
        stream.subscribe(**{name: callback})
    setattr(Observing, name, callback)
    with pytest.raises(ConfigurationError, match="async for"):
        stream.pipe().subscribe(Observing())


def test_run_method_of_reactivex_is_rejected_instead_of_blocking() -> None:
    stream: Stream[int] = Stream(rx.of(1), Hold())
    for each in (stream, stream.pipe()):
        with pytest.raises(ConfigurationError, match="use `await stream`"):
            each.run()
