"""Early answers over all adapters, sent while other calls are still in progress."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable
from typing import Any

import httpx
import pytest

from rxloop import Agent, MemoryEventLog, Runtime, tool
from rxloop.client import Client
from rxloop.run.ownership import read_open_questions
from rxloop.testing import ScriptedModel, call, turn
from support.api_server import serve_api
from support.clients.a2a import message_request, serve_a2a
from support.clients.agui import serve_agui
from support.clients.agui_posts import post
from support.clients.ai_sdk import serve_pages
from support.clients.mcp import ERAS, serve_mcp
from support.run_checks import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Bank:
    """Agent with an approval and a slow tool."""

    def __init__(self, nested: int = 0) -> None:
        self.paid: list[int] = []
        self.release = asyncio.Event()
        self.log = MemoryEventLog()

        @tool(approve=True)
        async def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return "paid"

        @tool
        async def slow() -> str:
            """Work slowly."""
            await self.release.wait()
            return "slow"

        request, tools = call("pay", amount=5), [pay, slow]
        for level in range(nested):
            name = f"teller{level}"
            teller: Agent[Any, Any] = Agent(ScriptedModel(request, "Paid."), tools=tools, thoughts=False, name=name)
            request, tools = call(name, prompt="Pay."), [teller.as_tool(), slow]
        self.agent: Agent[Any, Any] = Agent(
            ScriptedModel(turn("", calls=[request, call("slow")]), "Done."), tools=tools, thoughts=False, name="clerk"
        )

    async def wait_for_question(self, runtime: Runtime) -> tuple[str, str]:
        """Wait for a question of the only run, and return the ids of the run and the question."""
        while not (records := await runtime.log.list_runs()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        task_id = records[0].task_id
        while not (pending := await read_open_questions(runtime.log, task_id)):  # noqa: ASYNC110
            await asyncio.sleep(0)
        return task_id, pending[0].input_id

    async def finish(self, runtime: Runtime, task_id: str) -> None:
        """Complete the run, checking that the call was executed once."""
        await asyncio.wait_for(wait_until(lambda: self.paid), 5)
        assert await read_open_questions(runtime.log, task_id) == []
        self.release.set()
        async for _ in runtime.follow(task_id, after=None):
            pass
        assert (await runtime.get_record(task_id)).state == "completed"
        assert self.paid == [5]


async def test_pending_contains_a_question_while_another_call_works() -> None:  # P24
    bank = Bank()
    run = bank.agent.run("Go.").start()
    await wait_until(lambda: run.pending)
    assert [each.input_id for each in run.pending] == ["1.0.1"]
    bank.release.set()
    assert [each.input_id for each in (await run).pending] == ["1.0.1"] == [each.input_id for each in run.pending]


@pytest.mark.parametrize("is_owner", [True, False])
@pytest.mark.parametrize("nested", [0, 1, 2])
async def test_http_api_shows_and_accepts_an_early_answer(
    is_owner: bool, nested: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # P24
    bank = Bank(nested)
    async with serve_api(bank.agent, log=bank.log) as served, Client(served.url, token="ann-key") as client:
        if not is_owner:
            # Without a local owner, questions are read from the log.
            monkeypatch.setattr("rxloop.run.ownership.find_owned", lambda log, task_id: None)
        started = await client.start("clerk", "Go.")
        task_id, input_id = await bank.wait_for_question(served.runtime)
        info = await client.record(started.task_id)
        assert info.state == "working"
        assert [each.input_id for each in info.pending] == [input_id]
        answered = await client.answer(task_id, {input_id: True})
        assert answered.state == "working"
        assert answered.pending == []
        await bank.finish(served.runtime, task_id)


@contextlib.asynccontextmanager
async def read_in_background(reads: Awaitable[Any]) -> AsyncGenerator[None]:
    """Read a stream in the background."""
    task = asyncio.ensure_future(reads)
    try:
        yield
    finally:
        await asyncio.wait_for(task, 10)


async def test_ui_stream_accepts_an_early_approval() -> None:  # P24
    bank = Bank()
    prompt = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "Pay"}]}
    async with serve_pages(bank.agent, with_node=False) as served:
        headers = {"authorization": "Bearer ann-key"}
        async with httpx.AsyncClient(base_url=served.url, headers=headers, timeout=30) as ann:
            async with read_in_background(ann.post("/api/chat", json={"id": "c", "messages": [prompt]})):
                task_id, input_id = await bank.wait_for_question(served.runtime)
                part = {"type": "dynamic-tool", "toolName": "pay", "toolCallId": "x", "state": "approval-responded"}
                approval = {"id": f"{task_id}:{input_id}", "approved": True}
                message = {"id": task_id, "role": "assistant", "parts": [{**part, "approval": approval}]}
                body = {"id": "c", "messages": [message], "messageId": task_id}
                async with read_in_background(ann.post("/api/chat", json=body)):
                    await bank.finish(served.runtime, task_id)


@pytest.mark.parametrize("nested", [0, 1, 2])
async def test_agui_accepts_an_early_answer(nested: int) -> None:  # P24
    bank = Bank(nested)
    body: dict[str, Any] = {
        "threadId": "t",
        "runId": "r",
        "messages": [{"id": "m", "role": "user", "content": "Go."}],
        "state": {},
        "tools": [],
        "context": [],
        "forwardedProps": {},
    }
    async with serve_agui(bank.agent) as served, read_in_background(post(served.url, body)):
        task_id, input_id = await bank.wait_for_question(served.runtime)
        entry = {"interruptId": f"{task_id}:{input_id}", "status": "resolved", "payload": True}
        async with read_in_background(post(served.url, {**body, "runId": "r2", "resume": [entry]})):
            await bank.finish(served.runtime, task_id)


async def test_a2a_accepts_an_early_answer_as_data() -> None:  # P24
    bank = Bank()
    async with serve_a2a(bank.agent) as served, served.client("JSONRPC", streaming=False) as client:

        async def send(**fields: Any) -> None:
            async for _ in client.send_message(message_request(**fields)):
                pass

        async with read_in_background(send(text="Pay.")):
            task_id, input_id = await bank.wait_for_question(served.runtime)
            async with read_in_background(send(data={"inputs": {input_id: True}}, task_id=task_id)):
                await bank.finish(served.runtime, task_id)


@pytest.mark.parametrize("mode", ERAS)
async def test_mcp_accepts_an_early_answer(mode: str) -> None:  # P24
    bank = Bank()
    async with (
        serve_mcp(bank.agent, log=bank.log) as served,
        served.client(mode) as client,
        served.client(mode) as other,
    ):
        async with read_in_background(client.call_tool("clerk", {"prompt": "Pay."})):
            task_id, input_id = await bank.wait_for_question(served.runtime)
            arguments = {"task_id": task_id, "answers": {input_id: True}}
            async with read_in_background(other.call_tool("continue_run", arguments)):
                await bank.finish(served.runtime, task_id)
