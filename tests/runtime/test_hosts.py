"""Each process on a host of its own: hosts that are cut off, hear nothing or are not heard, and come back.

`RXLOOP_CHAOS_KILLS=1 pytest tests/runtime/test_hosts.py` tries those too that take long.
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
from support.workers.cluster import BY_HAND, LEASE, Cluster, cluster

pytestmark = [pytest.mark.service("postgres"), pytest.mark.service("hosts"), pytest.mark.timeout(180)]


@dataclass
class Site:
    """A database on a host, workers on others, and this process, which starts runs and follows them."""

    server: PostgresServer
    database: Host
    hosts: list[Host]
    all_of_it: Cluster

    def host_of(self, worker: Worker) -> Host:
        return self.hosts[self.all_of_it.chaos.workers.index(worker)]

    async def owned(self, records: list[RunRecord]) -> dict[str, Host]:
        """By run, the host whose worker carries it out."""
        return {record.task_id: self.host_of(await self.all_of_it.owner(record.task_id)) for record in records}

    def sessions(self, host: Host) -> int:
        """How many sessions the database has for a host."""
        with psycopg.connect(self.server.dsn) as connection:
            found = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE client_addr = %s", (host.address,))
            [[count]] = found.fetchall()
        return count


@asynccontextmanager
async def site(workers: int = 2, **options: Any) -> AsyncGenerator[Site]:
    names = [f"w{number}" for number in range(workers)]
    with network("db", *names) as (database, *hosts), PostgresServer(host=database) as server:
        within = [host.within for host in hosts]
        async with cluster(server.dsn, workers, agent="sturdy", within=within, **options) as all_of_it:
            try:
                yield Site(server, database, hosts, all_of_it)
            finally:
                for host in (database, *hosts):
                    host.heal()


def deaf(host: Host) -> None:
    host.lost_in = 1.0


def mute(host: Host) -> None:
    host.lost_out = 1.0


def unplugged(host: Host) -> None:
    host.link("down")


CUTS = [Host.cut_off, *(pytest.param(cut, marks=BY_HAND) for cut in (deaf, mute, unplugged))]


@pytest.mark.parametrize("cut", CUTS)
async def test_the_runs_of_a_host_that_is_cut_off_go_on_elsewhere_and_it_works_on_when_it_is_back(
    cut: Callable[[Host], None],
) -> None:
    async with site() as place:
        all_of_it = place.all_of_it
        go = all_of_it.folder / "go"
        records = await all_of_it.start_all(f"pay; hold {go}; pay; look; pay", 8)
        followers = [asyncio.create_task(followed(all_of_it, record)) for record in records]
        await asyncio.gather(*(holding(all_of_it, record) for record in records))
        owners = await place.owned(records)
        lost = owners[records[0].task_id]
        cut(lost)
        # What its runs do next is on its way when it is cut off.
        go.touch()
        theirs = {task_id for task_id, host in owners.items() if host is lost}
        await asyncio.gather(*(all_of_it.until(task_id, "status-update", 2) for task_id in theirs))
        lost.heal()
        lost.link("up")
        # Who has taken its runs over is cut off in turn, so that it has to do what is next.
        done = await all_of_it.all_over(records)
        for host in place.hosts:
            if host is not lost:
                host.cut_off()
        records.append(await all_of_it.start("pay; look"))
        done.append(await all_of_it.over(records[-1]))
        assert await place.owned(records[-1:]) == {records[-1].task_id: lost}
        await all_of_it.judge(records)
        assert {record.state for record in done} == {"completed"}
        assert {record.task_id for record in done if record.attempt == 2} == theirs
        assert [len(all_of_it.effects(record.task_id)) for record in done] == [3] * 8 + [1]
        for record, follower in zip(records, followers, strict=False):
            assert await follower == list(await all_of_it.log.read(record.task_id))


@BY_HAND
async def test_a_call_that_was_under_way_at_a_host_that_is_cut_off_ends_there_and_is_not_begun_again() -> None:
    async with site() as place:
        record = await place.all_of_it.start("pay_slowly 60; look")
        await place.all_of_it.until(record.task_id, "tool-start")
        [lost] = (await place.owned([record])).values()
        lost.cut_off()
        done = await place.all_of_it.over(record)
        lost.heal()
        [answer] = [e for e in await place.all_of_it.log.read(record.task_id) if e.kind == "tool-complete"][:1]
        assert (done.state, done.attempt, place.all_of_it.effects(record.task_id)) == ("completed", 2, ["pay_slowly"])
        assert "interrupted" in answer.describe()
        await place.all_of_it.judge([record])


@BY_HAND
@pytest.mark.parametrize("cut", [Host.cut_off, deaf, mute, unplugged])
async def test_a_host_that_is_cut_off_for_less_than_the_lease_keeps_its_runs(cut: Callable[[Host], None]) -> None:
    async with site(lease=8) as place:
        records = await place.all_of_it.start_all("pay; wait 2; pay; look; pay", 8)
        await asyncio.gather(*(place.all_of_it.until(record.task_id, "checkpoint") for record in records))
        for host in place.hosts:
            cut(host)
        await asyncio.sleep(3)
        for host in place.hosts:
            host.heal()
            host.link("up")
        done = await place.all_of_it.all_over(records)
        await place.all_of_it.judge(records)
        assert {(record.state, record.attempt) for record in done} == {("completed", 1)}


@BY_HAND
async def test_hosts_that_lose_a_fifth_of_what_they_send_and_are_slow_bring_all_runs_to_their_end() -> None:
    async with site(lease=10) as place:
        for host in place.hosts:
            host.lost_out, host.delay = 0.2, 0.2
        records = await place.all_of_it.start_all("pay; look; wait 3; pay; look; wait 2; pay", 20)
        done = await place.all_of_it.all_over(records)
        await place.all_of_it.judge(records)
        assert {(record.state, record.attempt) for record in done} == {("completed", 1)}
        assert [len(place.all_of_it.effects(record.task_id)) for record in records] == [3] * 20


@BY_HAND
async def test_a_host_of_the_database_that_is_gone_for_twenty_seconds_is_waited_for() -> None:
    async with site(lease=10) as place:
        records = await place.all_of_it.start_all("pay; look; wait 3; pay; look; wait 2; pay", 40)
        followers = [asyncio.create_task(followed(place.all_of_it, record)) for record in records]
        await asyncio.gather(*(place.all_of_it.until(record.task_id, "checkpoint") for record in records))
        place.database.cut_off()
        await asyncio.sleep(20)
        place.database.heal()
        done = await place.all_of_it.all_over(records)
        await place.all_of_it.judge(records)
        assert {record.state for record in done} == {"completed"}
        for record, follower in zip(records, followers, strict=True):
            assert await follower == list(await place.all_of_it.log.read(record.task_id))


@BY_HAND
async def test_the_database_ends_the_sessions_of_a_host_that_is_gone_for_good() -> None:
    async with site() as place:
        records = await place.all_of_it.start_all("pay; look; wait 1; pay", 8)
        await asyncio.gather(*(place.all_of_it.until(record.task_id, "tool-start") for record in records))
        lost = place.hosts[0]
        lost.cut_off()
        await place.all_of_it.chaos.workers[0].kill()
        assert place.sessions(lost) > 0
        async with asyncio.timeout(20):
            while place.sessions(lost):  # noqa: ASYNC110 nobody tells
                await asyncio.sleep(0.5)
        await place.all_of_it.all_over(records)


@BY_HAND
async def test_a_follower_goes_on_at_another_server_when_its_own_and_the_worker_are_cut_off(tmp_path: Path) -> None:
    names = ("db", "server1", "server2", "worker1", "worker2")
    with network(*names) as (database, *hosts), PostgresServer(host=database) as server:
        with servers_and_workers(server.dsn, tmp_path, flags=(), hosts=hosts) as processes:
            async with Client(processes.urls[0]) as first, Client(processes.urls[1], retries=20) as second:
                run = await first.start("clerk", "Tell me a story.")
                seen: list[Event] = []
                async for event in first.follow(run.task_id):
                    seen.append(event)
                    if event.kind == "content-delta":
                        break
                worker = await processes.owner(run.task_id)
                lost = hosts[2 + processes.workers.index(worker)]
                lost.cut_off()
                hosts[0].cut_off()
                seen += [event async for event in second.follow(run.task_id, after=seen[-1].cursor)]
                lost.heal()
                there = [event async for event in second.follow(run.task_id)]
    durable = [event for event in seen if event.durable]
    assert [event.cursor for event in durable] == [event.cursor for event in there if event.durable]
    assert (durable[-1].attempt, durable[-1].kind) == (2, "status-update")


@BY_HAND
@pytest.mark.timeout(600)
async def test_hosts_that_come_and_go_for_two_minutes_do_no_harm() -> None:
    dice = random.Random(1)
    async with site(5) as place:

        def away(cut: Callable[[Host], None]) -> Callable[[Worker], Any]:
            async def do(worker: Worker) -> None:
                host = place.host_of(worker)
                cut(host)
                try:
                    await asyncio.sleep(LEASE * dice.choice((0.3, 1.5, 3)))
                finally:
                    host.heal()
                    host.link("up")

            return do

        cuts = {"cut off": Host.cut_off, "deaf": deaf, "mute": mute, "unplugged": unplugged}
        report = await place.all_of_it.chaos.play(
            *("pay; look; wait 1; pay", "pay; wait 1; ask; pay"),
            runs=120,
            seconds=120,
            kill_every=10,
            freeze_every=None,
            faults=[Fault(kind, 6, away(cut)) for kind, cut in cuts.items()],
            answer=lambda question: 5,
            expect="Done.",
            patience=180,
        )
    print(report)
    report.check()


async def holding(all_of_it: Cluster, record: RunRecord) -> None:
    """Wait until a run waits for a file."""
    async for event in all_of_it.log.follow(record.task_id):
        if event.kind == "tool-start" and "hold" in event.describe():
            return


async def followed(all_of_it: Cluster, record: RunRecord) -> list[Event]:
    return [event async for event in all_of_it.web.follow(record.task_id) if event.durable]
