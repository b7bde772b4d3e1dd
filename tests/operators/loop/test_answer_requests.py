from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import reactivex as rx
from reactivex import Observable, Subject, abc
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.operators.loop.answer_requests import answer_requests
from rxloop.pipeline.requests import Request
from rxloop.stream.sources import emit

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed, on_error, subscribe = ReactiveTest.on_completed, ReactiveTest.on_error, ReactiveTest.subscribe


@dataclass(frozen=True)
class Ask(Request):
    name: str


@dataclass(frozen=True)
class Other(Request):
    pass


@dataclass(frozen=True)
class Special(Ask):
    pass


def run(
    source: list[Recorded[Any]],
    answers: dict[str, list[Recorded[Any]]],
    concurrency: int | None = None,
    end: int = 1000,
) -> tuple[list[Any], Any, dict[str, Any]]:
    """Return messages, source subscriptions, and answer subscriptions."""
    scheduler = TestScheduler()
    xs = scheduler.create_hot_observable(*source)
    inner = {name: scheduler.create_cold_observable(*messages) for name, messages in answers.items()}
    operator: Any = answer_requests(Ask, lambda request: inner[request.name], concurrency)
    seen = scheduler.start(lambda: operator(xs), disposed=end)
    return seen.messages, xs.subscriptions, {name: each.subscriptions for name, each in inner.items()}


def test_answering_passes_events_and_replaces_requests_by_their_answers() -> None:
    messages, outer, inner = run(
        [on_next(210, "e"), on_next(220, Ask("a")), on_next(230, "e2"), on_next(240, Ask("b")), on_completed(300)],
        {"a": [on_next(15, "a1"), on_next(40, "a2"), on_completed(50)], "b": [on_next(5, "b1"), on_completed(100)]},
    )

    assert messages == [
        on_next(210, "e"),
        on_next(230, "e2"),
        on_next(235, "a1"),
        on_next(245, "b1"),
        on_next(260, "a2"),
        on_completed(340),
    ]
    assert outer == [subscribe(200, 300)]
    assert inner == {"a": [subscribe(220, 270)], "b": [subscribe(240, 340)]}


def test_answering_handles_subclasses_and_passes_other_request_types() -> None:
    other = Other()
    messages, _, _ = run(
        [on_next(210, other), on_next(220, Special("a")), on_completed(230)], {"a": [on_next(1, "x"), on_completed(1)]}
    )

    assert messages == [on_next(210, other), on_next(221, "x"), on_completed(230)]


def test_answering_completes_with_its_source_when_all_answers_are_complete() -> None:
    messages, _, _ = run([on_next(210, Ask("a")), on_completed(500)], {"a": [on_completed(10)]})

    assert messages == [on_completed(500)]


def test_answering_limits_concurrent_answers_and_queues_requests_in_order() -> None:  # L78
    answers = {name: [on_next(10, name), on_completed(100)] for name in "abcd"}
    messages, _, inner = run([on_next(210, Ask(name)) for name in "abcd"] + [on_completed(220)], answers, concurrency=2)

    assert [message.value.value for message in messages[:-1]] == ["a", "b", "c", "d"]
    assert messages[-1] == on_completed(410)
    assert inner == {
        "a": [subscribe(210, 310)],
        "b": [subscribe(210, 310)],
        "c": [subscribe(310, 410)],
        "d": [subscribe(310, 410)],
    }


def test_events_do_not_wait_for_queued_requests() -> None:
    messages, _, _ = run(
        [on_next(210, Ask("a")), on_next(215, Ask("b")), on_next(220, "e"), on_completed(230)],
        {"a": [on_completed(100)], "b": [on_next(1, "b1"), on_completed(2)]},
        concurrency=1,
    )

    assert messages == [on_next(220, "e"), on_next(311, "b1"), on_completed(312)]


def test_error_of_an_answer_ends_the_stream_and_disposes_other_answers() -> None:
    failure = RuntimeError("broken")
    messages, outer, inner = run(
        [on_next(210, Ask("a")), on_next(220, Ask("b")), on_next(225, Ask("c"))],
        {"a": [on_next(100, "late")], "b": [on_error(30, failure)], "c": [on_next(1, "c1")]},
        concurrency=2,
    )

    assert messages == [on_error(250, failure)]
    assert outer == [subscribe(200, 250)]
    assert inner == {"a": [subscribe(210, 250)], "b": [subscribe(220, 250)], "c": []}


def test_error_of_the_source_disposes_the_answers() -> None:
    failure = RuntimeError("broken")
    messages, _, inner = run([on_next(210, Ask("a")), on_error(230, failure)], {"a": [on_next(100, "late")]})

    assert messages == [on_error(230, failure)]
    assert inner == {"a": [subscribe(210, 230)]}


def test_exception_of_the_handler_becomes_an_error_of_the_stream() -> None:
    scheduler = TestScheduler()
    xs = scheduler.create_hot_observable(on_next(210, Ask("a")), on_next(220, "e"))
    failure = RuntimeError("broken")

    def answer(request: Ask) -> Observable[Any]:
        raise failure

    operator: Any = answer_requests(Ask, answer)
    seen = scheduler.start(lambda: operator(xs))

    assert seen.messages == [on_error(210, failure)]
    assert xs.subscriptions == [subscribe(200, 210)]


def test_no_request_is_answered_after_an_error_when_the_source_emits_during_subscribe() -> None:
    requests: list[str] = []

    def refuse(request: Ask) -> Observable[Any]:
        requests.append(request.name)
        raise ValueError(request.name)

    before: Any = answer_requests(Other, lambda _: emit(Ask("a"), Ask("b")))
    operator: Any = answer_requests(Ask, refuse)
    notifications: list[Any] = []
    operator(before(emit(Other(), Other()))).subscribe(
        notifications.append, notifications.append, lambda: notifications.append("end")
    )
    assert requests == ["a"]
    assert list(map(str, notifications)) == ["a"]


def test_queued_request_whose_handler_raises_ends_the_stream_once() -> None:
    def refuse(request: Ask) -> Observable[Any]:
        if request.name == "b":
            raise ValueError(request.name)
        return first

    first, source = Subject[Any](), Subject[Any]()
    notifications: list[str] = []

    class Plain(abc.ObserverBase[Any]):
        """Observer that also accepts events after the end."""

        def on_next(self, value: Any) -> None:
            notifications.append(value)

        def on_error(self, error: Exception) -> None:
            notifications.append(f"error {error}")

        def on_completed(self) -> None:
            notifications.append("end")

    operator: Any = answer_requests(Ask, refuse, 1)
    operator(source)._subscribe_core(Plain(), None)
    for name in "ab":
        source.on_next(Ask(name))
    source.on_completed()
    first.on_completed()
    assert notifications == ["error b"]


def test_disposal_disposes_the_source_and_every_answer() -> None:
    messages, outer, inner = run(
        [on_next(210, Ask("a")), on_next(220, Ask("b"))], {"a": [on_next(500, "late")], "b": []}, end=300
    )

    assert messages == []
    assert outer == [subscribe(200, 300)]
    assert inner == {"a": [subscribe(210, 300)], "b": [subscribe(220, 300)]}


def test_answering_is_lazy_and_keeps_no_state_between_subscriptions() -> None:
    subscriptions: list[str] = []

    def answer(request: Ask) -> Observable[Any]:
        return rx.defer(lambda _: subscriptions.append(request.name) or emit(request.name))

    operator: Any = answer_requests(Ask, answer, 1)
    out = operator(emit(Ask("a"), "e", Ask("b")))
    assert subscriptions == []

    for _ in range(2):
        seen: list[Any] = []
        out.subscribe(seen.append)
        assert seen == ["a", "e", "b"]
    assert subscriptions == ["a", "b", "a", "b"]


def test_ten_thousand_synchronous_answers_need_no_deep_stack() -> None:
    seen: list[Any] = []
    answer_at_once: Any = lambda request: emit(request.name)  # noqa: E731
    operator: Any = answer_requests(Ask, answer_at_once, concurrency=1)
    gate: rx.Subject[Any] = rx.Subject()
    answer_later: Any = lambda request: gate if request.name == "0" else emit(request.name)  # noqa: E731
    first: Any = answer_requests(Ask, answer_later, concurrency=1)

    operator(emit(*(Ask(str(n)) for n in range(10_000)))).subscribe(seen.append)
    assert len(seen) == 10_000

    seen.clear()
    first(emit(*(Ask(str(n)) for n in range(10_000)))).subscribe(seen.append)
    assert seen == []
    gate.on_completed()
    assert seen == [str(n) for n in range(1, 10_000)]


@pytest.mark.parametrize("concurrency", [0, -1])
def test_answering_rejects_a_concurrency_below_one(concurrency: int) -> None:
    with pytest.raises(ValueError, match="concurrency must be an integer of at least 1"):
        answer_requests(Ask, lambda request: emit(), concurrency)


@pytest.mark.parametrize("concurrency", [None, 1])
def test_returned_request_replaces_the_request(concurrency: int | None) -> None:
    received: list[Any] = []
    operator: Any = answer_requests(Ask, lambda request: Other(), concurrency)
    source: Any = emit("e", Ask("a"), Ask("b"), "f")
    operator(source).subscribe(received.append, None, lambda: received.append("end"))
    assert received == ["e", Other(), Other(), "f", "end"]
