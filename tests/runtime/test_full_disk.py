"""A disk of the database that is full while runs go on, and has room again later."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import psycopg
import pytest

from rxloop import RunRecord
from rxloop.errors import LogUnreachable
from support.postgres.server import PostgresServer
from support.processes.disks import small_disk
from support.workers.cluster import BY_HAND, Cluster, cluster

pytestmark = [
    BY_HAND,
    pytest.mark.service("postgres"),
    pytest.mark.service("small-disks"),
    pytest.mark.timeout(400),
]

RUNS = 20
MEGABYTES = {"data": 64, "wal": 8, "both": 72}


@pytest.mark.parametrize("what", MEGABYTES)
async def test_nothing_is_lost_when_a_disk_is_full_and_all_goes_on_once_it_has_room(what: str) -> None:
    with small_disk(MEGABYTES[what]) as small, small_disk(256) as large:
        data, wal = (large, small) if what == "wal" else (small, large)
        server = PostgresServer(data=data.folder, wal=None if what == "both" else wal.folder)
        with server:
            async with cluster(server.dsn, agent="sturdy") as all_of_it:
                go = all_of_it.folder / "go"
                records = await all_of_it.start_all(f"pay; hold {go}; pay; look; pay", RUNS)
                await asyncio.gather(*(all_of_it.until(record.task_id, "checkpoint") for record in records))
                small.fill()
                if what != "data":
                    await asyncio.to_thread(use_up, server.dsn)
                go.touch()
                refusal = await refused(all_of_it, records)
                small.free()
                # Without room for its write-ahead log it does not run, and somebody has to start it again.
                await asyncio.to_thread(server.start)
                done = await all_of_it.all_over(records)
                await all_of_it.judge(records)
    assert {record.state for record in done} == {"completed"}
    if what == "data":
        assert "the disk of the server is full: make room" in str(refusal)


async def refused(all_of_it: Cluster, records: list[RunRecord]) -> LogUnreachable:
    """Start runs, which have to be kept, until one cannot be started."""
    while True:
        try:
            records.append(await all_of_it.start("pay; look; pay"))
        except LogUnreachable as error:
            return error


def use_up(dsn: str) -> None:
    """Write until there is no room for more of the write-ahead log."""
    with suppress(psycopg.Error), psycopg.connect(dsn, autocommit=True) as connection:
        while True:
            connection.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 500000))")
