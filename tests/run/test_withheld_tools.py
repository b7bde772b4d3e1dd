"""Tools that are not offered are never called."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop import (
    Agent,
    ContentCompleteEvent,
    Event,
    Limits,
    MemoryEventLog,
    RunContext,
    Tool,
    ToolCompleteEvent,
    client_tool,
    op,
    tool,
)
from rxloop.pipeline.requests import ModelRequest, Operator, Signal, ToolRequest
from rxloop.strategies import StrategyRun, strategy
from rxloop.testing import ScriptedModel, call, virtual_time
from support.runs import collect, copy_first_events

NAMES = ["a", "b", "c", "d"]


class World:
    """Tools with countable effects."""

    def __init__(self, *names: str) -> None:
        self.effects: list[str] = []
        self.tools = [self.make_tool(name) for name in names or ("wipe", "look")]

    def make_tool(self, name: str, **options: Any) -> Tool:
        @tool(name=name, **options)
        async def act() -> str:
            """Acts."""
            self.effects.append(name)
            return f"{name} done"

        return act


def withhold_tools(*names: str) -> Operator:
    """Remove tools from each request."""

    @op.on(ModelRequest)
    async def withhold(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(tools=tuple(definition for definition in request.tools if definition.name not in names))

    return withhold


def model_by_turn(*turns: Any) -> ScriptedModel:
    """Create a model that answers by turn number in every process."""

    def answer(request: ModelRequest) -> Any:
        return turns[sum(message.role == "assistant" for message in request.messages)]

    return ScriptedModel(*[answer] * 20)


WITHHELD = {"wipe", "show"}
BOTH = [call("look"), call("wipe"), call("look")]
AgentFactory = Callable[[World, Any], Agent]


def withhold_by_operator(world: World, log: Any) -> Agent:
    loop = op.standard(before_model=[withhold_tools("wipe")])
    return Agent(model_by_turn(BOTH, "done"), tools=world.tools, loop=loop, log=log)


def withhold_by_operator_early(world: World, log: Any) -> Agent:
    loop = [withhold_tools("wipe"), op.call_model(), op.run_tools(early=True), op.checkpoint()]
    tools = [world.make_tool(name, read_only=True) for name in ("wipe", "look")]
    return Agent(model_by_turn(BOTH, "done"), tools=tools, loop=loop, log=log)


def withhold_by_enabled(world: World, log: Any) -> Agent:
    """Enable this tool after the first request."""
    off = log.fresh
    wipe = world.make_tool("wipe", enabled=lambda ctx: not off)
    return Agent(model_by_turn(BOTH, "done"), tools=[wipe, world.make_tool("look")], log=log)


def withhold_by_toolset(world: World, log: Any) -> Agent:
    """Offer the tool only after the crash."""

    class ChangingToolset:
        async def tools(self, ctx: RunContext[Any]) -> Sequence[Tool]:
            return world.tools[1:] if log.fresh else world.tools

    return Agent(model_by_turn(BOTH, "done"), tools=[ChangingToolset()], log=log)


def withhold_client_tool(world: World, log: Any) -> Agent:
    loop = op.standard(before_model=[withhold_tools("show")])
    show = client_tool("show", {"type": "object"}, description="Shows.")
    calls = [call("look"), call("show"), call("look")]
    return Agent(model_by_turn(calls, "done"), tools=[*world.tools, show], loop=loop, log=log)


def withhold_in_nested_agent(world: World, log: Any) -> Agent:
    child = Agent(
        model_by_turn(BOTH, "done"),
        name="child",
        tools=world.tools,
        loop=op.standard(before_model=[withhold_tools("wipe")]),
    )
    return Agent(model_by_turn([call("child", prompt="Go")], "done"), tools=[child.as_tool()], log=log)


@strategy
async def ask_and_conclude(run: StrategyRun) -> str:
    await run.ask("Think of it.")
    await run.ask("Look.", tools=True)
    return await run.conclude("Say it.")


def withhold_in_strategy(world: World, log: Any) -> Agent:
    turns = [BOTH, "thought", BOTH, "looked", "done"]
    model = ScriptedModel(*[lambda request: turns[_turn_index(request)]] * 20)
    return Agent(
        model,
        tools=world.tools,
        strategy=ask_and_conclude,
        loop=op.standard(before_model=[withhold_tools("wipe")]),
        log=log,
    )


def _turn_index(request: ModelRequest) -> int:
    """Return the index of the turn from the number of answers."""
    answers = sum(message.role == "assistant" for message in (*request.messages, *request.tail))
    return min(answers, 4)


class RunLog(MemoryEventLog):
    """Log that knows whether it is original."""

    fresh = True


AGENT_FACTORIES = [
    *(withhold_by_operator, withhold_by_operator_early, withhold_by_enabled, withhold_by_toolset),
    *(withhold_client_tool, withhold_in_nested_agent, withhold_in_strategy),
]


async def truncate_log(log: MemoryEventLog, task_id: str, count: int) -> RunLog:
    truncated = RunLog()
    truncated.fresh = False
    await truncated.append(task_id, (await log.read(task_id))[:count], expected_seq=0)
    return truncated


def refused_calls(events: Sequence[Event]) -> list[str]:
    return [
        event.name
        for event in events
        if isinstance(event, ToolCompleteEvent) and not event.success and "interrupted" not in event.content
    ]


@pytest.mark.parametrize("make_agent", AGENT_FACTORIES)
async def test_withheld_tool_is_refused_after_an_interruption_at_any_event(make_agent: AgentFactory) -> None:
    log, world = RunLog(), World()
    run = make_agent(world, log).run("Go")
    await collect(run)
    assert (await run).output == "done"
    recorded = await log.read(run.task_id)
    withheld = WITHHELD & set(refused_calls(recorded))
    assert len(withheld) == 1
    assert world.effects == ["look", "look"]

    for count in range(2, len(recorded)):
        truncated, world = await truncate_log(log, run.task_id, count), World()
        answered_steps = {event.step for event in recorded[:count] if isinstance(event, ContentCompleteEvent)}
        resumed = make_agent(world, truncated).resume(run.task_id)
        await collect(resumed)
        result = await resumed
        assert (result.state, result.output) == ("completed", "done"), count
        if make_agent in (withhold_by_enabled, withhold_by_toolset) and "1" not in answered_steps:
            # This model call is repeated and offers all tools.
            continue
        assert not withheld & set(world.effects), count
        assert WITHHELD & set(refused_calls(await truncated.read(run.task_id))) == withheld, count


@pytest.mark.parametrize("make_agent", [withhold_by_operator, withhold_by_enabled, withhold_by_toolset])
async def test_fork_inside_a_batch_does_not_call_a_withheld_tool(make_agent: AgentFactory) -> None:
    log, world = RunLog(), World()
    run = make_agent(world, log).run("Go")
    await collect(run)
    recorded = await log.read(run.task_id)
    complete = next(event.seq for event in recorded if isinstance(event, ContentCompleteEvent))
    checkpoint = next(event.seq for event in recorded if event.kind == "checkpoint")
    for at_seq in range(complete, checkpoint):
        truncated, world = await truncate_log(log, run.task_id, len(recorded)), World()
        fork = make_agent(world, truncated).fork(run.task_id, at_seq)
        await collect(fork)
        assert "wipe" not in world.effects


async def test_guard_that_renames_a_call_cannot_reach_a_withheld_tool() -> None:
    """The model itself called only an offered tool."""

    @op.on(ToolRequest)
    async def rename_call(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        renamed = request.call.model_copy(update={"name": "wipe"})
        yield ToolRequest(renamed, request.ctx.bind(call=renamed), request.offered)

    def make_agent(world: World, log: Any) -> Agent:
        loop = op.standard(before_model=[withhold_tools("wipe")], before_tools=[rename_call])
        return Agent(model_by_turn([call("look")], "done"), tools=world.tools, loop=loop, log=log)

    log, world = RunLog(), World()
    run = make_agent(world, log).run("Go")
    await collect(run)
    for count in range(2, len(await log.read(run.task_id))):
        truncated = await truncate_log(log, run.task_id, count)
        await make_agent(world, truncated).resume(run.task_id)
        assert world.effects == []


async def test_guards_see_the_offered_tools_after_a_resume() -> None:
    offered_names: list[list[str] | None] = []

    @op.on(ToolRequest)
    async def record_offered(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        offered_names.append(None if request.offered is None else [item.name for item in request.offered])
        yield request

    def make_agent(world: World, log: Any) -> Agent:
        loop = op.standard(before_model=[withhold_tools("wipe")], before_tools=[record_offered])
        return Agent(model_by_turn(BOTH, "done"), tools=world.tools, thoughts=False, loop=loop, log=log)

    log = RunLog()
    run = make_agent(World(), log).run("Go")
    events = await collect(run)
    complete = next(event.seq for event in events if isinstance(event, ContentCompleteEvent))
    await make_agent(World(), await truncate_log(log, run.task_id, complete)).resume(run.task_id)
    assert offered_names == [["look"]] * 6


async def test_tool_that_is_no_longer_offered_is_not_called_after_a_resume() -> None:
    def make_agent(world: World, log: Any, *withheld: str) -> Agent:
        is_enabled = log.fresh
        tools = [world.make_tool("look", enabled=lambda ctx: is_enabled), *map(world.make_tool, ("wipe", "more"))]
        loop = op.standard(before_model=[withhold_tools(*withheld)])
        return Agent(model_by_turn([call("look")], "done"), tools=tools, loop=loop, log=log)

    for withheld in ((), ("wipe",)):
        log, world = RunLog(), World()
        run = make_agent(world, log, *withheld).run("Go")
        events = await collect(run)
        complete = next(event.seq for event in events if isinstance(event, ContentCompleteEvent))
        truncated, world = await truncate_log(log, run.task_id, complete), World()
        await make_agent(world, truncated, *withheld).resume(run.task_id)
        assert world.effects == []
        assert refused_calls(await truncated.read(run.task_id)) == ["look"]


async def test_offered_tools_are_recorded_only_when_tools_were_withheld() -> None:
    def offered_by_message(events: Sequence[Event]) -> list[Any]:
        return [event.offered for event in events if isinstance(event, ContentCompleteEvent)]

    usual = Agent(model_by_turn([call("look")], [call("wipe")], "done"), tools=World().tools)
    assert offered_by_message(await collect(usual.run("Go"))) == [None, None, None]

    unknown = Agent(model_by_turn([call("look"), call("lok")], "done"), tools=World().tools, thoughts=False)
    events = await collect(unknown.run("Go"))
    assert offered_by_message(events) == [["wipe", "look"], None]

    events = await collect(withhold_by_operator(World(), None).run("Go"))
    assert offered_by_message(events) == [["look", "think_aloud"], None]
    message = next(event for event in events if isinstance(event, ContentCompleteEvent))
    assert b'"offered":["look","think_aloud"]' in message.to_json()
    assert b"offered" not in message.to_json(public=True)
    assert message.to_public().offered is None  # type: ignore[union-attr]
    assert all(b'"offered"' not in event.to_json() for event in events if event is not message)


@given(
    withheld=st.lists(st.sets(st.sampled_from(NAMES)), min_size=1, max_size=3),
    calls=st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5), min_size=3, max_size=3),
    positions=st.lists(st.floats(0, 1), min_size=1, max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_withheld_tools_are_never_executed_after_random_crashes(
    withheld: list[set[str]], calls: list[list[str]], positions: list[float]
) -> None:
    """Every process withholds identical tools."""
    turns = [[call(name) for name in names] for names in calls[: len(withheld)]]
    effects: list[tuple[str, str]] = []

    @op.on(ModelRequest)
    async def withhold(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        withheld_names = withheld[request.iteration - 1] if request.iteration <= len(withheld) else set[str]()
        yield request.replace(
            tools=tuple(definition for definition in request.tools if definition.name not in withheld_names)
        )

    def make_tool(name: str) -> Tool:
        @tool(name=name, idempotent=True)
        async def act(ctx: RunContext[Any]) -> str:
            """Acts."""
            effects.append((ctx.step or "", name))
            return "done"

        return act

    def agent(log: MemoryEventLog) -> Agent:
        loop = op.standard(before_model=[withhold])
        limits = Limits(tool_failures=100, attempts=None)
        return Agent(
            model_by_turn(*turns, "done"), tools=[make_tool(name) for name in NAMES], loop=loop, log=log, limits=limits
        )

    async def run_with_crashes() -> None:
        log = MemoryEventLog()
        run = agent(log).run("Go")
        await run
        for position in positions:
            total = len(await log.read(run.task_id))
            log = await copy_first_events(log, run.task_id, max(2, min(int(position * total), total - 1)))
            await agent(log).resume(run.task_id)
        violations = [(step, name) for step, name in effects if name in withheld[int(step) - 1]]
        assert not violations

    with virtual_time() as time:
        time.run(run_with_crashes())
