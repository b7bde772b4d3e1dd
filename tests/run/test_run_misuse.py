"""Errors and warnings for misused runs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rxloop import Agent, RunContext, RxloopError, Signal, ToolRequest, op
from rxloop.errors import RunError
from rxloop.testing import ScriptedModel, call


def make_run(agent: Agent | None = None) -> Any:
    return (agent or Agent(ScriptedModel("Hi"))).run("Hi")


@pytest.mark.parametrize("name", ["output", "messages", "usage", "content", "state", "thoughts"])
async def test_attribute_of_the_result_on_a_run_raises_with_the_remedy(name: str) -> None:
    run = make_run()
    with pytest.raises(AttributeError, match=rf"its result does: use `\(await run\)\.{name}`"):
        getattr(run, name)
    with pytest.raises(AttributeError, match="'Run' object has no attribute 'outptu'"):
        _ = run.outptu
    assert not hasattr(run, "output")
    await run


async def test_synchronous_use_of_a_run_raises_with_the_remedy() -> None:
    run = make_run()
    with pytest.raises(TypeError, match="async for event in run"):
        list(run)
    with pytest.raises(TypeError, match="async with"), run:
        pass
    await run


async def test_create_task_with_a_run_raises_with_the_remedy() -> None:
    run = make_run()
    with pytest.raises(TypeError, match=r"create_task\(run\.result\(\)\)"):
        await asyncio.create_task(run)
    assert (await asyncio.create_task(run.result())).output == "Hi"
    assert repr(run) == f"<Run {run.task_id} of 'agent', completed>"


async def test_warning_about_an_unused_run_names_the_line_that_created_it() -> None:
    agent = Agent(ScriptedModel("Hi"))
    with pytest.warns(RuntimeWarning, match="was never started") as caught:
        repr(agent.run("Hi"))
    frame = inspect.currentframe()
    assert frame is not None
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, frame.f_lineno - 3)]


async def test_idempotency_key_raises_on_a_context_without_call() -> None:
    with pytest.raises(RxloopError, match="only available in tools"):
        _ = RunContext().idempotency_key


async def test_unknown_attribute_of_a_context_tells_the_model_and_the_log_the_remedy() -> None:
    def report(ctx: RunContext) -> str:
        """Report the run."""
        unchecked: Any = ctx
        return unchecked.run_id

    result = await Agent(ScriptedModel(call("report"), "Done"), tools=[report]).run("Report")
    assert "'RunContext' object has no attribute 'run_id'; use ctx.task_id" in result.messages[-2].text


async def test_unknown_attribute_of_a_request_fails_the_run_with_the_remedy() -> None:
    @op.on(ToolRequest)
    async def guard(request: Any, ctx: RunContext) -> AsyncIterator[Signal]:
        yield request.deny("no")

    def pay() -> str:
        """Pay."""
        return "paid"

    loop = op.standard(before_tools=[guard])
    with pytest.raises(RunError, match=r"no attribute 'deny'; use request\.refuse\(reason\)"):
        await Agent(ScriptedModel(call("pay"), "Done"), tools=[pay], loop=loop).run("Pay")


async def test_own_attribute_error_keeps_its_message() -> None:
    def lookup(ctx: RunContext) -> str:
        """Look up."""
        raise AttributeError("no such column", name="run_id", obj=ctx)

    result = await Agent(ScriptedModel(call("lookup"), "Done"), tools=[lookup]).run("Look up")
    assert result.messages[-2].text == "AttributeError: no such column"
