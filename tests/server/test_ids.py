"""Conversation ids, validated by the same rule in the library and in all adapters."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypercorn.asyncio import serve
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.routing import Mount

from rxloop import Agent, ConfigurationError, MemoryEventLog, Runtime
from rxloop.client import Client
from rxloop.protocol.ids import RULE, is_id
from rxloop.server import a2a, agui, api, mcp_server, openai_api, ui_stream
from rxloop.storage.folder_artifacts import FolderArtifacts
from rxloop.testing import ScriptedModel
from support.api_server import serve_app
from support.clients.mcp import McpEndpoint, result_text
from support.dropped_questions import LOGS, clerk, shared_logs

VALID_IDS = [
    "c",
    "ann@example.org",
    "team/ann",
    "/a//b/",
    "a/runs",
    "a/messages",
    "a/stream",
    "a/../b",
    "...",
    "a b",
    "50%",
    "a%2Fb",
    "q?x=1&y#z",
    "Grüße-日本-👩‍👩‍👧",
    "a\\b",
    "'\";--",
    "{id}",
    "x" * 255,
]
INVALID_IDS: list[Any] = [
    "",
    ".",
    "..",
    " a",
    "a ",
    "\u00a0a",
    "a\nb",
    "a\x00b",
    "a\x7fb",
    "a\u2028b",
    "\x85",
    "x" * 256,
]


class Site:
    """Server of all adapters."""

    def __init__(self, url: str, runtime: Runtime, mcp: McpEndpoint) -> None:
        self.url, self.runtime, self.mcp = url, runtime, mcp
        self.http = httpx.AsyncClient(base_url=url, timeout=30)

    async def start(self, adapter: str, context_id: str) -> httpx.Response:
        prompt = "Refund A1"
        match adapter:
            case "http":
                return await self.http.post("/runs?wait=20", json={"input": prompt, "contextId": context_id})
            case "ui":
                message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": prompt}]}
                return await self.http.post("/ui/api/chat", json={"id": context_id, "messages": [message]})
            case "agui":
                message = {"id": "m1", "role": "user", "content": prompt}
                body = {"threadId": context_id, "runId": context_id, "messages": [message]}
                return await self.http.post("/agui/", json=body)
            case "completions":
                message = {"role": "user", "content": "Hello."}
                body = {"model": "clerk", "messages": [message], "metadata": {"context_id": context_id}}
                return await self.http.post("/openai/v1/chat/completions", json=body)
            case "responses":
                body = {"model": "clerk", "input": prompt, "conversation": context_id}
                return await self.http.post("/openai/v1/responses", json=body)
            case _:
                message = {"messageId": "m1", "role": "ROLE_USER", "contextId": context_id, "parts": [{"text": prompt}]}
                body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
                return await self.http.post("/a2a/rpc", json=body, headers={"a2a-version": "1.0"})


@pytest.fixture(params=LOGS)
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Site]:
    async with AsyncExitStack() as stack:
        make = await stack.enter_async_context(shared_logs(request.param, tmp_path, request))
        agent = clerk()
        runtime = await stack.enter_async_context(Runtime({"clerk": agent}, log=make(), grace=0.3))
        mcp = mcp_server(runtime)
        mounts = [
            Mount("/agui", agui(runtime)),
            Mount("/ui", ui_stream(runtime)),
            Mount("/openai", openai_api(runtime)),
            Mount("/a2a", a2a(runtime)),
            Mount("/", api(runtime)),
        ]
        url = await stack.enter_async_context(serve_app(Starlette(routes=mounts)))
        site = Site(url, runtime, McpEndpoint(await stack.enter_async_context(serve_app(mcp)), mcp, runtime))
        yield site
        await site.http.aclose()
        await mcp.drain(0.2)
        await agent.aclose()


ADAPTERS = ["http", "ui", "agui", "completions", "responses", "a2a"]


# P23
@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_run_started_by_one_adapter_can_be_addressed_by_all(site: Site, adapter: str) -> None:
    for context_id in VALID_IDS:
        answer = await site.start(adapter, context_id)
        assert answer.status_code in (200, 202), (context_id, answer.text)
        assert "RUN_ERROR" not in answer.text
        [record] = await site.runtime.log.list_runs(context_id=context_id)

        async with Client(site.url) as client:
            page = await client.runs(context_id=context_id)
            assert [run.task_id for run in page.runs] == [record.task_id]
            messages = await client.messages(context_id)
            assert messages[0].role == "user"
        query = (await site.http.get("/runs", params={"contextId": context_id})).json()
        assert [run["taskId"] for run in query["runs"]] == [record.task_id]

        encoded = quote(context_id, safe="")
        page_messages = (await site.http.get(f"/ui/api/chat/{encoded}")).json()
        assert [message["role"] for message in page_messages] == ["user", "assistant"], context_id
        assert (await site.http.get(f"/ui/api/chat/{encoded}/stream")).status_code == 204
        body = {"threadId": context_id, "runId": "r", "messages": []}
        connected = await site.http.post("/agui/connect", json=body)
        assert record.task_id in connected.text, context_id
        listed = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"contextId": context_id}}
        tasks = (await site.http.post("/a2a/rpc", json=listed, headers={"a2a-version": "1.0"})).json()
        assert [task["contextId"] for task in tasks["result"]["tasks"]] == [context_id]

        if record.state == "input-required":
            assert (await site.http.post(f"/ui/api/chat/{encoded}/stop")).status_code == 204
            assert (await site.runtime.get_record(record.task_id)).state == "canceled"
    assert [each["contextId"] for each in (await site.http.get("/contexts?limit=100")).json()["contexts"]] == VALID_IDS[
        ::-1
    ]


# P23
async def test_answer_reaches_conversations_with_any_valid_id(site: Site) -> None:
    for context_id in VALID_IDS:
        await site.start("http", context_id)
        [record] = await site.runtime.log.list_runs(context_id=context_id)
        approval = {"id": f"{record.task_id}:1.0.1", "approved": True}
        part = {"type": "dynamic-tool", "toolName": "refund", "toolCallId": "x", "state": "approval-responded"}
        message = {"id": record.task_id, "role": "assistant", "parts": [{**part, "approval": approval}]}
        body = {"id": context_id, "messages": [message], "messageId": record.task_id}
        answer = await site.http.post("/ui/api/chat", json=body)
        assert (answer.status_code, "[DONE]" in answer.text) == (200, True), context_id
        async with site.mcp.client("legacy") as client:
            result = await client.call_tool("clerk", {"prompt": "Hello.", "context_id": context_id})
        assert "Fine." in result_text(result)
        assert len(await site.runtime.log.list_runs(context_id=context_id)) == 2


# P23
@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_invalid_id_is_refused_by_every_adapter_with_the_same_message(site: Site, adapter: str) -> None:
    for context_id in INVALID_IDS:
        if context_id == "" and adapter == "a2a":
            # In A2A, an empty id means a new conversation.
            continue
        answer = await site.start(adapter, context_id)
        answer_text = answer.text.replace("\\u0027", "'")
        assert RULE in answer_text, (context_id, answer_text)
        assert "Choose another id" in answer_text
        if adapter == "agui":
            assert "RUN_ERROR" in answer_text
        elif adapter == "a2a":
            assert answer.json()["error"]["code"] == -32602
        else:
            assert answer.status_code in (400, 422), context_id
    assert list(await site.runtime.log.list_runs()) == []


# P23
async def test_invalid_id_is_refused_by_the_library() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("Hi."), log=log, name="clerk")
    async with Runtime({"clerk": agent}, log=log) as runtime:
        for context_id in [*INVALID_IDS, "\ud800", 5]:
            for start in (agent.run, agent.submit, lambda prompt, **more: runtime.start("clerk", prompt, **more)):
                with pytest.raises(ConfigurationError) as refused:
                    await start("Hi", context_id=context_id)  # pyright: ignore[reportArgumentType]
                assert f"context_id {RULE}, got " in str(refused.value)
                assert "Choose another id" in str(refused.value)
            assert not is_id(context_id)
    assert list(await log.list_runs()) == []


# P23
async def test_typed_client_raises_an_error_with_the_rule_for_ids(site: Site) -> None:
    async with Client(site.url) as client:
        with pytest.raises(ConfigurationError) as refused:
            await client.start("clerk", "Hi", context_id="..")
    assert RULE in str(refused.value)


# P23
async def test_ids_with_slashes_can_be_addressed_under_hypercorn() -> None:
    runtime = Runtime({"a": Agent(ScriptedModel(*["Hello."] * 30))}, log=MemoryEventLog(), grace=0.2)
    app: Any = Starlette(routes=[Mount("/deep/ui", ui_stream(runtime)), Mount("/deep", api(runtime))])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.accesslog = None
    stop = asyncio.Event()
    async with runtime:
        server = asyncio.create_task(serve(app, config, shutdown_trigger=stop.wait))
        async with Client(f"http://127.0.0.1:{port}/deep", retries=20) as client, httpx.AsyncClient() as http:
            for context_id in VALID_IDS:
                run = await client.start("a", "Hi", context_id=context_id, wait=10)
                assert [each.task_id for each in (await client.runs(context_id=context_id)).runs] == [run.task_id]
                assert len(await client.messages(context_id)) == 2
                url = f"http://127.0.0.1:{port}/deep/ui/api/chat/{quote(context_id, safe='')}"
                assert len((await http.get(url)).json()) == 2
            # The AI SDK does not encode slashes in the URL.
            assert (await http.get(f"http://127.0.0.1:{port}/deep/ui/api/chat/team/ann/stream")).status_code == 204
            assert len((await http.get(f"http://127.0.0.1:{port}/deep/ui/api/chat/team/ann")).json()) == 2
        stop.set()
        await server


# P23
async def test_ids_cannot_escape_the_artifact_folder(tmp_path: Path) -> None:
    store = FolderArtifacts(tmp_path / "artifacts")
    for context_id in [*VALID_IDS, ".", ".."]:
        await store.create(context_id, "a", name="n", media_type="text/plain", override=False, key="k", now=1)
        assert [each.artifact_id for each in await store.list(context_id)] == ["a"]
    assert [each.name for each in tmp_path.iterdir()] == ["artifacts"]
    assert len(list((tmp_path / "artifacts").iterdir())) >= len(VALID_IDS)
    await store.aclose()
