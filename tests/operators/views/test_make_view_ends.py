"""Callbacks, resources and errors of `make_view`."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest
import reactivex as rx
from reactivex import Subject
from reactivex import operators as ops
from reactivex.disposable import Disposable
from reactivex.testing import ReactiveTest, Recorded

from rxloop import Agent, ConfigurationError, ContentDeltaEvent, Event, op
from rxloop.operators import View, ViewOutput, make_view
from rxloop.testing import ScriptedModel, frames
from support.hot_source import Out, Subscriber, Take, kinds, pass_through_view

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed, on_error, subscribed = ReactiveTest.on_completed, ReactiveTest.on_error, ReactiveTest.subscribe


# -- callbacks


def emit_total(out: ViewOutput[int], *, also_on_error: bool = False) -> Callable[[int], None]:
    """Emit the sum at the end. Zero completes the view."""
    total = 0

    def take(item: int) -> None:
        nonlocal total
        total += item
        if item == 0:
            out.complete()
        if item < 0:
            out.fail(ValueError(item))

    out.on_end(lambda: out.emit(total), also_on_error=also_on_error)
    return take


def emit_total_always(out: ViewOutput[int]) -> Callable[[int], None]:
    return emit_total(out, also_on_error=True)


@pytest.mark.parametrize("make", [emit_total, emit_total_always])
@pytest.mark.parametrize("end", [on_completed(220), on_next(220, 0)], ids=["by the source", "by the view"])
def test_on_end_is_called_once_before_completion(end: Any, make: Any) -> None:
    seen = Subscriber(make_view(make), on_next(210, 2), on_next(211, 3), end, on_completed(230))

    assert seen.messages == [on_next(220, 5), on_completed(220)]


@pytest.mark.parametrize("end", [on_error(220, ValueError()), on_next(220, -2)], ids=["by the source", "by the view"])
def test_on_end_is_called_before_an_error_only_if_asked_to(end: Any) -> None:
    assert kinds(Subscriber(make_view(emit_total), on_next(210, 2), end)) == ["E"]
    assert kinds(Subscriber(make_view(emit_total_always), on_next(210, 2), end)) == [
        0 if end.value.kind == "N" else 2,
        "E",
    ]


def test_on_end_is_not_called_when_the_subscription_is_disposed() -> None:
    assert kinds(Subscriber(make_view(emit_total_always), on_next(210, 2), disposed=215)) == []


def test_on_end_can_fail_the_view() -> None:
    def at_least_two(out: ViewOutput[int]) -> Callable[[int], None]:
        count = 0

        def take(item: int) -> None:
            nonlocal count
            count += 1
            out.emit(item)

        def check() -> None:
            if count < 2:
                out.fail(ValueError("only one"))

        out.on_end(check)
        return take

    view = make_view(at_least_two)
    assert kinds(Subscriber(view, on_next(210, 1), on_completed(220))) == [1, "E"]
    assert kinds(Subscriber(view, on_next(210, 1), on_next(215, 2), on_completed(220))) == [1, 2, "C"]


def test_on_end_is_called_once_although_it_ends_the_view_itself() -> None:
    calls: list[str] = []

    def prepare(out: Out) -> None:
        def end() -> None:
            calls.append("end")
            out.fail(ValueError("no"))

        out.on_end(end, also_on_error=True)

    assert kinds(Subscriber(pass_through_view(prepare), on_completed(210))) == ["E"]
    assert calls == ["end"]


def test_functions_for_the_end_are_called_in_order() -> None:
    def prepare(out: Out) -> None:
        out.on_end(lambda: out.emit("first"))
        out.on_end(lambda: out.emit("second"), also_on_error=True)

    assert kinds(Subscriber(pass_through_view(prepare), on_completed(210))) == ["first", "second", "C"]
    assert kinds(Subscriber(pass_through_view(prepare), on_error(210, ValueError()))) == ["second", "E"]


def test_on_error_can_emit_the_error_as_a_value_and_complete() -> None:
    def prepare(out: Out) -> None:
        def report(error: Exception) -> None:
            out.emit(f"failed: {error}")
            out.complete()

        out.on_error(report)
        out.on_end(lambda: out.emit("never"))

    seen = Subscriber(pass_through_view(prepare), on_next(210, "a"), on_error(220, ValueError("no")))
    assert kinds(seen) == ["a", "failed: no", "C"]


def test_error_is_passed_on_after_on_error() -> None:
    error, reported = ValueError("no"), list[Exception]()
    seen = Subscriber(pass_through_view(lambda out: out.on_error(reported.append)), on_error(220, error))

    assert seen.messages == [on_error(220, error)]
    assert reported == [error]


def test_on_error_is_not_called_for_an_error_of_the_view_itself() -> None:
    reported: list[Exception] = []

    def make(out: Out) -> Take:
        out.on_error(reported.append)
        return lambda item: out.fail(ValueError(item))

    assert kinds(Subscriber(make_view(make), on_next(210, 1))) == ["E"]
    assert reported == []


@pytest.mark.parametrize("register", ["on_end", "on_error"])
def test_error_raised_at_the_end_reaches_the_subscriber_and_the_source(register: str) -> None:
    def broken(*_: Exception) -> None:
        raise LookupError("broken")

    source, errors = Subject[int](), list[Exception]()
    source.pipe(pass_through_view(lambda out: getattr(out, register)(broken))).subscribe(on_error=errors.append)
    with pytest.raises(LookupError, match="broken"):
        source.on_completed() if register == "on_end" else source.on_error(ValueError("no"))

    assert [str(error) for error in errors] == ["broken"]


# -- resources


def hold_resource(opened: list[str]) -> View[Any, Any]:
    def prepare(out: Out) -> None:
        opened.append("open")
        out.on_dispose(lambda: opened.append("closed"))

    return pass_through_view(prepare)


@pytest.mark.parametrize("end", [[on_completed(220)], [on_error(220, ValueError())], []])
def test_on_dispose_is_called_once_however_the_subscription_ends(end: list[Recorded[Any]]) -> None:
    opened: list[str] = []
    Subscriber(hold_resource(opened), on_next(210, 1), *end, disposed=300)

    assert opened == ["open", "closed"]


def test_on_dispose_is_called_after_the_completion_and_after_the_source_was_disposed() -> None:
    order: list[str] = []

    def subscribe(observer: Any, _scheduler: Any = None) -> Any:
        sources.append(observer)
        return Disposable(lambda: order.append("source disposed"))

    sources: list[Any] = []
    view = pass_through_view(lambda out: out.on_dispose(lambda: order.append("released")))
    rx.Observable(subscribe).pipe(view).subscribe(on_completed=lambda: order.append("completed"))
    sources[0].on_completed()

    assert order == ["completed", "source disposed", "released"]


def test_resources_are_released_although_the_source_raises_when_it_is_disposed() -> None:
    def broken() -> None:
        raise LookupError("cannot stop")

    opened: list[str] = []
    subscription = rx.Observable(lambda *_: Disposable(broken)).pipe(hold_resource(opened)).subscribe()
    with pytest.raises(LookupError):
        subscription.dispose()

    assert opened == ["open", "closed"]


def test_disposed_subscription_leaves_nothing_for_the_garbage_collector() -> None:
    class Resource:
        """Part of the state of a view."""

    def make(out: Out) -> Take:
        resource = Resource()
        references.append(ref(resource))
        out.on_end(lambda: out.emit(resource), also_on_error=True)
        out.on_error(lambda error: out.emit(resource))
        out.on_dispose(lambda: None)
        return out.emit

    references: list[ref[Resource]] = []
    source = Subject[int]()
    gc.disable()
    try:
        source.pipe(make_view(make)).subscribe().dispose()
        assert references[0]() is None
    finally:
        gc.enable()


def test_each_subscription_releases_its_own_resource() -> None:
    opened: list[str] = []
    stream = rx.never().pipe(hold_resource(opened))
    first, second = stream.subscribe(), stream.subscribe()
    first.dispose()
    first.dispose()
    assert opened == ["open", "open", "closed"]
    second.dispose()
    assert opened == ["open", "open", "closed", "closed"]


def test_resource_acquired_after_the_end_is_released_at_once() -> None:
    outputs, released = list[Out](), list[str]()
    rx.empty().pipe(pass_through_view(outputs.append)).subscribe()
    outputs[0].on_dispose(lambda: released.append("released"))

    assert released == ["released"]


def test_resources_are_released_when_the_source_cannot_be_subscribed() -> None:
    def subscribe(observer: Any, _scheduler: Any = None) -> Any:
        observer.on_completed()
        raise LookupError("no source")

    opened: list[str] = []
    with pytest.raises(LookupError):
        rx.Observable(subscribe).pipe(hold_resource(opened)).subscribe()

    assert opened == ["open", "closed"]


# -- errors


def test_error_of_make_is_the_error_of_the_view_and_releases_what_make_had_acquired() -> None:
    released: list[str] = []

    def make(out: Out) -> Take:
        out.on_dispose(lambda: released.append("released"))
        raise LookupError("no file")

    seen = Subscriber(make_view(make), on_next(210, 1))

    assert kinds(seen) == ["E"]
    assert released == ["released"]
    assert seen.subscriptions == []


def test_make_that_returns_nothing_fails_with_advice() -> None:
    def forgetful(out: Out) -> Any:
        def take(item: Any) -> None:
            out.emit(item)

        del take

    errors: list[Exception] = []
    rx.of(1).pipe(make_view(forgetful)).subscribe(on_error=errors.append)

    assert [type(error) for error in errors] == [ConfigurationError]
    assert "must return the function that handles each item, got None" in str(errors[0])


def test_function_that_takes_the_items_must_not_be_async() -> None:
    def make(out: Out) -> Any:
        async def take(item: Any) -> None:
            out.emit(item)

        return take

    errors: list[Exception] = []
    rx.of(1).pipe(make_view(make)).subscribe(on_error=errors.append)

    assert [type(error) for error in errors] == [ConfigurationError]
    assert "must not be async" in str(errors[0])


def fail_at_b(out: ViewOutput[str]) -> Callable[[Event], None]:
    """Raise at the delta "b"."""

    def take(event: Event) -> None:
        if isinstance(event, ContentDeltaEvent):
            if event.delta == "b":
                raise LookupError("the view is broken")
            out.emit(event.delta)

    return take


async def test_error_of_the_function_ends_the_view_alone_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    run = Agent(ScriptedModel(frames("a-b-c|", 0.001))).run("Go")
    texts: list[str] = []
    run.pipe(op.text()).subscribe(texts.append)
    seen: list[str] = []
    with caplog.at_level(logging.ERROR, "rxloop"), pytest.raises(LookupError, match="the view is broken"):
        await run.pipe(make_view(fail_at_b), ops.do_action(seen.append))

    assert (await run).output == "abc"
    assert seen == ["a"]
    assert texts == ["a", "b", "c"]
    assert [record.getMessage().partition(" at ")[0] for record in caplog.records] == ["A subscriber raised"]


async def test_error_of_the_function_releases_the_resources_of_the_view() -> None:
    released: list[str] = []

    def make(out: ViewOutput[str]) -> Callable[[Event], None]:
        out.on_dispose(lambda: released.append("released"))
        return fail_at_b(out)

    run = Agent(ScriptedModel(frames("a-b-c|", 0.001))).run("Go")
    with pytest.raises(LookupError):
        await run.pipe(make_view(make))
    assert released == ["released"]
    await run


async def test_error_of_a_subscriber_of_a_view_leaves_the_run_and_other_subscribers_alone() -> None:
    def broken(value: str) -> None:
        raise LookupError("the subscriber is broken")

    run, errors, texts = Agent(ScriptedModel(frames("a-b|", 0.001))).run("Go"), list[Exception](), list[str]()
    run.pipe(make_view(fail_at_b)).subscribe(broken, errors.append)
    run.pipe(op.text()).subscribe(texts.append)

    assert (await run).output == "ab"
    assert texts == ["a", "b"]
    assert [str(error) for error in errors] == ["the subscriber is broken"]
