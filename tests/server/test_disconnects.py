"""Clients that disconnect while the server computes their response."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, StatusUpdateEvent, TaskEvent
from rxloop.protocol.events import CustomEvent, Event
from rxloop.protocol.messages import Message, Usage
from rxloop.server.core import computations
from rxloop.server.core.computations import WholeRuns
from rxloop.server.core.request_slots import _REQUEST
from rxloop.server.http.inspection import Outlines
from rxloop.testing import ScriptedModel
from support.api_server import RawConnection, make_client, serve_api

EVENTS = 1_000


async def store_run(log: MemoryEventLog, task_id: str) -> None:
    """Store a run with several chunks of events."""
    envelope: dict[str, Any] = {"task_id": task_id, "context_id": task_id, "attempt": 1, "timestamp": 0}
    task = TaskEvent(seq=1, messages=[Message.user("Hi")], model="m", agent_name="clerk", owner="ann", **envelope)
    events: list[Event] = [task, StatusUpdateEvent(seq=2, state="working", **envelope)]
    events += [CustomEvent(seq=seq, name="page", data="hay", **envelope) for seq in range(3, EVENTS)]
    end: dict[str, Any] = {"state": "completed", "final": True, "usage": Usage(), **envelope}
    await log.append(task_id, [*events, StatusUpdateEvent(seq=EVENTS, **end)], expected_seq=0)


async def wait_until_disconnected() -> None:
    request = _REQUEST.get()
    assert request is not None
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def request_and_disconnect(url: str, path: str, computing: asyncio.Event) -> None:
    connection = await RawConnection.connect(url)
    connection.writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ann-key\r\n\r\n".encode())
    await computing.wait()
    await connection.close()


@pytest.mark.parametrize(
    "path",
    [
        "/runs/one/outline",
        "/runs/one/requests",
        "/runs/one/problems",
        "/runs/one/search?q=needle",
        "/runs/one/diff?with=two",
        "/runs/one/export",
        "/runs?q=needle",
        "/runs?details=true",
        "/problems",
        "/search?q=needle",
    ],
)
async def test_work_ends_when_the_client_disconnects(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log, computing, calls = MemoryEventLog(), asyncio.Event(), 0
    for task_id in ("one", "two"):
        await store_run(log, task_id)
    methods: dict[type[Any], Any] = {each: each.compute for each in (Outlines, WholeRuns)}

    async def watch(self: Outlines | WholeRuns, function: Any) -> Any:
        nonlocal calls
        calls += 1
        result = await methods[type(self)](self, function)
        computing.set()
        await wait_until_disconnected()
        return result

    async with serve_api(Agent(ScriptedModel("Hi."), name="clerk"), log=log) as served:
        with monkeypatch.context() as patch:
            for each in methods:
                patch.setattr(each, "compute", watch)
            await request_and_disconnect(served.url, path, computing)
            await served.gateway._closed.wait()
        assert calls == 2
        async with make_client(served.url) as ann:
            assert (await ann.get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/runs/one/state", "/runs/one/graph"])
async def test_fold_ends_when_the_client_disconnects(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log, computing, calls = MemoryEventLog(), asyncio.Event(), 0
    await store_run(log, "one")

    async def watch(function: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        computing.set()
        await wait_until_disconnected()
        return function()

    async with serve_api(Agent(ScriptedModel("Hi."), name="clerk"), log=log) as served:
        with monkeypatch.context() as patch:
            patch.setattr(computations, "run_in_thread", watch)
            await request_and_disconnect(served.url, path, computing)
            await served.gateway._closed.wait()
        # The second part of the run is not folded.
        assert calls == 1
        async with make_client(served.url) as ann:
            assert (await ann.get(path)).status_code == 200
