"""Runs with nested ones that are cut off after any event, and taken up again: nothing is asked or done twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from rxloop import (
    Agent,
    ContentCompleteEvent,
    Event,
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
from rxloop.thinking.graph.thought_graph import ThoughtGraph
from support.nested_agents import check_attempts, of, used
from support.runs import collect


class Family:
    """A parent with two nested agents, of which one asks, and what they have done."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()

        @tool
        async def pay(ctx: RunContext[Any], amount: int) -> str:
            """Pays."""
            agreed = await ctx.ask(f"Pay {amount}?")
            self.done["pay"] += 1
            return str(agreed)

        @tool
        async def write(text: str) -> str:
            """Writes."""
            self.done[f"write {text}"] += 1
            return "written"

        self.tools = [pay, write]

    def agent(self, log: Any) -> Agent:
        buyer = Agent(
            by_turn([call("write", text="buyer")], [call("pay", amount=5)], "bought"), name="buyer", tools=self.tools
        )
        clerk = Agent(
            by_turn([call("write", text="a"), call("write", text="b")], "noted"), name="clerk", tools=self.tools
        )
        both = [call("buyer", prompt="buy"), call("clerk", prompt="note")]
        return Agent(by_turn(both, "all done"), name="head", tools=[buyer.as_tool(), clerk.as_tool()], log=log)


def by_turn(*turns: Any) -> ScriptedModel:
    """A model that answers by what it has said before, whichever process asks."""

    def answer(request: ModelRequest) -> Any:
        said = turns[sum(message.role == "assistant" for message in request.messages)]
        usage = Usage(input_tokens=10, output_tokens=1)
        return turn(said, usage=usage) if isinstance(said, str) else turn(calls=said, usage=usage)

    return ScriptedModel(*[answer] * 20)


async def recorded() -> tuple[str, Sequence[Event]]:
    """The run, paused once, to its end."""
    log = MemoryEventLog()
    agent = Family().agent(log)
    run = agent.run("Go.")
    await collect(run)
    (question,) = (await run).pending
    await agent.resume(run.task_id, inputs={question.input_id: True})
    return run.task_id, await log.read(run.task_id)


def agree(_: object) -> bool:
    return True


async def finish(agent: Agent, task_id: str) -> Result[Any]:
    """Resume a run until it has come to its answer."""
    run = agent.resume(task_id, on_input=lambda _: True)
    await collect(run)
    return await run


async def test_a_run_that_is_cut_off_anywhere_comes_to_the_same_end() -> None:  # L89
    task_id, events = await recorded()
    check_attempts(events)
    total = len(events)
    for cut in range(1, total):
        kept = events[:cut]
        log = MemoryEventLog()
        await log.append(task_id, kept, expected_seq=0)
        family = Family()
        result = await finish(family.agent(log), task_id)
        whole = await log.read(task_id)
        check_attempts(whole)
        assert result.output == "all done", cut
        assert result.usage == used(whole), cut
        done = Counter(event.name for event in whole if isinstance(event, ToolCompleteEvent) and event.success)
        repeated = [name for name, times in family.done.items() if times > 1]
        assert not repeated, cut
        # A call that was begun and not finished is told as interrupted; every other one is done once.
        begun = {(event.task_id, event.step, event.index) for event in kept if isinstance(event, ToolStartEvent)}
        ended = {(event.task_id, event.step, event.index) for event in kept if isinstance(event, ToolCompleteEvent)}
        lost = [event for event in whole if isinstance(event, ToolCompleteEvent) and "interrupted" in event.content]
        assert {(event.task_id, event.step, event.index) for event in lost} <= begun - ended, cut
        assert done["write"] + sum(event.name == "write" for event in lost) == 3, cut
        calls = Counter((event.task_id, event.step) for event in whole if isinstance(event, LLMCallEvent))
        again = [step for step, times in calls.items() if times > 1]
        open_steps = {(e.task_id, e.step) for e in kept if isinstance(e, LLMCallEvent)} - {
            (e.task_id, e.step) for e in kept if e.kind == "content-complete"
        }
        assert set(again) <= open_steps, cut
        state = RunState()
        for event in whole:
            state = fold(state, event)
        assert (list(state.messages), state.usage, state.pending) == (result.messages, result.usage, {}), cut


async def test_a_run_that_is_cut_off_and_cancelled_leaves_no_nested_run_open() -> None:
    task_id, events = await recorded()
    for cut in range(3, len(events), 2):
        kept = events[:cut]
        log = MemoryEventLog()
        await log.append(task_id, kept, expected_seq=0)
        await Family().agent(log).get_run(task_id).cancel()
        whole = await log.read(task_id)
        check_attempts(whole)


async def test_a_nested_run_goes_on_where_it_stood() -> None:
    task_id, events = await recorded()
    place = next(
        i for i, event in enumerate(events) if isinstance(event, ToolCompleteEvent) and event.agent_path == ("clerk",)
    )
    log = MemoryEventLog()
    await log.append(task_id, events[: place + 1], expected_seq=0)
    family = Family()
    await finish(family.agent(log), task_id)
    clerk = of(await log.read(task_id), "clerk")
    assert [event.kind for event in clerk].count("task") == 1
    statuses = [event for event in clerk if isinstance(event, StatusUpdateEvent)]
    assert [event.resumed for event in statuses] == [False, True, False]
    assert clerk[0].attempt == 1
    assert clerk[-1].attempt == 2


@pytest.mark.parametrize("fork", [False, True])
async def test_resumed_and_forked_runs_have_the_thought_graph_of_all_events(fork: bool) -> None:
    task_id, events = await recorded()
    for cut in range(1, len(events)):
        log = MemoryEventLog()
        await log.append(task_id, events if fork else events[:cut], expected_seq=0)
        agent = Family().agent(log)
        run = agent.fork(task_id, at=cut, on_input=agree) if fork else agent.resume(task_id, on_input=agree)
        await collect(run)
        calls = (await run).thoughts.calls
        assert calls == ThoughtGraph.of(await log.read(run.task_id)).calls, cut
        assert len(calls) == 6


@pytest.mark.parametrize("cut", [False, True])
async def test_a_nested_run_has_the_thought_graph_of_its_own_events(cut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: dict[str, ThoughtGraph] = {}
    begin = NestedRecorder.__init__

    def spy(recorder: NestedRecorder, run: Any, events: Sequence[Event]) -> None:
        begin(recorder, run, events)
        graphs[recorder.task_id] = recorder.graph

    task_id, events = await recorded()
    held = events[: len(events) // 2] if cut else events[:1]
    log = MemoryEventLog()
    await log.append(task_id, held, expected_seq=0)
    monkeypatch.setattr(NestedRecorder, "__init__", spy)
    await finish(Family().agent(log), task_id)
    found = {call.id for graph in graphs.values() for call in graph.calls}
    own = [event for event in held if event.agent_path and isinstance(event, ContentCompleteEvent)]
    assert found == {call.id for event in own for call in event.tool_calls}
    assert bool(found) == cut


async def test_a_nested_run_that_had_ended_is_not_begun_again() -> None:
    task_id, events = await recorded()
    place = next(
        i for i, e in enumerate(events) if isinstance(e, StatusUpdateEvent) and e.final and e.agent_path == ("clerk",)
    )
    log = MemoryEventLog()
    await log.append(task_id, events[: place + 1], expected_seq=0)
    await finish(Family().agent(log), task_id)
    whole = await log.read(task_id)
    assert [event.attempt for event in of(whole, "clerk")][-1] == 1


async def test_a_fork_goes_on_with_the_nested_runs_of_the_run_it_is_made_of() -> None:
    task_id, events = await recorded()
    for at in range(1, len(events), 3):
        log = MemoryEventLog()
        await log.append(task_id, events, expected_seq=0)
        family = Family()
        run = family.agent(log).fork(task_id, at=at, on_input=lambda _: True)
        await collect(run)
        result = await run
        forked = await log.read(run.task_id)
        check_attempts(forked)
        assert result.output == "all done", at
        assert result.usage == used(forked), at
        nested = {event.task_id for event in forked if event.agent_path}
        assert len(nested) == 2, at
        assert not nested & {event.task_id for event in events}, at
        taken = [event for event in forked if event.seq <= at]
        written = Counter(event.name for event in taken if isinstance(event, ToolCompleteEvent) and event.agent_path)
        assert sum(family.done.values()) + written["write"] + written["pay"] == 4, at
