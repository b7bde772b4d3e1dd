"""A run that goes on in another process: a client that connects here is told of it, answers it, sees it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from rxloop import Agent, SqliteEventLog, tool
from rxloop.testing import ScriptedModel
from support.clients.agui import node, serve_agui
from support.processes.replicas import replica

pytestmark = pytest.mark.service("node-clients")


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


def clerk() -> Agent[Any, Any]:
    model = ScriptedModel(*[lambda request: f"It is {request.messages[-1].text}."] * 10)
    return Agent(model, tools=[pay], thoughts=False, name="clerk")


async def test_what_another_process_has_asked_is_answered_here(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    async with replica(file) as there, node() as clients, serve_agui(clerk(), log=SqliteEventLog(file)) as served:
        run = await there.client.start("clerk", "Pay 5", context_id="t")
        await there.client.record(run.task_id, wait=20)
        client = clients.agent(served.url, "t")
        asked = (await client.connect()).check()
        [approval] = asked.last["outcome"]["interrupts"]
        told = (
            await client.run(resume=[{"interruptId": approval["id"], "status": "resolved", "payload": True}])
        ).check()
        fresh = (await clients.agent(served.url, "t").connect()).check()
        assert (await there.client.record(run.task_id)).content == "It is paid 5."
    assert told.messages[-1]["content"] == "It is paid 5."
    assert fresh.messages == told.messages


async def test_a_run_of_another_process_that_is_stopped_here_ends_for_who_has_connected(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    async with replica(file) as there, node() as clients, serve_agui(clerk(), log=SqliteEventLog(file)) as served:
        run = await there.client.start("clerk", "Talk for ever", context_id="t")
        await anext(aiter(there.client.follow(run.task_id, kinds=["content-delta"])))
        asked = {"threadId": "t", "runId": "c", "messages": []}
        headers = {"authorization": "Bearer ann-key"}
        async with (
            httpx.AsyncClient(timeout=30) as client,
            client.stream("POST", f"{served.url}/connect", json=asked, headers=headers) as answer,
        ):
            lines = answer.aiter_lines()
            assert "RUN_STARTED" in await anext(lines)
            await served.runtime.cancel(run.task_id, "enough")
            told = [orjson.loads(line[6:]) async for line in lines if line]
        fresh = (await clients.agent(served.url, "t").connect()).check()
    assert told[-1]["outcome"] == fresh.last["outcome"] == {"type": "cancelled"}
