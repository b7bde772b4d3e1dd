"""Timers and timestamps of `make_view`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import reactivex as rx
from reactivex import Subject
from reactivex.testing import ReactiveTest, Recorded

from rxloop import Agent, Event
from rxloop.operators import ViewOutput, make_view
from rxloop.testing import ScriptedModel, frames, virtual_time
from support.hot_source import Out, Subscriber, Take

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed, on_error, subscribed = ReactiveTest.on_completed, ReactiveTest.on_error, ReactiveTest.subscribe


def tick_later(out: ViewOutput[str]) -> Take:
    """Emit "tick" ten seconds after the newest item."""

    def take(item: str) -> None:
        out.emit(item)
        out.schedule(10, lambda: out.emit("tick"))

    return take


def test_scheduled_function_is_called_once_after_its_delay() -> None:
    seen = Subscriber(make_view(tick_later), on_next(210, "a"), on_completed(300))

    assert seen.messages == [on_next(210, "a"), on_next(220, "tick"), on_completed(300)]


def test_next_call_of_schedule_replaces_the_scheduled_function() -> None:
    seen = Subscriber(make_view(tick_later), on_next(210, "a"), on_next(215, "b"), on_completed(300))

    assert seen.messages == [on_next(210, "a"), on_next(215, "b"), on_next(225, "tick"), on_completed(300)]


def test_every_end_of_the_subscription_cancels_the_scheduled_function() -> None:
    calls: list[str] = []

    def schedule_late(out: Out) -> Take:
        def take(item: str) -> None:
            out.schedule(10, lambda: calls.append(item))
            if item == "complete":
                out.complete()
            elif item == "fail":
                out.fail(ValueError(item))

        return take

    view = make_view(schedule_late)
    for end in (on_completed(215), on_error(215, ValueError("no")), on_next(215, "complete"), on_next(215, "fail")):
        Subscriber(view, on_next(210, "a"), end)
        assert calls == []
    Subscriber(view, on_next(210, "a"), disposed=215)
    assert calls == []
    Subscriber(view, on_next(210, "a"))
    assert calls == ["a"]


def test_disposable_of_schedule_cancels_the_call() -> None:
    def cancel_later(out: ViewOutput[str]) -> Take:
        call: Any = None

        def take(item: str) -> None:
            nonlocal call
            if item == "go":
                call = out.schedule(10, lambda: out.emit("late"))
            else:
                call.dispose()

        return take

    view = make_view(cancel_later)
    assert Subscriber(view, on_next(210, "go"), on_next(215, "stop"), on_completed(300)).messages == [on_completed(300)]


def test_function_that_is_called_at_once_can_schedule_the_next_call() -> None:
    def emit_later(out: ViewOutput[str]) -> Take:
        def emit_soon() -> None:
            out.emit("soon")
            out.schedule(0.05, lambda: out.emit("later"))

        def take(_: Any) -> None:
            out.schedule(0, emit_soon)

        return take

    async def main() -> list[tuple[float, str]]:
        source, seen = Subject[int](), list[tuple[float, str]]()
        source.pipe(make_view(emit_later)).subscribe(lambda value: seen.append((time.now, value)))
        source.on_next(1)
        await asyncio.sleep(1)
        return seen

    with virtual_time() as time:
        assert time.run(main()) == [(0, "soon"), (0.05, "later")]


def test_now_is_the_time_of_the_scheduler_of_the_subscription() -> None:
    def emit_age(out: ViewOutput[float]) -> Take:
        begin = out.now()
        return lambda item: out.emit(out.now() - begin)

    seen = Subscriber(make_view(emit_age), on_next(210, "a"), on_next(250, "b"))

    assert seen.messages == [on_next(210, 10), on_next(250, 50)]


def test_time_of_a_view_of_a_run_is_the_time_of_the_run() -> None:
    def emit_age(out: ViewOutput[float]) -> Callable[[Event], None]:
        begin = out.now()
        return lambda event: out.emit(round(out.now() - begin, 3))

    async def main() -> float:
        return await Agent(ScriptedModel(frames("--a----b|", 0.1))).run("Go").pipe(make_view(emit_age))

    with virtual_time() as time:
        assert time.run(main()) == pytest.approx(0.8)


def test_recorded_events_without_an_event_loop_pass_and_no_timer_is_due() -> None:
    seen: list[str] = []
    rx.of("a", "b").pipe(make_view(tick_later)).subscribe(seen.append)

    assert seen == ["a", "b"]
