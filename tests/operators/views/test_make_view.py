"""Values, completion, state and names of `make_view`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import reactivex as rx
from reactivex import Subject
from reactivex.disposable import Disposable
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop import Agent, ConfigurationError, ContentDeltaEvent, Event, op
from rxloop.operators import View, ViewOutput, make_view
from rxloop.stream.rx import connect
from rxloop.testing import ScriptedModel, frames
from support.hot_source import Out, Subscriber, Take, pass_through_view

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed, on_error, subscribed = ReactiveTest.on_completed, ReactiveTest.on_error, ReactiveTest.subscribe


def emit_twice(out: ViewOutput[int]) -> Callable[[int], None]:
    """Emit each item twice."""

    def take(item: int) -> None:
        out.emit(item)
        out.emit(item)

    return take


def emit_number(out: ViewOutput[int]) -> Take:
    """Emit the number of each item."""
    count = 0

    def take(_: Any) -> None:
        nonlocal count
        count += 1
        out.emit(count)

    return take


def test_view_emits_any_number_of_values_for_an_item() -> None:
    seen = Subscriber(make_view(emit_twice), on_next(210, 1), on_next(220, 2), on_completed(230))

    assert seen.messages == [on_next(210, 1), on_next(210, 1), on_next(220, 2), on_next(220, 2), on_completed(230)]
    assert seen.subscriptions == [subscribed(200, 230)]


def test_view_passes_the_error_of_its_source() -> None:
    error = LookupError("gone")
    seen = Subscriber(make_view(emit_twice), on_error(210, error))

    assert seen.messages == [on_error(210, error)]
    assert seen.subscriptions == [subscribed(200, 210)]


def test_source_gets_the_scheduler_of_the_subscription() -> None:
    schedulers: list[Any] = []

    def subscribe(_observer: Any, scheduler: Any = None) -> Any:
        schedulers.append(scheduler)
        return Disposable()

    mine = TestScheduler()
    rx.Observable(subscribe).pipe(make_view(emit_twice)).subscribe(scheduler=mine)

    assert schedulers == [mine]


def test_disposing_a_view_disposes_its_source() -> None:
    seen = Subscriber(make_view(emit_twice), on_next(210, 1), on_next(230, 2), disposed=220)

    assert seen.messages == [on_next(210, 1), on_next(210, 1)]
    assert seen.subscriptions == [subscribed(200, 220)]


def test_view_that_completes_disposes_its_source_and_drops_later_values() -> None:
    def until_two(out: ViewOutput[int]) -> Callable[[int], None]:
        def take(item: int) -> None:
            out.emit(item)
            if item == 2:
                out.complete()
                out.emit(99)
                out.complete()

        return take

    seen = Subscriber(make_view(until_two), on_next(210, 1), on_next(220, 2), on_next(230, 3), on_completed(240))

    assert seen.messages == [on_next(210, 1), on_next(220, 2), on_completed(220)]
    assert seen.subscriptions == [subscribed(200, 220)]


def test_view_that_fails_disposes_its_source_and_drops_later_values() -> None:
    error = ValueError("two")

    def not_two(out: ViewOutput[int]) -> Callable[[int], None]:
        def take(item: int) -> None:
            if item == 2:
                out.fail(error)
            out.emit(item)

        return take

    seen = Subscriber(make_view(not_two), on_next(210, 1), on_next(220, 2), on_next(230, 3), on_completed(240))

    assert seen.messages == [on_next(210, 1), on_error(220, error)]
    assert seen.subscriptions == [subscribed(200, 220)]


def test_view_can_emit_and_complete_before_the_first_item() -> None:
    def greet(out: ViewOutput[str]) -> Take:
        out.emit("hello")
        out.complete()
        return out.emit

    seen: list[Any] = []
    rx.of("a", "b").pipe(make_view(greet)).subscribe(seen.append, on_completed=lambda: seen.append("|"))

    assert seen == ["hello", "|"]


def test_each_subscription_has_its_own_state() -> None:
    source, view = Subject[str](), make_view(emit_number)
    first: list[int] = []
    second: list[int] = []
    stream = source.pipe(view)
    stream.subscribe(first.append)
    source.on_next("a")
    stream.subscribe(second.append)
    source.on_next("b")

    assert first == [1, 2]
    assert second == [1]


def test_values_emitted_after_the_subscriber_disposed_in_the_same_call_are_dropped() -> None:
    source = Subject[int]()
    seen: list[int] = []

    def record(value: int) -> None:
        seen.append(value)
        subscription.dispose()

    subscription = source.pipe(make_view(emit_twice)).subscribe(record)
    source.on_next(1)
    source.on_next(2)

    assert seen == [1]
    assert source.observers == []


def test_item_that_a_subscriber_causes_is_taken_within_the_emitting_call() -> None:
    source = Subject[int]()
    seen: list[int] = []

    def record(value: int) -> None:
        seen.append(value)
        if value < 3:
            source.on_next(value + 1)

    source.pipe(pass_through_view(lambda out: None)).subscribe(record)
    source.on_next(1)

    assert seen == [1, 2, 3]


def test_emit_is_the_function_of_the_subscriber() -> None:
    outputs: list[Out] = []
    rx.never().pipe(pass_through_view(outputs.append)).subscribe(print)

    emit: Any = outputs[0].emit
    assert emit.__func__ is type(outputs[0]._observer).on_next


def test_view_below_a_link_emits_nothing_after_the_link_was_disposed() -> None:
    source, seen, outputs = Subject[int](), list[int](), list[Out]()
    link = connect(source.pipe(pass_through_view(outputs.append)), seen.append, print, print)
    source.on_next(1)
    link.dispose()
    outputs[0].emit(2)

    assert seen == [1]


async def test_slow_reader_gets_joined_pieces_if_the_view_joins() -> None:
    def letters(out: ViewOutput[str]) -> Callable[[Event], None]:
        return lambda event: out.emit(event.delta) if isinstance(event, ContentDeltaEvent) else None

    async def read(joins: bool) -> list[str]:
        run = Agent(ScriptedModel(frames("a-b-c-d|", 0.001))).run("Go")
        # The reader is slower than the model.
        reader = aiter(run.stream(buffer=2).pipe(make_view(letters, joins=joins)))
        first = await anext(reader)
        await asyncio.sleep(0.1)
        return [first, *[value async for value in reader]]

    assert await read(True) == ["a", "b", "cd"]
    assert await read(False) == ["a", "b", "c", "d"]


def outer() -> View[Any, Any]:
    def inner(out: Out) -> Take:
        return out.emit

    return make_view(inner)


@pytest.mark.parametrize(
    ("view", "name"),
    [
        (outer(), "outer"),
        (make_view(emit_number), "emit_number"),
        (make_view(emit_number, name="count"), "count"),
        (op.text(), "op.text"),
        (op.public(), "op.public"),
    ],
)
def test_view_in_the_loop_is_refused_by_its_name(view: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"run\.pipe\({name}\(\.\.\.\)\)"):
        Agent(ScriptedModel("Hi."), loop=[*op.standard(), view])
