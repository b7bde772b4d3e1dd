"""Limits of what a principal can hold, over real connections."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from typing_extensions import override

from rxloop import Agent, MemoryEventLog, Runtime, SqliteEventLog, tool
from rxloop.pipeline.records import Snapshot
from rxloop.server import ServerLimits, api, bearer, mcp_server
from rxloop.testing import ScriptedModel, call
from support.api_server import TOKENS, RawConnection, make_client, serve_api, serve_app

INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
ACCEPT = {"accept": "application/json, text/event-stream"}


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def make_clerk(*turns: Any) -> Agent[Any, Any]:
    script = turns or (*[call("pay", amount=5)] * 9, "Paid.")
    return Agent(ScriptedModel(*script), tools=[pay], name="clerk")


def check_refused(response: httpx.Response, limit: str) -> None:
    """Check that a response has status 429 and names a limit."""
    assert response.status_code == 429, response.text
    assert response.headers["retry-after"] == "2"
    assert response.json()["error"]["fields"] == {"limit": limit}


async def start_waiting_run(client: httpx.AsyncClient) -> str:
    return (await client.post("/runs?wait=10", json={"input": "Pay"})).json()["taskId"]


async def test_requests_in_progress_are_limited_per_principal() -> None:
    async with serve_api(make_clerk(), limits=ServerLimits(requests=2)) as served:
        slow = [await RawConnection.connect(served.url) for _ in range(2)]
        for each in slow:
            head = "POST /runs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ann-key\r\nexpect: 100-continue\r\n"
            each.writer.write(f"{head}content-type: application/json\r\ncontent-length: 100\r\n\r\n{{".encode())
            # The server sends this when it starts to read the body.
            assert await each.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        async with make_client(served.url) as ann, make_client(served.url, "bob-key") as bob:
            check_refused(await ann.get("/runs"), "requests")
            assert (await ann.get("/healthz")).status_code == 200
            assert (await bob.get("/runs")).status_code == 200
            for each in slow:
                each.writer.transport.abort()
            while (await ann.get("/runs")).status_code == 429:  # noqa: ASYNC110 (no event tells it)
                await asyncio.sleep(0)


async def test_streams_of_all_adapters_are_counted_together() -> None:
    runtime = Runtime({"clerk": make_clerk()}, log=MemoryEventLog())
    limits = ServerLimits(streams=1)
    one, two = (api(runtime, auth=bearer(TOKENS), limits=limits) for _ in range(2))
    async with runtime, serve_app(one) as first, serve_app(two) as second:
        async with make_client(first) as ann, make_client(second) as other:
            task_id = await start_waiting_run(ann)
            async with ann.stream("GET", f"/runs/{task_id}/events"):
                check_refused(
                    await other.get(f"/runs/{task_id}/events", headers={"accept": "text/event-stream"}), "streams"
                )
        for each in (one, two):
            await each.drain(0.1)


@pytest.mark.parametrize("log", ["memory", "sqlite"])
async def test_unprocessed_messages_are_limited_per_run(log: str, tmp_path: Any) -> None:
    event_log = MemoryEventLog() if log == "memory" else SqliteEventLog(tmp_path / "runs.db")
    async with serve_api(make_clerk(), log=event_log, limits=ServerLimits(commands=8)) as served:
        async with make_client(served.url) as ann:
            first, second = await start_waiting_run(ann), await start_waiting_run(ann)
            for _ in range(2):
                assert (await ann.post(f"/runs/{first}/say", json={"input": "More"})).status_code == 202
            refused = await ann.post(f"/runs/{first}/say", json={"input": "More"})
            check_refused(refused, "commands")
            assert "at most 2 unprocessed messages and answers are allowed per run" in refused.text
            assert (await ann.post(f"/runs/{second}/say", json={"input": "More"})).status_code == 202
            assert len(await event_log.read_commands(first)) == 2
    await event_log.aclose()


async def test_unprocessed_messages_are_limited_per_owner() -> None:
    async with serve_api(make_clerk(), limits=ServerLimits(commands=4)) as served, make_client(served.url) as ann:
        runs = [await start_waiting_run(ann) for _ in range(5)]
        for task_id in runs[:4]:
            assert (await ann.post(f"/runs/{task_id}/say", json={"input": "More"})).status_code == 202
        check_refused(await ann.post(f"/runs/{runs[4]}/say", json={"input": "More"}), "commands")


async def test_size_of_unprocessed_messages_is_limited() -> None:
    async with serve_api(make_clerk(), limits=ServerLimits(command_bytes=400_000)) as served:
        async with make_client(served.url) as ann:
            task_id = await start_waiting_run(ann)
            answers = [await ann.post(f"/runs/{task_id}/say", json={"input": "x" * 60_000}) for _ in range(2)]
            assert answers[0].status_code == 202
            check_refused(answers[1], "command_bytes")


async def test_processed_messages_are_not_counted() -> None:
    async with serve_api(make_clerk(), limits=ServerLimits(commands=8)) as served, make_client(served.url) as ann:
        task_id = await start_waiting_run(ann)
        for _ in range(4):
            assert (await ann.post(f"/runs/{task_id}/say", json={"input": "More"})).status_code == 202
            run = (await ann.get(f"/runs/{task_id}")).json()
            inputs = {each["inputId"]: True for each in run["pending"]}
            answered = await ann.post(f"/runs/{task_id}/resume?wait=10", json={"inputs": inputs})
            assert answered.status_code == 200, answered.text


class SlowSnapshots(MemoryEventLog):
    """Event log whose snapshots arrive later than those of concurrent requests were requested."""

    @override
    async def snapshot(self, task_id: str, **options: Any) -> Snapshot:
        found = await super().snapshot(task_id, **options)
        await asyncio.sleep(0.01)
        return found


async def test_concurrent_messages_do_not_exceed_the_limit_together() -> None:
    served_api = serve_api(make_clerk(), log=SlowSnapshots(), limits=ServerLimits(commands=16))
    async with served_api as served, make_client(served.url) as ann:
        task_id = await start_waiting_run(ann)
        for _ in range(3):
            assert (await ann.post(f"/runs/{task_id}/say", json={"input": "More"})).status_code == 202
        inputs = {each["inputId"]: True for each in (await ann.get(f"/runs/{task_id}")).json()["pending"]}
        assert (await ann.post(f"/runs/{task_id}/resume?wait=10", json={"inputs": inputs})).status_code == 200
        # The run has processed the messages and the answer, which each of these requests finds in the log.
        calls = [ann.post(f"/runs/{task_id}/say", json={"input": "More"}) for _ in range(20)]
        statuses = [each.status_code for each in await asyncio.gather(*calls)]
    assert sorted(statuses) == [202] * 4 + [429] * 16


@pytest.mark.parametrize("path", ["/events", "?wait=60"])
async def test_refused_streams_do_not_read_the_log(path: str) -> None:
    async with serve_api(make_clerk(), limits=ServerLimits(streams=1)) as served, make_client(served.url) as ann:
        url = f"/runs/{await start_waiting_run(ann)}/events?until=end"
        async with ann.stream("GET", url, headers={"accept": "text/event-stream"}) as stream:
            assert stream.status_code == 200
            # Whether the run exists is only known after reading the log.
            check_refused(await ann.get(f"/runs/unknown{path}"), "streams")


async def test_open_sessions_are_limited_per_principal() -> None:
    runtime = Runtime({"clerk": make_clerk()}, log=MemoryEventLog())
    app = mcp_server(runtime, auth=bearer(TOKENS), limits=ServerLimits(sessions=2), session_timeout=0.2)
    ann, bob = ({**ACCEPT, "authorization": f"Bearer {name}-key"} for name in ("ann", "bob"))
    async with runtime, serve_app(app) as url, httpx.AsyncClient(base_url=url) as client:
        opened = [await client.post("/mcp", json=INITIALIZE, headers=ann) for _ in range(3)]
        assert [each.status_code for each in opened] == [200, 200, 429]
        assert "at most 2 open sessions are allowed" in opened[2].text
        assert (await client.post("/mcp", json=INITIALIZE, headers=bob)).status_code == 200
        ended = {"mcp-session-id": opened[0].headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        assert (await client.delete("/mcp", headers={**ann, **ended})).status_code == 200
        assert (await client.post("/mcp", json=INITIALIZE, headers=ann)).status_code == 200
        # Idle sessions are closed, and no longer count.
        while (await client.post("/mcp", json=INITIALIZE, headers=ann)).status_code == 429:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        idle = {**ended, "mcp-session-id": opened[1].headers["mcp-session-id"]}
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        assert (await client.post("/mcp", json=ping, headers={**ann, **idle})).status_code == 404
        await app.drain(0.1)


async def test_requests_of_other_principals_do_not_release_a_session() -> None:
    runtime = Runtime({"clerk": make_clerk()}, log=MemoryEventLog())
    app = mcp_server(runtime, auth=bearer(TOKENS), limits=ServerLimits(sessions=1))
    ann, bob = ({**ACCEPT, "authorization": f"Bearer {name}-key"} for name in ("ann", "bob"))
    async with runtime, serve_app(app) as url, httpx.AsyncClient(base_url=url) as client:
        opened = await client.post("/mcp", json=INITIALIZE, headers=ann)
        session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        assert (await client.delete("/mcp", headers={**bob, **session})).status_code == 404
        assert (await client.post("/mcp", json=ping, headers={**bob, **session})).status_code == 404
        assert (await client.post("/mcp", json=ping, headers={**ann, **session})).status_code == 200
        assert (await client.post("/mcp", json=INITIALIZE, headers=ann)).status_code == 429
        await app.drain(0.1)


async def test_failed_requests_for_sessions_are_not_counted() -> None:
    runtime = Runtime({"clerk": make_clerk()}, log=MemoryEventLog())
    app = mcp_server(runtime, auth=bearer(TOKENS), limits=ServerLimits(sessions=1))
    headers = {**ACCEPT, "authorization": "Bearer ann-key"}
    async with runtime, serve_app(app) as url, httpx.AsyncClient(base_url=url, headers=headers) as client:
        for _ in range(3):
            assert (await client.post("/mcp", content=b"{")).status_code == 400
        assert (await client.post("/mcp", json=INITIALIZE)).status_code == 200
        await app.drain(0.1)
