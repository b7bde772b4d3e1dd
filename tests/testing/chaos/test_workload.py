"""Tests for the simulated clients."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from rxloop import Agent, MemoryEventLog, tool
from rxloop.runtime.runtime import Runtime
from rxloop.testing import ScriptedModel, call
from rxloop.testing.chaos import workload
from rxloop.testing.chaos.workload import Scenario, ScenarioOptions


@pytest.fixture(autouse=True)
def quiet_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "_QUIET_TIME", 0.1)


@asynccontextmanager
async def start_run(
    released: asyncio.Event, *, approve: bool = False, answer: object = True
) -> AsyncGenerator[Scenario]:
    """Start a run with a tool that blocks until `released` is set."""

    @tool(approve=approve)
    async def pay() -> str:
        """Pay a bill."""
        await released.wait()
        return "paid"

    agent = Agent(ScriptedModel(call("pay"), "Done."), tools=[pay], name="a")
    async with Runtime({"a": agent}, log=MemoryEventLog()) as runtime:
        options = ScenarioOptions("a", ["Go"], 1, 0.0, 0.0, 0.0, lambda question: answer)
        scenario = Scenario(runtime, options, random.Random(1))
        try:
            await scenario.start()
            yield scenario
        finally:
            released.set()
            await scenario.stop()


async def test_run_that_executes_at_the_time_limit_is_unfinished() -> None:
    async with start_run(asyncio.Event()) as scenario:
        await scenario.wait_until_idle(0.3)
        assert scenario.witnesses[0].unfinished


async def test_run_that_ends_before_the_time_limit_is_not_unfinished() -> None:
    released = asyncio.Event()
    released.set()
    async with start_run(released) as scenario:
        await scenario.wait_until_idle(20)
        assert scenario.witnesses[0].reached_end
        assert not scenario.witnesses[0].unfinished


async def test_run_whose_answer_is_not_acknowledged_at_the_time_limit_is_unfinished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answer(self: Runtime, *args: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Runtime, "answer", answer)
    async with start_run(asyncio.Event(), approve=True) as scenario:
        await scenario.wait_until_idle(1)
        assert scenario.witnesses[0].unfinished


async def test_run_whose_answer_is_refused_is_idle_before_the_time_limit() -> None:
    async with start_run(asyncio.Event(), approve=True, answer="neither yes nor no") as scenario:
        async with asyncio.timeout(20):
            await scenario.wait_until_idle(100)
        assert not scenario.witnesses[0].unfinished
        assert scenario.witnesses[0].refused
