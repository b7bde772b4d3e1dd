"""Slow event logs, with which requests time out quickly and start no run twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx

from rxloop import Agent, Event, MemoryEventLog, RunRecord, tool
from rxloop.server import ServerLimits
from rxloop.testing import ScriptedModel, call
from support.api_server import make_client, serve_api

LIMITS = ServerLimits(log_seconds=0.3)


class SlowLog(MemoryEventLog):
    """Event log whose operations can be delayed.

    Attributes:
        writes: Appends wait until this event is set.
        reads: Reads of records wait until this event is set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writes, self.reads = asyncio.Event(), asyncio.Event()
        self.writes.set()
        self.reads.set()

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)
        await self.writes.wait()

    async def get_record(self, task_id: str) -> RunRecord:
        await self.reads.wait()
        return await super().get_record(task_id)


def delay_briefly(operations: asyncio.Event) -> None:
    """Delay operations for longer than the request timeout."""
    operations.clear()
    asyncio.get_running_loop().call_later(3 * LIMITS.log_seconds, operations.set)


async def test_start_refused_during_a_slow_write_is_the_same_run_when_repeated() -> None:
    log, model = SlowLog(), ScriptedModel("Hello.")
    log.writes.clear()
    async with serve_api(Agent(model, name="a"), log=log, limits=LIMITS) as served, make_client(served.url) as client:

        async def start() -> httpx.Response:
            return await client.post("/runs?wait=10", json={"input": "Hi"}, headers={"idempotency-key": "k"})

        refused = await start()
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "5"
        assert refused.json()["error"]["code"] == "log"
        log.writes.set()
        first, second = await start(), await start()
        assert first.json()["content"] == second.json()["content"] == "Hello."
        assert [record.task_id for record in await log.list_runs()] == [first.json()["taskId"]]
    assert len(model.requests) == 1


async def test_started_run_waits_longer_for_the_log_than_the_request() -> None:
    log = SlowLog()

    @tool
    async def lose() -> str:
        """Lose the log."""
        delay_briefly(log.writes)
        return "lost"

    model = ScriptedModel(call("lose"), "Done.", call("lose"), "Done.")
    async with serve_api(Agent(model, tools=[lose], name="a"), log=log, limits=LIMITS) as served:
        async with make_client(served.url) as client:
            started: Any = (await client.post("/runs?wait=10", json={"input": "Go"})).json()
            forked: Any = (await client.post(f"/runs/{started['taskId']}/fork", json={"at": 1})).json()
            ended: Any = (await client.get(f"/runs/{forked['taskId']}?wait=10")).json()
    # A fork starts with attempt 2.
    assert [(each["content"], each["attempt"]) for each in (started, ended)] == [("Done.", 1), ("Done.", 2)]


async def test_accepted_answer_waits_longer_for_the_log_than_a_request() -> None:
    class SlowOnceLog(SlowLog):
        """Event log with a single delay after reading `slow_record`."""

        slow_record: RunRecord | None = None

        async def get_record(self, task_id: str) -> RunRecord:
            record = await super().get_record(task_id)
            if record == self.slow_record:
                self.slow_record = None
                delay_briefly(self.reads)
            return record

    log = SlowOnceLog()
    async with serve_api(Agent(ScriptedModel("Hello."), name="a"), log=log, limits=LIMITS) as served:
        async with make_client(served.url) as client:
            run: Any = (await client.post("/runs?wait=10", json={"input": "Hi"})).json()
            log.slow_record = await log.get_record(run["taskId"])
            read = await client.get(f"/runs/{run['taskId']}/events")
    assert read.text.count("event: status-update") == 2, "the stream must include the final event"
