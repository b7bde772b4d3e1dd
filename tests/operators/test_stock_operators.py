"""Stock operators of reactivex in the loop and as views: by virtual time, and on the thread of the event loop.

Each test draws what the model streams, one letter a delta and one symbol every 25 ms, and what the operator makes of
it. In the loop the operator stands around the whole run and puts what it makes on the stream, as custom events.
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

Made = list[tuple[int, Any]]
"""What a stock operator made, and at which millisecond."""
Stock = Callable[[Observable[str]], Observable[Any]]
LINE = "--ab---c----d|"
"""One delta of two letters at 50 ms, then c at 150 and d at 275; complete at 300."""


def letters(source: Observable[Any]) -> Observable[str]:
    """The deltas of a stream."""
    return source.pipe(ops.filter(lambda event: isinstance(event, ContentDeltaEvent)), ops.map(lambda e: e.delta))


def listed(window: Observable[Any]) -> Observable[list[Any]]:
    return window.pipe(ops.to_list())


def milliseconds() -> int:
    return round(current_time().now * 1000)


def as_view(line: str, stock: Stock) -> Made:
    """What the operator makes for a subscriber of the run."""
    made: Made = []
    with virtual_time() as time:

        async def main() -> None:
            thread = threading.get_ident()

            def record(value: Any) -> None:
                assert threading.get_ident() == thread
                made.append((milliseconds(), value))

            run = Agent(ScriptedModel(turn(frames(line)))).run("?")
            run.pipe(letters, stock).subscribe(record)
            await run

        time.run(main())
        time.advance(10)
    return made


def in_the_loop(line: str, stock: Stock) -> Made:
    """What the operator makes in the loop of the run."""
    made: Made = []
    with virtual_time() as time:

        async def main() -> None:
            thread = threading.get_ident()

            def put(value: Any) -> CustomEvent:
                assert threading.get_ident() == thread
                made.append((milliseconds(), value))
                return CustomEvent(name="made", data=value)

            def beside(source: Observable[Signal]) -> Observable[Signal]:
                both = ops.publish(lambda shared: rx.merge(shared, shared.pipe(letters, stock, ops.map(put))))
                return source.pipe(both)

            agent = Agent(ScriptedModel(turn(frames(line))), strategy=lambda loop: op.compose(op.iterate(loop), beside))
            events = [event async for event in agent.run("?").pipe(op.grammar())]
            assert [event.data for event in events if isinstance(event, CustomEvent)] == [value for _, value in made]
            assert [end.content for end in final_events(events)] == [line.replace("-", "").strip("|")]

        time.run(main())
        time.advance(10)
    return made


@pytest.fixture(params=[as_view, in_the_loop], ids=["view", "loop"])
def make(request: pytest.FixtureRequest) -> Callable[[str, Stock], Made]:
    return request.param


Make = Callable[[str, Stock], Made]


def test_debounce(make: Make) -> None:
    assert make(LINE, ops.debounce(0.06)) == [(110, "ab"), (210, "c"), (300, "d")]


def test_sample(make: Make) -> None:
    assert make(LINE, ops.sample(0.1)) == [(100, "ab"), (200, "c"), (300, "d")]


def test_buffer_with_time(make: Make) -> None:
    assert make(LINE, ops.buffer_with_time(0.16)) == [(160, ["ab", "c"]), (300, ["d"])]


def test_window(make: Make) -> None:
    lists = ops.flat_map(listed)
    boundaries = ops.window(rx.interval(0.16))
    assert make(LINE, lambda source: source.pipe(boundaries, lists)) == [(160, ["ab", "c"]), (300, ["d"])]


def test_group_by(make: Make) -> None:
    def counted(group: Any) -> Observable[Any]:
        return group.pipe(ops.scan(lambda count, _: count + 1, 0), ops.map(lambda count: [group.key, count]))

    found = make("--ab-c-de|", lambda source: source.pipe(ops.group_by(len), ops.flat_map(counted)))
    assert found == [(50, [2, 1]), (100, [1, 1]), (150, [2, 2])]


def test_switch_latest(make: Make) -> None:
    def twice(letter: str) -> Observable[str]:
        return rx.timer(0.05, 0.1).pipe(ops.take(2), ops.map(lambda count: f"{letter}{count}"))

    # The second of "ab" would have come at 200, when c has come; that of c at 300, when d has. The run waits for d's.
    found = make(LINE, lambda source: source.pipe(ops.map(twice), ops.switch_latest()))
    assert found == [(100, "ab0"), (200, "c0"), (325, "d0"), (425, "d1")]


def test_merge(make: Make) -> None:
    ticks = rx.interval(0.12).pipe(ops.take(2), ops.map(str))
    found = make(LINE, lambda source: source.pipe(ops.merge(ticks)))
    assert found == [(50, "ab"), (120, "0"), (150, "c"), (240, "1"), (275, "d")]


def test_combine_latest(make: Make) -> None:
    ticks = rx.interval(0.12).pipe(ops.take(2))
    found = make(LINE, lambda source: source.pipe(ops.combine_latest(ticks), ops.map(list)))
    assert found == [(120, ["ab", 0]), (150, ["c", 0]), (240, ["c", 1]), (275, ["d", 1])]


def test_with_latest_from(make: Make) -> None:
    ticks = rx.interval(0.12)
    found = make(LINE, lambda source: source.pipe(ops.with_latest_from(ticks), ops.map(list)))
    assert found == [(150, ["c", 0]), (275, ["d", 1])]


def test_timeout(make: Make) -> None:
    found = make(LINE, lambda source: source.pipe(ops.timeout(0.11, rx.just("silence"))))
    assert found == [(50, "ab"), (150, "c"), (260, "silence")]


def test_retry(make: Make) -> None:
    seen: list[str] = []

    def once_unhappy(letter: str) -> Observable[str]:
        def asked(_: Any) -> Observable[str]:
            seen.append(letter)
            return rx.just(letter) if seen.count(letter) > 1 else rx.throw(ValueError(letter))

        return rx.defer(asked).pipe(ops.retry(2))

    assert make(LINE, ops.flat_map(once_unhappy)) == [(50, "ab"), (150, "c"), (275, "d")]
    assert seen == ["ab", "ab", "c", "c", "d", "d"]


def answered_by(call: Callable[[Observable[Signal]], Observable[Signal]]) -> list[Operator[Any]]:
    """A loop that calls the model through stock operators."""
    return [op.answering(ModelRequest, lambda request: emit(request).pipe(op.call_model(), call))]


def run(agent: Agent[None, str]) -> list[Event]:
    with virtual_time() as time:

        async def main() -> list[Event]:
            return [event async for event in agent.run("?").pipe(op.grammar())]

        return time.run(main())


def test_retry_around_the_model_call_asks_once_more() -> None:
    model = ScriptedModel(frames("-a-#"), turn(frames("-b|")))
    events = run(Agent(model, loop=answered_by(ops.retry(2))))
    assert [end.content for end in final_events(events)] == ["b"]
    assert len(model.requests) == 2


def test_timeout_around_the_model_call_lets_the_silent_one_go() -> None:
    model = ScriptedModel(frames("--a"), turn(frames("-b|")))
    found: list[float] = []

    def patient(source: Observable[Signal]) -> Observable[Signal]:
        return source.pipe(
            ops.timeout(0.2), ops.do_action(on_error=lambda _: found.append(milliseconds())), ops.retry(2)
        )

    events = run(Agent(model, loop=answered_by(patient)))
    assert found == [250]
    assert model.open == 0
    assert [end.content for end in final_events(events)] == ["b"]
    assert len([event for event in events if isinstance(event, LLMCallEvent)]) == 2
