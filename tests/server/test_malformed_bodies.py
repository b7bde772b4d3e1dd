"""Malformed bodies are errors of the client, in every POST route of every adapter."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from starlette.routing import Route

from rxloop import Agent, MemoryEventLog, Runtime, client_tool, op, tool
from rxloop.server import Principal, PushOptions, a2a, agui, api, mcp_server, openai_api, ui_stream
from rxloop.testing import ScriptedModel, call, turn
from support.asgi_client import Answer, send_request
from support.malformed_bodies import replace_each_value

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}}, "required": ["a"]}
TOOL = {"name": "map", "description": "d", "parameters": SCHEMA}
PICTURE = "https://e.org/a.png"

RUN = {
    "type": "prompt",
    "input": [
        {
            "content": [
                {"type": "text", "text": "Hi"},
                {"type": "image", "url": PICTURE, "mediaType": "image/png"},
                {"type": "file", "data": "aGk=", "mediaType": "text/plain"},
            ],
            "messageId": "m",
        }
    ],
    "agent": "clerk",
    "contextId": "c",
    "whenBusy": "wait",
    "tools": [TOOL],
    "settings": {"temperature": 1, "topP": 1, "maxTokens": 5, "seed": 1, "stop": ["x"], "reasoningEffort": "low"},
    "metadata": {"a": {"b": 1}},
}

AGUI_RUN = {
    "threadId": "t",
    "runId": "r",
    "parentRunId": "p",
    "state": {"a": 1},
    "messages": [
        {"id": "a", "role": "assistant", "content": "x", "toolCalls": [
            {"id": "c", "type": "function", "function": {"name": "map", "arguments": "{}"}}
        ]},
        {"id": "q", "role": "tool", "content": "1", "toolCallId": "c", "error": "e"},
        {"id": "m", "role": "user", "name": "n", "content": [
            {"type": "text", "text": "Hi"},
            {"type": "image", "source": {"type": "url", "value": PICTURE, "mimeType": "image/png"}},
            {"type": "document", "source": {"type": "data", "value": "aGk=", "mimeType": "text/plain"}},
        ]},
    ],
    "tools": [TOOL],
    "context": [{"description": "d", "value": "v"}],
    "forwardedProps": {"a": 1},
}  # fmt: skip
AGUI_ANSWER = {
    "threadId": "talk",
    "runId": "r",
    "state": {},
    "tools": [],
    "context": [],
    "forwardedProps": {},
    "messages": [{"id": "q", "role": "tool", "content": "{}", "toolCallId": "RUN:1:1", "error": "e"}],
    "resume": [{"interruptId": "RUN:1.0.1", "status": "resolved", "payload": True}],
}

UI_MESSAGE = {
    "id": "c",
    "messages": [
        {"id": "m", "role": "user", "metadata": {"a": 1}, "parts": [
            {"type": "text", "text": "Hi"},
            {"type": "file", "mediaType": "image/png", "url": PICTURE, "filename": "a.png"},
        ]}
    ],
    "trigger": "submit-message",
    "messageId": "m",
    "agent": "clerk",
    "tools": [TOOL],
    "metadata": {"a": 1},
}  # fmt: skip
UI_ANSWER = {
    "id": "talk",
    "messages": [
        {"id": "RUN", "role": "assistant", "metadata": {"rxloop": {"cursor": "RUN/1.3.0"}}, "parts": [
            {"type": "tool-pay", "toolCallId": "RUN:1:0", "state": "approval-responded",
             "approval": {"id": "RUN:1.0.1", "approved": True, "reason": "ok"}},
            {"type": "tool-page", "toolCallId": "RUN:1:1", "state": "output-available", "output": {"a": 1},
             "errorText": "e", "providerExecuted": False},
        ]}
    ],
    "inputs": {"1.0.1": True},
}  # fmt: skip

COMPLETION = {
    "model": "clerk",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [
            {"type": "text", "text": "Hi"},
            {"type": "image_url", "image_url": {"url": PICTURE, "detail": "auto"}},
            {"type": "file", "file": {"file_data": "data:text/plain;base64,aGk=", "filename": "f"}},
        ]},
        {"role": "assistant", "content": "x", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "map", "arguments": "{}"}}
        ]},
        {"role": "user", "content": "Hi"},
    ],
    "metadata": {"a": "b"},
    "stream": False,
    "stream_options": {"include_usage": True},
    "n": 1,
    "response_format": {"type": "text"},
    "temperature": 1,
}  # fmt: skip
RESPONSE = {
    "model": "clerk",
    "input": [
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "Hi"},
            {"type": "input_image", "image_url": PICTURE},
            {"type": "input_file", "file_url": "https://e.org/a.pdf", "filename": "a.pdf"},
        ]},
        {"type": "function_call", "call_id": "c", "name": "map", "arguments": "{}"},
    ],
    "instructions": "i",
    "metadata": {"a": "b"},
    "stream": False,
    "background": False,
    "conversation": {"id": "c9"},
    "tools": [{"type": "function", "name": "map", "description": "d", "parameters": SCHEMA, "strict": False}],
    "tool_choice": "auto",
    "text": {"format": {"type": "text"}},
}  # fmt: skip
RESPONSE_ANSWER = {
    "model": "clerk",
    "previous_response_id": "RUN",
    "input": [
        {"type": "function_call_output", "call_id": "RUN:1:1", "output": [{"type": "input_text", "text": "1"}]},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_RUN:1.0.1", "approve": True, "reason": "r"},
    ],
}

HOOK = {
    "id": "p",
    "url": "http://127.0.0.1:9/",
    "token": "t",
    "authentication": {"scheme": "Bearer", "credentials": "c"},
}
A2A_MESSAGE = {
    "message": {
        "messageId": "m",
        "contextId": "c",
        "role": "ROLE_USER",
        "parts": [
            {"text": "Hi", "metadata": {"a": 1}, "mediaType": "text/plain"},
            {"data": {"a": [1]}},
            {"raw": "aGk=", "mediaType": "text/plain", "filename": "f"},
            {"url": PICTURE, "mediaType": "image/png"},
        ],
        "metadata": {"a": 1},
        "extensions": ["x"],
        "referenceTaskIds": ["t"],
    },
    "configuration": {"acceptedOutputModes": ["text/plain"], "historyLength": 1, "taskPushNotificationConfig": HOOK},
    "metadata": {"a": 1},
}
A2A_ANSWER = {
    "message": {
        "messageId": "m",
        "contextId": "talk",
        "taskId": "RUN",
        "role": "ROLE_USER",
        "parts": [{"data": {"inputs": {"1.0.1": True, "1.1.1": {"a": 1}}}}],
    }
}
A2A_QUERY = {"contextId": "c", "status": "TASK_STATE_WORKING", "pageSize": 1, "pageToken": "", "historyLength": 1}

MCP_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
MCP_INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"sampling": {}, "elicitation": {}},
    "clientInfo": {"name": "x", "version": "1"},
}


def rpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


class Case(NamedTuple):
    """POST route and a valid body. `RUN` in both is the id of a run with two open questions."""

    make: Callable[..., Any]
    route: str
    body: dict[str, Any]
    leaves: bool = False
    """Whether the client disconnects at once, because the response does not end before the run."""

    def __str__(self) -> str:
        return f"{self.make.__name__} {self.route} {self.body.get('method', '')}".strip()


CASES = [
    Case(api, "/runs", RUN),
    Case(api, "/runs/{task_id}/resume", {"type": "resume", "inputs": {"1.0.1": True, "1.1.1": {"a": 1}}}),
    Case(api, "/runs/{task_id}/say", {"input": "Hi", "interrupt": True}),
    Case(api, "/runs/{task_id}/goals", {"changes": [{"id": "g", "title": "G", "dependsOn": []}]}),
    Case(api, "/runs/{task_id}/cancel", {"reason": "r"}),
    Case(api, "/runs/{task_id}/case", {"expected": "x"}),
    Case(api, "/runs/{task_id}/fork", {"at": 3, "input": "Hi", "results": {}}),
    Case(agui, "/", AGUI_RUN),
    Case(agui, "/", AGUI_ANSWER),
    Case(agui, "/connect", AGUI_RUN),
    Case(ui_stream, "/api/chat", UI_MESSAGE),
    Case(ui_stream, "/api/chat", UI_ANSWER),
    Case(ui_stream, "/api/chat/{chat_id:rxloop_id}/stop", {}),
    Case(openai_api, "/v1/chat/completions", COMPLETION),
    Case(openai_api, "/v1/responses", RESPONSE),
    Case(openai_api, "/v1/responses", RESPONSE_ANSWER),
    Case(openai_api, "/v1/responses/{response_id}/cancel", {}),
    Case(openai_api, "/v1/conversations", {"items": [], "metadata": {"a": "b"}}),
    Case(a2a, "/message:send", A2A_MESSAGE),
    Case(a2a, "/message:send", A2A_ANSWER),
    Case(a2a, "/message:stream", A2A_MESSAGE),
    Case(a2a, "/tasks/{id}:cancel", {"metadata": {"a": 1}}),
    Case(a2a, "/tasks/{id}:subscribe", {}, leaves=True),
    Case(a2a, "/tasks/{id}/pushNotificationConfigs", HOOK),
    Case(a2a, "/rpc", rpc("SendMessage", A2A_MESSAGE)),
    Case(a2a, "/rpc", rpc("SendMessage", A2A_ANSWER)),
    Case(a2a, "/rpc", rpc("SendStreamingMessage", A2A_ANSWER)),
    Case(a2a, "/rpc", rpc("GetTask", {"id": "RUN", "historyLength": 1})),
    Case(a2a, "/rpc", rpc("ListTasks", A2A_QUERY)),
    Case(a2a, "/rpc", rpc("CancelTask", {"id": "RUN", "metadata": {"a": 1}})),
    Case(a2a, "/rpc", rpc("SubscribeToTask", {"id": "RUN"}), leaves=True),
    Case(a2a, "/rpc", rpc("CreateTaskPushNotificationConfig", {"taskId": "RUN", **HOOK})),
    Case(a2a, "/rpc", rpc("DeleteTaskPushNotificationConfig", {"taskId": "RUN", "id": "p"})),
    Case(a2a, "/rpc/", rpc("ListTaskPushNotificationConfigs", {"taskId": "RUN", "pageSize": 1})),
    Case(mcp_server, "/mcp", rpc("initialize", MCP_INITIALIZE)),
    Case(mcp_server, "/mcp", rpc("tools/call", {"name": "clerk", "arguments": {"prompt": "Hi"}, "_meta": MCP_META})),
    Case(mcp_server, "/mcp", rpc("tools/list", {"cursor": "x", "_meta": MCP_META})),
    Case(mcp_server, "/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized", "params": {"_meta": MCP_META}}),
]
"""Every POST route of every adapter, with the operations of those that have several."""


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def answer(request: Any) -> Any:
    """Ask two questions about "Pay", and answer everything else."""
    if request.messages[-1].role == "user" and request.messages[-1].text == "Pay":
        return turn("x", calls=[call("pay", amount=5), call("page", a="x")])
    return "Hello."


OPTIONS: dict[Callable[..., Any], dict[str, Any]] = {
    api: {"settings": ("temperature", "top_p", "max_tokens", "seed", "stop", "reasoning_effort")},
    a2a: {"push": PushOptions(allow_private=True)},
}


class Server:
    """Adapter without a network, which replaces `RUN` in requests by the id of a waiting run."""

    def __init__(self, app: Any, runtime: Runtime, case: Case) -> None:
        self._app, self._runtime, self._case = app, runtime, case
        self._task_id = ""

    async def post(self, body: bytes, **changes: str) -> Answer:
        route = self._case.route
        if "{" in route or b"RUN" in body:
            await self._make_waiting_run()
        for parameter in ("{task_id}", "{response_id}", "{id}"):
            route = route.replace(parameter, self._task_id)
        headers = {"content-type": "application/json", "a2a-version": "1.0", "accept": "application/json", **changes}
        if self._case.make is mcp_server:
            method = self._case.body["method"]
            headers["accept"] = "application/json, text/event-stream"
            if method != "initialize":
                headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": method, "mcp-name": "clerk"}
        path = route.replace("{chat_id:rxloop_id}", "talk")
        body = body.replace(b"RUN", self._task_id.encode())
        async with asyncio.timeout(20):
            return await send_request(self._app, path, body, headers, leaves=self._case.leaves)

    async def _make_waiting_run(self) -> None:
        if self._task_id and (await self._runtime.get_record(self._task_id)).state == "input-required":
            return
        self._task_id = (await self._runtime.start("clerk", "Pay", context_id="talk")).task_id
        async for _ in self._runtime.follow(self._task_id).pipe(op.until_final()):
            pass


@asynccontextmanager
async def serve(case: Case) -> AsyncGenerator[Server]:
    page = client_tool("page", SCHEMA, description="Show a page.")
    agent = Agent(ScriptedModel(*[answer] * 5_000), tools=[pay, page], name="clerk")
    options = OPTIONS.get(case.make, {})
    with TemporaryDirectory() as folder:
        if case.route.endswith("/case"):
            writer = Principal("", frozenset({"others", "cases"}))
            options = options | {"auth": lambda _: writer, "cases": Path(folder, "cases.jsonl")}
        async with start(case, agent, options) as server:
            yield server
    await agent.aclose()


@asynccontextmanager
async def start(case: Case, agent: Agent[Any, Any], options: dict[str, Any]) -> AsyncGenerator[Server]:
    async with Runtime({"clerk": agent}, log=MemoryEventLog(), grace=0.2) as runtime:
        app = case.make(runtime, **options)
        async with app._app.router.lifespan_context(app._app):
            yield Server(app, runtime, case)
            await app.drain(0.2)


def check(answer: Answer, name: str, caplog: pytest.LogCaptureFixture) -> None:
    errors = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert not errors, (name, errors[0].getMessage(), errors[0].exc_text)
    assert 100 < answer.status < 500, (name, answer)
    # JSON-RPC and event streams report errors in the body.
    assert "-32603" not in answer.text, (name, answer)
    assert "internal server error" not in answer.text, (name, answer)


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_malformed_body_is_no_server_error(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with serve(case) as server:
        for name, body in replace_each_value(case.body):
            check(await server.post(body), name, caplog)


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_wrong_content_type_is_no_server_error(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    valid = json.dumps(case.body).encode()
    async with serve(case) as server:
        for media_type in (
            "",
            "text/plain",
            "application/json; charset=utf-16",
            "multipart/form-data",
            "\xff",
            "a" * 9_000,
        ):
            for body in (valid, b"", b"\xff\xfe"):
                check(await server.post(body, **{"content-type": media_type}), media_type, caplog)


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_original_body_is_valid(case: Case) -> None:
    async with serve(case) as server:
        answer = await server.post(json.dumps(case.body).encode())
    assert 200 <= answer.status < 300, answer
    assert not answer.text.startswith('{"error"')
    assert "RUN_ERROR" not in answer.text


@pytest.mark.parametrize("make", [api, agui, ui_stream, openai_api, a2a, mcp_server])
def test_cases_contain_every_post_route(make: Callable[..., Any]) -> None:
    runtime = Runtime({"clerk": Agent(ScriptedModel("Hi."), name="clerk")}, log=MemoryEventLog())
    app = make(runtime)
    routes = {
        each.path
        for each in app._app.routes
        if not isinstance(each, Route) or each.methods is None or "POST" in each.methods
    }
    assert routes == {case.route for case in CASES if case.make is make}
