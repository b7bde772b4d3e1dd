"""Clients of protocols before 2026 without sessions: their requests go round the servers, one by one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from rxloop import Agent, ModelRequest, RunContext, SqliteEventLog, tool
from rxloop.providers.script import Turn
from rxloop.testing import ScriptedModel, call, frames
from support.clients.mcp import LEGACY, McpEndpoint, ProgressRecorder, cancel_call, result_meta, result_text, serve_mcp
from support.processes.cluster import load_balancer


@tool(approve=True)
async def pay(ctx: RunContext[Any], amount: int) -> str:
    """Pay somebody."""
    ctx.progress("paying")
    return f"paid {amount}"


@tool
async def search(ctx: RunContext[Any]) -> str:
    """Search."""
    ctx.progress("begun")
    return "found"


def answer(request: ModelRequest) -> Turn:
    """What the model says follows from the messages alone, so that any server may go on."""
    last = request.messages[-1]
    if last.role == "tool":
        return frames("-and so on", 0.01) if "for ever" in request.messages[0].text else f"It is {last.text}."
    return call("pay", amount=5) if "Pay" in last.text else call("search")


def clerk() -> Agent[Any, Any]:
    return Agent(ScriptedModel(*[answer] * 20), tools=[pay, search], thoughts=False, name="clerk")


@contextlib.asynccontextmanager
async def going_round(*desks: McpEndpoint) -> AsyncGenerator[Client]:
    """A client each of whose requests comes to the next of these desks."""
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with (
        load_balancer(*(each.url.removesuffix("/mcp") for each in desks), round_robin=True) as url,
        httpx2.AsyncClient(timeout=30, limits=limits) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=LEGACY) as client,
    ):
        yield client


@contextlib.asynccontextmanager
async def two(file: Path) -> AsyncGenerator[Client]:
    """A client of two servers over one log."""
    logs = [SqliteEventLog(file) for _ in range(2)]
    one, other = (serve_mcp(clerk(), log=log, sessions=False) for log in logs)
    async with one as here, other as there, going_round(here, there) as client:
        yield client
    for each in logs:
        await each.aclose()


async def test_each_request_may_come_to_another_server(tmp_path: Path) -> None:
    steps = ProgressRecorder()
    async with two(tmp_path / "runs.db") as client:
        for _ in range(3):
            assert [each.name for each in (await client.list_tools()).tools] == ["clerk", "continue_run"]
        for _ in range(2):
            result = await client.call_tool("clerk", {"prompt": "Search"}, progress_callback=steps)
            assert result_text(result) == "It is found."
    assert steps.messages.count("search: begun") == 2


async def test_what_one_server_asks_is_answered_at_another(tmp_path: Path) -> None:
    async with two(tmp_path / "runs.db") as client:
        asks = await client.call_tool("clerk", {"prompt": "Pay 5"})
        assert asks.structured_content is not None
        [question] = asks.structured_content["questions"]
        answers = {"task_id": result_meta(asks, "taskId"), "answers": {question["inputId"]: True}}
        assert result_text(await client.call_tool("continue_run", answers)) == "It is paid 5."


async def test_a_client_that_leaves_takes_its_run_with_it() -> None:
    async with serve_mcp(clerk(), sessions=False) as made:
        async with made.client(LEGACY) as client:
            await cancel_call(client, "search", prompt="Talk for ever")
        [record] = await made.runtime.log.list_runs()
        await made.runtime.follow(record.task_id)
        assert (await made.runtime.get_record(record.task_id)).state == "canceled"


async def test_a_client_that_would_listen_without_a_session_is_told_that_there_is_nothing_to_hear() -> None:
    async with serve_mcp(clerk(), sessions=False) as made, httpx2.AsyncClient(timeout=3) as http:
        answer = await http.get(made.url, headers={"accept": "text/event-stream"})
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
