"""Stock operators of reactivex in the loop and as views, in virtual time.

Each test streams one letter per delta and one symbol per 25 ms. In the loop the operator surrounds the whole run
and publishes its values as custom events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import reactivex as rx
from reactivex import Observable
from reactivex import operators as ops

from rxloop import Agent, CustomEvent, Event, ModelRequest, Operator, Signal, emit, op
from rxloop.protocol.events import ContentDeltaEvent, LLMCallEvent
from rxloop.testing import ScriptedModel, frames, turn, virtual_time
from rxloop.testing.virtual_time import current_time
from support.run_checks import final_events

Emissions = list[tuple[int, Any]]
"""Milliseconds and values that a stock operator emits."""
Stock = Callable[[Observable[str]], Observable[Any]]
LINE = "--ab---c----d|"
"""A delta of two letters at 50 ms, c at 150 ms, d at 275 ms, and the end at 300 ms."""


def delta_texts(source: Observable[Any]) -> Observable[str]:
    return source.pipe(ops.filter(lambda event: isinstance(event, ContentDeltaEvent)), ops.map(lambda e: e.delta))


def collect_window(window: Observable[Any]) -> Observable[list[Any]]:
    return window.pipe(ops.to_list())


def milliseconds() -> int:
    return round(current_time().now * 1000)


def run_as_view(line: str, stock: Stock) -> Emissions:
    """Return the values that a subscriber receives."""
    emissions: Emissions = []
    with virtual_time() as time:

        async def main() -> None:
            thread = threading.get_ident()

            def record(value: Any) -> None:
                assert threading.get_ident() == thread
                emissions.append((milliseconds(), value))

            run = Agent(ScriptedModel(turn(frames(line)))).run("?")
            run.pipe(delta_texts, stock).subscribe(record)
            await run

        time.run(main())
        time.advance(10)
    return emissions


def run_in_loop(line: str, stock: Stock) -> Emissions:
    """Return the values of an operator in the loop."""
    emissions: Emissions = []
    with virtual_time() as time:

        async def main() -> None:
            thread = threading.get_ident()

            def publish(value: Any) -> CustomEvent:
                assert threading.get_ident() == thread
                emissions.append((milliseconds(), value))
                return CustomEvent(name="made", data=value)

            def add_stock(source: Observable[Signal]) -> Observable[Signal]:
                both = ops.publish(lambda shared: rx.merge(shared, shared.pipe(delta_texts, stock, ops.map(publish))))
                return source.pipe(both)

            agent = Agent(
                ScriptedModel(turn(frames(line))), strategy=lambda loop: op.compose(op.iterate(loop), add_stock)
            )
            events = [event async for event in agent.run("?").pipe(op.grammar())]
            assert [event.data for event in events if isinstance(event, CustomEvent)] == [
                value for _, value in emissions
            ]
            assert [end.content for end in final_events(events)] == [line.replace("-", "").strip("|")]

        time.run(main())
        time.advance(10)
    return emissions


@pytest.fixture(params=[run_as_view, run_in_loop], ids=["view", "loop"])
def emit_values(request: pytest.FixtureRequest) -> Callable[[str, Stock], Emissions]:
    return request.param


Runner = Callable[[str, Stock], Emissions]


def test_debounce(emit_values: Runner) -> None:
    assert emit_values(LINE, ops.debounce(0.06)) == [(110, "ab"), (210, "c"), (300, "d")]


def test_sample(emit_values: Runner) -> None:
    assert emit_values(LINE, ops.sample(0.1)) == [(100, "ab"), (200, "c"), (300, "d")]


def test_buffer_with_time(emit_values: Runner) -> None:
    assert emit_values(LINE, ops.buffer_with_time(0.16)) == [(160, ["ab", "c"]), (300, ["d"])]


def test_window(emit_values: Runner) -> None:
    lists = ops.flat_map(collect_window)
    boundaries = ops.window(rx.interval(0.16))
    assert emit_values(LINE, lambda source: source.pipe(boundaries, lists)) == [(160, ["ab", "c"]), (300, ["d"])]


def test_group_by(emit_values: Runner) -> None:
    def count_group(group: Any) -> Observable[Any]:
        return group.pipe(ops.scan(lambda count, _: count + 1, 0), ops.map(lambda count: [group.key, count]))

    emissions = emit_values("--ab-c-de|", lambda source: source.pipe(ops.group_by(len), ops.flat_map(count_group)))
    assert emissions == [(50, [2, 1]), (100, [1, 1]), (150, [2, 2])]


def test_switch_latest(emit_values: Runner) -> None:
    def emit_twice(letter: str) -> Observable[str]:
        return rx.timer(0.05, 0.1).pipe(ops.take(2), ops.map(lambda count: f"{letter}{count}"))

    # The second value of "ab" is due at 200 ms, after c arrives. The second of c is due at 300 ms, after d arrives.
    # The run waits for both values of d.
    emissions = emit_values(LINE, lambda source: source.pipe(ops.map(emit_twice), ops.switch_latest()))
    assert emissions == [(100, "ab0"), (200, "c0"), (325, "d0"), (425, "d1")]


def test_merge(emit_values: Runner) -> None:
    ticks = rx.interval(0.12).pipe(ops.take(2), ops.map(str))
    emissions = emit_values(LINE, lambda source: source.pipe(ops.merge(ticks)))
    assert emissions == [(50, "ab"), (120, "0"), (150, "c"), (240, "1"), (275, "d")]


def test_combine_latest(emit_values: Runner) -> None:
    ticks = rx.interval(0.12).pipe(ops.take(2))
    emissions = emit_values(LINE, lambda source: source.pipe(ops.combine_latest(ticks), ops.map(list)))
    assert emissions == [(120, ["ab", 0]), (150, ["c", 0]), (240, ["c", 1]), (275, ["d", 1])]


def test_with_latest_from(emit_values: Runner) -> None:
    ticks = rx.interval(0.12)
    emissions = emit_values(LINE, lambda source: source.pipe(ops.with_latest_from(ticks), ops.map(list)))
    assert emissions == [(150, ["c", 0]), (275, ["d", 1])]


def test_timeout(emit_values: Runner) -> None:
    emissions = emit_values(LINE, lambda source: source.pipe(ops.timeout(0.11, rx.just("silence"))))
    assert emissions == [(50, "ab"), (150, "c"), (260, "silence")]


def test_retry(emit_values: Runner) -> None:
    seen: list[str] = []

    def fail_once(letter: str) -> Observable[str]:
        def subscribe(_: Any) -> Observable[str]:
            seen.append(letter)
            return rx.just(letter) if seen.count(letter) > 1 else rx.throw(ValueError(letter))

        return rx.defer(subscribe).pipe(ops.retry(2))

    assert emit_values(LINE, ops.flat_map(fail_once)) == [(50, "ab"), (150, "c"), (275, "d")]
    assert seen == ["ab", "ab", "c", "c", "d", "d"]


def make_loop(call: Callable[[Observable[Signal]], Observable[Signal]]) -> list[Operator[Any]]:
    """Create a loop with stock operators around the model call."""
    return [op.answer_requests(ModelRequest, lambda request: emit(request).pipe(op.call_model(), call))]


def run_events(agent: Agent[None, str]) -> list[Event]:
    with virtual_time() as time:

        async def main() -> list[Event]:
            return [event async for event in agent.run("?").pipe(op.grammar())]

        return time.run(main())


def test_retry_around_the_model_call_calls_the_model_again() -> None:
    model = ScriptedModel(frames("-a-#"), turn(frames("-b|")))
    events = run_events(Agent(model, loop=make_loop(ops.retry(2))))
    assert [end.content for end in final_events(events)] == ["b"]
    assert len(model.requests) == 2


def test_timeout_around_the_model_call_cancels_the_silent_call() -> None:
    model = ScriptedModel(frames("--a"), turn(frames("-b|")))
    timeouts: list[float] = []

    def add_timeout(source: Observable[Signal]) -> Observable[Signal]:
        return source.pipe(
            ops.timeout(0.2), ops.do_action(on_error=lambda _: timeouts.append(milliseconds())), ops.retry(2)
        )

    events = run_events(Agent(model, loop=make_loop(add_timeout)))
    assert timeouts == [250]
    assert model.open == 0
    assert [end.content for end in final_events(events)] == ["b"]
    assert len([event for event in events if isinstance(event, LLMCallEvent)]) == 2
