"""Connections to runs during a pause without events."""

from __future__ import annotations

import asyncio

import httpx
import orjson
import pytest

from rxloop import Agent, tool
from rxloop.testing import ScriptedModel, call
from support.clients.agui import serve_agui
from support.clients.agui_posts import RUN_INPUT


@pytest.mark.parametrize("hidden", [False, True])
async def test_connecting_client_gets_the_thread_without_waiting_for_an_event(hidden: bool) -> None:
    works, done = asyncio.Event(), asyncio.Event()

    @tool(hidden=hidden)
    async def toil() -> str:
        """Wait for the test."""
        works.set()
        await done.wait()
        return "done"

    agent = Agent(ScriptedModel(["I toil.", call("toil")], "Done."), tools=[toil], thoughts=False, name="clerk")
    async with (
        serve_agui(agent, on_disconnect="keep", heartbeat=2) as served,
        httpx.AsyncClient(timeout=30, headers={"authorization": "Bearer ann-key"}) as client,
    ):
        started = asyncio.create_task(client.post(f"{served.url}/", json=RUN_INPUT))
        await works.wait()
        async with client.stream(
            "POST", f"{served.url}/connect", json={**RUN_INPUT, "runId": "c", "messages": []}
        ) as answer:
            lines = answer.aiter_lines()
            run_started = orjson.loads((await anext(lines))[6:])
            await anext(lines)
            snapshot = orjson.loads((await anext(lines))[6:])
            done.set()
            remaining = [orjson.loads(line[6:]) async for line in lines if line.startswith("data: ")]
        await started
    assert run_started["type"] == "RUN_STARTED"
    assert [each["content"] for each in snapshot["messages"] if "content" in each] == ["Go.", "I toil."]
    assert remaining[-1]["outcome"] == {"type": "success"}
