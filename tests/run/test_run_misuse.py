"""Errors and warnings for misused runs."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from rxloop import Agent, RunContext, RxloopError
from rxloop.testing import ScriptedModel


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
