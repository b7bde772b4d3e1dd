"""Database disks that become full during runs and have space again later."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import psycopg
import pytest

from rxloop import RunRecord
from rxloop.errors import LogUnreachable
from support.postgres.server import PostgresServer
from support.processes.disks import small_disk
from support.workers.cluster import SLOW_CHAOS, Cluster, start_cluster

pytestmark = [
    SLOW_CHAOS,
    pytest.mark.service("postgres"),
    pytest.mark.service("small-disks"),
    pytest.mark.timeout(400),
]

RUNS = 20
MEGABYTES = {"data": 64, "wal": 8, "both": 72}


@pytest.mark.parametrize("disk", MEGABYTES)
async def test_runs_survive_a_full_disk_and_complete_once_it_has_space(disk: str) -> None:
    with small_disk(MEGABYTES[disk]) as small, small_disk(256) as large:
        data, wal = (large, small) if disk == "wal" else (small, large)
        server = PostgresServer(data=data.folder, wal=None if disk == "both" else wal.folder)
        with server:
            async with start_cluster(server.dsn, agent="durable_agent") as processes:
                go_file = processes.folder / "go"
                records = await processes.start_all(f"pay; hold {go_file}; pay; look; pay", RUNS)
                await asyncio.gather(*(processes.wait_for_event(record.task_id, "checkpoint") for record in records))
                small.fill()
                if disk != "data":
                    await asyncio.to_thread(fill_write_ahead_log, server.dsn)
                go_file.touch()
                refusal = await start_until_refused(processes, records)
                small.free()
                # PostgreSQL stops without space for its write-ahead log.
                await asyncio.to_thread(server.start)
                final = await processes.wait_for_all(records)
                await processes.check(records)
    assert {record.state for record in final} == {"completed"}
    if disk == "data":
        assert "the disk of the server is full: free some space" in str(refusal)


async def start_until_refused(processes: Cluster, records: list[RunRecord]) -> LogUnreachable:
    """Start and record runs until one is refused."""
    while True:
        try:
            records.append(await processes.start("pay; look; pay"))
        except LogUnreachable as error:
            return error


def fill_write_ahead_log(dsn: str) -> None:
    """Fill the write-ahead log."""
    with suppress(psycopg.Error), psycopg.connect(dsn, autocommit=True) as connection:
        while True:
            connection.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 500000))")
