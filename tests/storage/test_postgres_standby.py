"""A log in Postgres whose primary is lost, and whose standby takes its place: by streaming replication."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from psycopg.conninfo import conninfo_to_dict

from rxloop import Agent, PostgresEventLog
from rxloop.errors import ConflictError, EventLogError
from rxloop.protocol.commands import CancelCommand
from rxloop.runtime import PostgresQueue
from rxloop.storage.postgres.address import Connection
from rxloop.storage.postgres.serial_connection import Lane
from rxloop.testing import ScriptedModel
from rxloop.testing.event_log_contract.toolkit import Follower, begun, note
from support.postgres.logs import ConcurrentWriters, query_rows
from support.postgres.proxies import proxy
from support.postgres.server import PostgresServer, wait_until_old

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]

SECONDS = 60


class Pair:
    """A primary and its standby."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer) -> None:
        self._primary, self.standby = primary, standby
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in (primary, standby))
        self.dsn = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    async def streams(self, state: str) -> None:
        """Wait until the standby follows the primary, as `sync` or as `async`."""
        async with asyncio.timeout(SECONDS):
            while await query_rows(self._primary.dsn, "SELECT sync_state FROM pg_stat_replication") != [(state,)]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def synchronous(self) -> None:
        """Have the primary wait for the standby with all that it acknowledges."""
        await query_rows(self._primary.dsn, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        await query_rows(self._primary.dsn, "SELECT pg_reload_conf()")
        await self.streams("sync")

    async def has_all(self) -> None:
        """Wait until the standby has replayed everything that the primary has written."""
        query = "SELECT replay_lsn = pg_current_wal_lsn() FROM pg_stat_replication"
        async with asyncio.timeout(SECONDS):
            while await query_rows(self._primary.dsn, query) != [(True,)]:  # noqa: ASYNC110 it is not told
                await asyncio.sleep(0.02)

    async def fail_over(self) -> None:
        """Kill the primary, and put the standby into its place."""
        self._primary.kill()
        await asyncio.to_thread(self.standby.promote)


@asynccontextmanager
async def pair() -> AsyncGenerator[Pair]:
    with PostgresServer() as primary:
        follows = f"host=127.0.0.1 port={primary.port} user=postgres"
        with PostgresServer(standby_of=primary, primary_conninfo=follows) as standby:
            made = Pair(primary, standby)
            await made.streams("async")
            yield made


def delayed(lane: Lane) -> asyncio.Event:
    """Let a lane have no new connection until that is set."""
    connect, free = lane._connect, asyncio.Event()

    async def later() -> Connection:
        await free.wait()
        return await connect()

    lane._connect = later
    return free


async def test_a_standby_that_is_synchronous_takes_over_with_all_that_was_acknowledged() -> None:
    async with pair() as servers:
        await servers.synchronous()
        log, other = PostgresEventLog(servers.dsn, patience=60), PostgresEventLog(servers.dsn, patience=60)
        writing = ConcurrentWriters(log, 10)
        await writing.wait_for_progress()
        followers = [Follower(other, name) for name in writing.names]
        assert await log.acquire_lease("run0", "run0", pytest.fail)
        letters = [await other.send_command("run0", CancelCommand())]

        await writing.wait_for_progress()
        acknowledged = dict(writing.last)
        # Nobody is taken for dead at a server that has started only now, and this one has not.
        await asyncio.to_thread(wait_until_old, servers.standby.dsn)
        coming_back = delayed(log._engine().turns.lane)
        await servers.fail_over()

        # The owner is alive, and is a little later than others.
        assert await other.list_orphaned() == []
        coming_back.set()
        assert await log.has_lease("run0", "run0")
        letters.append(await other.send_command("run0", CancelCommand()))
        for name in writing.names:
            events = await other.read(name)
            assert len(events) >= acknowledged[name]
        assert not await other.acquire_lease("run0", "run0", pytest.fail)
        await writing.wait_for_progress()
        last = await writing.stop()
        await asyncio.wait_for(asyncio.gather(*(follower.task for follower in followers)), SECONDS)
        assert [follower.seen for follower in followers] == [[*range(1, seq + 1)] for seq in last]
        assert [number for number, _ in await log.read_commands("run0")] == letters
        await log.aclose()
        await other.aclose()


async def test_a_queue_goes_on_at_the_standby() -> None:
    async with pair() as servers:
        await servers.synchronous()
        here, there = PostgresQueue(servers.dsn), PostgresQueue(servers.dsn)
        rung, heard = set[str](), asyncio.Event()

        async def settle(task_id: str) -> None:
            rung.add(task_id)
            heard.set()

        async def hears(task_id: str) -> None:
            async with asyncio.timeout(SECONDS):
                while task_id not in rung:
                    heard.clear()
                    await heard.wait()

        async def serve() -> None:
            # As a worker does.
            while True:
                try:
                    await there.serve(settle, concurrency=4)
                except Exception:
                    await asyncio.sleep(0.2)

        async def ring(task_id: str) -> None:
            async with asyncio.timeout(SECONDS):
                while True:
                    try:
                        return await here.enqueue(task_id)
                    except Exception:
                        await asyncio.sleep(0.2)

        serving = asyncio.create_task(serve())
        await ring("before")
        await hears("before")
        await servers.fail_over()
        await ring("after")
        await hears("after")
        serving.cancel()
        await asyncio.wait([serving])
        await here.aclose()
        await there.aclose()


async def test_an_asynchronous_standby_that_lacks_events_doubles_no_number_and_shows_nobody_wrong_ones() -> None:
    with PostgresServer() as primary:
        async with proxy(primary.dsn) as way:
            follows = f"host=127.0.0.1 port={conninfo_to_dict(way.address)['port']} user=postgres"
            with PostgresServer(standby_of=primary, primary_conninfo=follows) as standby:
                servers = Pair(primary, standby)
                await servers.streams("async")
                owner, reader = PostgresEventLog(servers.dsn, patience=60), PostgresEventLog(servers.dsn, patience=60)
                assert await owner.acquire_lease("c", "run", pytest.fail)
                await owner.append("run", [*begun(context_id="c"), note(3)], expected_seq=0, writer="owner")
                follower = Follower(reader)
                await follower.sees(1, 2, 3)
                await servers.has_all()

                way.black_hole()
                await owner.append("run", [note(4), note(5)], expected_seq=3, writer="owner")
                await owner.append("lost", begun("lost", context_id="d"), expected_seq=0, writer="owner")
                await follower.sees(1, 2, 3, 4, 5)
                await way.stop()
                await servers.fail_over()

                with pytest.raises(EventLogError, match="gone back: the event 5 of the run run is not there"):
                    await asyncio.wait_for(follower.task, SECONDS)
                with pytest.raises(ConflictError):
                    await owner.append("run", [note(6)], expected_seq=5, writer="owner")
                with pytest.raises(ConflictError):
                    await owner.append("lost", [note(3)], expected_seq=2, writer="owner")
                assert [event.seq for event in await reader.read("run")] == [1, 2, 3]
                # Whoever has the turn next goes on from what is there.
                await owner.release_lease("c", "run")
                agent = Agent(ScriptedModel("Hello."), name="helper", log=reader)
                assert (await agent.get_run("run").execute()).state == "completed"
                events = await reader.read("run")
                assert [event.seq for event in events] == [*range(1, len(events) + 1)]
                assert {event.attempt for event in events[3:]} == {2}
                await owner.aclose()
                await reader.aclose()
