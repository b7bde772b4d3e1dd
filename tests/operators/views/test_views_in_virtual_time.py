import asyncio
from typing import Any

import reactivex as rx
from reactivex import operators as ops
from reactivex.disposable import Disposable

from rxloop import operators as op
from rxloop.protocol.events import ContentDeltaEvent, Event
from rxloop.testing import VirtualTime, virtual_time


def trickle(*seconds: float) -> rx.Observable[Event]:
    """A delta at each of these times, and then silence."""

    def subscribe(observer: Any, _scheduler: Any = None) -> Any:
        loop = asyncio.get_running_loop()
        for second in seconds:
            loop.call_later(second, observer.on_next, ContentDeltaEvent(delta=f"{second:g} "))
        return Disposable()

    return rx.Observable(subscribe)


def at_what_times(time: VirtualTime, values: rx.Observable[Any]) -> list[tuple[float, Any]]:
    async def listen() -> Any:
        return await values.pipe(ops.map(lambda value: (time.now, value)), ops.to_list())

    return time.run(listen())


def test_silence_is_measured_by_a_clock_that_jumps() -> None:
    with virtual_time() as time:
        stalls = at_what_times(time, trickle(1, 50).pipe(op.stalled(60), ops.take(2)))
    assert [(at, stall.seconds) for at, stall in stalls] == [(110, 60), (170, 120)]


def test_figures_follow_a_clock_that_jumps() -> None:
    with virtual_time() as time:
        figures = at_what_times(time, trickle(0.25, 0.5, 1).pipe(op.stats(), ops.take(3)))
    assert [(at, each.tokens_per_second) for at, each in figures] == [(1.25, 3.0), (2.25, 0.0), (3.25, 0.0)]


def test_a_window_of_deltas_follows_a_clock_that_jumps() -> None:
    with virtual_time() as time:
        texts = at_what_times(time, trickle(1, 2, 3).pipe(op.coalesce_deltas(5), op.text(), ops.take(2)))
    assert texts == [(1, "1 "), (6, "2 3 ")]
