"""Time limits of user functions called by a run."""

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

SHORT_LIMITS = Limits(preparation=0.05)


@pytest.fixture
def blocker() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def run_failure(agent: Agent[Any, Any]) -> str:
    run = agent.run("Go.")
    recorder = Recorder(run.events)
    with pytest.raises(RunError) as caught:
        async with asyncio.timeout(10):
            await run
    assert len(final_events(recorder.events)) == 1
    await assert_no_tasks()
    return str(caught.value)


async def test_async_instructions_that_never_return_fail_the_run() -> None:
    async def get_instructions(ctx: RunContext[Any]) -> str:
        await asyncio.Event().wait()
        return ""

    message = await run_failure(Agent(ScriptedModel("Hi."), instructions=get_instructions, limits=SHORT_LIMITS))
    assert "the instructions get_instructions() took more than 0.05 s" in message
    assert "Limits(preparation=...)" in message


async def test_instructions_that_swallow_their_cancellation_fail_the_run() -> None:
    stop = asyncio.Event()

    async def swallow_cancellation(ctx: RunContext[Any]) -> str:
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue
        return ""

    with pytest.raises(RunError, match="swallow_cancellation"):
        async with asyncio.timeout(10):
            await Agent(ScriptedModel("Hi."), instructions=swallow_cancellation, limits=SHORT_LIMITS).run("Go.")
    stop.set()
    await assert_no_tasks()


async def test_sync_instructions_that_never_return_fail_the_run(blocker: threading.Event) -> None:
    def get_instructions(ctx: RunContext[Any]) -> str:
        blocker.wait()
        return ""

    assert "the instructions get_instructions()" in await run_failure(
        Agent(ScriptedModel("Hi."), instructions=get_instructions, limits=SHORT_LIMITS)
    )


async def test_async_workspace_that_never_renders_fails_the_run() -> None:
    class Desk:
        async def render(self) -> str:
            await asyncio.Event().wait()
            return ""

    loop = op.standard(before_model=[op.workspace(Desk())])
    assert "the workspace Desk" in await run_failure(Agent(ScriptedModel("Hi."), loop=loop, limits=SHORT_LIMITS))


@pytest.mark.parametrize("composite", [False, True])
async def test_sync_workspace_that_never_renders_fails_the_run(composite: bool, blocker: threading.Event) -> None:
    class Desk:
        def render(self) -> str:
            blocker.wait()
            return ""

    workspace = CompositeWorkspace(Desk()) if composite else Desk()
    loop = op.standard(before_model=[op.workspace(workspace)])
    message = await run_failure(Agent(ScriptedModel("Hi."), loop=loop, limits=SHORT_LIMITS))
    assert f"the workspace {type(workspace).__name__} took more" in message


class LoopProbe:
    """Plain function that returns after the event loop has run a callback."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.results: list[bool] = []

    def __call__(self, argument: Any) -> bool:
        was_called = threading.Event()
        self._loop.call_soon_threadsafe(was_called.set)
        self.results.append(was_called.wait(2))
        return self.results[-1]


async def test_sync_answer_function_does_not_block_the_event_loop() -> None:
    @tool
    async def confirm(ctx: RunContext[Any]) -> str:
        """Ask."""
        return str(await ctx.ask("Sure?"))

    answer = LoopProbe()
    result = await Agent(ScriptedModel(call("confirm"), "done"), tools=[confirm]).run("Go.", on_input=answer)
    assert result.messages[2].text == "True"


async def test_answer_function_that_never_returns_does_not_block_a_cancelled_run(blocker: threading.Event) -> None:
    @tool
    async def confirm(ctx: RunContext[Any]) -> str:
        """Ask."""
        return str(await ctx.ask("Sure?"))

    # Limits do not count the time until a person answers, so cancel the run.
    agent = Agent(ScriptedModel(call("confirm"), "done"), tools=[confirm], limits=Limits(seconds=0.1))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await agent.run("Go.", on_input=lambda question: blocker.wait())
    await assert_no_tasks()


async def test_sync_evaluation_function_does_not_block_the_event_loop() -> None:
    evaluate = LoopProbe()
    tree = tree_of_thoughts(propose=2, keep=1, depth=1, evaluate=evaluate)
    assert (await Agent(ScriptedModel("1. a\n2. b", "done"), strategy=tree).run("Go.")).output == "done"
    assert evaluate.results == [True, True]


async def test_enabled_function_that_never_returns_fails_the_run(blocker: threading.Event) -> None:
    def never(ctx: RunContext[Any]) -> bool:
        return blocker.wait()

    @tool(enabled=never)
    async def look() -> str:
        """Look."""
        return "seen"

    assert "enabled= of the tool look" in await run_failure(
        Agent(ScriptedModel("Hi."), tools=[look], limits=SHORT_LIMITS)
    )


def test_slow_code_within_its_limit_is_awaited() -> None:
    async def get_instructions(ctx: RunContext[Any]) -> str:
        await asyncio.sleep(59)
        return "Be brief."

    model = ScriptedModel("Hi.")
    with virtual_time() as time:
        time.run(Agent(model, instructions=get_instructions).run("Go."))
        assert time.now == 59
    assert model.requests[0].system[0].text == "Be brief."


async def test_cancelled_run_does_not_wait_for_instructions() -> None:
    started = asyncio.Event()
    cleaned_up = False

    async def get_instructions(ctx: RunContext[Any]) -> str:
        nonlocal cleaned_up
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up = True
        return ""

    run = Agent(ScriptedModel("Hi."), instructions=get_instructions).run("Go.")
    async with run:
        await started.wait()
    assert cleaned_up
    await assert_no_tasks()
