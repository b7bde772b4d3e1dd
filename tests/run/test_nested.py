"""Nested runs share the stream, the usage and the end of the outer run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import (
    Agent,
    Limits,
    MemoryEventLog,
    RunCancelled,
    RunContext,
    StatusUpdateEvent,
    SubtaskEvent,
    ToolCompleteEvent,
    tool,
)
from rxloop.errors import LimitReached
from rxloop.testing import ScriptedModel, call, frames
from support.nested_agents import (
    collect_checked,
    editor,
    filter_by_path,
    in_virtual_time,
    researcher,
    total_usage,
    turn_with_usage,
)
from support.run_checks import assert_no_tasks
from support.runs import outcome, shape


@tool
async def waits() -> str:
    """Waits for ever."""
    await asyncio.Event().wait()
    return "never"


async def test_events_of_nested_run_are_in_the_stream_of_the_outer_run() -> None:  # L117
    log = MemoryEventLog()
    run = editor(researcher().as_tool("research"), log=log).run("A page on Oslo")
    events = await collect_checked(run)
    result = await run

    nested_events = filter_by_path(events, "researcher")
    assert {event.parent_task_id for event in nested_events} == {run.task_id}
    assert len({event.task_id for event in nested_events}) == 1
    assert [event.kind for event in nested_events if event.durable] == [
        *("task", "status-update", "llm-call", "content-complete", "tool-start", "tool-complete", "checkpoint"),
        *("llm-call", "usage", "content-complete", "checkpoint", "status-update"),
    ]
    start, end = [event for event in events if isinstance(event, SubtaskEvent)]
    assert (start.subtask_id, start.agent_name, start.state) == (nested_events[0].task_id, "researcher", "working")
    assert (end.subtask_id, end.state, end.parent_task_id) == (nested_events[0].task_id, "completed", None)
    assert start.seq == nested_events[0].seq - 1
    assert end.seq == nested_events[-1].seq + 1
    assert shape(result.messages) == [
        "user: A page on Oslo",
        "assistant: research",
        "tool: A capital.",
        "assistant: A page.",
    ]
    assert [event.seq for event in await log.read(run.task_id)] == [event.seq for event in events if event.durable]


async def test_usage_of_nested_run_counts_for_the_outer_run() -> None:  # L117
    run = editor(researcher().as_tool("research")).run("q")
    events = await collect_checked(run)
    result = await run
    assert result.usage == total_usage(events)
    assert result.usage.input_tokens == 20
    ends = [event for event in events if isinstance(event, StatusUpdateEvent) and event.final]
    assert [event.usage.input_tokens for event in ends if event.usage is not None] == [10, 20]


async def test_deeply_nested_events_name_the_root_run() -> None:
    inner = researcher()
    middle = researcher(
        call("research", prompt="deeper"), turn_with_usage("M."), name="middle", tools=[inner.as_tool("research")]
    )
    run = editor(middle.as_tool("research")).run("q")
    events = await collect_checked(run)

    inner_events = filter_by_path(events, "middle", "researcher")
    middle_events = filter_by_path(events, "middle")
    assert {event.parent_task_id for event in inner_events} == {middle_events[0].task_id}
    assert {event.metadata["root_task_id"] for event in inner_events} == {run.task_id}
    assert all("root_task_id" not in event.metadata for event in middle_events)
    assert (await run).usage == total_usage(events)
    assert (await run).usage.input_tokens == 30


async def test_failed_nested_run_becomes_failed_tool_result() -> None:  # L117
    failing = researcher(ValueError("a secret of the vendor"))
    run = editor(failing.as_tool("research")).run("q")
    events = await collect_checked(run)
    assert (await run).output == "A page."
    (answer,) = [event for event in filter_by_path(events) if isinstance(event, ToolCompleteEvent)]
    assert not answer.success
    assert "ended without an answer" in answer.content
    assert "secret" not in answer.content
    assert [event.state for event in events if isinstance(event, SubtaskEvent)] == ["working", "failed"]


async def test_limit_of_nested_run_does_not_end_the_outer_run() -> None:
    turns = [call("search", question=str(n)) for n in range(9)]
    run = editor(researcher(*turns).as_tool("research", limits=Limits(iterations=2))).run("q")
    events = await collect_checked(run)
    assert (await run).output == "A page."
    (answer,) = [event for event in filter_by_path(events) if isinstance(event, ToolCompleteEvent)]
    assert not answer.success
    assert "max_iterations" in answer.content


async def test_token_limit_of_root_run_ends_nested_runs() -> None:
    turns = [[call("search", question=str(n))] for n in range(9)]
    spending_agent = researcher(*[lambda _, t=t: _spend(t) for t in turns])
    run = editor(spending_agent.as_tool("research"), limits=Limits(tokens=100)).run("q")
    events = await collect_checked(run)
    with pytest.raises(LimitReached, match="tokens"):
        await run
    assert total_usage(events).total_tokens < 200
    nested_events = filter_by_path(events, "researcher")[-1]
    assert isinstance(nested_events, StatusUpdateEvent)
    assert nested_events.reason == "tokens"


def _spend(calls: list[Any]) -> Any:
    from rxloop import Usage
    from rxloop.testing import turn

    return turn(calls=calls, usage=Usage(input_tokens=60))


@in_virtual_time
async def test_cancel_ends_the_nested_run_before_the_outer_run() -> None:
    child = researcher(call("waits"), tools=[waits])
    run = editor(child.as_tool("research")).run("q").start()
    await asyncio.sleep(1)
    run.cancel("enough")
    with pytest.raises(RunCancelled):
        await run
    events = await collect_checked(run)
    nested_end, outer_end = [event for event in events if isinstance(event, StatusUpdateEvent) and event.final]
    assert nested_end.agent_path == ("researcher",)
    assert [(event.state, event.error and event.error.message) for event in (nested_end, outer_end)] == [
        ("canceled", "enough")
    ] * 2
    assert [event.state for event in events if isinstance(event, SubtaskEvent)] == ["working", "canceled"]
    await assert_no_tasks()


@in_virtual_time
async def test_cancel_closes_the_partial_answer_of_a_nested_model() -> None:
    child = researcher(frames("half an-"))
    run = editor(child.as_tool("research")).run("q").start()
    await asyncio.sleep(1)
    run.cancel()
    events = await collect_checked(run)
    (message,) = [event for event in filter_by_path(events, "researcher") if event.kind == "content-complete"]
    assert (message.content, message.finish_reason) == ("half an", "canceled")  # type: ignore[attr-defined]
    assert child.model.open == 0  # type: ignore[attr-defined]


@in_virtual_time
async def test_timeout_of_the_call_ends_the_nested_run() -> None:
    child = researcher(call("waits"), tools=[waits])
    run = editor(child.as_tool("research", timeout=2)).run("q")
    events = await collect_checked(run)
    assert (await run).output == "A page."
    (answer,) = [event for event in filter_by_path(events) if isinstance(event, ToolCompleteEvent)]
    assert "timed out after 2" in answer.content
    assert filter_by_path(events, "researcher")[-1].seq < answer.seq


@in_virtual_time
async def test_time_limit_of_outer_run_ends_the_nested_run() -> None:
    child = researcher(call("waits"), tools=[waits])
    run = editor(child.as_tool("research"), limits=Limits(seconds=3)).run("q")
    events = await collect_checked(run)
    assert (await outcome(run)).reason == "timeout"
    assert filter_by_path(events, "researcher")[-1].kind == "status-update"


@in_virtual_time
async def test_nested_tool_that_ignores_cancellation_does_not_block_the_end(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def deaf() -> str:
        """Does not listen."""
        while True:
            try:
                await asyncio.sleep(1000)
                return "late"
            except asyncio.CancelledError:
                pass

    child = researcher(call("deaf"), tools=[deaf])
    run = editor(child.as_tool("research")).run("q").start()
    await asyncio.sleep(1)
    run.cancel()
    events = await collect_checked(run)
    assert [event.state for event in events if isinstance(event, StatusUpdateEvent) and event.final] == ["canceled"] * 2
    await asyncio.sleep(2000)
    await assert_no_tasks()


async def test_parallel_nested_runs_are_independent() -> None:
    agents = [researcher(name=f"r{n}").as_tool(f"r{n}") for n in range(4)]
    turns = [[call(f"r{n}", prompt=str(n)) for n in range(4)], turn_with_usage("Done.")]
    run = editor(*agents, turns=turns).run("q")
    events = await collect_checked(run)
    result = await run
    assert result.output == "Done."
    assert result.usage == total_usage(events)
    assert len({event.task_id for event in events}) == 5


async def test_agent_can_be_called_twice_in_one_message() -> None:
    child = researcher(turn_with_usage("one"), turn_with_usage("two"))
    turns = [[call("research", prompt="a"), call("research", prompt="b")], turn_with_usage("Done.")]
    events = await collect_checked(editor(child.as_tool("research"), turns=turns).run("q"))
    assert len({event.task_id for event in filter_by_path(events, "researcher")}) == 2


async def test_nested_run_has_its_own_step_numbers() -> None:
    run = editor(researcher().as_tool("research")).run("q")
    events = await collect_checked(run)
    steps = [(event.task_id == run.task_id, event.step) for event in events if event.kind == "llm-call"]
    assert sorted(steps) == [(False, "1"), (False, "2"), (True, "1"), (True, "2")]


async def test_nested_run_gets_the_deps_of_the_outer_run() -> None:
    contexts: list[Any] = []

    @tool
    async def look(ctx: RunContext[str]) -> str:
        """Looks."""
        contexts.append((ctx.deps, ctx.task_id, ctx.agent_name))
        return "ok"

    child = Agent(ScriptedModel(call("look"), "ok"), name="child", tools=[look], deps_type=str)
    parent = Agent(ScriptedModel(call("child", prompt="x"), "done"), tools=[child.as_tool()], deps_type=str)
    run = parent.run("q", deps="mine")
    await run
    assert [(deps, name) for deps, _, name in contexts] == [("mine", "child")]
    assert contexts[0][1] != run.task_id


async def test_exception_in_nested_instructions_becomes_failed_tool_result() -> None:
    def raise_error(ctx: RunContext[Any]) -> str:
        raise ZeroDivisionError("no instructions")

    run = editor(researcher(instructions=raise_error).as_tool("research")).run("q")
    events = await collect_checked(run)
    assert (await run).output == "A page."
    assert filter_by_path(events, "researcher")[-1].kind == "status-update"
