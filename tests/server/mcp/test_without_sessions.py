"""MCP servers without sessions, for older clients."""

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
    """Pay an amount."""
    ctx.progress("paying")
    return f"paid {amount}"


@tool
async def search(ctx: RunContext[Any]) -> str:
    """Search."""
    ctx.progress("begun")
    return "found"


def answer(request: ModelRequest) -> Turn:
    """Answer a request independently of earlier requests, so that any server can continue the run."""
    last = request.messages[-1]
    if last.role == "tool":
        return frames("-and so on", 0.01) if "for ever" in request.messages[0].text else f"It is {last.text}."
    return call("pay", amount=5) if "Pay" in last.text else call("search")


def make_clerk() -> Agent[Any, Any]:
    return Agent(ScriptedModel(*[answer] * 20), tools=[pay, search], thoughts=False, name="clerk")


@contextlib.asynccontextmanager
async def alternate(*endpoints: McpEndpoint) -> AsyncGenerator[Client]:
    """Connect a client that alternates between servers."""
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with (
        load_balancer(*(each.url.removesuffix("/mcp") for each in endpoints), round_robin=True) as url,
        httpx2.AsyncClient(timeout=30, limits=limits) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=LEGACY) as client,
    ):
        yield client


@contextlib.asynccontextmanager
async def serve_two(file: Path) -> AsyncGenerator[Client]:
    """Connect a client to two servers over one log."""
    logs = [SqliteEventLog(file) for _ in range(2)]
    first_server, second_server = (serve_mcp(make_clerk(), log=log, sessions=False) for log in logs)
    async with first_server as first, second_server as second, alternate(first, second) as client:
        yield client
    for each in logs:
        await each.aclose()


async def test_each_request_may_reach_another_server(tmp_path: Path) -> None:
    steps = ProgressRecorder()
    async with serve_two(tmp_path / "runs.db") as client:
        for _ in range(3):
            assert [each.name for each in (await client.list_tools()).tools] == ["clerk", "continue_run"]
        for _ in range(2):
            result = await client.call_tool("clerk", {"prompt": "Search"}, progress_callback=steps)
            assert result_text(result) == "It is found."
    assert steps.messages.count("search: begun") == 2


async def test_question_of_one_server_is_answered_at_another(tmp_path: Path) -> None:
    async with serve_two(tmp_path / "runs.db") as client:
        paused = await client.call_tool("clerk", {"prompt": "Pay 5"})
        assert paused.structured_content is not None
        [question] = paused.structured_content["questions"]
        answers = {"task_id": result_meta(paused, "taskId"), "answers": {question["inputId"]: True}}
        assert result_text(await client.call_tool("continue_run", answers)) == "It is paid 5."


async def test_client_that_disconnects_cancels_its_run() -> None:
    async with serve_mcp(make_clerk(), sessions=False) as server:
        async with server.client(LEGACY) as client:
            await cancel_call(client, "search", prompt="Talk for ever")
        [record] = await server.runtime.log.list_runs()
        await server.runtime.follow(record.task_id)
        assert (await server.runtime.get_record(record.task_id)).state == "canceled"


async def test_event_stream_without_a_session_is_refused() -> None:
    async with serve_mcp(make_clerk(), sessions=False) as server, httpx2.AsyncClient(timeout=3) as http:
        answer = await http.get(server.url, headers={"accept": "text/event-stream"})
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
