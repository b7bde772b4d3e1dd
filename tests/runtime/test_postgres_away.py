"""A server of Postgres that is stopped, killed, and away, while runs go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from rxloop import RunRecord
from support.postgres.server import PostgresServer
from support.workers.cluster import BY_HAND, Cluster, cluster

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]

RUNS = 100


@asynccontextmanager
async def going_on(server: PostgresServer) -> AsyncGenerator[tuple[Cluster, list[RunRecord]]]:
    """Two workers, each with half of the runs, all of which have just begun to pay."""
    async with cluster(server.dsn, concurrency=64) as all_of_it:
        go = all_of_it.folder / "go"
        records = await all_of_it.start_all(f"hold {go}; pay; look; wait 1; pay", RUNS)
        await asyncio.gather(*(all_of_it.until(record.task_id, "tool-start") for record in records))
        go.touch()
        yield all_of_it, records


@pytest.mark.parametrize("crash", [pytest.param(False, marks=BY_HAND), True])
async def test_a_server_that_is_gone_for_two_seconds_disturbs_none_of_a_hundred_runs(crash: bool) -> None:
    with PostgresServer() as server:
        async with going_on(server) as (all_of_it, records):
            await asyncio.to_thread(server.kill if crash else server.stop)
            await asyncio.sleep(2)
            await asyncio.to_thread(server.start)
            done = await all_of_it.all_over(records)
            await all_of_it.judge(records)
            assert {(record.state, record.attempt) for record in done} == {("completed", 1)}
            assert {len(all_of_it.effects(record.task_id)) for record in done} == {2}


@BY_HAND
async def test_a_server_that_is_gone_for_twenty_seconds_is_waited_for() -> None:
    with PostgresServer() as server:
        async with going_on(server) as (all_of_it, records):
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(20)
            await asyncio.to_thread(server.start)
            done = await all_of_it.all_over(records)
            await all_of_it.judge(records)
    assert {record.state for record in done} == {"completed"}
