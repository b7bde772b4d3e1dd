"""Who may do what at the MCP door: users, their runs and conversations, limits, hosts, and the end."""

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

both = pytest.mark.parametrize("mode", ERAS)
HELLO: dict[str, Any] = {
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


def clerk(*turns: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), tools=[pay], thoughts=False, name="clerk")


@both
async def test_the_runs_and_conversations_of_somebody_else_are_not_there(mode: str) -> None:
    async with serve_mcp(clerk(call("pay", amount=5), "Paid.", "Hi."), users=True) as there:
        async with there.client(mode, token="ann-key") as ann, there.client(mode, token="bob-key") as bob:
            waits = await ann.call_tool("clerk", {"prompt": "Pay"})
            task_id, context_id = result_meta(waits, "taskId"), result_meta(waits, "contextId")
            assert waits.structured_content is not None
            [question] = waits.structured_content["questions"]
            answers = {question["inputId"]: True}
            before = await there.runtime.log.read(task_id)
            tried = [
                await bob.call_tool("continue_run", {"task_id": task_id}),
                await bob.call_tool("continue_run", {"task_id": task_id, "answers": answers}),
                await bob.call_tool("clerk", {"prompt": "Hi", "context_id": context_id}),
            ]
            not_there = [
                await bob.call_tool("continue_run", {"task_id": "0" * 36}),
                await bob.call_tool("continue_run", {"task_id": "0" * 36, "answers": answers}),
                await bob.call_tool("clerk", {"prompt": "Hi", "context_id": "0" * 36}),
            ]
            assert await there.runtime.log.read(task_id) == before
            done = await ann.call_tool("continue_run", {"task_id": task_id, "answers": answers})
        assert (await there.runtime.get_record(task_id)).owner == "ann"
    # Nobody can tell what belongs to somebody else from what there is not.
    assert [each.content for each in tried] == [each.content for each in not_there]
    assert all(each.is_error for each in tried)
    assert result_text(done) == "Paid."


async def test_the_state_of_somebody_elses_question_is_not_there_either() -> None:
    async with serve_mcp(clerk(call("pay", amount=5), "Paid."), users=True) as there:
        async with there.client(MODERN, accept(answer=True), token="ann-key") as ann:
            asks: Any = await ann.session.call_tool("clerk", {"prompt": "Pay"}, allow_input_required=True)
        async with there.client(MODERN, accept(answer=True), token="bob-key") as bob:
            with pytest.raises(MCPError, match="there is no such requestState"):
                await bob.session.call_tool("clerk", {"prompt": "Pay"}, request_state=asks.request_state)


async def test_without_a_token_nothing_is_said_and_a_session_is_for_whoever_began_it() -> None:
    async with serve_mcp(clerk("Hi."), users=True) as there, httpx.AsyncClient(headers=ACCEPT) as client:
        nobody = await client.post(there.url, json=HELLO)
        ann = await client.post(there.url, json=HELLO, headers={"authorization": "Bearer ann-key"})
        session = {"mcp-session-id": ann.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        bob = await client.post(there.url, json=listing, headers={"authorization": "Bearer bob-key", **session})
        gone = await client.delete(there.url, headers={"authorization": "Bearer bob-key", **session})
        hers = await client.post(there.url, json=listing, headers={"authorization": "Bearer ann-key", **session})
    assert (nobody.status_code, nobody.headers["www-authenticate"]) == (401, "Bearer")
    assert nobody.json()["error"]["message"] == "say who you are by a valid token"
    assert (bob.status_code, gone.status_code, hers.status_code) == (404, 404, 200)


async def test_what_is_not_a_request_of_mcp_is_refused_and_opens_nothing() -> None:
    limits = ServerLimits(body=1_000, body_seconds=0.3)

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(0.6)

    async with serve_mcp(clerk("Hi."), limits=limits) as there, httpx.AsyncClient(headers=ACCEPT) as client:
        answers = [
            await client.post(there.url, content=b"x" * 2_000),
            await client.post(there.url, content=slow()),
            await client.post(there.url, content=b"{"),
            await client.post(there.url, content=b"[" * 900),
            await client.post(there.url, json={**HELLO, "method": "tools/list"}),
            await client.put(there.url, json=HELLO),
            await client.get(there.url.replace("/mcp", "/other")),
            await client.post(there.url, json=HELLO, headers={"host": "evil.example"}),
            await client.post(there.url, json=HELLO, headers={"origin": "https://evil.example"}),
        ]
    assert [each.status_code for each in answers] == [413, 408, 400, 400, 400, 405, 404, 421, 403]


async def test_a_page_of_a_known_host_may_call_it() -> None:
    async with (
        serve_mcp(clerk("Hi."), allowed_hosts=["mcp.example"]) as there,
        httpx.AsyncClient(headers=ACCEPT) as client,
    ):
        headers = {"host": "mcp.example", "origin": "https://mcp.example"}
        assert (await client.post(there.url, json=HELLO, headers=headers)).status_code == 200


async def test_too_many_runs_of_a_user_are_refused_in_words() -> None:
    agent = Agent(ScriptedModel(*[frames("-and so on", 0.05)] * 2), thoughts=False, name="clerk")
    async with serve_mcp(agent, users=True, limits=ServerLimits(runs=1), wait=0.05) as there:
        async with there.client(MODERN, token="ann-key") as ann, there.client(MODERN, token="bob-key") as bob:
            first = await ann.call_tool("clerk", {"prompt": "Go"})
            second = await ann.call_tool("clerk", {"prompt": "Go"})
            his = await bob.call_tool("clerk", {"prompt": "Go"})
    assert [result_meta(first, "state"), result_meta(his, "state")] == ["working", "working"]
    assert (second.is_error, result_text(second)) == (True, "at most 1 runs at once")


@both
async def test_a_call_is_answered_when_the_server_goes_away_and_the_next_one_goes_on(mode: str) -> None:
    log = MemoryEventLog()
    slow = Agent(ScriptedModel(frames("-and so on" * 30, 0.05)), thoughts=False, name="clerk")
    async with serve_mcp(slow, log=log) as there, there.client(mode) as client:
        await client.list_tools()
        started = asyncio.Event()
        steps = ProgressRecorder().call_on("at work", started.set)
        calling = asyncio.create_task(client.call_tool("clerk", {"prompt": "Go"}, progress_callback=steps))
        await started.wait()
        await Shutdown(there.server, seconds=0.1).run()
        result = await calling
        assert result_meta(result, "state") == "working"
    quick = Agent(ScriptedModel("Done."), thoughts=False, name="clerk")
    async with serve_mcp(quick, log=log) as there, there.client(mode) as client:
        done = await client.call_tool("continue_run", {"task_id": result_meta(result, "taskId")})
    assert result_text(done) == "Done."


async def test_nothing_is_left_when_the_door_is_closed() -> None:
    before = asyncio.all_tasks()
    async with serve_mcp(clerk("Hi.")) as there:
        for mode in ERAS:
            async with there.client(mode) as client:
                await client.list_tools()
        assert [task for task in asyncio.all_tasks() if task.get_name() == "rxloop-mcp-sessions"]
    left = asyncio.all_tasks() - before
    assert [task for task in left if task.get_name().startswith("rxloop")] == []
