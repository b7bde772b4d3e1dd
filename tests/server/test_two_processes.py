"""Two server processes with the same event log."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from rxloop.client import Client
from support.api_server import RawConnection
from support.processes.replicas import Replica, replica


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncGenerator[tuple[Replica, Replica]]:
    file = tmp_path / "runs.db"
    async with AsyncExitStack() as stack:
        # Start concurrently to save time, because imports are slow.
        a, b = await asyncio.gather(*(stack.enter_async_context(replica(file)) for _ in range(2)))
        yield a, b


async def wait_for_state(client: Client, task_id: str, state: str) -> Any:
    async with asyncio.timeout(30):
        while True:
            run = await client.record(task_id, wait=5)
            if run.state == state:
                return run


async def test_run_started_at_one_server_is_followed_and_answered_at_the_other(
    replicas: tuple[Replica, Replica],
) -> None:
    a, b = (each.client for each in replicas)
    run = await a.start("clerk", "Pay 5")
    kinds: list[str] = []
    async for event in b.follow(run.task_id):
        kinds.append(event.kind)
        if event.kind == "status-update" and event.pending:
            await b.answer(run.task_id, {event.pending[0].input_id: True})
    assert (await a.record(run.task_id)).content == "It is paid 5."
    assert kinds.count("tool-complete") == 1
    first_events = [event.seq async for event in a.follow(run.task_id) if event.durable]
    second_events = [event.seq async for event in b.follow(run.task_id) if event.durable]
    assert first_events == second_events


async def test_run_can_be_cancelled_at_the_other_server(replicas: tuple[Replica, Replica]) -> None:
    a, b = (each.client for each in replicas)
    run = await a.start("clerk", "Talk for ever")
    first_delta = asyncio.create_task(anext(aiter(a.follow(run.task_id, kinds=["content-delta"]))))
    await first_delta
    canceled = await b.cancel(run.task_id, "enough")
    assert canceled.state == "canceled"
    assert (await a.record(run.task_id)).state == "canceled"


async def test_key_sent_to_two_servers_starts_one_run(replicas: tuple[Replica, Replica]) -> None:
    a, b = (each.client for each in replicas)
    runs = await asyncio.gather(*(each.start("clerk", "Pay 5", key="k") for each in (a, b, a, b)))
    assert len({run.task_id for run in runs}) == 1
    waiting = await wait_for_state(a, runs[0].task_id, "input-required")
    kinds = [event.kind async for event in b.follow(waiting.task_id, until="attempt")]
    assert kinds.count("llm-call") == 1


async def test_run_of_a_killed_server_continues_at_the_other(replicas: tuple[Replica, Replica]) -> None:
    a, b = replicas
    run = await a.client.start("clerk", "Pay 5")
    waiting = await wait_for_state(b.client, run.task_id, "input-required")
    events = aiter(b.client.follow(run.task_id, after=waiting.cursor))
    await a.kill()
    await b.client.answer(run.task_id, {waiting.pending[0].input_id: True})
    kinds = [event.kind async for event in events]
    assert kinds[-1] == "status-update"
    assert (await b.client.record(run.task_id)).content == "It is paid 5."


async def test_stopped_server_ends_its_streams_and_the_other_continues(
    replicas: tuple[Replica, Replica],
) -> None:
    # L140
    a, b = replicas
    run = await a.client.start("clerk", "Talk for ever")
    paused = await a.client.start("clerk", "Pay 5", wait=20)
    raw = await RawConnection.connect(a.url)
    await raw.get(run.events)
    received = await raw.reader.readuntil(b"content-delta")
    a.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(20):
        remaining = await raw.reader.read(-1)
        # uvicorn raises the captured signal again after its shutdown.
        assert await a.process.wait() in (0, -signal.SIGTERM)
    await raw.close()
    assert remaining.endswith(b"reconnect with the last id\n\n\r\n0\r\n\r\n")
    last = (
        [line for line in (received + remaining).split(b"\n") if line.startswith(b"id: ")][-1]
        .removeprefix(b"id: ")
        .decode()
    )
    async for event in b.client.follow(run.task_id, after=last):
        if event.kind == "content-delta" and event.attempt == 2:
            break
    assert (await b.client.cancel(run.task_id)).state == "canceled"
    await b.client.answer(paused.task_id, {paused.pending[0].input_id: True})
    assert (await wait_for_state(b.client, paused.task_id, "completed")).content == "It is paid 5."
