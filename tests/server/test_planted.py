"""A marker in everything of a run that is not for clients, and no such marker in any byte of the HTTP API."""

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


def client_of(served: RunningApi) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=served.url, headers={"authorization": "Bearer ann-key"}, timeout=30)


async def everything(client: httpx.AsyncClient, run: Any) -> str:
    """Every byte that the API has to say of a run, to whoever owns it."""
    path = f"/runs/{run['taskId']}"
    last = run["cursor"]
    asked = [
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
    answers = [await each for each in asked]
    assert all(each.status_code < 500 for each in answers)
    assert any(each.status_code == 200 and "task" in each.text for each in answers)
    return "".join(f"{each.headers!r}{each.text}" for each in answers)


@pytest.mark.parametrize("name", RUNS)
async def test_no_byte_of_the_api_has_what_is_not_for_clients(name: str) -> None:
    log = MemoryEventLog()
    async with serve_api(agent(*RUNS[name]), log=log) as served, client_of(served) as client:
        started = await client.post("/runs?wait=10", json={"input": "Look"})
        run = started.json()
        assert MARK.encode() in b"".join(event.to_json() for event in await log.read(run["taskId"]))
        said = started.text + await everything(client, run)
        if run.get("pending"):
            answer = {"inputs": {run["pending"][0]["inputId"]: "no"}}
            resumed = await client.post(f"/runs/{run['taskId']}/resume?wait=10", json=answer)
            assert resumed.json()["state"] == "completed"
            said += resumed.text + await everything(client, resumed.json())
    assert MARK not in said, said[max(said.index(MARK) - 400, 0) : said.index(MARK) + 40]


async def test_a_tool_that_is_called_like_a_hidden_one_is_refused_without_a_word_of_it() -> None:
    async with serve_api(agent("Hello.")) as served, client_of(served) as client:
        for name, words in ((f"peek_{MARK}", "the agent cannot do"), ("fail", "the tools cannot be used")):
            answer = await client.post("/runs", json={"input": "Look", "tools": [{"name": name}]})
            assert (answer.status_code, MARK in answer.text) == (422, False)
            assert words in answer.text


async def test_the_words_of_errors_are_for_the_log_of_the_server() -> None:
    errors = [InvalidInput, NotAsked, ConfigurationError, InvalidEvent, ContextBusy, RunOver, ConflictError, UnknownRun]
    for error in errors:
        refused = refusal_of(error(f"{MARK} is what is wrong"))
        assert refused is not None
        assert MARK not in str(refused)
