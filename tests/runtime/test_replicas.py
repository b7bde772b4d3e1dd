"""Replicas sharing one database."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from rxloop import Agent, PostgresEventLog, Runtime
from rxloop.runtime import PostgresQueue
from rxloop.server import api
from rxloop.testing import ScriptedModel, frames
from support.api_server import serve_app

pytestmark = pytest.mark.service("postgres")


@asynccontextmanager
async def start_replica(dsn: str, agent: Agent[None, str], *, is_worker: bool = False) -> AsyncGenerator[Runtime]:
    log, queue = PostgresEventLog(dsn), PostgresQueue(dsn)
    try:
        async with Runtime({"a": agent}, log=log, queue=queue, is_worker=is_worker, grace=0) as runtime:
            yield runtime
    finally:
        await queue.aclose()
        await log.aclose()


async def test_run_is_followed_token_by_token_at_another_replica(postgres_database: str) -> None:
    agent = Agent(ScriptedModel(frames("-It -is -quite -warm -in -Oslo.|", 0.2)), thoughts=False)
    async with AsyncExitStack() as stack:
        starter = await stack.enter_async_context(start_replica(postgres_database, agent))
        reader = await stack.enter_async_context(start_replica(postgres_database, agent))
        await stack.enter_async_context(start_replica(postgres_database, agent, is_worker=True))
        record = await starter.start("a", "Is it warm?")
        events = [event async for event in reader.follow(record.task_id)]
    deltas = [event for event in events if event.kind == "content-delta"]
    assert len(deltas) >= 3
    assert [event.seq for event in events if event.durable] == list(range(1, events[-1].seq + 1))


async def test_client_continues_at_another_replica_after_its_last_event(postgres_database: str) -> None:
    agent = Agent(ScriptedModel(frames("-It -is -quite -warm.|", 0.2)), thoughts=False)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(start_replica(postgres_database, agent))
        second = await stack.enter_async_context(start_replica(postgres_database, agent))
        await stack.enter_async_context(start_replica(postgres_database, agent, is_worker=True))
        urls = [await stack.enter_async_context(serve_app(api(runtime))) for runtime in (first, second)]
        async with httpx.AsyncClient(timeout=20) as client:
            run = (await client.post(f"{urls[0]}/runs", json={"input": "Warm?"})).json()
            path = f"/runs/{run['taskId']}/events"
            received: list[str] = []
            async with client.stream("GET", urls[0] + path) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("id:"):
                        received.append(line[3:].strip())
                    if len(received) == 2:
                        break
            remaining = (await client.get(urls[1] + path, headers={"last-event-id": received[-1]})).text
    ids = [line[3:].strip() for line in remaining.splitlines() if line.startswith("id:")]
    assert received[-1] not in ids
    numbers = [int(event_id.split(".")[1]) for event_id in [*received, *ids]]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(1, numbers[-1] + 1))
    assert '"state":"completed"' in remaining
