"""Requests that wait with `?wait=` until a run is idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, Runtime, tool
from rxloop.server import ServerLimits, api, bearer
from rxloop.testing import ScriptedModel, call
from support.api_server import TOKENS
from support.asgi_client import Answer, send_request


class Server:
    """HTTP API without a network, whose agent waits for `go_on` in a tool after an approval."""

    def __init__(self, runtime: Runtime, go_on: asyncio.Event, **options: Any) -> None:
        self.runtime, self.go_on = runtime, go_on
        self.app = api(runtime, auth=bearer(TOKENS), **options)

    async def request(self, method: str, url: str, body: bytes = b"", *, leaves: bool = False) -> Answer:
        headers = {"authorization": "Bearer ann-key", "content-type": "application/json"}
        async with asyncio.timeout(10):
            return await send_request(self.app, url, body, headers, method=method, leaves=leaves)

    async def start(self) -> str:
        """Start a run that waits for an approval."""
        answer = await self.request("POST", "/runs?wait=9", PROMPT)
        task_id = (await self.runtime.log.list_runs(newest_first=True, limit=1))[0].task_id
        # The server may limit the wait.
        while '"state":"input-required"' not in answer.text:
            answer = await self.request("GET", f"/runs/{task_id}?wait=9")
        return task_id


@asynccontextmanager
async def serve(**options: Any) -> AsyncGenerator[Server]:
    go_on = asyncio.Event()

    @tool(approve=True)
    async def pay() -> str:
        """Pay."""
        await go_on.wait()
        return "paid"

    agent = Agent(
        ScriptedModel(*[lambda request: call("pay") if request.messages[-1].role == "user" else "Done."] * 20),
        tools=[pay],
        name="clerk",
    )
    async with Runtime({"clerk": agent}, log=MemoryEventLog(), grace=0.1) as runtime:
        server = Server(runtime, go_on, **options)
        yield server
        await server.app.drain(0.1)
    await agent.aclose()


PROMPT = b'{"input": "Pay"}'
ANSWER = b'{"inputs": {"1.0.1": true}}'


@pytest.mark.parametrize("wait", ["-1", "-0.001", "nan", "inf", "-inf", "1e400", "x", "", "1,5", "0x10", "%00"])
async def test_invalid_wait_is_refused_and_starts_nothing(wait: str) -> None:
    async with serve() as server:
        task_id = await server.start()
        for method, path, body in (
            ("POST", "/runs", PROMPT),
            ("POST", f"/runs/{task_id}/resume", ANSWER),
            ("GET", f"/runs/{task_id}", b""),
        ):
            answer = await server.request(method, f"{path}?wait={wait}", body)
            assert answer.status == 422, (path, answer)
            assert '"wait"' in answer.text
        [record] = await server.runtime.log.list_runs()
        assert record.state == "input-required"


@pytest.mark.parametrize("wait", ["61", "1e6", "1e308"])
async def test_wait_above_the_limit_is_shortened(wait: str) -> None:
    async with serve(limits=ServerLimits(wait=0.05)) as server:
        task_id = await server.start()
        resumed = await server.request("POST", f"/runs/{task_id}/resume?wait={wait}", ANSWER)
        read = await server.request("GET", f"/runs/{task_id}?wait={wait}")
        assert (resumed.status, read.status) == (202, 200)
        assert '"state":"working"' in read.text


async def test_limit_of_a_server_may_be_longer_than_a_minute() -> None:
    async with serve(limits=ServerLimits(wait=300)) as server:
        task_id = await server.start()
        assert (await server.request("GET", f"/runs/{task_id}?wait=200")).status == 200


@pytest.mark.parametrize("kind", ["start", "resume", "read"])
async def test_request_ends_and_releases_its_stream_when_its_client_leaves(kind: str) -> None:
    async with serve(limits=ServerLimits(streams=1)) as server:
        task_id = await server.start()
        if kind != "resume":
            await server.request("POST", f"/runs/{task_id}/resume", ANSWER)
        method, path, body = {
            "start": ("POST", "/runs", b'{"input": "Pay", "contextId": "CONTEXT"}'),
            "resume": ("POST", f"/runs/{task_id}/resume", ANSWER),
            "read": ("GET", f"/runs/{task_id}", b""),
        }[kind]
        context_id = (await server.runtime.get_record(task_id)).context_id
        # A new run of the conversation waits for the first one.
        await server.request(method, f"{path}?wait=60", body.replace(b"CONTEXT", context_id.encode()), leaves=True)
        server.go_on.set()
        assert (await server.request("GET", f"/runs/{task_id}?wait=9")).status == 200
        assert (await server.runtime.get_record(task_id)).state == "completed"


@pytest.mark.parametrize(
    ("query", "default", "state"),
    [
        ("", "keep", "completed"),
        ("&onDisconnect=cancel", "keep", "canceled"),
        ("", "cancel", "canceled"),
        ("&onDisconnect=keep", "cancel", "completed"),
    ],
)
async def test_client_that_leaves_cancels_the_run_only_if_configured(query: str, default: Any, state: str) -> None:
    async with serve(on_disconnect=default) as server:
        task_id = await server.start()
        await server.request("POST", f"/runs/{task_id}/resume?wait=60{query}", ANSWER, leaves=True)
        if state == "completed":
            server.go_on.set()
        await server.request("GET", f"/runs/{task_id}?wait=9")
        assert (await server.runtime.get_record(task_id)).state == state
