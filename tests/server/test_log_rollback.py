"""HTTP event streams after a log rollback."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from rxloop import Agent, Event, GapEvent, SqliteEventLog
from rxloop.client import Client
from rxloop.protocol.ids import make_conversation_key
from rxloop.testing import ScriptedModel
from rxloop.testing.event_log_contract.toolkit import SECONDS, end, note, status, task
from support.api_server import make_client, serve_api
from support.postgres.snapshots import SqliteSnapshot


class Recorder:
    """Events received by a reader."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._more = asyncio.Event()

    def add(self, event: Event) -> None:
        self.events.append(event)
        self._more.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(SECONDS):
            while len(self.events) < count:
                self._more.clear()
                await self._more.wait()

    @property
    def numbers(self) -> list[Any]:
        return [event.reason if isinstance(event, GapEvent) else event.seq for event in self.events]


async def read_like_browser(client: httpx.AsyncClient, recorder: Recorder) -> str:
    """Read all server-sent events and return the last id."""
    last = ""
    async with client.stream("GET", "/runs/run/events") as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                recorder.add(Event.from_json(line.removeprefix("data: ").encode()))
            if line.startswith("id: "):
                last = line.removeprefix("id: ")
    return last


async def read_like_program(url: str, recorder: Recorder) -> None:
    async with Client(url, token="ann-key") as client:
        async for event in client.follow("run"):
            recorder.add(event)


async def test_clients_receive_the_run_again_over_the_same_connection_after_a_rollback(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    log, worker, copy = SqliteEventLog(path), SqliteEventLog(path), SqliteSnapshot(path)
    run: dict[str, Any] = {"task_id": "run", "context_id": "c"}
    assert await worker.acquire_lease(make_conversation_key("c", "ann"), "run", pytest.fail)
    await worker.append("run", [task(owner="ann", **run), status(2, "working", attempt=1, **run)], expected_seq=0)
    copy.take()
    await worker.append("run", [note(3, attempt=1, **run)], expected_seq=2)
    async with serve_api(Agent(ScriptedModel(), name="helper"), log=log) as served, make_client(served.url) as client:
        page, script = Recorder(), Recorder()
        reading = asyncio.create_task(read_like_browser(client, page))
        following = asyncio.create_task(read_like_program(served.url, script))
        await page.wait_for(3)
        await script.wait_for(3)
        copy.restore()
        # The rollback removed the first note, so the attempt repeats it differently.
        other = [note(3, data="other", attempt=1, **run), note(4, attempt=1, **run)]
        await worker.append("run", [*other, end(5, attempt=1, **run)], expected_seq=2)
        last, _ = await asyncio.wait_for(asyncio.gather(reading, following), SECONDS)
        again = await client.get("/runs/run/events", headers={"last-event-id": last})
    assert page.numbers == script.numbers == [1, 2, 3, "log-went-back", 1, 2, 3, 4, 5]
    assert again.status_code == 204
    await worker.aclose()
    await log.aclose()
