"""Access control, limits, hosts and shutdown of the MCP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from mcp.shared.exceptions import MCPError

from rxloop import Agent, MemoryEventLog, tool
from rxloop.server import ServerLimits, Shutdown
from rxloop.testing import ScriptedModel, call, frames
from support.clients.mcp import ERAS, MODERN, ProgressRecorder, accept, result_meta, result_text, serve_mcp

each_protocol = pytest.mark.parametrize("mode", ERAS)
INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
ACCEPT = {"accept": "application/json, text/event-stream"}


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def make_clerk(*turns: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), tools=[pay], thoughts=False, name="clerk")


@each_protocol
async def test_runs_and_conversations_of_another_owner_are_unknown(mode: str) -> None:
    async with serve_mcp(make_clerk(call("pay", amount=5), "Paid.", "Hi."), users=True) as endpoint:
        async with endpoint.client(mode, token="ann-key") as ann, endpoint.client(mode, token="bob-key") as bob:
            paused = await ann.call_tool("clerk", {"prompt": "Pay"})
            task_id, context_id = result_meta(paused, "taskId"), result_meta(paused, "contextId")
            assert paused.structured_content is not None
            [question] = paused.structured_content["questions"]
            answers = {question["inputId"]: True}
            before = await endpoint.runtime.log.read(task_id)
            foreign = [
                await bob.call_tool("continue_run", {"task_id": task_id}),
                await bob.call_tool("continue_run", {"task_id": task_id, "answers": answers}),
                await bob.call_tool("clerk", {"prompt": "Hi", "context_id": context_id}),
            ]
            missing = [
                await bob.call_tool("continue_run", {"task_id": "0" * 36}),
                await bob.call_tool("continue_run", {"task_id": "0" * 36, "answers": answers}),
                await bob.call_tool("clerk", {"prompt": "Hi", "context_id": "0" * 36}),
            ]
            assert await endpoint.runtime.log.read(task_id) == before
            done = await ann.call_tool("continue_run", {"task_id": task_id, "answers": answers})
        assert (await endpoint.runtime.get_record(task_id)).owner == "ann"
    # Answers for foreign and for unknown ids must be equal.
    assert [each.content for each in foreign] == [each.content for each in missing]
    assert all(each.is_error for each in foreign)
    assert result_text(done) == "Paid."


async def test_request_state_of_another_owner_is_unknown() -> None:
    async with serve_mcp(make_clerk(call("pay", amount=5), "Paid."), users=True) as endpoint:
        async with endpoint.client(MODERN, accept(answer=True), token="ann-key") as ann:
            pending: Any = await ann.session.call_tool("clerk", {"prompt": "Pay"}, allow_input_required=True)
        async with endpoint.client(MODERN, accept(answer=True), token="bob-key") as bob:
            with pytest.raises(MCPError, match="the requestState is unknown"):
                await bob.session.call_tool("clerk", {"prompt": "Pay"}, request_state=pending.request_state)


async def test_session_requires_a_token_and_belongs_to_its_owner() -> None:
    async with serve_mcp(make_clerk("Hi."), users=True) as endpoint, httpx.AsyncClient(headers=ACCEPT) as client:
        anonymous = await client.post(endpoint.url, json=INITIALIZE)
        ann = await client.post(endpoint.url, json=INITIALIZE, headers={"authorization": "Bearer ann-key"})
        session = {"mcp-session-id": ann.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        bob = await client.post(endpoint.url, json=listing, headers={"authorization": "Bearer bob-key", **session})
        deleted = await client.delete(endpoint.url, headers={"authorization": "Bearer bob-key", **session})
        listed = await client.post(endpoint.url, json=listing, headers={"authorization": "Bearer ann-key", **session})
    assert anonymous.status_code == 401
    assert anonymous.headers["www-authenticate"] == "Bearer"
    assert anonymous.json()["error"]["message"] == "a valid token is required"
    assert bob.status_code == 404
    assert deleted.status_code == 404
    assert listed.status_code == 200


async def test_invalid_requests_are_refused_and_open_no_session() -> None:
    limits = ServerLimits(body=1_000, body_seconds=0.3)

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(0.6)

    async with serve_mcp(make_clerk("Hi."), limits=limits) as endpoint, httpx.AsyncClient(headers=ACCEPT) as client:
        answers = [
            await client.post(endpoint.url, content=b"x" * 2_000),
            await client.post(endpoint.url, content=slow()),
            await client.post(endpoint.url, content=b"{"),
            await client.post(endpoint.url, content=b"[" * 900),
            await client.post(endpoint.url, json={**INITIALIZE, "method": "tools/list"}),
            await client.put(endpoint.url, json=INITIALIZE),
            await client.get(endpoint.url.replace("/mcp", "/other")),
            await client.post(endpoint.url, json=INITIALIZE, headers={"host": "evil.example"}),
            await client.post(endpoint.url, json=INITIALIZE, headers={"origin": "https://evil.example"}),
        ]
    assert [each.status_code for each in answers] == [413, 408, 400, 400, 400, 405, 404, 421, 403]


async def test_page_of_an_allowed_host_may_call_the_server() -> None:
    async with (
        serve_mcp(make_clerk("Hi."), allowed_hosts=["mcp.example"]) as endpoint,
        httpx.AsyncClient(headers=ACCEPT) as client,
    ):
        headers = {"host": "mcp.example", "origin": "https://mcp.example"}
        assert (await client.post(endpoint.url, json=INITIALIZE, headers=headers)).status_code == 200


async def test_limit_on_runs_of_a_user_is_reported() -> None:
    agent = Agent(ScriptedModel(*[frames("-and so on", 0.05)] * 2), thoughts=False, name="clerk")
    async with serve_mcp(agent, users=True, limits=ServerLimits(runs=1), wait=0.05) as endpoint:
        async with endpoint.client(MODERN, token="ann-key") as ann, endpoint.client(MODERN, token="bob-key") as bob:
            first = await ann.call_tool("clerk", {"prompt": "Go"})
            second = await ann.call_tool("clerk", {"prompt": "Go"})
            other = await bob.call_tool("clerk", {"prompt": "Go"})
    assert [result_meta(first, "state"), result_meta(other, "state")] == ["working", "working"]
    assert second.is_error is True
    assert result_text(second) == "at most 1 concurrent runs are allowed"


@each_protocol
async def test_waiting_call_is_answered_at_shutdown_and_can_be_continued(mode: str) -> None:
    log = MemoryEventLog()
    slow = Agent(ScriptedModel(frames("-and so on" * 30, 0.05)), thoughts=False, name="clerk")
    async with serve_mcp(slow, log=log) as endpoint, endpoint.client(mode) as client:
        await client.list_tools()
        started = asyncio.Event()
        steps = ProgressRecorder().call_on("at work", started.set)
        calling = asyncio.create_task(client.call_tool("clerk", {"prompt": "Go"}, progress_callback=steps))
        await started.wait()
        await Shutdown(endpoint.server, seconds=0.1).run()
        result = await calling
        assert result_meta(result, "state") == "working"
    quick = Agent(ScriptedModel("Done."), thoughts=False, name="clerk")
    async with serve_mcp(quick, log=log) as endpoint, endpoint.client(mode) as client:
        done = await client.call_tool("continue_run", {"task_id": result_meta(result, "taskId")})
    assert result_text(done) == "Done."


async def test_closed_server_leaves_no_tasks() -> None:
    before = asyncio.all_tasks()
    async with serve_mcp(make_clerk("Hi.")) as endpoint:
        for mode in ERAS:
            async with endpoint.client(mode) as client:
                await client.list_tools()
        assert [task for task in asyncio.all_tasks() if task.get_name() == "rxloop-mcp-sessions"]
    remaining = asyncio.all_tasks() - before
    assert [task for task in remaining if task.get_name().startswith("rxloop")] == []
