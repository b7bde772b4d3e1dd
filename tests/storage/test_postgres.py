"""Postgres logs when servers and connections fail."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from rxloop import PostgresEventLog
from rxloop.errors import LogUnreachable
from rxloop.protocol.commands import CancelCommand
from rxloop.testing.event_log_contract.toolkit import Follower, ids, note, start_events, task
from support.postgres.logs import ConcurrentWriters, MakeLog
from support.postgres.proxies import Proxy
from support.postgres.server import PostgresServer

pytestmark = pytest.mark.service("postgres")


@pytest.mark.parametrize("kill", [False, True])
async def test_restarted_server_disturbs_no_writer_and_no_follower(kill: bool) -> None:
    with PostgresServer() as server:
        log, other = PostgresEventLog(server.dsn, timeout=60), PostgresEventLog(server.dsn, timeout=60)
        run_write = ConcurrentWriters(log, 20)
        await run_write.wait_for_progress()
        followers = [Follower(other, name) for name in run_write.names]
        for _ in range(2):
            await run_write.wait_for_progress()
            # The server waits for clients that are connecting.
            await asyncio.to_thread(server.kill if kill else server.stop)
            await asyncio.to_thread(server.start)
        await run_write.wait_for_progress()
        last = await run_write.stop()
        await asyncio.wait_for(asyncio.gather(*(follower.task for follower in followers)), 60)
        assert [follower.received for follower in followers] == [[*range(1, seq + 1)] for seq in last]
        for name, seq in zip(run_write.names, last, strict=True):
            assert [event.seq for event in await log.read(name)] == [*range(1, seq + 1)]
        await log.aclose()
        await other.aclose()


async def test_missing_server_is_an_error_after_the_timeout() -> None:
    with PostgresServer() as server:
        log = PostgresEventLog(server.dsn, timeout=0.3)
        await log.append("run", start_events(), expected_seq=0)
        server.stop()
        began = time.monotonic()
        for call in (
            log.append("run", [note(3)], expected_seq=2),
            log.read("run"),
            log.acquire_lease("c", "run", lambda: None),
        ):
            with pytest.raises(LogUnreachable, match=rf"the event log postgresql://127.0.0.1:{server.port}/postgres"):
                await call
        assert 0.3 < time.monotonic() - began < 8
        await asyncio.to_thread(server.start)
        await log.append("run", [note(3)], expected_seq=2)
        await log.aclose()


async def test_batch_is_stored_once_when_its_answer_is_lost(postgres: str, new_log: MakeLog) -> None:
    proxy = Proxy()
    log = new_log(await proxy.start(postgres))
    await log.append("run", start_events(), expected_seq=0, writer="mine")
    for seq in range(3, 33, 2):
        proxy.cut_answers = True
        # The log retries with and without a writer name.
        appending = asyncio.create_task(
            log.append("run", [note(seq), note(seq + 1)], expected_seq=seq - 1, writer="mine" if seq % 4 == 1 else "")
        )
        sending = asyncio.create_task(log.send_command("run", CancelCommand()))
        await asyncio.sleep(0.05)
        proxy.cut_answers = False
        await appending
        await sending
    assert [event.seq for event in await log.read("run")] == [*range(1, 33)]
    assert len(await log.read_commands("run")) == 15
    await log.aclose()
    await proxy.stop()


async def test_hanging_connection_is_replaced(postgres: str, new_log: MakeLog) -> None:
    proxy = Proxy()
    log = new_log(await proxy.start(postgres))
    await log.append("run", start_events(), expected_seq=0, writer="mine")
    log._engine().write._timeout = 0.2
    proxy.passes.clear()
    appending = asyncio.create_task(log.append("run", [note(3)], expected_seq=2, writer="mine"))
    await asyncio.sleep(0.5)
    assert not appending.done()
    proxy.passes.set()
    await appending
    assert len(await log.read("run")) == 3
    await log.aclose()
    await proxy.stop()


async def test_invalid_batch_fails_without_affecting_other_batches(new_log: MakeLog) -> None:
    log = new_log()
    invalid = task(task_id="bad").model_copy(update={"agent_name": "a\0b"})
    outcomes = await asyncio.gather(
        *(log.append(name, start_events(name), expected_seq=0) for name in "ab"),
        log.append("bad", [invalid], expected_seq=0),
        log.append("stale", [note(8)], expected_seq=7),
        *(log.append(name, start_events(name), expected_seq=0) for name in "cd"),
        return_exceptions=True,
    )
    assert [type(outcome).__name__ for outcome in outcomes[2:4]] == ["EventLogError", "ConflictError"]
    assert "NUL" in str(outcomes[2])
    assert ids(await log.list_runs()) == ["a", "b", "c", "d"]


async def test_waiting_batches_are_written_by_one_statement(postgres: str, new_log: MakeLog) -> None:
    log = new_log()
    await log.append("first", start_events("first"), expected_seq=0)
    before = await _count_commits(log)
    await asyncio.gather(
        *(log.append(f"run{number}", start_events(f"run{number}"), expected_seq=0) for number in range(200))
    )
    assert await _count_commits(log) - before <= 3


async def _count_commits(log: PostgresEventLog) -> int:
    connection = log._engine().write
    if not hasattr(connection, "count"):
        once, counted = connection._run_once, [0]

        async def count(*arguments: Any) -> Any:
            counted[0] += 1
            return await once(*arguments)

        connection._run_once, connection.count = count, counted  # type: ignore[attr-defined, method-assign]
    return connection.count[0]  # type: ignore[attr-defined]
