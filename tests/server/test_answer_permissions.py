"""Principals who may start runs, but not approve their calls, with every adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from rxloop import Agent, ConfigurationError, MemoryEventLog, RunContext, Runtime, client_tool, tool
from rxloop.server import Principal, a2a, agui, api, bearer, openai_api, ui_stream
from rxloop.testing import ScriptedModel, call
from support.api_server import serve_app
from support.clients.mcp import ERAS, result_text, serve_mcp

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
paid: list[int] = []


@pytest.fixture(autouse=True)
def forget_payments() -> None:
    paid.clear()


AUTH = bearer(
    {
        "ann-key": Principal("ann", answers=False),
        "chat-key": Principal("ann", answers={"text", "selection"}),
        "boss-key": Principal("boss", frozenset({"others"})),
        "admin-key": Principal("admin", frozenset({"others", "internal"})),
    }
)


def make_agent(*turns: Any) -> Agent[Any, str]:
    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    @tool(hidden=True, approve=True)
    async def pay_secretly(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    @tool
    async def city(ctx: RunContext[Any]) -> str:
        """Ask."""
        return await ctx.ask("Where?", str)

    show = client_tool("show", {"type": "object", "properties": {}})
    return Agent(
        ScriptedModel(*(turns or (call("pay", amount=5), "Done."))), tools=[pay, pay_secretly, city, show], name="clerk"
    )


async def run_to_question(runtime: Runtime) -> tuple[str, str]:
    """Execute a run of Ann until it asks. Return the ids of the run and the question."""
    record = await runtime.start("clerk", "Pay.", owner="ann", context_id="chat")
    async for event in runtime.follow(record.task_id):
        if event.kind == "status-update" and getattr(event, "final", False):
            break
    [pending] = await runtime.list_pending()
    return record.task_id, pending.inputs[0].input_id


def answer_http(task_id: str, input_id: str, value: Any) -> tuple[str, dict[str, Any]]:
    return f"/runs/{task_id}/resume", {"inputs": {input_id: value}}


def answer_agui(task_id: str, input_id: str, value: Any) -> tuple[str, dict[str, Any]]:
    resume = [{"interruptId": f"{task_id}:{input_id}", "status": "resolved", "payload": value}]
    return "/", {
        "threadId": "chat",
        "runId": "r2",
        "messages": [],
        "state": {},
        "tools": [],
        "context": [],
        "forwardedProps": {},
        "resume": resume,
    }


def answer_ui(task_id: str, input_id: str, value: Any) -> tuple[str, dict[str, Any]]:
    part = {"type": "dynamic-tool", "toolName": "pay", "toolCallId": "x", "state": "approval-responded"}
    approval = {"id": f"{task_id}:{input_id}", "approved": value}
    message = {"id": task_id, "role": "assistant", "parts": [{**part, "approval": approval}]}
    return "/api/chat", {"id": "chat", "messages": [message], "messageId": task_id}


def answer_openai(task_id: str, input_id: str, value: Any) -> tuple[str, dict[str, Any]]:
    item = {"type": "mcp_approval_response", "approval_request_id": f"mcpr_{task_id}:{input_id}", "approve": value}
    return "/v1/responses", {"model": "clerk", "input": [item], "conversation": "conv_chat"}


def answer_a2a(task_id: str, input_id: str, value: Any) -> tuple[str, dict[str, Any]]:
    parts = [{"data": {"inputs": {input_id: value}}}]
    message = {"messageId": "m2", "role": "ROLE_USER", "taskId": task_id, "parts": parts}
    return "/rpc", {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}


Answer = Callable[[str, str, Any], tuple[str, dict[str, Any]]]
ADAPTERS: dict[str, tuple[Callable[..., Any], Answer]] = {
    "http": (api, answer_http),
    "agui": (agui, answer_agui),
    "ui_messages": (ui_stream, answer_ui),
    "openai": (openai_api, answer_openai),
    "a2a": (a2a, answer_a2a),
}


async def post(url: str, key: str, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    headers["authorization"] = f"Bearer {key}"
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client:
        return await client.post(path, json=body)


@pytest.mark.parametrize("name", ADAPTERS)
async def test_principal_cannot_approve_the_calls_of_its_runs(name: str) -> None:
    make_app, answer = ADAPTERS[name]
    log = MemoryEventLog()
    async with Runtime({"clerk": make_agent()}, log=log, grace=0.5) as runtime:
        app = make_app(runtime, auth=AUTH)
        async with serve_app(app) as url:
            task_id, input_id = await run_to_question(runtime)
            refused = await post(url, "ann-key", *answer(task_id, input_id, True), **{"a2a-version": "1.0"})
            assert "may not answer" in refused.text, refused.text
            assert "Principal" in refused.text
            # AG-UI reports errors as events.
            assert refused.status_code == (200 if name == "agui" else 403)
            assert paid == []
            # The question stays open, and somebody else can answer it.
            [pending] = await runtime.list_pending(owner="ann")
            assert [each.input_id for each in pending.inputs] == [input_id]
            await runtime.answer(task_id, {input_id: True})
            async for _ in runtime.follow(task_id):
                pass
            assert paid == [5]
            await app.drain(0.2)


@pytest.mark.parametrize("mode", ERAS)
async def test_principal_cannot_approve_the_calls_of_its_runs_over_mcp(mode: str) -> None:
    asked: Any = []
    async with (
        serve_mcp(make_agent(), auth=AUTH) as served,
        served.client(mode, asked.append, token="ann-key") as client,
    ):
        waiting = await client.call_tool("clerk", {"prompt": "Pay."})
        assert asked == []
        [pending] = await served.runtime.list_pending(owner="ann")
        assert pending.inputs[0].input_id in result_text(waiting)
        arguments = {"task_id": pending.record.task_id, "answers": {pending.inputs[0].input_id: True}}
        refused = await client.call_tool("continue_run", arguments)
        assert refused.is_error
        assert "may not answer" in result_text(refused)
        assert paid == []


async def start_over_http(url: str, key: str = "ann-key") -> dict[str, Any]:
    return (await post(url, key, "/runs?wait=10", {"input": "Go"})).json()


@pytest.mark.parametrize(
    ("turn", "allowed", "value"),
    [
        ("pay", {"boss-key", "admin-key"}, True),
        ("city", {"chat-key", "boss-key", "admin-key"}, "Oslo"),
        ("show", {"ann-key", "chat-key", "boss-key", "admin-key"}, "shown"),
        ("pay_secretly", {"admin-key"}, True),
    ],
)
async def test_principal_answers_only_the_permitted_kinds(turn: str, allowed: set[str], value: Any) -> None:
    arguments: dict[str, Any] = {"amount": 5} if turn.startswith("pay") else {}
    for key in ("ann-key", "chat-key", "boss-key", "admin-key"):
        paid.clear()
        async with Runtime({"clerk": make_agent(call(turn, **arguments), "Done.")}, log=MemoryEventLog()) as runtime:
            app = api(runtime, auth=AUTH)
            async with serve_app(app) as url:
                run = await start_over_http(url)
                [question] = run["pending"]
                answered = await post(url, key, *answer_http(run["taskId"], question["inputId"], value))
                assert answered.status_code == (202 if key in allowed else 403), (key, answered.text)
                assert key in allowed or paid == []
                await app.drain(0.2)


async def test_client_may_only_refuse_a_question_that_it_cannot_read() -> None:
    async with Runtime({"clerk": make_agent(call("pay_secretly", amount=5), "Done.")}, log=MemoryEventLog()) as runtime:
        app = api(runtime, auth=AUTH)
        async with serve_app(app) as url:
            run = await start_over_http(url)
            path, body = answer_http(run["taskId"], run["pending"][0]["inputId"], True)
            refused = await post(url, "boss-key", path, body)
            assert refused.status_code == 403
            assert "may only refuse" in refused.text
            path, body = answer_http(run["taskId"], run["pending"][0]["inputId"], False)
            assert (await post(url, "boss-key", f"{path}?wait=10", body)).json()["state"] == "completed"
            assert paid == []
            await app.drain(0.2)


@pytest.mark.parametrize("key", ["ann-key", "boss-key"])
async def test_answer_to_a_question_that_was_not_asked_yet_is_refused(key: str) -> None:
    released = asyncio.Event()

    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    @tool
    async def wait() -> str:
        """Wait."""
        await released.wait()
        return "waited"

    agent = Agent(ScriptedModel(call("wait"), call("pay", amount=5), "Done."), tools=[pay, wait], name="clerk")
    async with Runtime({"clerk": agent}, log=MemoryEventLog()) as runtime:
        app = api(runtime, auth=AUTH)
        async with serve_app(app) as url:
            run = (await post(url, "ann-key", "/runs", {"input": "Go"})).json()
            # Ids are deterministic, so a client can guess them.
            early = await post(url, key, *answer_http(run["taskId"], "2.0.1", True))
            assert early.status_code == 409
            released.set()
            async for event in runtime.follow(run["taskId"]):
                if event.kind == "input-required":
                    break
            assert paid == []
            await app.drain(0.2)


async def test_restricted_principal_reads_its_questions() -> None:
    async with Runtime({"clerk": make_agent()}, log=MemoryEventLog()) as runtime:
        app = api(runtime, auth=AUTH)
        async with serve_app(app) as url:
            run = await start_over_http(url)
            headers = {"authorization": "Bearer ann-key"}
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client:
                [listed] = (await client.get("/pending")).json()["runs"]
                assert listed["taskId"] == run["taskId"]
                assert listed["pending"] == run["pending"]
            await app.drain(0.2)


@pytest.mark.parametrize("answers", ["text", {"approval"}, 5])
def test_unknown_kinds_of_questions_are_rejected(answers: Any) -> None:
    with pytest.raises((ConfigurationError, TypeError), match=r"answers|iterable"):
        Principal("ann", answers=answers)
