"""Clients connected to a process that does not own the run."""

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
    """Pay an amount."""
    return f"paid {amount}"


def make_clerk() -> Agent[Any, Any]:
    model = ScriptedModel(*[lambda request: f"It is {request.messages[-1].text}."] * 10)
    return Agent(model, tools=[pay], thoughts=False, name="clerk")


async def test_answer_is_accepted_for_question_of_another_process(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    async with replica(file) as there, node() as clients, serve_agui(make_clerk(), log=SqliteEventLog(file)) as served:
        run = await there.client.start("clerk", "Pay 5", context_id="t")
        await there.client.record(run.task_id, wait=20)
        client = clients.agent(served.url, "t")
        first = (await client.connect()).check()
        [approval] = first.last["outcome"]["interrupts"]
        second = (
            await client.run(resume=[{"interruptId": approval["id"], "status": "resolved", "payload": True}])
        ).check()
        fresh = (await clients.agent(served.url, "t").connect()).check()
        assert (await there.client.record(run.task_id)).content == "It is paid 5."
    assert second.messages[-1]["content"] == "It is paid 5."
    assert fresh.messages == second.messages


async def test_client_is_notified_when_a_run_of_another_process_is_cancelled(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    async with replica(file) as there, node() as clients, serve_agui(make_clerk(), log=SqliteEventLog(file)) as served:
        run = await there.client.start("clerk", "Talk for ever", context_id="t")
        await anext(aiter(there.client.follow(run.task_id, kinds=["content-delta"])))
        body = {"threadId": "t", "runId": "c", "protocolVersion": "1.0", "messages": []}
        headers = {"authorization": "Bearer ann-key"}
        async with (
            httpx.AsyncClient(timeout=30) as client,
            client.stream("POST", f"{served.url}/connect", json=body, headers=headers) as answer,
        ):
            lines = answer.aiter_lines()
            assert "RUN_STARTED" in await anext(lines)
            await served.runtime.cancel(run.task_id, "enough")
            events = [orjson.loads(line[6:]) async for line in lines if line]
        fresh = (await clients.agent(served.url, "t").connect()).check()
    assert events[-1]["outcome"] == fresh.last["outcome"] == {"type": "cancelled"}
