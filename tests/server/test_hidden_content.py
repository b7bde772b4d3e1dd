"""Hidden content of runs, which the HTTP API must not reveal to clients."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from rxloop import Agent, MemoryEventLog, Runtime
from rxloop.errors import (
    ConfigurationError,
    ConflictError,
    ContextBusy,
    InvalidEvent,
    InvalidInput,
    NotAsked,
    RunOver,
    UnknownRun,
)
from rxloop.server import agui, api, openai_api, ui_stream
from rxloop.server.core.errors import find_refusal
from rxloop.testing import ScriptedModel
from support.api_server import RunningApi, serve_api, serve_app
from support.hidden_runs import RUNS, agent
from support.hidden_tools import MARK, fail, peek


def make_client(served: RunningApi) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=served.url, headers={"authorization": "Bearer ann-key"}, timeout=30)


async def read_everything(client: httpx.AsyncClient, run: Any) -> str:
    """Return all data that the API sends about a run to its owner."""
    path = f"/runs/{run['taskId']}"
    last = run["cursor"]
    requests = [
        client.get(path),
        client.get("/runs"),
        client.get("/agents"),
        client.get("/contexts"),
        client.get(f"/contexts/{run['contextId']}/runs"),
        *(client.get(f"{path}/state{more}") for more in ("", "?seq=3", "?seq=6", "?visibility=all")),
        client.get("/openapi.json"),
        client.get("/me"),
        client.get(f"{path}/outline"),
        client.get(f"{path}/outline?visibility=all"),
        client.get(f"{path}/events?from=1"),
        client.get(f"{path}/problems"),
        client.get(f"{path}/search?q=e&limit=200"),
        client.get(f"/contexts/{run['contextId']}/messages"),
        *(client.get(f"{path}/graph?form={form}") for form in ("json", "mermaid", "html")),
        *(client.get(f"{path}/events?until=attempt{more}") for more in ("", "&speed=1000", "&kinds=llm-failed,task")),
        client.get(f"{path}/events?until=attempt", headers={"accept": "application/x-ndjson"}),
        client.get(f"{path}/events?until=attempt&after=elsewhere/1.1.0"),
        client.get(f"{path}/events?visibility=all"),
        client.get(f"{path}/events?until=attempt", headers={"last-event-id": last}),
        client.post(f"{path}/resume", json={"inputs": {"nobody": 1}}),
        client.post(f"{path}/resume", json={"inputs": {each["inputId"]: "maybe" for each in run.get("pending", [])}}),
        client.post(f"{path}/fork", json={"at": 4, "results": {"nobody": 1}}),
        client.post(f"{path}/fork", json={"at": 9_999}),
    ]
    answers = [await each for each in requests]
    assert all(each.status_code < 500 for each in answers)
    assert any(each.status_code == 200 and "task" in each.text for each in answers)
    return "".join(f"{each.headers!r}{each.text}" for each in answers)


@pytest.mark.parametrize("name", RUNS)
async def test_api_never_sends_hidden_content(name: str) -> None:
    log = MemoryEventLog()
    async with serve_api(agent(*RUNS[name]), log=log) as served, make_client(served) as client:
        started = await client.post("/runs?wait=10", json={"input": "Look"})
        run = started.json()
        assert MARK.encode() in b"".join(event.to_json() for event in await log.read(run["taskId"]))
        output = started.text + await read_everything(client, run)
        if run.get("pending"):
            answer = {"inputs": {run["pending"][0]["inputId"]: "no"}}
            resumed = await client.post(f"/runs/{run['taskId']}/resume?wait=10", json=answer)
            assert resumed.json()["state"] == "completed"
            output += resumed.text + await read_everything(client, resumed.json())
    assert MARK not in output, output[max(output.index(MARK) - 400, 0) : output.index(MARK) + 40]


OBJECT = {"type": "object", "properties": {}}


def make_requests(name: str) -> dict[str, tuple[Any, str, dict[str, Any]]]:
    """Return requests with a client tool of the given name, by adapter."""
    message = {"id": "m", "role": "user", "content": "Look"}
    function = {"type": "function", "name": name, "parameters": OBJECT}
    agui_tool = {"name": name, "description": "", "parameters": OBJECT}
    ui_message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "Look"}]}
    run = {"threadId": "t", "runId": "r", "state": {}, "messages": [message], "context": [], "forwardedProps": {}}
    return {
        "http": (api, "/runs?wait=10", {"input": "Look", "tools": [{"name": name}]}),
        "agui": (agui, "/", {**run, "tools": [agui_tool]}),
        "ui_stream": (ui_stream, "/api/chat", {"id": "c", "messages": [ui_message], "tools": [{"name": name}]}),
        "responses": (openai_api, "/v1/responses", {"model": "clerk", "input": "Look", "tools": [function]}),
    }


async def send(kind: str, name: str) -> tuple[int, str, Any]:
    """Return the status, the response without random parts, and the tools offered to the model."""
    make, path, body = make_requests(name)[kind]
    model = ScriptedModel("Hello.")
    clerk: Agent[Any, Any] = Agent(model, tools=[peek, fail], name="clerk")
    async with Runtime({"clerk": clerk}, log=MemoryEventLog(), grace=0.2) as runtime:
        async with serve_app(make(runtime)) as url, httpx.AsyncClient(base_url=url, timeout=20) as http:
            headers = {"accept": "application/json, text/event-stream"}
            response = await http.post(path, json=body, headers=headers)
    text = re.sub(r'("firstToken"|"longestSilence"):[\d.e-]+', r"\1:*", response.text)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[\d:.]+Z|\d{10,}", "*", text).replace(name, "NAME")
    return response.status_code, text, [each.name for request in model.requests for each in request.tools]


@pytest.mark.parametrize("kind", make_requests(""))
async def test_client_tool_named_like_a_hidden_tool_looks_like_any_other(kind: str) -> None:
    hidden, free = await send(kind, peek.definition.name), await send(kind, f"seek_{MARK}")
    assert hidden[:2] == free[:2]
    assert hidden[0] == 200
    assert "Hello." in hidden[1]
    assert len(hidden[2]) == len(free[2])
    # The hidden tool is not replaced.
    assert hidden[2].count(peek.definition.name) == 1


async def test_client_tool_named_like_a_public_tool_is_refused() -> None:
    async with serve_api(agent("Hello.")) as served, make_client(served) as client:
        answer = await client.post("/runs", json={"input": "Look", "tools": [{"name": "fail"}]})
        assert answer.status_code == 422
        assert "the tools are invalid" in answer.text


async def test_error_texts_are_not_sent_to_clients() -> None:
    errors = [InvalidInput, NotAsked, ConfigurationError, InvalidEvent, ContextBusy, RunOver, ConflictError, UnknownRun]
    for error in errors:
        refused = find_refusal(error(f"error with {MARK}"))
        assert refused is not None
        assert MARK not in str(refused)
