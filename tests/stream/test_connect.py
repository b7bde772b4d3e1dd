from __future__ import annotations

import inspect
from importlib.metadata import version
from typing import Any

import pytest
import reactivex as rx
from reactivex import Observable, Observer, abc
from reactivex import operators as ops
from reactivex.disposable import Disposable
from reactivex.scheduler import ImmediateScheduler

from rxloop.errors import PipelineError
from rxloop.stream.rx import Connections, connect


class Recording:
    """Recorder of disposals and notifications."""

    def __init__(self) -> None:
        self.notifications: list[object] = []
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
        self.notifications.append("end")

    def connect(self) -> abc.DisposableBase:
        return connect(self.source(), self.notifications.append, self.notifications.append, self.end)


def test_connection_delivers_items_and_the_end_and_disposes_the_source() -> None:
    recording = Recording()
    recording.connect()
    assert recording.observer is not None
    recording.observer.on_next(1)
    recording.observer.on_next(2)
    assert recording.notifications == [1, 2]
    assert recording.disposed == 0
    recording.observer.on_completed()
    assert recording.notifications == [1, 2, "end"]
    assert recording.disposed == 1


def test_source_that_has_already_ended_may_return_no_subscription() -> None:
    recording = Recording()

    def subscribe(observer: abc.ObserverBase[int], scheduler: abc.SchedulerBase | None = None) -> Any:
        observer.on_next(1)
        observer.on_completed()

    connection = connect(
        Observable(subscribe), recording.notifications.append, recording.notifications.append, recording.end
    )
    connection.dispose()
    assert recording.notifications == [1, "end"]


def test_nothing_is_delivered_after_the_end() -> None:
    recording = Recording()
    recording.connect()
    assert recording.observer is not None
    error = ValueError("no")
    recording.observer.on_error(error)
    recording.observer.on_next(1)
    recording.observer.on_error(ValueError("again"))
    recording.observer.on_completed()
    assert recording.notifications == [error]
    assert recording.disposed == 1


def test_nothing_is_delivered_after_disposal() -> None:
    recording = Recording()
    connection = recording.connect()
    assert recording.observer is not None
    recording.observer.on_next(1)
    connection.dispose()
    connection.dispose()
    recording.observer.on_next(2)
    recording.observer.on_completed()
    assert recording.notifications == [1]
    assert recording.disposed == 1


def test_source_that_ends_within_subscribe_is_disposed() -> None:
    recording = Recording()

    def subscribe(observer: abc.ObserverBase[int], scheduler: abc.SchedulerBase | None = None) -> Disposable:
        observer.on_next(1)
        observer.on_completed()
        return Disposable(recording.dispose)

    connect(Observable(subscribe), recording.notifications.append, recording.notifications.append, recording.end)
    assert recording.notifications == [1, "end"]
    assert recording.disposed == 1


def test_exception_of_subscribe_becomes_the_error_of_the_connection() -> None:
    recording = Recording()
    error = ValueError("no")

    def subscribe(observer: abc.ObserverBase[int], scheduler: abc.SchedulerBase | None = None) -> Disposable:
        raise error

    connect(Observable(subscribe), recording.notifications.append, recording.notifications.append, recording.end)
    assert recording.notifications == [error]


def test_base_exception_of_subscribe_leaves_no_open_subscription() -> None:
    class Bad(BaseException):
        pass

    def fail(observer: abc.ObserverBase[int], scheduler: abc.SchedulerBase | None = None) -> Disposable:
        raise Bad("boom")

    def outer(observer: abc.ObserverBase[int], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        return connect(Observable(fail), observer.on_next, observer.on_error, observer.on_completed)

    recording = Recording()
    connect(
        rx.merge(recording.source(), Observable(outer)),
        recording.notifications.append,
        recording.notifications.append,
        recording.end,
    )

    [error] = recording.notifications
    assert isinstance(error, PipelineError)
    assert isinstance(error.__cause__, Bad)
    assert recording.disposed == 1


def test_exception_of_subscribe_after_the_end_is_raised() -> None:
    recording = Recording()

    def subscribe(observer: abc.ObserverBase[int], scheduler: abc.SchedulerBase | None = None) -> Disposable:
        observer.on_completed()
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        connect(Observable(subscribe), recording.notifications.append, recording.notifications.append, recording.end)
    assert recording.notifications == ["end"]


def test_connection_accepts_reactivex_observables() -> None:
    recording = Recording()
    connect(rx.of(1, 2, 3), recording.notifications.append, recording.notifications.append, recording.end)
    assert recording.notifications == [1, 2, 3, "end"]


def test_connections_are_disposed_in_order_despite_a_failure() -> None:
    notifications: list[str] = []
    connections = Connections()

    def fail() -> None:
        notifications.append("b")
        raise OSError("b")

    def later() -> None:
        notifications.append("d")

    one, two, three = (
        Disposable(lambda: notifications.append("a")),
        Disposable(fail),
        Disposable(lambda: notifications.append("c")),
    )
    for each in (one, two, three):
        assert connections.add(each)
    with pytest.raises(OSError, match="b"):
        connections.dispose()
    assert notifications == ["a", "b", "c"]
    assert connections.disposed
    assert not connections.add(Disposable(later))
    assert notifications[-1] == "d"
    connections.dispose()


def test_completed_connection_is_forgotten() -> None:
    connections = Connections()
    notifications: list[object] = []
    for _ in range(3):
        connect(
            rx.empty(),
            notifications.append,
            notifications.append,
            lambda: notifications.append("end"),
            None,
            connections,
        )
    assert notifications == ["end"] * 3
    assert connections._open == {}


REACTIVEX = (
    f"reactivex {version('reactivex')} changed the private method `Observable._subscribe_core`, which "
    "rxloop.stream uses to subscribe without wrapping the observer. Adapt rxloop/stream/rx.py and stream.py, or use "
    "`subscribe`, which costs 11 calls more per token"
)


def test_installed_reactivex_has_the_private_method_for_subscribing() -> None:
    method = getattr(Observable, "_subscribe_core", None)
    assert method is not None, REACTIVEX
    assert list(inspect.signature(method).parameters) == ["self", "observer", "scheduler"], REACTIVEX
    assert vars(Observable()).keys() == {"lock", "_subscribe"}, f"{REACTIVEX}, and ColdObservable"


def test_private_method_of_reactivex_passes_the_observer_without_wrapping_it() -> None:
    calls: list[object] = []
    subscription = Disposable()

    def subscribe(observer: abc.ObserverBase[int], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        calls.extend((observer, scheduler))
        return subscription

    observer, scheduler = Observer[int](), ImmediateScheduler()
    assert Observable(subscribe)._subscribe_core(observer, scheduler) is subscription, REACTIVEX
    assert calls[0] is observer, REACTIVEX
    assert calls[1] is scheduler, REACTIVEX


def test_operators_of_reactivex_subscribe_through_the_private_method() -> None:
    items: list[int] = []

    class Source(Observable[int]):
        def _subscribe_core(
            self, observer: abc.ObserverBase[int], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            observer.on_next(1)
            return Disposable()

    Source().pipe(ops.map(lambda item: item + 1), ops.merge(Source())).subscribe(items.append)
    assert items == [2, 1], REACTIVEX
