"""Processes on disconnected, deaf or mute hosts.

`RXLOOP_CHAOS_KILLS=1 pytest tests/runtime/test_hosts.py` includes the slow tests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rxloop import Event, RunRecord
from rxloop.client import Client
from rxloop.testing.chaos import Fault, Worker
from support.postgres.server import PostgresServer
from support.processes.cluster import cluster as servers_and_workers
from support.processes.hosts import Host, network
from support.workers.cluster import LEASE, SLOW_CHAOS, Cluster, start_cluster

pytestmark = [pytest.mark.service("postgres"), pytest.mark.service("hosts"), pytest.mark.timeout(180)]


@dataclass
class Site:
    """Database host, worker hosts and local client."""

    server: PostgresServer
    database: Host
    hosts: list[Host]
    processes: Cluster

    def find_host(self, worker: Worker) -> Host:
        return self.hosts[self.processes.chaos.workers.index(worker)]

    async def owners_by_run(self, records: list[RunRecord]) -> dict[str, Host]:
        """Return owning hosts by run."""
        return {record.task_id: self.find_host(await self.processes.owner(record.task_id)) for record in records}

    def count_sessions(self, host: Host) -> int:
        """Count database sessions by host."""
        with psycopg.connect(self.server.dsn) as connection:
            cursor = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE client_addr = %s", (host.address,))
            [[count]] = cursor.fetchall()
        return count


@asynccontextmanager
async def start_site(workers: int = 2, **options: Any) -> AsyncGenerator[Site]:
    names = [f"w{number}" for number in range(workers)]
    with network("db", *names) as (database, *hosts), PostgresServer(host=database) as server:
        command_prefixes = [host.command_prefix for host in hosts]
        async with start_cluster(
            server.dsn, workers, agent="durable_agent", command_prefixes=command_prefixes, **options
        ) as processes:
            try:
                yield Site(server, database, hosts, processes)
            finally:
                for host in (database, *hosts):
                    host.heal()


def make_deaf(host: Host) -> None:
    host.incoming_loss = 1.0


def make_mute(host: Host) -> None:
    host.outgoing_loss = 1.0


def unplug(host: Host) -> None:
    host.set_link("down")


DISCONNECTIONS = [
    Host.isolate,
    *(pytest.param(disconnect, marks=SLOW_CHAOS) for disconnect in (make_deaf, make_mute, unplug)),
]


@pytest.mark.parametrize("disconnect", DISCONNECTIONS)
async def test_runs_of_a_disconnected_host_continue_elsewhere(
    disconnect: Callable[[Host], None],
) -> None:
    async with start_site() as site:
        processes = site.processes
        go_file = processes.folder / "go"
        records = await processes.start_all(f"pay; hold {go_file}; pay; look; pay", 8)
        followers = [asyncio.create_task(collect_durable(processes, record)) for record in records]
        await asyncio.gather(*(wait_for_hold(processes, record) for record in records))
        owners = await site.owners_by_run(records)
        lost_host = owners[records[0].task_id]
        disconnect(lost_host)
        # The next action of its runs is pending when the host is disconnected.
        go_file.touch()
        affected = {task_id for task_id, host in owners.items() if host is lost_host}
        await asyncio.gather(*(processes.wait_for_event(task_id, "status-update", 2) for task_id in affected))
        lost_host.heal()
        lost_host.set_link("up")
        # Force the first host to execute another run.
        final = await processes.wait_for_all(records)
        for host in site.hosts:
            if host is not lost_host:
                host.isolate()
        records.append(await processes.start("pay; look"))
        final.append(await processes.wait_for_end(records[-1]))
        assert await site.owners_by_run(records[-1:]) == {records[-1].task_id: lost_host}
        await processes.check(records)
        assert {record.state for record in final} == {"completed"}
        assert {record.task_id for record in final if record.attempt == 2} == affected
        assert [len(processes.effects(record.task_id)) for record in final] == [3] * 8 + [1]
        for record, follower in zip(records, followers, strict=False):
            assert await follower == list(await processes.log.read(record.task_id))


@SLOW_CHAOS
async def test_call_on_a_disconnected_host_is_not_repeated() -> None:
    async with start_site() as site:
        record = await site.processes.start("pay_slowly 60; look")
        await site.processes.wait_for_event(record.task_id, "tool-start")
        [lost_host] = (await site.owners_by_run([record])).values()
        lost_host.isolate()
        final = await site.processes.wait_for_end(record)
        lost_host.heal()
        [answer] = [e for e in await site.processes.log.read(record.task_id) if e.kind == "tool-complete"][:1]
        assert (final.state, final.attempt) == ("completed", 2)
        assert site.processes.effects(record.task_id) == ["pay_slowly"]
        assert "interrupted" in answer.describe()
        await site.processes.check([record])


@SLOW_CHAOS
@pytest.mark.parametrize("disconnect", [Host.isolate, make_deaf, make_mute, unplug])
async def test_host_disconnected_for_less_than_the_lease_keeps_its_runs(disconnect: Callable[[Host], None]) -> None:
    async with start_site(lease=8) as site:
        records = await site.processes.start_all("pay; wait 2; pay; look; pay", 8)
        await asyncio.gather(*(site.processes.wait_for_event(record.task_id, "checkpoint") for record in records))
        for host in site.hosts:
            disconnect(host)
        await asyncio.sleep(3)
        for host in site.hosts:
            host.heal()
            host.set_link("up")
        final = await site.processes.wait_for_all(records)
        await site.processes.check(records)
        assert {(record.state, record.attempt) for record in final} == {("completed", 1)}


@SLOW_CHAOS
async def test_runs_complete_on_slow_hosts_with_packet_loss() -> None:
    async with start_site(lease=10) as site:
        for host in site.hosts:
            host.outgoing_loss, host.delay = 0.2, 0.2
        records = await site.processes.start_all("pay; look; wait 3; pay; look; wait 2; pay", 20)
        final = await site.processes.wait_for_all(records)
        await site.processes.check(records)
        assert {(record.state, record.attempt) for record in final} == {("completed", 1)}
        assert [len(site.processes.effects(record.task_id)) for record in records] == [3] * 20


@SLOW_CHAOS
async def test_runs_survive_a_database_outage_of_twenty_seconds() -> None:
    async with start_site(lease=10) as site:
        records = await site.processes.start_all("pay; look; wait 3; pay; look; wait 2; pay", 40)
        followers = [asyncio.create_task(collect_durable(site.processes, record)) for record in records]
        await asyncio.gather(*(site.processes.wait_for_event(record.task_id, "checkpoint") for record in records))
        site.database.isolate()
        await asyncio.sleep(20)
        site.database.heal()
        final = await site.processes.wait_for_all(records)
        await site.processes.check(records)
        assert {record.state for record in final} == {"completed"}
        for record, follower in zip(records, followers, strict=True):
            assert await follower == list(await site.processes.log.read(record.task_id))


@SLOW_CHAOS
async def test_database_ends_the_sessions_of_a_lost_host() -> None:
    async with start_site() as site:
        records = await site.processes.start_all("pay; look; wait 1; pay", 8)
        await asyncio.gather(*(site.processes.wait_for_event(record.task_id, "tool-start") for record in records))
        lost_host = site.hosts[0]
        lost_host.isolate()
        await site.processes.chaos.workers[0].kill()
        assert site.count_sessions(lost_host) > 0
        async with asyncio.timeout(20):
            while site.count_sessions(lost_host):  # noqa: ASYNC110 (the database sends no notification)
                await asyncio.sleep(0.5)
        await site.processes.wait_for_all(records)


@SLOW_CHAOS
async def test_follower_continues_on_another_server_when_its_server_and_worker_are_disconnected(tmp_path: Path) -> None:
    names = ("db", "server1", "server2", "worker1", "worker2")
    with network(*names) as (database, *hosts), PostgresServer(host=database) as server:
        with servers_and_workers(server.dsn, tmp_path, flags=(), hosts=hosts) as processes:
            async with Client(processes.urls[0]) as first, Client(processes.urls[1], retries=20) as second:
                run = await first.start("clerk", "Tell me a story.")
                received: list[Event] = []
                async for event in first.follow(run.task_id):
                    received.append(event)
                    if event.kind == "content-delta":
                        break
                worker = await processes.owner(run.task_id)
                lost_host = hosts[2 + processes.workers.index(worker)]
                lost_host.isolate()
                hosts[0].isolate()
                received += [event async for event in second.follow(run.task_id, after=received[-1].cursor)]
                lost_host.heal()
                expected = [event async for event in second.follow(run.task_id)]
    durable = [event for event in received if event.durable]
    assert [event.cursor for event in durable] == [event.cursor for event in expected if event.durable]
    assert durable[-1].attempt == 2
    assert durable[-1].kind == "status-update"


@SLOW_CHAOS
@pytest.mark.timeout(600)
async def test_runs_survive_repeated_disconnections_of_hosts() -> None:
    dice = random.Random(1)
    async with start_site(5) as site:

        def make_fault(disconnect: Callable[[Host], None]) -> Callable[[Worker], Any]:
            async def disconnect_briefly(worker: Worker) -> None:
                host = site.find_host(worker)
                disconnect(host)
                try:
                    await asyncio.sleep(LEASE * dice.choice((0.3, 1.5, 3)))
                finally:
                    host.heal()
                    host.set_link("up")

            return disconnect_briefly

        cuts = {"cut off": Host.isolate, "deaf": make_deaf, "mute": make_mute, "unplugged": unplug}
        report = await site.processes.chaos.run_scenario(
            *("pay; look; wait 1; pay", "pay; wait 1; ask; pay"),
            runs=120,
            seconds=120,
            kill_every=10,
            freeze_every=None,
            faults=[Fault(kind, 6, make_fault(disconnect)) for kind, disconnect in cuts.items()],
            answer=lambda question: 5,
            expect="Done.",
            time_limit=180,
        )
    print(report)
    report.check()


async def wait_for_hold(processes: Cluster, record: RunRecord) -> None:
    """Wait until a run blocks on its file."""
    async for event in processes.log.follow(record.task_id):
        if event.kind == "tool-start" and "hold" in event.describe():
            return


async def collect_durable(processes: Cluster, record: RunRecord) -> list[Event]:
    return [event async for event in processes.web.follow(record.task_id) if event.durable]
