"""The same call with the same arguments, live and recorded."""

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


def asks(*calls: ToolCall, **envelope: Any) -> ContentCompleteEvent:
    """A message with these calls."""
    return ContentCompleteEvent(tool_calls=list(calls), task_id="run", **envelope)


def f(**arguments: Any) -> ToolCall:
    return ToolCall(id="0", name="f", arguments=arguments)


def counts(view: Any, *events: Event) -> list[tuple[str, int]]:
    return [(each.call.name, each.count) for each in collect_values(view, events)]


def test_the_nth_equal_call_is_told_and_each_one_after_it() -> None:
    scheduler = TestScheduler()
    messages: list[Recorded[Any]] = [
        ReactiveTest.on_next(210 + 10 * place, asks(f(x=x), step=str(place))) for place, x in enumerate([1, 2, 1, 1])
    ]
    source = scheduler.create_hot_observable(*messages, ReactiveTest.on_completed(260))

    seen = scheduler.start(lambda: source.pipe(repeats(2)))

    assert seen.messages == [
        ReactiveTest.on_next(230, Repeat(f(x=1), 2, task_id="run", step="2")),
        ReactiveTest.on_next(240, Repeat(f(x=1), 3, task_id="run", step="3")),
        ReactiveTest.on_completed(260),
    ]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 260)]


def test_equal_calls_in_one_message_count_too() -> None:
    assert counts(repeats(2), asks(f(), f(), f())) == [("f", 2), ("f", 3)]


def test_arguments_are_equal_when_they_say_the_same_in_whatever_order() -> None:
    one, other = f(a=1, b={"c": [1], "d": None}), f(b={"d": None, "c": [1]}, a=1)
    assert counts(repeats(2), asks(one), asks(other)) == [("f", 2)]
    different = [f(a=1), f(a="1"), f(a=1.5), f(a=True), f(a=None), f(a=[1]), f(), f(A=1), f(a={"a": 1})]
    assert counts(repeats(2), *map(asks, different)) == []
    assert counts(repeats(2), asks(f(a=1)), asks(ToolCall(id="0", name="g", arguments={"a": 1}))) == []


def test_what_was_no_json_is_compared_as_it_was_written() -> None:
    broken, other = ToolCall.parse("0", "f", '{"a": '), ToolCall.parse("0", "f", '{"b": ')
    assert broken.error is not None
    assert counts(repeats(2), asks(broken), asks(other), asks(f()), asks(broken)) == [("f", 2)]


@pytest.mark.parametrize(
    "value", [10**40, float("nan"), "\ud800", {1: 2, "a": 3}, {1, 2}, object, b"x", [[[]]], "x" * 100_000]
)
def test_whatever_a_call_holds_is_compared(value: Any) -> None:
    made = f(a=value)
    message = asks(made)
    found = collect_values(repeats(2), [message, message])
    assert [each.count for each in found] == [2]
    assert len(str(found[0])) < 120


def test_text_that_is_no_unicode_is_compared_as_well() -> None:
    named, broken = ToolCall(id="0", name="\ud800"), ToolCall(id="0", name="f", raw="\udfff", error="no JSON")
    assert counts(repeats(2), *map(asks, [named, broken, named, broken])) == [("\ud800", 2), ("f", 2)]


def test_each_run_and_each_branch_counts_for_itself() -> None:
    lines = [asks(f()), asks(f(), branch="a"), asks(f(), branch="b"), nest_event(asks(f()), "child")]
    assert counts(repeats(2), *lines) == []
    found = collect_values(repeats(2), [*lines, asks(f(), branch="b", step="tot/1")])
    assert [(each.branch, each.step) for each in found] == [("b", "tot/1")]


def test_a_message_that_was_cut_off_asks_for_nothing() -> None:
    assert counts(repeats(2), asks(f(), finish_reason="canceled"), asks(f())) == []


def test_a_call_that_comes_now_and_then_is_no_repeat_within_a_few() -> None:
    status, others = f(status=True), [f(x=x) for x in range(10)]
    now_and_then = [asks(each) for x in others for each in (status, x)]
    assert len(counts(repeats(3), *now_and_then)) == 8
    assert counts(repeats(3, within=4), *now_and_then) == []
    # Three of the newest five: told while it is so.
    assert {count for _, count in counts(repeats(3, within=5), *now_and_then)} == {3}


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(2, 4), st.integers(0, 6))
def test_a_count_is_how_often_the_call_is_among_the_newest(asked: list[int], n: int, more: int) -> None:
    within = n + more
    found = collect_values(repeats(n, within=within), [asks(f(x=x), step=str(place)) for place, x in enumerate(asked)])
    expected = [
        (str(place), count)
        for place, x in enumerate(asked)
        if (count := asked[max(0, place + 1 - within) : place + 1].count(x)) >= n
    ]
    assert [(each.step, each.count) for each in found] == expected


def test_a_repeat_reads_as_a_sentence() -> None:
    [repeat] = collect_values(repeats(2), [asks(f(city="Oslo", days=2)), asks(f(city="Oslo", days=2))])
    assert str(repeat) == "f(city='Oslo', days=2) was asked for 2 times"


def test_a_stored_view_counts_for_each_subscriber_apart() -> None:
    view = repeats(2)
    assert counts(view, asks(f())) == counts(view, asks(f())) == []


def test_nonsense_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="once is not a repeat"):
        repeats(1)
    with pytest.raises(ConfigurationError, match="3 equal calls within 2"):
        repeats(3, within=2)


@tool(idempotent=True)
async def look(city: str) -> str:
    """Looks."""
    return f"nothing in {city}"


async def test_a_run_that_goes_in_circles_can_be_cancelled_before_the_call_is_made_once_more() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(*[call("look", city="Oslo")] * 20), tools=[look], log=log)
    run = agent.run("Go.")
    run.pipe(repeats(3)).subscribe(lambda repeat: run.cancel(str(repeat)))
    with pytest.raises(RunCancelled, match=r"look\(city='Oslo'\) was asked for 3 times"):
        await run
    recorded = await log.read(run.task_id)
    assert [each.count for each in collect_values(repeats(2), recorded)] == [2, 3]
    assert sum(event.kind == "tool-start" for event in recorded) == 2
