"""Failover from a lost primary to its standby with streaming replication."""

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
from rxloop.storage.postgres.serial_connection import SerialConnection
from rxloop.testing import ScriptedModel
from rxloop.testing.event_log_contract.toolkit import Follower, note, start_events
from support.postgres.logs import ConcurrentWriters, query_rows
from support.postgres.proxies import proxy
from support.postgres.server import PostgresServer, wait_until_old

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]

SECONDS = 60


class Pair:
    """Primary and standby."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer) -> None:
        self._primary, self.standby = primary, standby
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in (primary, standby))
        self.dsn = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    async def wait_for_state(self, state: str) -> None:
        """Wait until the standby follows the primary in the state `sync` or `async`."""
        async with asyncio.timeout(SECONDS):
            while await query_rows(self._primary.dsn, "SELECT sync_state FROM pg_stat_replication") != [(state,)]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def make_synchronous(self) -> None:
        """Let the primary acknowledge only writes that the standby has stored."""
        await query_rows(self._primary.dsn, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        await query_rows(self._primary.dsn, "SELECT pg_reload_conf()")
        await self.wait_for_state("sync")

    async def wait_for_replay(self) -> None:
        """Wait until all writes of the primary are replayed."""
        query = "SELECT replay_lsn = pg_current_wal_lsn() FROM pg_stat_replication"
        async with asyncio.timeout(SECONDS):
            while await query_rows(self._primary.dsn, query) != [(True,)]:  # noqa: ASYNC110 (no notification exists)
                await asyncio.sleep(0.02)

    async def fail_over(self) -> None:
        """Kill the primary and promote the standby."""
        self._primary.kill()
        await asyncio.to_thread(self.standby.promote)


@asynccontextmanager
async def start_pair() -> AsyncGenerator[Pair]:
    with PostgresServer() as primary:
        follows = f"host=127.0.0.1 port={primary.port} user=postgres"
        with PostgresServer(standby_of=primary, primary_conninfo=follows) as standby:
            servers = Pair(primary, standby)
            await servers.wait_for_state("async")
            yield servers


def delay_connection(connection: SerialConnection) -> asyncio.Event:
    """Delay new connections until the returned event is set."""
    connect, free = connection._connect, asyncio.Event()

    async def connect_later() -> Connection:
        await free.wait()
        return await connect()

    connection._connect = connect_later
    return free


async def test_synchronous_standby_has_all_acknowledged_events_after_failover() -> None:
    async with start_pair() as servers:
        await servers.make_synchronous()
        log, other = PostgresEventLog(servers.dsn, timeout=60), PostgresEventLog(servers.dsn, timeout=60)
        run_write = ConcurrentWriters(log, 10)
        await run_write.wait_for_progress()
        followers = [Follower(other, name) for name in run_write.names]
        assert await log.acquire_lease("run0", "run0", pytest.fail)
        command_numbers = [await other.send_command("run0", CancelCommand())]

        await run_write.wait_for_progress()
        acknowledged = dict(run_write.last)
        # The server has only just started, so no process is considered dead.
        await asyncio.to_thread(wait_until_old, servers.standby.dsn)
        connection_allowed = delay_connection(log._engine().leases.connection)
        await servers.fail_over()

        # The owner is alive, but reconnects later than others.
        assert await other.list_orphaned() == []
        connection_allowed.set()
        assert await log.has_lease("run0", "run0")
        command_numbers.append(await other.send_command("run0", CancelCommand()))
        for name in run_write.names:
            events = await other.read(name)
            assert len(events) >= acknowledged[name]
        assert not await other.acquire_lease("run0", "run0", pytest.fail)
        await run_write.wait_for_progress()
        last = await run_write.stop()
        await asyncio.wait_for(asyncio.gather(*(follower.task for follower in followers)), SECONDS)
        assert [follower.received for follower in followers] == [[*range(1, seq + 1)] for seq in last]
        assert [number for number, _ in await log.read_commands("run0")] == command_numbers
        await log.aclose()
        await other.aclose()


async def test_queue_continues_after_failover() -> None:
    async with start_pair() as servers:
        await servers.make_synchronous()
        sender, receiver = PostgresQueue(servers.dsn), PostgresQueue(servers.dsn)
        jobs, changed = set[str](), asyncio.Event()

        async def record_job(task_id: str) -> None:
            jobs.add(task_id)
            changed.set()

        async def wait_for_job(task_id: str) -> None:
            async with asyncio.timeout(SECONDS):
                while task_id not in jobs:
                    changed.clear()
                    await changed.wait()

        async def serve() -> None:
            while True:
                try:
                    await receiver.serve(record_job, concurrency=4)
                except Exception:
                    await asyncio.sleep(0.2)

        async def send_job(task_id: str) -> None:
            async with asyncio.timeout(SECONDS):
                while True:
                    try:
                        return await sender.enqueue(task_id)
                    except Exception:
                        await asyncio.sleep(0.2)

        server_task = asyncio.create_task(serve())
        await send_job("before")
        await wait_for_job("before")
        await servers.fail_over()
        await send_job("after")
        await wait_for_job("after")
        server_task.cancel()
        await asyncio.wait([server_task])
        await sender.aclose()
        await receiver.aclose()


async def test_asynchronous_standby_without_events_reuses_no_number_and_delivers_no_wrong_event() -> None:
    with PostgresServer() as primary:
        async with proxy(primary.dsn) as network:
            follows = f"host=127.0.0.1 port={conninfo_to_dict(network.address)['port']} user=postgres"
            with PostgresServer(standby_of=primary, primary_conninfo=follows) as standby:
                servers = Pair(primary, standby)
                await servers.wait_for_state("async")
                owner, reader = PostgresEventLog(servers.dsn, timeout=60), PostgresEventLog(servers.dsn, timeout=60)
                assert await owner.acquire_lease("c", "run", pytest.fail)
                await owner.append("run", [*start_events(context_id="c"), note(3)], expected_seq=0, writer="owner")
                follower = Follower(reader)
                await follower.wait_for_events(1, 2, 3)
                await servers.wait_for_replay()

                network.black_hole()
                await owner.append("run", [note(4), note(5)], expected_seq=3, writer="owner")
                await owner.append("lost", start_events("lost", context_id="d"), expected_seq=0, writer="owner")
                await follower.wait_for_events(1, 2, 3, 4, 5)
                await network.stop()
                await servers.fail_over()

                with pytest.raises(EventLogError, match="rolled back: event 5 of run run is missing"):
                    await asyncio.wait_for(follower.task, SECONDS)
                with pytest.raises(ConflictError):
                    await owner.append("run", [note(6)], expected_seq=5, writer="owner")
                with pytest.raises(ConflictError):
                    await owner.append("lost", [note(3)], expected_seq=2, writer="owner")
                assert [event.seq for event in await reader.read("run")] == [1, 2, 3]
                # Another owner continues from the remaining events.
                await owner.release_lease("c", "run")
                agent = Agent(ScriptedModel("Hello."), name="helper", log=reader)
                assert (await agent.get_run("run").execute()).state == "completed"
                events = await reader.read("run")
                assert [event.seq for event in events] == [*range(1, len(events) + 1)]
                assert {event.attempt for event in events[3:]} == {2}
                await owner.aclose()
                await reader.aclose()
