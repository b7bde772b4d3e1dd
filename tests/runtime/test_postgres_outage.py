"""A Postgres server that is stopped, killed and unavailable during runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from rxloop import RunRecord
from support.postgres.server import PostgresServer
from support.workers.cluster import SLOW_CHAOS, Cluster, start_cluster

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]

RUNS = 100


@asynccontextmanager
async def start_runs(server: PostgresServer) -> AsyncGenerator[tuple[Cluster, list[RunRecord]]]:
    """Start runs on two workers and release them."""
    async with start_cluster(server.dsn, concurrency=64) as processes:
        go_file = processes.folder / "go"
        records = await processes.start_all(f"hold {go_file}; pay; look; wait 1; pay", RUNS)
        await asyncio.gather(*(processes.wait_for_event(record.task_id, "tool-start") for record in records))
        go_file.touch()
        yield processes, records


@pytest.mark.parametrize("crash", [pytest.param(False, marks=SLOW_CHAOS), True])
async def test_hundred_runs_survive_a_server_outage_of_two_seconds(crash: bool) -> None:
    with PostgresServer() as server:
        async with start_runs(server) as (processes, records):
            await asyncio.to_thread(server.kill if crash else server.stop)
            await asyncio.sleep(2)
            await asyncio.to_thread(server.start)
            final = await processes.wait_for_all(records)
            await processes.check(records)
            assert {(record.state, record.attempt) for record in final} == {("completed", 1)}
            assert {len(processes.effects(record.task_id)) for record in final} == {2}


@SLOW_CHAOS
async def test_runs_survive_a_server_outage_of_twenty_seconds() -> None:
    with PostgresServer() as server:
        async with start_runs(server) as (processes, records):
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(20)
            await asyncio.to_thread(server.start)
            final = await processes.wait_for_all(records)
            await processes.check(records)
    assert {record.state for record in final} == {"completed"}
