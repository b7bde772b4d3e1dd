"""What others wrote and a run waits for has a time limit, and is named when it does not keep to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rxloop import Agent, Limits, RunContext, RunError, op, tool
from rxloop.context import CompositeWorkspace
from rxloop.strategies import tree_of_thoughts
from rxloop.testing import ScriptedModel, call, virtual_time
from support.run_checks import Recorder, assert_no_tasks, final_events

SHORT = Limits(preparation=0.05)


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """What holds a thread until the end of the test."""
    event = threading.Event()
    yield event
    event.set()


async def failure(agent: Agent[Any, Any]) -> str:
    run = agent.run("Go.")
    recorder = Recorder(run.events)
    with pytest.raises(RunError) as caught:
        async with asyncio.timeout(10):
            await run
    assert len(final_events(recorder.events)) == 1
    await assert_no_tasks()
    return str(caught.value)


async def test_async_instructions_that_never_come_end_the_run() -> None:
    async def mine(ctx: RunContext[Any]) -> str:
        await asyncio.Event().wait()
        return ""

    told = await failure(Agent(ScriptedModel("Hi."), instructions=mine, limits=SHORT))
    assert "the instructions mine() took more than 0.05 s" in told
    assert "Limits(preparation=...)" in told


async def test_so_do_those_that_do_not_listen_when_they_are_cancelled() -> None:
    stop = asyncio.Event()

    async def deaf(ctx: RunContext[Any]) -> str:
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue
        return ""

    with pytest.raises(RunError, match="deaf"):
        async with asyncio.timeout(10):
            await Agent(ScriptedModel("Hi."), instructions=deaf, limits=SHORT).run("Go.")
    stop.set()
    await assert_no_tasks()


async def test_so_do_plain_ones_that_never_return(released: threading.Event) -> None:
    def mine(ctx: RunContext[Any]) -> str:
        released.wait()
        return ""

    assert "the instructions mine()" in await failure(Agent(ScriptedModel("Hi."), instructions=mine, limits=SHORT))


async def test_a_workspace_that_never_comes_ends_the_run() -> None:
    class Desk:
        async def render(self) -> str:
            await asyncio.Event().wait()
            return ""

    loop = op.standard(before_model=[op.workspace(Desk())])
    assert "the workspace Desk" in await failure(Agent(ScriptedModel("Hi."), loop=loop, limits=SHORT))


@pytest.mark.parametrize("composite", [False, True])
async def test_so_does_a_plain_one_that_never_returns(composite: bool, released: threading.Event) -> None:
    class Desk:
        def render(self) -> str:
            released.wait()
            return ""

    shown = CompositeWorkspace(Desk()) if composite else Desk()
    loop = op.standard(before_model=[op.workspace(shown)])
    told = await failure(Agent(ScriptedModel("Hi."), loop=loop, limits=SHORT))
    assert f"the workspace {type(shown).__name__} took more" in told


class Waiting:
    """A plain function that returns once the event loop has had a turn behind its call."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.waited: list[bool] = []

    def __call__(self, asked: Any) -> bool:
        turn = threading.Event()
        self._loop.call_soon_threadsafe(turn.set)
        self.waited.append(turn.wait(2))
        return self.waited[-1]


async def test_a_plain_function_that_answers_a_question_does_not_hold_the_event_loop() -> None:
    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks."""
        return str(await ctx.ask("Sure?"))

    answer = Waiting()
    result = await Agent(ScriptedModel(call("asks"), "done"), tools=[asks]).run("Go.", on_input=answer)
    assert result.messages[2].text == "True"


async def test_a_question_that_is_never_answered_does_not_hold_a_cancelled_run(released: threading.Event) -> None:
    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks."""
        return str(await ctx.ask("Sure?"))

    # The limits of the run do not count the time of a person, so the caller ends the run.
    agent = Agent(ScriptedModel(call("asks"), "done"), tools=[asks], limits=Limits(seconds=0.1))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await agent.run("Go.", on_input=lambda question: released.wait())
    await assert_no_tasks()


async def test_a_plain_function_that_judges_thoughts_does_not_hold_the_event_loop() -> None:
    judge = Waiting()
    tree = tree_of_thoughts(propose=2, keep=1, depth=1, evaluate=judge)
    assert (await Agent(ScriptedModel("1. a\n2. b", "done"), strategy=tree).run("Go.")).output == "done"
    assert judge.waited == [True, True]


async def test_a_function_that_decides_about_a_tool_and_never_returns_ends_the_run(released: threading.Event) -> None:
    def never(ctx: RunContext[Any]) -> bool:
        return released.wait()

    @tool(enabled=never)
    async def look() -> str:
        """Look."""
        return "seen"

    assert "enabled= of the tool look" in await failure(Agent(ScriptedModel("Hi."), tools=[look], limits=SHORT))


def test_what_takes_long_but_not_too_long_is_waited_for() -> None:
    async def mine(ctx: RunContext[Any]) -> str:
        await asyncio.sleep(59)
        return "Be brief."

    model = ScriptedModel("Hi.")
    with virtual_time() as time:
        time.run(Agent(model, instructions=mine).run("Go."))
        assert time.now == 59
    assert model.requests[0].system[0].text == "Be brief."


async def test_a_run_that_is_cancelled_waits_for_none_of_it() -> None:
    begun = asyncio.Event()
    cleaned_up = False

    async def mine(ctx: RunContext[Any]) -> str:
        nonlocal cleaned_up
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up = True
        return ""

    run = Agent(ScriptedModel("Hi."), instructions=mine).run("Go.")
    async with run:
        await begun.wait()
    assert cleaned_up
    await assert_no_tasks()
