"""Outlines of recorded runs: pairs of events, flags, numbers, labels, and pages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop import (
    Agent,
    ContextCompressedEvent,
    Event,
    LLMCallEvent,
    LLMFailedEvent,
    MemoryEventLog,
    RunContext,
    ThoughtStreamEvent,
    ToolError,
    ToolVoidedEvent,
    Usage,
    tool,
)
from rxloop.protocol import SessionLink
from rxloop.protocol.events import ContentCompleteEvent, ServerToolEvent, ToolStartEvent
from rxloop.protocol.http_api.inspection import Outline
from rxloop.protocol.messages import ErrorInfo, ToolCall
from rxloop.recorded.outline import OutlineFold, OutlineState
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time
from support.nested_agents import editor, researcher


@tool
async def work(seconds: float) -> str:
    """Take time."""
    await asyncio.sleep(seconds)
    return "worked, \u00e9"


@tool
async def fail() -> str:
    """Fail."""
    raise ToolError("It is closed.")


@tool
async def sure(ctx: RunContext[Any]) -> bool:
    """Ask."""
    return await ctx.ask("Sure?")


@tool(hidden=True)
async def peek(secret: str) -> str:
    """Look at hidden data."""
    return secret


def record(*turns: Any, prompt: str = "Go", model: str = "scripted", **options: Any) -> list[Event]:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(*turns, name=model), tools=[work, fail, sure, peek], log=log, name="clerk", **options)
    with virtual_time() as time:
        result = time.run(agent.run(prompt))
        return [*time.run(log.read(result.task_id))]


def outline(events: Sequence[Event], *, internal: bool = False) -> Outline:
    fold = OutlineFold(OutlineState(), internal=internal)
    fold.add(events)
    return fold.make_page("run", seq=events[-1].seq, final=True)


def rows(page: Outline) -> list[dict[str, Any]]:
    """Return the events of a page with names instead of indexes."""
    names = page.names.model_dump()
    columns = ("dt", *names, "opens", "flags", "a", "b", "label")
    values = [
        [names[name][index] for index in getattr(page, name)] if name in names else getattr(page, name)
        for name in columns
    ]
    return [
        {"seq": page.first + number, **dict(zip(columns, row, strict=True))}
        for number, row in enumerate(zip(*values, strict=True))
    ]


def find(page: Outline, kind: str, number: int = 0) -> dict[str, Any]:
    return [row for row in rows(page) if row["kind"] == kind][number]


def test_outline_has_a_row_for_each_durable_event_with_its_time() -> None:
    events = record(call("work", seconds=2.5), "Done.")
    page = outline(events)
    assert [row["kind"] for row in rows(page)] == [event.kind for event in events]
    assert (page.first, page.last, page.start, page.attempts) == (1, events[-1].seq, events[0].timestamp, [(1, 1)])
    times = [page.start + sum(page.dt[: number + 1]) for number in range(len(events))]
    assert times == [event.timestamp for event in events]
    done = find(page, "tool-complete")
    assert (done["a"], done["b"], done["name"], done["step"]) == (2500, len("worked, \u00e9".encode()), "work", "1")
    assert find(page, "llm-call")["model"] == "scripted"


def test_ends_refer_to_their_starts() -> None:
    page = outline(record([call("work", "x", seconds=2), call("work", "y", seconds=1)], "Done."))
    starts = [row for row in rows(page) if row["kind"] == "tool-start"]
    ends = [row for row in rows(page) if row["kind"] == "tool-complete"]
    assert [row["opens"] for row in ends] == [starts[1]["seq"], starts[0]["seq"]]
    assert find(page, "content-complete", 1)["opens"] == find(page, "llm-call", 1)["seq"]
    assert find(page, "status-update", 1)["opens"] == find(page, "status-update")["seq"]


def test_events_of_nested_runs_refer_to_their_own_starts() -> None:
    log = MemoryEventLog()
    tools = [researcher().as_tool("research")]
    with virtual_time() as time:
        result = time.run(editor(*tools, log=log).run("Go"))
        page = outline(time.run(log.read(result.task_id)))
    nested = [row for row in rows(page) if row["run"]]
    assert {tuple(row["path"]) for row in nested} == {("researcher",)}
    start = next(row for row in nested if row["kind"] == "tool-start")
    assert next(row for row in nested if row["kind"] == "tool-complete")["opens"] == start["seq"]
    assert find(page, "tool-complete", 1)["opens"] == find(page, "tool-start")["seq"]
    assert find(page, "subtask", 1)["opens"] == find(page, "subtask")["seq"]


def test_failures_questions_and_refused_calls_have_flags() -> None:
    page = outline(record([call("fail"), call("nothing"), call("sure")], "Done."))
    assert [(row["name"], row["flags"]) for row in rows(page) if row["kind"] == "tool-complete"] == [
        ("nothing", 1 | 4),
        ("fail", 1),
    ]
    assert find(page, "input-required")["flags"] == 32
    assert rows(page)[-1]["flags"] == 32
    assert find(page, "input-required")["label"] == "Sure?"


def test_repeated_calls_are_flagged_and_refer_to_the_earlier_try() -> None:
    envelope: dict[str, Any] = {"task_id": "run", "attempt": 1, "step": "1"}
    request: dict[str, Any] = {"iteration": 1, "model": "m", "message_count": 1, "tool_count": 0}
    failure = {"error": ErrorInfo(code="rate_limited", message="Wait."), "retryable": True, "status": 429}
    events = [
        LLMCallEvent(seq=1, timestamp=1000, estimated_input_tokens=5, **request, **envelope),
        LLMFailedEvent(seq=2, timestamp=1500, retry_in=0.25, **failure, **envelope),
        LLMFailedEvent(seq=3, timestamp=1800, **failure, **envelope),
        LLMCallEvent(seq=4, timestamp=1800, estimated_input_tokens=5, **request, **envelope),
        ContentCompleteEvent(seq=5, timestamp=1900, content="Hi", finish_reason="length", **envelope),
    ]
    page = outline(events, internal=True)
    assert page.opens == [0, 1, 1, 1, 4]
    assert page.flags == [0, 1 | 2 | 8, 1 | 8, 2, 16]
    assert (page.a[1], page.b[1], page.b[2]) == (429, 250, -1)
    assert page.label[1] == "rate_limited: Wait."


def test_failed_requests_are_hidden_from_clients() -> None:
    error = ErrorInfo(code="rate_limited", message="http://10.0.0.1 is busy")
    failure = LLMFailedEvent(seq=1, task_id="run", attempt=1, step="1", error=error, retryable=True, status=429)
    [row] = rows(outline([failure]))
    assert (row["kind"], row["flags"], row["label"], row["a"], row["step"]) == ("hidden", 8, "", 0, "")


def test_hidden_calls_keep_their_place_without_their_data() -> None:
    events = record([call("peek", secret="PLANTED"), call("work", seconds=1)], "Done.")
    page = outline(events)
    assert "PLANTED" not in page.model_dump_json()
    assert "peek" not in page.model_dump_json()
    assert [row["seq"] for row in rows(page)] == [event.seq for event in events]
    assert len([row for row in rows(page) if row["kind"] == "hidden"]) == 2
    assert find(page, "content-complete")["flags"] == 8
    complete = outline(events, internal=True)
    assert [row["flags"] & 8 for row in rows(complete)] == [row["flags"] & 8 for row in rows(page)]
    assert find(complete, "tool-start")["label"] == "secret=PLANTED"
    assert complete.dt == page.dt


def test_thoughts_refer_to_related_replaced_and_merged_thoughts() -> None:
    envelope: dict[str, Any] = {"task_id": "run", "attempt": 1}
    link = SessionLink(session_id="s", number=3, total=3, revises=1, revises_id="a")
    merge = SessionLink(session_id="s", number=4, total=4, merges="b", merges_id="c")
    events = [
        ThoughtStreamEvent(seq=1, thought_id="a", content="One", **envelope),
        ThoughtStreamEvent(seq=2, thought_id="b", content="Two", related_to="a", **envelope),
        ThoughtStreamEvent(seq=3, thought_id="c", content="Three", related_to="b", session=link, **envelope),
        ThoughtStreamEvent(seq=4, thought_id="d", content="Four", related_to="a", session=merge, **envelope),
    ]
    page = outline(events)
    assert (page.a, page.b, page.opens) == ([0, 1, 2, 1], [0, 0, 1, 0], [0, 0, 0, 3])
    assert page.label == ["One", "Two", "Three", "Four"]


def test_thoughts_about_a_call_follow_the_last_thought_of_its_message() -> None:
    envelope: dict[str, Any] = {"task_id": "run", "attempt": 1, "step": "1"}
    request: dict[str, Any] = {"model": "m", "message_count": 1, "tool_count": 1, "estimated_input_tokens": 1}
    work, rest = ToolCall(id="work", name="work"), ToolCall(id="rest", name="rest")
    events = [
        ThoughtStreamEvent(seq=1, thought_id="plan", content="Plan", **envelope),
        ToolStartEvent(seq=2, call=work, idempotency_key="1", **envelope),
        LLMCallEvent(seq=3, iteration=2, **request, **envelope),
        # No thought led to this call.
        ToolStartEvent(seq=4, call=rest, idempotency_key="2", **envelope),
        ThoughtStreamEvent(seq=5, thought_id="a", content="One", related_to="work", **envelope),
        ThoughtStreamEvent(seq=6, thought_id="b", content="Two", related_to="rest", **envelope),
    ]
    page = outline(events)
    assert (page.a[4], page.a[5]) == (1, 0)


def test_discarded_calls_vendor_tools_and_large_contexts_have_flags() -> None:
    envelope: dict[str, Any] = {"task_id": "run", "attempt": 1, "step": "1"}
    early = ToolCall(id="1", name="work")
    vendor: dict[str, Any] = {"tool_call_id": "v", "name": "web_search", **envelope}
    events = [
        ToolStartEvent(seq=1, call=early, idempotency_key="k", **envelope),
        ToolVoidedEvent(seq=2, call=early, **envelope),
        ServerToolEvent(seq=3, phase="start", **vendor),
        ServerToolEvent(seq=4, phase="complete", success=False, **vendor),
        ContextCompressedEvent(seq=5, tokens_before=100, tokens_after=90, budget_unmet=True, **envelope),
    ]
    page = outline(events, internal=True)
    assert page.opens == [0, 1, 0, 3, 0]
    assert page.flags == [0, 64 | 8, 0, 1, 16]
    assert (page.a[4], page.b[4]) == (100, 90)


def test_messages_have_the_times_of_their_tokens_if_they_are_recorded() -> None:
    page = outline(record(frames("--It-is---good|", 0.1)))
    assert (find(page, "content-complete")["a"], find(page, "content-complete")["b"]) == (200, 400)
    unknown = outline([ContentCompleteEvent(seq=1, task_id="run", attempt=1, step="1", content="Hi")])
    assert (unknown.a, unknown.b) == ([-1], [-1])


@pytest.mark.parametrize(
    ("content", "label"),
    [("Two\n\n lines", "Two lines"), ("x" * 61, "x" * 59 + "\u2026"), ("x" * 60, "x" * 60), ("", "stop")],
)
def test_label_is_the_beginning_of_the_text_on_one_line(content: str, label: str) -> None:
    event = ContentCompleteEvent(seq=1, task_id="run", attempt=1, step="1", content=content)
    assert outline([event]).label == [label]


def test_label_of_a_call_contains_the_lengths_of_lists_and_objects() -> None:
    wanted = ToolCall(id="c", name="go", arguments={"to": ["a", "b"], "how": {"by": "bus"}, "day": 3}, raw="{}")
    event = ToolStartEvent(seq=1, task_id="run", attempt=1, step="1", call=wanted, index=0, idempotency_key="k")
    assert outline([event]).label == ["to=[2], how=[1], day=3"]


SAMPLE = record(
    turn(calls=[call("work", "x", seconds=2), call("fail", "y")], usage=Usage(input_tokens=7, output_tokens=3)),
    call("peek", secret="x"),
    call("sure"),
    model="zai:glm-4.7",
)


@given(sizes=st.lists(st.integers(1, 7), min_size=1), internal=st.booleans())
def test_pages_of_any_size_equal_the_whole_outline(sizes: list[int], internal: bool) -> None:
    state, after = OutlineState(), 0
    paged: list[dict[str, Any]] = []
    dollars: dict[int, float] = {}
    for number in range(len(SAMPLE)):
        size = sizes[number % len(sizes)]
        fold = OutlineFold(state, internal=internal)
        fold.add(SAMPLE[after : after + size])
        page = fold.make_page("run", seq=len(SAMPLE), final=False)
        assert page.first == after + 1
        paged += rows(page)
        dollars |= page.dollars
        state, after = fold.state, page.last
    whole = outline(SAMPLE, internal=internal)
    assert (paged, dollars) == (rows(whole), whole.dollars)
    assert dollars


def test_outline_has_the_costs_of_models_with_a_price() -> None:
    answer = turn("Done.", usage=Usage(input_tokens=1_000, output_tokens=100))
    page = outline(record(answer, model="zai:glm-4.7"))
    assert page.dollars == {find(page, "usage")["seq"]: 0.000_82}
    assert outline(record(answer)).dollars == {}
