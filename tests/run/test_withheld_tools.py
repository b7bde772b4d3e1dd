"""A tool that a request did not offer is not called: not at once, and not after a crash in the middle of the batch."""

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
from support.runs import collect, first_events

NAMES = ["a", "b", "c", "d"]


class World:
    """Tools whose effects can be counted."""

    def __init__(self, *names: str) -> None:
        self.effects: list[str] = []
        self.tools = [self.made(name) for name in names or ("wipe", "look")]

    def made(self, name: str, **options: Any) -> Tool:
        @tool(name=name, **options)
        async def act() -> str:
            """Acts."""
            self.effects.append(name)
            return f"{name} done"

        return act


def without(*names: str) -> Operator:
    """Takes tools out of each request."""

    @op.on(ModelRequest)
    async def withholding(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(tools=tuple(each for each in request.tools if each.name not in names))

    return withholding


def by_turn(*turns: Any) -> ScriptedModel:
    """A model that answers by what it has said before, whichever process asks."""

    def answer(request: ModelRequest) -> Any:
        return turns[sum(message.role == "assistant" for message in request.messages)]

    return ScriptedModel(*[answer] * 20)


WITHHELD = {"wipe", "show"}
BOTH = [call("look"), call("wipe"), call("look")]
Making = Callable[[World, Any], Agent]


def by_an_operator(world: World, log: Any) -> Agent:
    loop = op.standard(before_model=[without("wipe")])
    return Agent(by_turn(BOTH, "done"), tools=world.tools, loop=loop, log=log)


def by_an_operator_early(world: World, log: Any) -> Agent:
    loop = [without("wipe"), op.call_model(), op.run_tools(early=True), op.checkpoint()]
    tools = [world.made(name, read_only=True) for name in ("wipe", "look")]
    return Agent(by_turn(BOTH, "done"), tools=tools, loop=loop, log=log)


def by_enabled(world: World, log: Any) -> Agent:
    """Its first request has the tool switched off, and it is on in whatever process comes after."""
    off = log.fresh
    wipe = world.made("wipe", enabled=lambda ctx: not off)
    return Agent(by_turn(BOTH, "done"), tools=[wipe, world.made("look")], log=log)


def by_a_family(world: World, log: Any) -> Agent:
    """The tool comes with its family only after the crash."""

    class Family:
        async def tools(self, ctx: RunContext[Any]) -> Sequence[Tool]:
            return world.tools[1:] if log.fresh else world.tools

    return Agent(by_turn(BOTH, "done"), tools=[Family()], log=log)


def of_the_client(world: World, log: Any) -> Agent:
    loop = op.standard(before_model=[without("show")])
    show = client_tool("show", {"type": "object"}, description="Shows.")
    calls = [call("look"), call("show"), call("look")]
    return Agent(by_turn(calls, "done"), tools=[*world.tools, show], loop=loop, log=log)


def in_a_nested_agent(world: World, log: Any) -> Agent:
    child = Agent(
        by_turn(BOTH, "done"), name="child", tools=world.tools, loop=op.standard(before_model=[without("wipe")])
    )
    return Agent(by_turn([call("child", prompt="Go")], "done"), tools=[child.as_tool()], log=log)


@strategy
async def on_a_line(run: StrategyRun) -> str:
    await run.ask("Think of it.")
    await run.ask("Look.", tools=True)
    return await run.conclude("Say it.")


def by_a_strategy(world: World, log: Any) -> Agent:
    turns = [BOTH, "thought", BOTH, "looked", "done"]
    model = ScriptedModel(*[lambda request: turns[_said(request)]] * 20)
    return Agent(
        model, tools=world.tools, strategy=on_a_line, loop=op.standard(before_model=[without("wipe")]), log=log
    )


def _said(request: ModelRequest) -> int:
    """How far the strategy is, by the step and the line."""
    said = sum(message.role == "assistant" for message in (*request.messages, *request.tail))
    return min(said, 4)


class Log(MemoryEventLog):
    """A log that knows whether it is the first that the run has."""

    fresh = True


MAKINGS = [
    *(by_an_operator, by_an_operator_early, by_enabled, by_a_family),
    *(of_the_client, in_a_nested_agent, by_a_strategy),
]


async def cut(log: MemoryEventLog, task_id: str, count: int) -> Log:
    made = Log()
    made.fresh = False
    await made.append(task_id, (await log.read(task_id))[:count], expected_seq=0)
    return made


def refused(events: Sequence[Event]) -> list[str]:
    return [
        event.name
        for event in events
        if isinstance(event, ToolCompleteEvent) and not event.success and "interrupted" not in event.content
    ]


@pytest.mark.parametrize("making", MAKINGS)
async def test_what_was_withheld_is_refused_wherever_the_run_is_cut(making: Making) -> None:
    log, world = Log(), World()
    run = making(world, log).run("Go")
    await collect(run)
    assert (await run).output == "done"
    whole = await log.read(run.task_id)
    withheld = WITHHELD & set(refused(whole))
    assert len(withheld) == 1
    assert world.effects == ["look", "look"]

    for count in range(2, len(whole)):
        held, world = await cut(log, run.task_id, count), World()
        asked = {event.step for event in whole[:count] if isinstance(event, ContentCompleteEvent)}
        again = making(world, held).resume(run.task_id)
        await collect(again)
        result = await again
        assert (result.state, result.output) == ("completed", "done"), count
        if making in (by_enabled, by_a_family) and "1" not in asked:
            # The model is asked once more, and is offered the tool this time.
            continue
        assert not withheld & set(world.effects), count
        assert WITHHELD & set(refused(await held.read(run.task_id))) == withheld, count


@pytest.mark.parametrize("making", [by_an_operator, by_enabled, by_a_family])
async def test_a_fork_in_the_middle_of_the_batch_does_not_call_it_either(making: Making) -> None:
    log, world = Log(), World()
    run = making(world, log).run("Go")
    await collect(run)
    whole = await log.read(run.task_id)
    complete = next(event.seq for event in whole if isinstance(event, ContentCompleteEvent))
    checkpoint = next(event.seq for event in whole if event.kind == "checkpoint")
    for at_seq in range(complete, checkpoint):
        held, world = await cut(log, run.task_id, len(whole)), World()
        fork = making(world, held).fork(run.task_id, at_seq)
        await collect(fork)
        assert "wipe" not in world.effects


async def test_a_guard_that_renames_a_call_reaches_no_tool_that_was_withheld() -> None:
    """Also where the model itself has only called what it was offered."""

    @op.on(ToolRequest)
    async def renaming(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        renamed = request.call.model_copy(update={"name": "wipe"})
        yield ToolRequest(renamed, request.ctx.bind(call=renamed), request.offered)

    def making(world: World, log: Any) -> Agent:
        loop = op.standard(before_model=[without("wipe")], before_tools=[renaming])
        return Agent(by_turn([call("look")], "done"), tools=world.tools, loop=loop, log=log)

    log, world = Log(), World()
    run = making(world, log).run("Go")
    await collect(run)
    for count in range(2, len(await log.read(run.task_id))):
        held = await cut(log, run.task_id, count)
        await making(world, held).resume(run.task_id)
        assert world.effects == []


async def test_guards_see_after_a_resume_what_was_offered() -> None:
    seen: list[list[str] | None] = []

    @op.on(ToolRequest)
    async def looking(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        seen.append(None if request.offered is None else [each.name for each in request.offered])
        yield request

    def making(world: World, log: Any) -> Agent:
        loop = op.standard(before_model=[without("wipe")], before_tools=[looking])
        return Agent(by_turn(BOTH, "done"), tools=world.tools, thoughts=False, loop=loop, log=log)

    log = Log()
    run = making(World(), log).run("Go")
    events = await collect(run)
    complete = next(event.seq for event in events if isinstance(event, ContentCompleteEvent))
    await making(World(), await cut(log, run.task_id, complete)).resume(run.task_id)
    assert seen == [["look"]] * 6


async def test_a_tool_that_was_offered_and_is_not_any_more_is_not_called_after_a_resume() -> None:
    def making(world: World, log: Any, *withheld: str) -> Agent:
        on = log.fresh
        tools = [world.made("look", enabled=lambda ctx: on), *map(world.made, ("wipe", "more"))]
        loop = op.standard(before_model=[without(*withheld)])
        return Agent(by_turn([call("look")], "done"), tools=tools, loop=loop, log=log)

    for withheld in ((), ("wipe",)):
        log, world = Log(), World()
        run = making(world, log, *withheld).run("Go")
        events = await collect(run)
        complete = next(event.seq for event in events if isinstance(event, ContentCompleteEvent))
        held, world = await cut(log, run.task_id, complete), World()
        await making(world, held, *withheld).resume(run.task_id)
        assert world.effects == []
        assert refused(await held.read(run.task_id)) == ["look"]


async def test_only_a_message_of_a_request_that_held_something_back_says_what_it_offered() -> None:
    def offers(events: Sequence[Event]) -> list[Any]:
        return [event.offered for event in events if isinstance(event, ContentCompleteEvent)]

    usual = Agent(by_turn([call("look")], [call("wipe")], "done"), tools=World().tools)
    assert offers(await collect(usual.run("Go"))) == [None, None, None]

    unknown = Agent(by_turn([call("look"), call("lok")], "done"), tools=World().tools, thoughts=False)
    events = await collect(unknown.run("Go"))
    assert offers(events) == [["wipe", "look"], None]

    events = await collect(by_an_operator(World(), None).run("Go"))
    assert offers(events) == [["look", "think_aloud"], None]
    message = next(event for event in events if isinstance(event, ContentCompleteEvent))
    assert b'"offered":["look","think_aloud"]' in message.to_json()
    assert b"offered" not in message.to_json(public=True)
    assert message.to_public().offered is None  # type: ignore[union-attr]
    assert all(b'"offered"' not in event.to_json() for event in events if event is not message)


@given(
    withheld=st.lists(st.sets(st.sampled_from(NAMES)), min_size=1, max_size=3),
    calls=st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5), min_size=3, max_size=3),
    cuts=st.lists(st.floats(0, 1), min_size=1, max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_withheld_and_wherever_the_run_is_cut_it_is_never_done(
    withheld: list[set[str]], calls: list[list[str]], cuts: list[float]
) -> None:
    """The operator's rule for each step is the same in every process, and the effects of all processes keep to it."""
    turns = [[call(name) for name in names] for names in calls[: len(withheld)]]
    effects: list[tuple[str, str]] = []

    @op.on(ModelRequest)
    async def withholding(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        gone = withheld[request.iteration - 1] if request.iteration <= len(withheld) else set[str]()
        yield request.replace(tools=tuple(each for each in request.tools if each.name not in gone))

    def made(name: str) -> Tool:
        @tool(name=name, idempotent=True)
        async def act(ctx: RunContext[Any]) -> str:
            """Acts."""
            effects.append((ctx.step or "", name))
            return "done"

        return act

    def agent(log: MemoryEventLog) -> Agent:
        loop = op.standard(before_model=[withholding])
        limits = Limits(tool_failures=100, attempts=None)
        return Agent(by_turn(*turns, "done"), tools=[made(name) for name in NAMES], loop=loop, log=log, limits=limits)

    async def killed() -> None:
        log = MemoryEventLog()
        run = agent(log).run("Go")
        await run
        for part in cuts:
            total = len(await log.read(run.task_id))
            log = await first_events(log, run.task_id, max(2, min(int(part * total), total - 1)))
            await agent(log).resume(run.task_id)
        wrong = [(step, name) for step, name in effects if name in withheld[int(step) - 1]]
        assert not wrong

    with virtual_time() as time:
        time.run(killed())
