"""What is told to those who use a run in a wrong way."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from rxloop import Agent, RunContext, RxloopError
from rxloop.testing import ScriptedModel


def run_of(agent: Agent | None = None) -> Any:
    return (agent or Agent(ScriptedModel("Hi"))).run("Hi")


@pytest.mark.parametrize("name", ["output", "messages", "usage", "content", "state", "thoughts"])
async def test_what_belongs_to_the_result_is_asked_of_the_run(name: str) -> None:
    run = run_of()
    with pytest.raises(AttributeError, match=rf"await it first, `\(await run\)\.{name}`"):
        getattr(run, name)
    with pytest.raises(AttributeError, match="'Run' object has no attribute 'outptu'"):
        _ = run.outptu
    assert not hasattr(run, "output")
    await run


async def test_a_run_is_read_without_async() -> None:
    run = run_of()
    with pytest.raises(TypeError, match="async for event in run"):
        list(run)
    with pytest.raises(TypeError, match="async with"), run:
        pass
    await run


async def test_a_task_is_made_of_the_run_itself() -> None:
    run = run_of()
    with pytest.raises(TypeError, match=r"create_task\(run\.result\(\)\)"):
        await asyncio.create_task(run)
    assert (await asyncio.create_task(run.result())).output == "Hi"
    assert repr(run) == f"<Run {run.task_id} of 'agent', completed>"


async def test_the_warning_of_a_run_that_was_never_used_names_the_line_that_made_it() -> None:
    agent = Agent(ScriptedModel("Hi"))
    with pytest.warns(RuntimeWarning, match="was never started") as caught:
        repr(agent.run("Hi"))
    frame = inspect.currentframe()
    assert frame is not None
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, frame.f_lineno - 3)]


async def test_a_tool_context_without_a_call_has_no_key() -> None:
    with pytest.raises(RxloopError, match="belongs in a tool"):
        _ = RunContext().idempotency_key
