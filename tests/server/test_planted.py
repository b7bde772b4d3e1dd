"""Secrets in all hidden parts of a run, which must be in no byte that the HTTP API sends."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from rxloop import MemoryEventLog
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
from rxloop.server.core.errors import refusal_of
from support.api_server import RunningApi, serve_api
from support.hidden_runs import RUNS, agent
from support.hidden_tools import MARK


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
async def test_hidden_content_is_in_no_byte_of_the_api(name: str) -> None:
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


async def test_client_tool_named_like_a_hidden_tool_is_refused_without_revealing_it() -> None:
    async with serve_api(agent("Hello.")) as served, make_client(served) as client:
        for name, words in ((f"peek_{MARK}", "the agent cannot do"), ("fail", "the tools cannot be used")):
            answer = await client.post("/runs", json={"input": "Look", "tools": [{"name": name}]})
            assert answer.status_code == 422
            assert (MARK in answer.text) is False
            assert words in answer.text


async def test_error_texts_are_not_sent_to_clients() -> None:
    errors = [InvalidInput, NotAsked, ConfigurationError, InvalidEvent, ContextBusy, RunOver, ConflictError, UnknownRun]
    for error in errors:
        refused = refusal_of(error(f"{MARK} is what is wrong"))
        assert refused is not None
        assert MARK not in str(refused)
