"""Runs that must fail in time and release their resources."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import Agent, Operator, op, tool
from rxloop.errors import AttemptError
from rxloop.testing import ScriptedModel, call
from support.run_checks import Recorder, final_events, other_tasks


@tool
async def look() -> str:
    """Look."""
    await asyncio.sleep(0)
    return "seen"


def script() -> ScriptedModel:
    return ScriptedModel(call("look"), "Done.")


async def expect_failure(agent: Agent[Any, Any], prompt: str = "Go.", **options: Any) -> AttemptError:
    """Return the error of a failed run, asserting a single and timely end without leftover tasks."""
    run = agent.run(prompt, **options)
    recorder = Recorder(run.events)
    with pytest.raises(AttemptError) as caught:
        async with asyncio.timeout(10):
            await run
    assert len(final_events(recorder.events)) == 1
    assert recorder.events[-1].kind == "status-update"
    assert recorder.completed
    await asyncio.sleep(0)
    assert other_tasks() == set()
    return caught.value


def agent_with_operator(operator: Operator, index: int) -> Agent[Any, str]:
    loop = op.standard()
    loop.insert(index, operator)
    return Agent(script(), tools=[look], loop=loop)
