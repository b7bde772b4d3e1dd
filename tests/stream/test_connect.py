from __future__ import annotations

import pytest
import reactivex as rx
from reactivex import Observable, abc
from reactivex.disposable import Disposable

from rxloop.errors import PipelineError
from rxloop.stream.rx import Connections, connect


class Seen:
    """What a connection delivered, and whether its source was disposed."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.disposed = 0
        self.observer: abc.ObserverBase[int] | None = None

    def source(self) -> Observable[int]:
        def subscribe(observer: abc.ObserverBase[int], scheduler: abc.SchedulerBase | None = None) -> Disposable:
            self.observer = observer
            return Disposable(self.dispose)

        return Observable(subscribe)

    def dispose(self) -> None:
        self.disposed += 1

    def end(self) -> None:
        self.told.append("end")

    def connect(self) -> abc.DisposableBase:
        return connect(self.source(), self.told.append, self.told.append, self.end)


def test_it_delivers_items_and_the_end_and_then_disposes_the_source() -> None:
    seen = Seen()
    seen.connect()
    assert seen.observer is not None
    seen.observer.on_next(1)
    seen.observer.on_next(2)
    assert (seen.told, seen.disposed) == ([1, 2], 0)
    seen.observer.on_completed()
    assert (seen.told, seen.disposed) == ([1, 2, "end"], 1)


def test_nothing_is_delivered_behind_the_end() -> None:
    seen = Seen()
    seen.connect()
    assert seen.observer is not None
    error = ValueError("no")
    seen.observer.on_error(error)
    seen.observer.on_next(1)
    seen.observer.on_error(ValueError("again"))
    seen.observer.on_completed()
    assert (seen.told, seen.disposed) == ([error], 1)


def test_nothing_is_delivered_after_it_was_disposed() -> None:
    seen = Seen()
    connection = seen.connect()
    assert seen.observer is not None
    seen.observer.on_next(1)
    connection.dispose()
    connection.dispose()
    seen.observer.on_next(2)
    seen.observer.on_completed()
    assert (seen.told, seen.disposed) == ([1], 1)


def test_a_source_that_ends_inside_subscribe_is_disposed() -> None:
    seen = Seen()

    def subscribe(observer: abc.ObserverBase[int], scheduler: abc.SchedulerBase | None = None) -> Disposable:
        observer.on_next(1)
        observer.on_completed()
        return Disposable(seen.dispose)

    connect(Observable(subscribe), seen.told.append, seen.told.append, seen.end)
    assert (seen.told, seen.disposed) == ([1, "end"], 1)


def test_what_subscribing_raises_is_the_error_of_the_connection() -> None:
    seen = Seen()
    error = ValueError("no")

    def subscribe(observer: abc.ObserverBase[int], scheduler: abc.SchedulerBase | None = None) -> Disposable:
        raise error

    connect(Observable(subscribe), seen.told.append, seen.told.append, seen.end)
    assert seen.told == [error]


def test_what_is_no_exception_leaves_nothing_open_in_an_operator_that_is_in_the_middle_of_subscribe() -> None:
    class Bad(BaseException):
        pass

    def fails(observer: abc.ObserverBase[int], scheduler: abc.SchedulerBase | None = None) -> Disposable:
        raise Bad("boom")

    def outer(observer: abc.ObserverBase[int], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        return connect(Observable(fails), observer.on_next, observer.on_error, observer.on_completed)

    seen = Seen()
    connect(rx.merge(seen.source(), Observable(outer)), seen.told.append, seen.told.append, seen.end)

    [error] = seen.told
    assert isinstance(error, PipelineError)
    assert isinstance(error.__cause__, Bad)
    assert seen.disposed == 1


def test_what_subscribing_raises_behind_the_end_is_raised() -> None:
    seen = Seen()

    def subscribe(observer: abc.ObserverBase[int], scheduler: abc.SchedulerBase | None = None) -> Disposable:
        observer.on_completed()
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        connect(Observable(subscribe), seen.told.append, seen.told.append, seen.end)
    assert seen.told == ["end"]


def test_it_takes_the_observables_of_reactivex() -> None:
    seen = Seen()
    connect(rx.of(1, 2, 3), seen.told.append, seen.told.append, seen.end)
    assert seen.told == [1, 2, 3, "end"]


def test_connections_are_disposed_in_order_and_one_that_fails_keeps_none_open() -> None:
    told: list[str] = []
    connections = Connections()

    def fail() -> None:
        told.append("b")
        raise OSError("b")

    def later() -> None:
        told.append("d")

    one, two, three = Disposable(lambda: told.append("a")), Disposable(fail), Disposable(lambda: told.append("c"))
    for each in (one, two, three):
        assert connections.add(each)
    with pytest.raises(OSError, match="b"):
        connections.dispose()
    assert told == ["a", "b", "c"]
    assert connections.disposed
    assert not connections.add(Disposable(later))
    assert told[-1] == "d"
    connections.dispose()


def test_a_connection_that_is_over_is_forgotten() -> None:
    connections = Connections()
    told: list[object] = []
    for _ in range(3):
        connect(rx.empty(), told.append, told.append, lambda: told.append("end"), None, connections)
    assert told == ["end"] * 3
    assert connections._open == {}
