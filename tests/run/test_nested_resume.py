"""Runs with nested runs that are interrupted after any event and resumed without repeating calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from rxloop import (
    Agent,
    ContentCompleteEvent,
    Event,
    InputRequiredEvent,
    LLMCallEvent,
    MemoryEventLog,
    Result,
    RunContext,
    RunState,
    StatusUpdateEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    Usage,
    tool,
)
from rxloop.pipeline.requests import ModelRequest
from rxloop.run.nested import NestedRecorder
from rxloop.state import fold
from rxloop.testing import ScriptedModel, call, turn
from rxloop.thinking.graph import ThoughtGraph
from support.nested_agents import check_attempts, filter_by_path, total_usage
from support.runs import collect, copy_first_events


class AgentTree:
    """Parent with two nested agents and effect counters."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()

        @tool
        async def pay(ctx: RunContext[Any], amount: int) -> str:
            """Pays."""
            approved = await ctx.ask(f"Pay {amount}?")
            self.done["pay"] += 1
            return str(approved)

        @tool
        async def write(text: str) -> str:
            """Writes."""
            self.done[f"write {text}"] += 1
            return "written"

        self.tools = [pay, write]

    def agent(self, log: Any) -> Agent:
        buyer = Agent(
            model_by_turn([call("write", text="buyer")], [call("pay", amount=5)], "bought"),
            name="buyer",
            tools=self.tools,
        )
        clerk = Agent(
            model_by_turn([call("write", text="a"), call("write", text="b")], "noted"), name="clerk", tools=self.tools
        )
        parallel_calls = [call("buyer", prompt="buy"), call("clerk", prompt="note")]
        return Agent(
            model_by_turn(parallel_calls, "all done"), name="head", tools=[buyer.as_tool(), clerk.as_tool()], log=log
        )


def model_by_turn(*turns: Any) -> ScriptedModel:
    """Create a model that answers by turn number in every process."""

    def answer(request: ModelRequest) -> Any:
        answer_content = turns[sum(message.role == "assistant" for message in request.messages)]
        usage = Usage(input_tokens=10, output_tokens=1)
        return (
            turn(answer_content, usage=usage)
            if isinstance(answer_content, str)
            else turn(calls=answer_content, usage=usage)
        )

    return ScriptedModel(*[answer] * 20)


async def record_run() -> tuple[str, Sequence[Event]]:
    """Record a run with one pause."""
    log = MemoryEventLog()
    agent = AgentTree().agent(log)
    run = agent.run("Go.")
    await collect(run)
    (question,) = (await run).pending
    await agent.resume(run.task_id, inputs={question.input_id: True})
    return run.task_id, await log.read(run.task_id)


def approve(_: object) -> bool:
    return True


async def resume_until_done(agent: Agent, task_id: str) -> Result[Any]:
    """Resume until completion."""
    run = agent.resume(task_id, on_input=lambda _: True)
    await collect(run)
    return await run


async def test_run_interrupted_after_any_event_completes_without_repeating_calls() -> None:  # L89
    task_id, events = await record_run()
    check_attempts(events)
    total = len(events)
    for count in range(1, total):
        prefix = events[:count]
        log = MemoryEventLog()
        await log.append(task_id, prefix, expected_seq=0)
        agent_tree = AgentTree()
        result = await resume_until_done(agent_tree.agent(log), task_id)
        recorded_events = await log.read(task_id)
        check_attempts(recorded_events)
        assert result.output == "all done", count
        assert result.usage == total_usage(recorded_events), count
        successes = Counter(
            event.name for event in recorded_events if isinstance(event, ToolCompleteEvent) and event.success
        )
        repeated = [name for name, number in agent_tree.done.items() if number > 1]
        assert not repeated, count
        # Started calls without results are reported as interrupted, and all others run once.
        started = {(event.task_id, event.step, event.index) for event in prefix if isinstance(event, ToolStartEvent)}
        ended = {(event.task_id, event.step, event.index) for event in prefix if isinstance(event, ToolCompleteEvent)}
        interrupted = [
            event
            for event in recorded_events
            if isinstance(event, ToolCompleteEvent) and "interrupted" in event.content
        ]
        assert {(event.task_id, event.step, event.index) for event in interrupted} <= started - ended, count
        assert successes["write"] + sum(event.name == "write" for event in interrupted) == 3, count
        calls = Counter((event.task_id, event.step) for event in recorded_events if isinstance(event, LLMCallEvent))
        repeated_steps = [step for step, number in calls.items() if number > 1]
        open_steps = {(e.task_id, e.step) for e in prefix if isinstance(e, LLMCallEvent)} - {
            (e.task_id, e.step) for e in prefix if e.kind == "content-complete"
        }
        assert set(repeated_steps) <= open_steps, count
        state = RunState()
        for event in recorded_events:
            state = fold(state, event)
        assert list(state.messages) == result.messages, count
        assert state.usage == result.usage, count
        assert state.pending == {}, count


async def test_cancel_after_a_crash_closes_all_nested_runs() -> None:
    task_id, events = await record_run()
    for count in range(3, len(events), 2):
        prefix = events[:count]
        log = MemoryEventLog()
        await log.append(task_id, prefix, expected_seq=0)
        await AgentTree().agent(log).get_run(task_id).cancel()
        recorded_events = await log.read(task_id)
        check_attempts(recorded_events)


async def test_pause_after_a_crash_closes_nested_runs_whose_calls_are_not_repeated() -> None:
    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pays."""
        return "paid"

    model = model_by_turn([call("clerk", prompt="note"), call("pay", amount=5)], "done")
    clerk = Agent(ScriptedModel("noted"), name="clerk").as_tool()
    log = MemoryEventLog()
    result = await Agent(model, name="head", tools=[clerk, pay], log=log).run("Go.")
    for count in range(4, len(await log.read(result.task_id))):
        cut = await copy_first_events(log, result.task_id, count)
        # The agent does not have the tool any more, so the call is not repeated.
        resumed = await Agent(model, name="head", tools=[pay], log=cut).resume(result.task_id)
        assert resumed.pending
        events = await cut.read(result.task_id)
        check_attempts(events)
        ends = [
            event.task_id
            for event in filter_by_path(events, "clerk")
            if isinstance(event, StatusUpdateEvent) and event.final
        ]
        assert len(ends) == len({event.task_id for event in filter_by_path(events, "clerk")})


async def test_nested_run_is_resumed_where_it_stopped() -> None:
    task_id, events = await record_run()
    position = next(
        i for i, event in enumerate(events) if isinstance(event, ToolCompleteEvent) and event.agent_path == ("clerk",)
    )
    log = MemoryEventLog()
    await log.append(task_id, events[: position + 1], expected_seq=0)
    agent_tree = AgentTree()
    await resume_until_done(agent_tree.agent(log), task_id)
    clerk = filter_by_path(await log.read(task_id), "clerk")
    assert [event.kind for event in clerk].count("task") == 1
    statuses = [event for event in clerk if isinstance(event, StatusUpdateEvent)]
    assert [event.resumed for event in statuses] == [False, True, False]
    assert clerk[0].attempt == 1
    assert clerk[-1].attempt == 2


@pytest.mark.parametrize("fork", [False, True])
async def test_resumed_and_forked_runs_have_the_thought_graph_of_all_events(fork: bool) -> None:
    task_id, events = await record_run()
    for count in range(1, len(events)):
        log = MemoryEventLog()
        await log.append(task_id, events if fork else events[:count], expected_seq=0)
        agent = AgentTree().agent(log)
        run = agent.fork(task_id, at=count, on_input=approve) if fork else agent.resume(task_id, on_input=approve)
        await collect(run)
        calls = (await run).thoughts.calls
        assert calls == ThoughtGraph.of(await log.read(run.task_id)).calls, count
        assert len(calls) == 6


@pytest.mark.parametrize("truncated", [False, True])
async def test_nested_run_has_the_thought_graph_of_its_own_events(
    truncated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: dict[str, ThoughtGraph] = {}
    initialize = NestedRecorder.__init__

    def record_graph(recorder: NestedRecorder, run: Any, events: Sequence[Event]) -> None:
        initialize(recorder, run, events)
        graphs[recorder.task_id] = recorder.graph

    task_id, events = await record_run()
    # At its first call, a nested run cannot have ended, whatever the order of the concurrent runs.
    first_call = next(i for i, e in enumerate(events) if e.agent_path and isinstance(e, ContentCompleteEvent))
    prefix_events = events[: first_call + 1] if truncated else events[:1]
    log = MemoryEventLog()
    await log.append(task_id, prefix_events, expected_seq=0)
    monkeypatch.setattr(NestedRecorder, "__init__", record_graph)
    await resume_until_done(AgentTree().agent(log), task_id)
    call_ids = {call.id for graph in graphs.values() for call in graph.calls}
    own = [event for event in prefix_events if event.agent_path and isinstance(event, ContentCompleteEvent)]
    assert call_ids == {call.id for event in own for call in event.tool_calls}
    assert bool(call_ids) == truncated


async def test_ended_nested_run_is_not_started_again() -> None:
    task_id, events = await record_run()
    position = next(
        i for i, e in enumerate(events) if isinstance(e, StatusUpdateEvent) and e.final and e.agent_path == ("clerk",)
    )
    log = MemoryEventLog()
    await log.append(task_id, events[: position + 1], expected_seq=0)
    await resume_until_done(AgentTree().agent(log), task_id)
    recorded_events = await log.read(task_id)
    assert [event.attempt for event in filter_by_path(recorded_events, "clerk")][-1] == 1


async def test_fork_continues_the_nested_runs_of_its_parent() -> None:
    task_id, events = await record_run()
    for at in range(1, len(events), 3):
        log = MemoryEventLog()
        await log.append(task_id, events, expected_seq=0)
        agent_tree = AgentTree()
        run = agent_tree.agent(log).fork(task_id, at=at, on_input=lambda _: True)
        await collect(run)
        result = await run
        forked = await log.read(run.task_id)
        check_attempts(forked)
        assert result.output == "all done", at
        assert result.usage == total_usage(forked), at
        nested = {event.task_id for event in forked if event.agent_path}
        assert len(nested) == 2, at
        assert not nested & {event.task_id for event in events}, at
        copied_events = [event for event in forked if event.seq <= at]
        # Calls that the original run started are not repeated, except for calls that ask again.
        started: set[tuple[str, str | None, int]] = set()
        for event in copied_events:
            if isinstance(event, ToolStartEvent | ToolCompleteEvent) and event.call.name in ("write", "pay"):
                started.add((event.task_id, event.step, event.index))
            elif isinstance(event, InputRequiredEvent):
                started.discard((event.task_id, event.input.step, event.input.index))
        assert sum(agent_tree.done.values()) + len(started) == 4, at
