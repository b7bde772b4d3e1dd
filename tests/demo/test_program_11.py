from __future__ import annotations

import asyncio

import pytest

from rxloop import Agent, tool
from rxloop.errors import RunCancelled
from rxloop.testing import ScriptedModel, assert_marbles, call, frames, virtual_time


@tool(timeout=0.5)
async def slow_weather(city: str) -> str:
    """Current weather, after a minute."""
    await asyncio.sleep(60)
    return f"It is 7 C in {city}."


def test_slow_tool_times_out_and_the_model_receives_an_error() -> None:
    model = ScriptedModel(call("slow_weather", city="Oslo"), frames("--The service--is slow.|"))
    with virtual_time():
        run = Agent(model, tools=[slow_weather]).run("Weather?")  # slow_weather sleeps a minute; its timeout is 0.5 s
        #                   task working llm content tool-start   timeout, result, llm   content, final
        assert_marbles(run, "(twlcs) 500ms (xl) 150ms (cF|)")
    assert "timed out" in model.requests[1].messages[-1].content


def test_cancel_closes_the_model_stream() -> None:
    with virtual_time() as time, pytest.raises(RunCancelled):  # noqa: PT012
        run = Agent(ScriptedModel(frames("--a--b--c--|"))).run("Hi")
        time.at(0.04, run.cancel)
        time.run(run)
