"""Three processes on one store start, answer, address and cancel the runs of a few conversations in random order.

Each process is a runtime with a log object of its own. `RXLOOP_SCHEDULES=1000 pytest tests/runtime/test_schedules.py`
tries more conversations, and `RXLOOP_FIRST=17` begins with that seed.
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
from support.dropped_questions import logs

CONVERSATIONS = 8
"""Conversations in one play: each is a schedule."""
PLAYS = -(-int(os.environ.get("RXLOOP_SCHEDULES", "16")) // CONVERSATIONS)
FIRST = int(os.environ.get("RXLOOP_FIRST", "1"))
ACTIONS = 60


@tool(approve=True)
async def refund() -> str:
    """Refund the order."""
    return "refunded"


def answer(request: ModelRequest) -> Turn:
    """What the model says follows from the messages alone, so that any process may go on."""
    last = request.messages[-1]
    return "Done." if last.role == "tool" or "Refund" not in last.text else call("refund")


class Play:
    """Random orders to three runtimes, and what was seen of the runs."""

    def __init__(self, seed: int, observer: EventLog) -> None:
        self.seed, self.random, self.observer = seed, random.Random(seed), observer
        self.runtimes: list[Runtime] = []
        self.runs: list[RunRecord] = []
        self.cancelled: set[str] = set()
        """The runs of which a process has been told that they are cancelled."""
        self.wrong: list[str] = []

    def agent(self) -> Agent[Any, Any]:
        model = ScriptedModel(*[answer] * 10_000)
        return Agent(model, tools=[refund], name="clerk", thoughts=False, instructions=self.begins)

    async def begins(self, ctx: RunContext[Any]) -> str:
        """See that an attempt may ask the model now."""
        earlier = await find_blocking(self.observer, ctx.context_id, ctx.task_id)
        if earlier is not None:
            self.wrong.append(f"{ctx.task_id} began before {earlier.task_id}, which was {earlier.state}")
        if ctx.task_id in self.cancelled:
            self.wrong.append(f"{ctx.task_id} began after its cancel")
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

    async def rest(self) -> None:
        """Wait until every run is over, or waits for an answer that nobody has given."""
        async with asyncio.timeout(60):
            for record in self.runs:
                while (await self.observer.get_record(record.task_id)).state in ("submitted", "working"):
                    async for _ in self.observer.follow(record.task_id, after_seq=record.seq):
                        pass


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.service("postgres"))])
@pytest.mark.timeout(60 + 60 * PLAYS)
async def test_no_run_begins_before_an_earlier_one_and_each_comes_to_rest(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with logs(kind, tmp_path, request) as make:
        stores = [make() for _ in range(4)]
        for seed in range(FIRST, FIRST + PLAYS):
            await played(seed, stores)


async def played(seed: int, stores: list[EventLog]) -> None:
    play = Play(seed, stores[-1])
    async with AsyncExitStack() as stack:
        for store in stores[:-1]:
            # A process with room for one run has to bring two runs of a conversation to rest as well.
            room = play.random.choice((1, 2, None))
            agents = {"clerk": play.agent()}
            play.runtimes.append(await stack.enter_async_context(Runtime(agents, log=store, concurrency=room)))
        async with asyncio.TaskGroup() as acting:
            for _ in range(ACTIONS):
                acting.create_task(play.act())
                await asyncio.sleep(0)
                if play.random.random() < 0.3:
                    # The store takes a while to answer, so that the orders fall into different moments.
                    await play.observer.list_runs(limit=1)
        await play.rest()
    assert play.wrong == [], seed
    states = {(await play.observer.get_record(record.task_id)).state for record in play.runs}
    assert states <= {"completed", "canceled", *WAITING}, (seed, states)
