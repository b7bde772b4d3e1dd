"""Repeated calls with equal arguments, live and recorded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop import Agent, ContentCompleteEvent, Event, MemoryEventLog, tool
from rxloop.errors import ConfigurationError, RunCancelled
from rxloop.operators.views.repeats import Repeat, repeats
from rxloop.protocol.messages import ToolCall
from rxloop.testing import ScriptedModel, call
from support.timelines import collect_values, nest_event


def make_message(*calls: ToolCall, **envelope: Any) -> ContentCompleteEvent:
    """Return a message with these calls."""
    return ContentCompleteEvent(tool_calls=list(calls), task_id="run", **envelope)


def make_call(**arguments: Any) -> ToolCall:
    return ToolCall(id="0", name="f", arguments=arguments)


def repeat_counts(view: Any, *events: Event) -> list[tuple[str, int]]:
    return [(each.call.name, each.count) for each in collect_values(view, events)]


def test_nth_equal_call_and_later_ones_are_reported() -> None:
    scheduler = TestScheduler()
    messages: list[Recorded[Any]] = [
        ReactiveTest.on_next(210 + 10 * index, make_message(make_call(x=x), step=str(index)))
        for index, x in enumerate([1, 2, 1, 1])
    ]
    source = scheduler.create_hot_observable(*messages, ReactiveTest.on_completed(260))

    seen = scheduler.start(lambda: source.pipe(repeats(2)))

    assert seen.messages == [
        ReactiveTest.on_next(230, Repeat(make_call(x=1), 2, task_id="run", step="2")),
        ReactiveTest.on_next(240, Repeat(make_call(x=1), 3, task_id="run", step="3")),
        ReactiveTest.on_completed(260),
    ]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 260)]


def test_equal_calls_in_one_message_are_counted() -> None:
    assert repeat_counts(repeats(2), make_message(make_call(), make_call(), make_call())) == [("f", 2), ("f", 3)]


def test_arguments_are_compared_as_json_values() -> None:
    one, reordered = make_call(a=1, b={"c": [1], "d": None}), make_call(b={"d": None, "c": [1]}, a=1)
    assert repeat_counts(repeats(2), make_message(one), make_message(reordered)) == [("f", 2)]
    different = [
        make_call(a=1),
        make_call(a="1"),
        make_call(a=1.5),
        make_call(a=True),
        make_call(a=None),
        make_call(a=[1]),
        make_call(),
        make_call(A=1),
        make_call(a={"a": 1}),
    ]
    assert repeat_counts(repeats(2), *map(make_message, different)) == []
    assert (
        repeat_counts(
            repeats(2), make_message(make_call(a=1)), make_message(ToolCall(id="0", name="g", arguments={"a": 1}))
        )
        == []
    )


def test_arguments_that_are_not_json_are_compared_as_written() -> None:
    broken, other = ToolCall.parse("0", "f", '{"a": '), ToolCall.parse("0", "f", '{"b": ')
    assert broken.error is not None
    assert repeat_counts(
        repeats(2), make_message(broken), make_message(other), make_message(make_call()), make_message(broken)
    ) == [("f", 2)]


@pytest.mark.parametrize(
    "value", [10**40, float("nan"), "\ud800", {1: 2, "a": 3}, {1, 2}, object, b"x", [[[]]], "x" * 100_000]
)
def test_arguments_of_any_value_are_compared(value: Any) -> None:
    repeated = make_call(a=value)
    message = make_message(repeated)
    repetitions = collect_values(repeats(2), [message, message])
    assert [each.count for each in repetitions] == [2]
    assert len(str(repetitions[0])) < 120


def test_invalid_unicode_is_compared() -> None:
    named, broken = ToolCall(id="0", name="\ud800"), ToolCall(id="0", name="f", raw="\udfff", error="no JSON")
    assert repeat_counts(repeats(2), *map(make_message, [named, broken, named, broken])) == [("\ud800", 2), ("f", 2)]


def test_calls_are_counted_per_run_and_branch() -> None:
    lines = [
        make_message(make_call()),
        make_message(make_call(), branch="a"),
        make_message(make_call(), branch="b"),
        nest_event(make_message(make_call()), "child"),
    ]
    assert repeat_counts(repeats(2), *lines) == []
    repetitions = collect_values(repeats(2), [*lines, make_message(make_call(), branch="b", step="tot/1")])
    assert [(each.branch, each.step) for each in repetitions] == [("b", "tot/1")]


def test_calls_of_a_canceled_message_are_not_counted() -> None:
    assert (
        repeat_counts(repeats(2), make_message(make_call(), finish_reason="canceled"), make_message(make_call())) == []
    )


def test_calls_outside_the_window_are_not_counted() -> None:
    status, other_calls = make_call(status=True), [make_call(x=x) for x in range(10)]
    now_and_then = [make_message(each) for x in other_calls for each in (status, x)]
    assert len(repeat_counts(repeats(3), *now_and_then)) == 8
    assert repeat_counts(repeats(3, within=4), *now_and_then) == []
    # The newest five calls always contain this call three times.
    assert {count for _, count in repeat_counts(repeats(3, within=5), *now_and_then)} == {3}


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(2, 4), st.integers(0, 6))
def test_count_is_the_number_of_equal_calls_in_the_window(arguments: list[int], n: int, more: int) -> None:
    within = n + more
    repetitions = collect_values(
        repeats(n, within=within), [make_message(make_call(x=x), step=str(index)) for index, x in enumerate(arguments)]
    )
    expected = [
        (str(index), count)
        for index, x in enumerate(arguments)
        if (count := arguments[max(0, index + 1 - within) : index + 1].count(x)) >= n
    ]
    assert [(each.step, each.count) for each in repetitions] == expected


def test_repeat_is_described_as_a_sentence() -> None:
    [repeat] = collect_values(
        repeats(2), [make_message(make_call(city="Oslo", days=2)), make_message(make_call(city="Oslo", days=2))]
    )
    assert str(repeat) == "f(city='Oslo', days=2) was asked for 2 times"


def test_each_subscriber_of_a_stored_view_has_its_own_counts() -> None:
    view = repeats(2)
    assert repeat_counts(view, make_message(make_call())) == repeat_counts(view, make_message(make_call())) == []


def test_repeats_rejects_invalid_options() -> None:
    with pytest.raises(ConfigurationError, match="n must be an integer of at least 2, got "):
        repeats(1)
    with pytest.raises(ConfigurationError, match="within must be an integer of at least 3 or None, got 2"):
        repeats(3, within=2)


@tool(idempotent=True)
async def look(city: str) -> str:
    """Look."""
    return f"nothing in {city}"


async def test_run_in_a_loop_can_be_cancelled_before_the_repeated_call_is_made() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(*[call("look", city="Oslo")] * 20), tools=[look], log=log)
    run = agent.run("Go.")
    run.pipe(repeats(3)).subscribe(lambda repeat: run.cancel(str(repeat)))
    with pytest.raises(RunCancelled, match=r"look\(city='Oslo'\) was asked for 3 times"):
        await run
    recorded = await log.read(run.task_id)
    assert [each.count for each in collect_values(repeats(2), recorded)] == [2, 3]
    assert sum(event.kind == "tool-start" for event in recorded) == 2
