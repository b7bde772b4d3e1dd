"""Fold of the tool calls of a run, and statistics."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from cProfile import Profile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop import Agent, Event, MemoryEventLog, tool
from rxloop.errors import ToolError
from rxloop.memory import tool_history
from rxloop.memory.tool_history import RunCalls, ToolHistory
from rxloop.protocol.events import ContentCompleteEvent, StatusUpdateEvent, TaskEvent, ToolCompleteEvent
from rxloop.protocol.messages import Message, ToolCall
from rxloop.protocol.visibility import PREDICTED
from rxloop.testing import ScriptedModel, call


@tool
def find(place: str) -> str:
    """Find a place that has a country."""
    if "," not in place:
        raise ToolError(f"unknown place {place!r}")
    return f"Found {place}."


async def fold(*answers: Any) -> RunCalls:
    """Run an agent with the tool, and fold its events."""
    log = MemoryEventLog()
    result = await Agent(ScriptedModel(*answers), log=log, tools=[find], name="guide").run("Where?")
    calls = RunCalls()
    calls.add(await log.read(result.task_id))
    return calls


def complete(name: str, seq: int, *, success: bool = True, content: str = "ok", **fields: Any) -> ToolCompleteEvent:
    fields.setdefault("step", str(seq))
    arguments = fields.pop("arguments", {})
    tool_call = ToolCall(id="1", name=name, arguments=arguments)
    return ToolCompleteEvent(call=tool_call, seq=seq, success=success, content=content, **fields)


def start(prompt: str = "Where?", **fields: Any) -> TaskEvent:
    return TaskEvent(task_id="r", seq=1, messages=[Message.user(prompt)], model="m", agent_name="guide", **fields)


def predict(step: str) -> ContentCompleteEvent:
    return ContentCompleteEvent(step=step, seq=2, metadata={PREDICTED: True}, finish_reason="tool_calls")


def fold_events(*events: Event) -> RunCalls:
    calls = RunCalls()
    calls.add(events)
    return calls


def summarize(*runs: RunCalls) -> ToolHistory:
    history = ToolHistory()
    for run in runs:
        history.add(run)
    return history


def test_texts_of_tools_can_be_freed() -> None:
    calls = RunCalls()
    calls.add([start(), *(complete(f"find_{n}", n, success=False, content=f"unknown place {n}") for n in range(2, 4))])
    # Interned strings are never freed on Python 3.12.
    assert all(sys.getrefcount(text) < 100 for each in calls.calls for text in (each.name, each.error))


async def test_failed_call_has_the_arguments_of_the_later_successful_call() -> None:
    run = await fold(call("find", place="Oslo"), call("find", place="Oslo, Norway"), "There.")
    failed, corrected = run.calls
    assert (failed.code, failed.error) == ("error", "unknown place 'Oslo'")
    assert (failed.correction, corrected.correction) == ('{"place":"Oslo, Norway"}', "")
    assert (run.agent, run.completed) == ("guide", True)


async def test_all_failed_variants_are_corrected_by_the_successful_call() -> None:
    run = await fold(call("find", place="Oslo"), call("find", place="Oslo!"), call("find", place="Oslo, NO"), "There.")
    assert [each.correction for each in run.calls] == ['{"place":"Oslo, NO"}', '{"place":"Oslo, NO"}', ""]


async def test_call_with_unrelated_arguments_is_not_a_correction() -> None:
    run = await fold(call("find", place="Oslo"), call("find", place="Lima, Peru"), "There.")
    assert [each.correction for each in run.calls] == ["", ""]


def test_failed_call_is_only_compared_with_the_next_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    monkeypatch.setattr(tool_history, "_is_variant", lambda failed, call: compared.append(call.arguments))
    failed = complete("find", 2, success=False, arguments={"place": "Oslo"})
    others = [complete("find", seq, arguments={"place": str(seq)}) for seq in range(3, 103)]
    fold_events(start(), failed, *others)
    assert len(compared) == 10


def test_call_of_the_same_message_is_not_a_correction() -> None:
    failed = complete("find", 2, step="1", success=False, arguments={"place": "Oslo"})
    run = fold_events(start(), failed, complete("find", 3, step="1", arguments={"place": "Oslo, Norway"}))
    assert [each.correction for each in run.calls] == ["", ""]


async def test_renamed_argument_is_a_correction() -> None:
    run = await fold(call("find", city="Oslo, Norway"), call("find", place="Oslo, Norway"), "There.")
    assert run.calls[0].code == "invalid_arguments"
    assert run.calls[0].correction == '{"place":"Oslo, Norway"}'


def test_statistics_count_failures_repeats_and_sequences() -> None:
    run = fold_events(
        start(),
        complete("read", 2, duration=0.1),
        complete("read", 3, duration=0.3),
        complete("write", 4, success=False, code="timeout", duration=9.0),
        complete("write", 5, success=False, code="refused"),
        complete("think_aloud", 6),
        complete("read", 7, arguments={"a": 1}, duration=0.2),
    )
    history = summarize(run, run)
    read, write = history.tools["read"], history.tools["write"]
    assert (read.calls, read.failures.total(), read.repeats) == (6, 0, 2)
    assert (read.percentile(50), read.percentile(95)) == (0.2, 0.3)
    assert (write.calls, dict(write.failures), write.repeats) == (4, {"timeout": 2, "refused": 2}, 2)
    assert dict(history.sequences) == {("read", "write"): 2, ("write", "read"): 2}
    assert [*history.tools] == ["read", "write"]


def test_calls_of_nested_runs_and_copied_calls_are_not_counted() -> None:
    events = [start(fork_seq=3), complete("copied", 3), complete("nested", 4, parent_task_id="r"), complete("own", 5)]
    assert [each.name for each in fold_events(*events).calls] == ["own"]


@pytest.mark.parametrize(
    ("later", "used"),
    [
        (ContentCompleteEvent(seq=4, content="It is 18 degrees."), True),
        (ContentCompleteEvent(seq=4, content="Mild and cloudy there."), True),
        (ContentCompleteEvent(seq=4, tool_calls=[ToolCall(id="1", name="look", arguments={"a": 18})]), True),
        (ContentCompleteEvent(seq=4, tool_calls=[ToolCall(id="1", name="find", arguments={"place": "Oslo"})]), True),
        (ContentCompleteEvent(seq=4, content="I do not know the weather in Oslo."), False),
        (ContentCompleteEvent(seq=4, content="Mild."), False),
    ],
)
def test_predicted_call_is_a_hit_if_its_result_is_used(later: ContentCompleteEvent, used: bool) -> None:
    result = complete("find", 3, step="1", content="Weather in Oslo: 18 C, mild, cloudy", arguments={"place": "Oslo"})
    run = fold_events(start("Weather in Oslo?"), predict("1"), result, later)
    assert run.calls[0].used is used
    assert run.calls[0].is_useful is used
    stats = summarize(run).tools["find"]
    assert (stats.hits, stats.misses) == (used, not used)


def test_words_of_unused_results_are_removed_when_the_run_is_completed() -> None:
    run = fold_events(start(), predict("1"), complete("find", 3, step="1", content="It is 18 degrees."))
    run.add([ContentCompleteEvent(seq=4, content="Hello."), StatusUpdateEvent(seq=5, state="completed", final=True)])
    assert run.calls[0].used is False
    assert not run._unused


def test_calls_of_the_model_are_neither_hits_nor_misses() -> None:
    stats = summarize(fold_events(start(), complete("find", 2), ContentCompleteEvent(seq=3, content="ok"))).tools[
        "find"
    ]
    assert (stats.hits, stats.misses) == (0, 0)


def test_long_arguments_errors_and_failures_are_limited() -> None:
    failed = [complete("find", n, success=False, content="e" * 999, arguments={"a": "x" * 9_999}) for n in range(2, 99)]
    run = fold_events(start(), *failed, complete("find", 99, arguments={"a": "x" * 9_999}))
    assert (len(run.calls[0].arguments), len(run.calls[0].error)) == (2_000, 200)
    assert sum(bool(each.correction) for each in run.calls) == 20


def test_fold_calls_functions_in_proportion_to_the_events() -> None:
    def count(number: int) -> int:
        calls = [complete("find", seq, success=seq % 3 > 0) for seq in range(2, number)]
        profile = Profile()
        profile.runcall(fold_events, start(), *calls)
        return sum(each.callcount for each in profile.getstats())

    count(10)
    assert count(2_000) < 2.2 * count(1_000)


values = st.sampled_from(["Oslo", "Oslo, Norway", "Rome", "7", ""])
events = st.builds(
    lambda name, success, value, step, branch: complete(
        name, 2, success=success, content=value, arguments={"v": value}, step=step, branch=branch
    ),
    st.sampled_from("ab"),
    st.booleans(),
    values,
    st.sampled_from("123"),
    st.sampled_from([None, "x"]),
) | st.builds(
    lambda text, step, predicted: ContentCompleteEvent(
        seq=2, content=text, step=step, metadata={PREDICTED: True} if predicted else {}
    ),
    values,
    st.sampled_from("123"),
    st.booleans(),
)


@given(st.lists(events, max_size=12), st.integers(0, 12))
def test_fold_of_parts_equals_the_fold_of_all_events(items: Sequence[Event], split: int) -> None:
    whole, parts = fold_events(start(), *items), fold_events(start(), *items[:split])
    parts.add(items[split:])
    assert parts.calls == whole.calls
    history = summarize(whole)
    assert sum(each.calls for each in history.tools.values()) == len(whole.calls)
    for stats in history.tools.values():
        assert stats.hits + stats.misses <= stats.calls
        assert stats.corrected <= stats.failures.total() <= stats.calls
        assert stats.repeats < stats.calls
