from collections.abc import Callable
from typing import Any

from reactivex import Observable
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.operators.loop.at_end import at_end
from rxloop.pipeline.requests import IterationEnd
from rxloop.stream.sources import emit
from support.runs import context

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed, on_error, subscribe = ReactiveTest.on_completed, ReactiveTest.on_error, ReactiveTest.subscribe

END = IterationEnd(1, context())


def run(source: list[Recorded[Any]], answer: list[Recorded[Any]], disposed: int = 1000) -> tuple[Any, Any, Any]:
    scheduler = TestScheduler()
    xs = scheduler.create_hot_observable(*source)
    inner = scheduler.create_cold_observable(*answer)
    operator: Any = at_end(lambda end: inner)
    seen = scheduler.start(lambda: operator(xs), disposed=disposed)
    return seen.messages, xs.subscriptions, inner.subscriptions


def test_iteration_end_is_answered_after_the_source_completes() -> None:
    messages, outer, inner = run(
        [on_next(210, "e"), on_next(220, END), on_next(300, "late"), on_completed(400)],
        [on_next(10, "k"), on_next(10, END), on_completed(10)],
    )

    assert messages == [
        on_next(210, "e"),
        on_next(300, "late"),
        on_next(410, "k"),
        on_next(410, END),
        on_completed(410),
    ]
    assert outer == [subscribe(200, 400)]
    assert inner == [subscribe(400, 410)]


def test_at_end_emits_nothing_without_an_iteration_end() -> None:
    messages, _, inner = run([on_next(210, "e"), on_completed(220)], [on_next(10, "k")])

    assert messages == [on_next(210, "e"), on_completed(220)]
    assert inner == []


def test_at_end_emits_nothing_after_an_error_of_the_source() -> None:
    failure = RuntimeError("broken")
    messages, _, inner = run([on_next(210, END), on_error(220, failure)], [on_next(10, "k")])

    assert messages == [on_error(220, failure)]
    assert inner == []


def test_error_of_the_answer_becomes_an_error_of_the_stream() -> None:
    failure = RuntimeError("broken")
    messages, _, _ = run([on_next(210, END), on_completed(220)], [on_error(10, failure)])

    assert messages == [on_error(230, failure)]


def test_disposal_disposes_the_answer() -> None:
    messages, _, inner = run([on_next(210, END), on_completed(220)], [on_next(100, "late")], disposed=250)

    assert messages == []
    assert inner == [subscribe(220, 250)]


def test_exception_of_the_handler_becomes_an_error_of_the_stream() -> None:
    failure = RuntimeError("broken")

    def answer(end: IterationEnd) -> Observable[Any]:
        raise failure

    seen: list[Exception] = []
    at_end(answer)(emit(END)).subscribe(on_error=seen.append)

    assert seen == [failure]


def test_each_subscription_keeps_its_own_iteration_end() -> None:
    number: Any = lambda end: emit(end.iteration)  # noqa: E731
    operator: Any = at_end(number)
    out = operator(emit(END))

    for _ in range(2):
        seen: list[Any] = []
        out.subscribe(seen.append)
        assert seen == [1]
