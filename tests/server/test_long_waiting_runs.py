"""Long runs that wait for an answer, which are continued without blocking the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from rxloop import Agent, CustomEvent, Event, LLMCallEvent, RunContext, RunRecord, Runtime, SqliteEventLog, tool
from rxloop.protocol.events import WAITING, ToolCompleteEvent
from rxloop.server import a2a, agui, api
from rxloop.server.a2a.task_fold import TaskFold
from rxloop.server.core.chat_fold import ChatFold
from rxloop.testing import ScriptedModel, call
from support.api_server import serve_app
from support.dropped_questions import wait_until_idle
from support.long_runs import Turns, count_turns

A2A = {"A2A-Version": "1.0"}
MAX_STEPS = 1_000
"""Maximum number of steps without running other tasks: up to four for each of 200 events."""


@tool
async def search(ctx: RunContext, page: int) -> str:
    """Search a page."""
    for number in range(10):
        ctx.emit(CustomEvent(name="hit", data={"page": page, "number": number}))
    return "found"


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return "paid"


def make_clerk(*turns: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), name="clerk", tools=[search, pay], thoughts=False)


async def _subscribe(http: httpx.AsyncClient, record: RunRecord) -> None:
    async with http.stream("POST", f"/a2a/tasks/{record.task_id}:subscribe", headers=A2A) as response:
        async for line in response.aiter_lines():
            if line:
                assert record.task_id in line
                return


async def _send(http: httpx.AsyncClient, record: RunRecord) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "taskId": record.task_id, "parts": [{"text": "yes"}]}
    response = await http.post("/a2a/message:send", json={"message": message}, headers=A2A)
    assert response.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED", response.text


async def _get_question(http: httpx.AsyncClient, record: RunRecord) -> str:
    return (await http.get(f"/runs/{record.task_id}")).json()["pending"][0]["inputId"]


async def _resume(http: httpx.AsyncClient, record: RunRecord) -> None:
    inputs = {await _get_question(http, record): True}
    response = await http.post(f"/runs/{record.task_id}/resume?wait=20", json={"inputs": inputs})
    assert response.json()["state"] == "completed", response.text


async def _resume_agui(http: httpx.AsyncClient, record: RunRecord) -> None:
    body: dict[str, Any] = {"threadId": "c", "runId": "r", "messages": [], "state": {}, "tools": [], "context": []}
    connected = await http.post("/agui/connect", json={**body, "forwardedProps": {}})
    last = orjson.loads(connected.text.strip().rpartition("data: ")[2])
    answer = {"interruptId": last["outcome"]["interrupts"][0]["id"], "status": "resolved", "payload": True}
    response = await http.post("/agui/", json={**body, "forwardedProps": {}, "resume": [answer]})
    assert "RUN_FINISHED" in response.text, response.text


async def _cancel(http: httpx.AsyncClient, record: RunRecord) -> None:
    response = await http.post(f"/runs/{record.task_id}/cancel", json={})
    assert response.json()["state"] == "canceled", response.text


ACTIONS: dict[str, Callable[[httpx.AsyncClient, RunRecord], Awaitable[None]]] = {
    "subscribe": _subscribe,
    "send": _send,
    "resume": _resume,
    "resume_agui": _resume_agui,
    "cancel": _cancel,
}


def watch_events(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the events that are parsed, folded, filtered or freed."""
    parse: Any = Event.from_json

    def from_json(cls: type[Event], data: bytes) -> Event:
        turns.count_item()
        event = parse(data)
        vars(event)["_parsed"] = True
        return event

    def count_freed(event: Event) -> None:
        if "_parsed" in vars(event):
            turns.count_item()

    monkeypatch.setattr(Event, "from_json", classmethod(from_json))
    for kind in (CustomEvent, LLMCallEvent, ToolCompleteEvent):
        monkeypatch.setattr(kind, "__del__", count_freed, raising=False)
    monkeypatch.setattr(TaskFold, "add", turns.watch(TaskFold.add))
    monkeypatch.setattr(ChatFold, "take_public", turns.watch(ChatFold.take_public))
    # The package exports the view under the same name.
    module = import_module("rxloop.operators.views.after")
    monkeypatch.setattr(module, "trim_known", turns.watch(module.trim_known))


@pytest.mark.parametrize("name", ACTIONS)
async def test_long_waiting_run_is_continued_in_small_parts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = [[call("search", page=page) for page in range(10)] for _ in range(15)]
    clerk = make_clerk(*searches, call("pay", amount=1))
    async with Runtime({"clerk": clerk}, log=SqliteEventLog(tmp_path / "log")) as runtime:
        record = await wait_until_idle(runtime, await runtime.start("clerk", "Pay", context_id="c"))
    assert record.state in WAITING
    assert record.seq > 1_800
    clerk = make_clerk("Done.")
    async with Runtime({"clerk": clerk}, log=SqliteEventLog(tmp_path / "log"), grace=0.1) as runtime:
        app = Starlette(routes=[Mount("/agui", agui(runtime)), Mount("/a2a", a2a(runtime)), Mount("/", api(runtime))])
        async with serve_app(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
            async with count_turns() as turns:
                watch_events(turns, monkeypatch)
                await ACTIONS[name](http, record)
    await clerk.aclose()
    assert max(turns.items.values(), default=0) <= MAX_STEPS
