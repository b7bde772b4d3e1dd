"""Random actions in three processes with one store.

Each process is a runtime with its own log object. `RXLOOP_SCHEDULES=1000 pytest
tests/runtime/test_random_schedules.py` tries more conversations, and `RXLOOP_FIRST=17` starts with that seed.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, EventLog, ModelRequest, RunContext, RunRecord, Runtime, tool
from rxloop.coordination.order import find_blocking
from rxloop.errors import ConflictError, InvalidInput, RunOver
from rxloop.protocol.events import WAITING
from rxloop.providers.script import Turn
from rxloop.testing import ScriptedModel, call
from support.dropped_questions import shared_logs

CONVERSATIONS = 8
"""Conversations of one scenario."""
SCENARIOS = -(-int(os.environ.get("RXLOOP_SCHEDULES", "16")) // CONVERSATIONS)
FIRST = int(os.environ.get("RXLOOP_FIRST", "1"))
ACTIONS = 60


@tool(approve=True)
async def refund() -> str:
    """Refund the order."""
    return "refunded"


def answer(request: ModelRequest) -> Turn:
    """Derive the answer from the messages alone, so that any process can continue."""
    last = request.messages[-1]
    return "Done." if last.role == "tool" or "Refund" not in last.text else call("refund")


class Scenario:
    """Random actions on three runtimes, and the observed violations."""

    def __init__(self, seed: int, observer: EventLog) -> None:
        self.seed, self.random, self.observer = seed, random.Random(seed), observer
        self.runtimes: list[Runtime] = []
        self.runs: list[RunRecord] = []
        self.cancelled: set[str] = set()
        """Runs with acknowledged cancellation."""
        self.violations: list[str] = []

    def agent(self) -> Agent[Any, Any]:
        model = ScriptedModel(*[answer] * 10_000)
        return Agent(model, tools=[refund], name="clerk", thoughts=False, instructions=self.check_start)

    async def check_start(self, ctx: RunContext[Any]) -> str:
        """Check that model calls are allowed."""
        earlier = await find_blocking(self.observer, ctx.context_id, ctx.task_id)
        if earlier is not None:
            self.violations.append(f"{ctx.task_id} started before {earlier.task_id}, which was {earlier.state}")
        if ctx.task_id in self.cancelled:
            self.violations.append(f"{ctx.task_id} started after its cancel")
        return "Be brief."

    async def act(self) -> None:
        runtime = self.random.choice(self.runtimes)
        action = self.random.choices(("start", "answer", "send", "cancel", "start and cancel"), (8, 6, 2, 2, 2))[0]
        if action.startswith("start") or not self.runs:
            context = f"{self.seed}-{self.random.randrange(CONVERSATIONS)}"
            prompt = self.random.choice(("Hello", "Refund"))
            self.runs.append(record := await runtime.start("clerk", prompt, context_id=context))
            if action == "start and cancel":
                await self.cancel(self.random.choice(self.runtimes), record)
            return
        record = self.random.choice(self.runs[-3 * CONVERSATIONS :])
        with suppress(InvalidInput, RunOver, ConflictError):
            if action == "answer":
                await runtime.answer(record.task_id, {"1.0.1": self.random.choice((True, False))})
            elif action == "send":
                await runtime.send(record.task_id, "And hurry")
            else:
                await self.cancel(runtime, record)

    async def cancel(self, runtime: Runtime, record: RunRecord) -> None:
        await runtime.cancel(record.task_id)
        if (await self.observer.get_record(record.task_id)).state == "canceled":
            self.cancelled.add(record.task_id)

    async def wait_until_idle(self) -> None:
        """Wait until all runs are idle."""
        async with asyncio.timeout(60):
            for record in self.runs:
                while (await self.observer.get_record(record.task_id)).state in ("submitted", "working"):
                    async for _ in self.observer.follow(record.task_id, after_seq=record.seq):
                        pass


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.service("postgres"))])
@pytest.mark.timeout(60 + 60 * SCENARIOS)
async def test_runs_start_in_order_and_become_idle_with_random_actions(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with shared_logs(kind, tmp_path, request) as make:
        stores = [make() for _ in range(4)]
        for seed in range(FIRST, FIRST + SCENARIOS):
            await run_scenario(seed, stores)


async def run_scenario(seed: int, stores: list[EventLog]) -> None:
    scenario = Scenario(seed, stores[-1])
    async with AsyncExitStack() as stack:
        for store in stores[:-1]:
            # Include processes with a single slot.
            concurrency = scenario.random.choice((1, 2, None))
            agents = {"clerk": scenario.agent()}
            scenario.runtimes.append(
                await stack.enter_async_context(Runtime(agents, log=store, concurrency=concurrency))
            )
        async with asyncio.TaskGroup() as actions:
            for _ in range(ACTIONS):
                actions.create_task(scenario.act())
                await asyncio.sleep(0)
                if scenario.random.random() < 0.3:
                    # The store answers with a delay, so the actions happen at different moments.
                    await scenario.observer.list_runs(limit=1)
        await scenario.wait_until_idle()
    assert scenario.violations == [], seed
    states = {(await scenario.observer.get_record(record.task_id)).state for record in scenario.runs}
    assert states <= {"completed", "canceled", *WAITING}, (seed, states)
