"""Responses to requests during which a run continues, at every read of the event log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from rxloop import Agent, Event, MemoryEventLog, ModelRequest, RunRecord, Runtime, tool
from rxloop.client import Client
from rxloop.protocol.events import ends_attempt
from rxloop.providers.script import Turn
from rxloop.server import a2a, agui, api, mcp_server, openai_api, ui_stream
from rxloop.testing import ScriptedModel, call
from support.api_server import serve_app
from support.clients.mcp import McpEndpoint
from support.dropped_questions import wait_until_idle


class InterceptedLog(MemoryEventLog):
    """Event log that calls a function before or after one of the reads, counted from `intercept`."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self._number, self._change = 0, None

    def stop(self) -> None:
        """Stop intercepting reads."""
        self._change = None

    def intercept(self, number: int, change: Callable[[], Awaitable[Any]]) -> None:
        self.count, self._number, self._change = 0, number, change

    async def _pause(self) -> None:
        change = self._change
        if change is None:
            return
        self.count += 1
        if self.count == self._number:
            self._change = None
            await change()

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        await self._pause()
        return await super().read(task_id, after_seq=after_seq, deltas=deltas)

    async def get_record(self, task_id: str) -> RunRecord:
        await self._pause()
        return await super().get_record(task_id)

    async def list_runs(self, **query: Any) -> Sequence[RunRecord]:
        await self._pause()
        return await super().list_runs(**query)

    async def read_commands(self, task_id: str, *, after: int = 0) -> Any:
        await self._pause()
        return await super().read_commands(task_id, after=after)

    async def follow(self, task_id: str, **options: Any) -> AsyncIterator[Event]:
        await self._pause()
        async for event in super().follow(task_id, **options):
            yield event


@tool(approve="Refund {order}?")
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


class Setup:
    def __init__(self, log: InterceptedLog, runtime: Runtime, url: str, mcp: McpEndpoint) -> None:
        self.log, self.runtime, self.url, self.mcp = log, runtime, url, mcp
        self.http = httpx.AsyncClient(base_url=url, timeout=20)

    async def start(self) -> RunRecord:
        """Start a run in a new conversation, and wait for its first question."""
        record = await wait_until_idle(self.runtime, await self.runtime.start("clerk", "Refund"))
        assert record.state == "input-required"
        while self.runtime.is_executing(record.task_id):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return record

    async def answer(self, record: RunRecord, input_id: str) -> None:
        """Answer a question, and wait until the run asks the next question or has ended."""
        current = await self.runtime.get_record(record.task_id)
        await self.runtime.answer(record.task_id, {input_id: True})
        async for event in self.runtime.log.follow(record.task_id, after_seq=current.seq, until="end"):
            if ends_attempt(event):
                break


@contextlib.asynccontextmanager
async def serve(orders: int) -> AsyncGenerator[Setup]:
    """Serve an agent that refunds this number of orders, one after the other, over all protocols."""

    def reply(request: ModelRequest) -> Turn:
        refunded = sum(message.role == "tool" for message in request.messages)
        return "Done." if refunded == orders else call("refund", order=f"A{refunded + 1}")

    log = InterceptedLog()
    agent = Agent(ScriptedModel(*[reply] * 500), tools=[refund], thoughts=False)
    async with Runtime({"clerk": agent}, log=log, grace=0.3, adopt_every=3_600) as runtime:
        mcp = mcp_server(runtime, wait=10)
        mounts = [
            Mount("/agui", agui(runtime)),
            Mount("/ui", ui_stream(runtime)),
            Mount("/openai", openai_api(runtime)),
            Mount("/a2a", a2a(runtime)),
            Mount("/", api(runtime)),
        ]
        async with serve_app(Starlette(routes=mounts)) as url, serve_app(mcp) as mcp_url:
            setup = Setup(log, runtime, url, McpEndpoint(mcp_url, mcp, runtime))
            try:
                yield setup
            finally:
                await setup.http.aclose()
                await mcp.drain(0.2)
    await agent.aclose()


def check_info(info: Any) -> None:
    waits = info["state"] in ("input-required", "auth-required")
    assert waits <= bool(info.get("pending")), info
    assert info["cursor"].endswith(f"/{info['attempt']}.{info['seq']}.0"), info
    assert (info["state"] == "completed") == ("content" in info), info


async def read_record(setup: Setup, record: RunRecord) -> None:
    check_info((await setup.http.get(f"/runs/{record.task_id}")).json())


async def wait_for_record(setup: Setup, record: RunRecord) -> None:
    check_info((await setup.http.get(f"/runs/{record.task_id}?wait=5")).json())


async def read_client_record(setup: Setup, record: RunRecord) -> None:
    async with Client(setup.url) as client:
        check_info((await client.record(record.task_id)).model_dump(mode="json", by_alias=True, exclude_none=True))


async def list_pending(setup: Setup, record: RunRecord) -> None:
    for info in (await setup.http.get(f"/pending?contextId={record.context_id}")).json()["runs"]:
        assert info["pending"]
        assert info["state"] in ("input-required", "working")


async def read_task(setup: Setup, record: RunRecord, method: str = "GetTask") -> None:
    params = (
        {"id": record.task_id} if method == "GetTask" else {"contextId": record.context_id, "includeArtifacts": True}
    )
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    result = (await setup.http.post("/a2a/rpc", json=body, headers={"a2a-version": "1.0"})).json()["result"]
    for task in [result] if method == "GetTask" else result["tasks"]:
        state, message = task["status"]["state"], task["status"].get("message")
        assert (state == "TASK_STATE_INPUT_REQUIRED") == (message is not None and "inputs" in str(message)), task
        assert (state == "TASK_STATE_COMPLETED") == bool(task.get("artifacts")), task


async def list_tasks(setup: Setup, record: RunRecord) -> None:
    await read_task(setup, record, "ListTasks")


async def connect_agui(setup: Setup, record: RunRecord) -> None:
    body = {"threadId": record.context_id, "runId": "r9", "messages": []}
    text = (await setup.http.post("/agui/connect", json=body)).text
    end = text.strip().rpartition("data: ")[2]
    assert "RUN_FINISHED" in end, text
    assert ("interrupt" in end) == ('"Done."' not in text), text


async def retrieve_response(setup: Setup, record: RunRecord) -> None:
    response = (await setup.http.get(f"/openai/v1/responses/{record.task_id}")).json()
    kinds = {item["type"] for item in response["output"]}
    assert (response["status"] == "completed") == bool(kinds & {"mcp_approval_request", "message"}), response


async def reload_chat(setup: Setup, record: RunRecord) -> None:
    messages = (await setup.http.get(f"/ui/api/chat/{record.context_id}")).json()
    last = messages[-1]
    states = [part.get("state") for part in last["parts"]]
    is_done = any(part.get("text") == "Done." for part in last["parts"])
    assert is_done or "approval-requested" in states or last["metadata"]["state"] == "working", last


async def continue_by_mcp(setup: Setup, record: RunRecord) -> None:
    async with setup.mcp.client("legacy") as client:
        result = await client.call_tool("continue_run", {"task_id": record.task_id})
    assert not result.is_error, result
    text = str(result.content)
    assert ("Done." in text) != ("Refund" in text), text


READS = [
    read_record,
    wait_for_record,
    read_client_record,
    list_pending,
    read_task,
    list_tasks,
    connect_agui,
    retrieve_response,
    reload_chat,
    continue_by_mcp,
]
MAX_READS = 60


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("orders", [1, 2])
async def test_response_is_consistent_when_the_run_continues_between_two_reads(
    read: Callable[[Setup, RunRecord], Awaitable[None]], orders: int
) -> None:
    async with asyncio.timeout(60), serve(orders) as setup:
        for number in range(1, MAX_READS):
            record = await setup.start()
            setup.log.intercept(number, partial(setup.answer, record, "1.0.1"))
            await read(setup, record)
            setup.log.stop()
            if setup.log.count < number:
                return
    raise AssertionError(f"the request reads the log at least {MAX_READS} times")
