import asyncio
from typing import Any

import reactivex as rx
from reactivex import operators as ops
from reactivex.disposable import Disposable

from rxloop import operators as op
from rxloop.protocol.events import ContentDeltaEvent, Event
from rxloop.testing import VirtualTime, virtual_time


def trickle(*seconds: float) -> rx.Observable[Event]:
    """Emit deltas at given times, without completing."""

    def subscribe(observer: Any, _scheduler: Any = None) -> Any:
        loop = asyncio.get_running_loop()
        for second in seconds:
            loop.call_later(second, observer.on_next, ContentDeltaEvent(delta=f"{second:g} "))
        return Disposable()

    return rx.Observable(subscribe)


def collect_with_times(time: VirtualTime, values: rx.Observable[Any]) -> list[tuple[float, Any]]:
    async def listen() -> Any:
        return await values.pipe(ops.map(lambda value: (time.now, value)), ops.to_list())

    return time.run(listen())


def test_stalled_follows_virtual_time() -> None:
    with virtual_time() as time:
        stalls = collect_with_times(time, trickle(1, 50).pipe(op.stalled(60), ops.take(2)))
    assert [(at, stall.seconds) for at, stall in stalls] == [(110, 60), (170, 120)]


def test_stats_follow_virtual_time() -> None:
    with virtual_time() as time:
        figures = collect_with_times(time, trickle(0.25, 0.5, 1).pipe(op.stats(), ops.take(3)))
    assert [(at, each.tokens_per_second) for at, each in figures] == [(1.25, 3.0), (2.25, 0.0), (3.25, 0.0)]


def test_coalesce_deltas_follows_virtual_time() -> None:
    with virtual_time() as time:
        texts = collect_with_times(time, trickle(1, 2, 3).pipe(op.coalesce_deltas(5), op.text(), ops.take(2)))
    assert texts == [(1, "1 "), (6, "2 3 ")]
