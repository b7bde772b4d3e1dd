"""Postgres logs whose server fails or whose answers are lost."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from rxloop import PostgresEventLog
from rxloop.errors import LogUnreachable
from rxloop.protocol.commands import CancelCommand
from rxloop.testing.event_log_contract.toolkit import Follower, begun, ids, note, task
from support.postgres.logs import ConcurrentWriters, MakeLog
from support.postgres.proxies import Proxy
from support.postgres.server import PostgresServer

pytestmark = pytest.mark.service("postgres")


@pytest.mark.parametrize("kill", [False, True])
async def test_restarted_server_disturbs_no_writer_and_no_follower(kill: bool) -> None:
    with PostgresServer() as server:
        log, other = PostgresEventLog(server.dsn, patience=60), PostgresEventLog(server.dsn, patience=60)
        writing = ConcurrentWriters(log, 20)
        await writing.wait_for_progress()
        followers = [Follower(other, name) for name in writing.names]
        for _ in range(2):
            await writing.wait_for_progress()
            server.kill() if kill else server.stop()
            await asyncio.to_thread(server.start)
        await writing.wait_for_progress()
        last = await writing.stop()
        await asyncio.wait_for(asyncio.gather(*(follower.task for follower in followers)), 60)
        assert [follower.seen for follower in followers] == [[*range(1, seq + 1)] for seq in last]
        for name, seq in zip(writing.names, last, strict=True):
            assert [event.seq for event in await log.read(name)] == [*range(1, seq + 1)]
        await log.aclose()
        await other.aclose()


async def test_missing_server_is_an_error_after_the_timeout() -> None:
    with PostgresServer() as server:
        log = PostgresEventLog(server.dsn, patience=0.3)
        await log.append("run", begun(), expected_seq=0)
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
    await log.append("run", begun(), expected_seq=0, writer="mine")
    for seq in range(3, 33, 2):
        proxy.cut_answers = True
        # With and without a writer name, since the log itself retries.
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
    await log.append("run", begun(), expected_seq=0, writer="mine")
    log._engine().write._answers_in = 0.2
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
    named = task(task_id="bad").model_copy(update={"agent_name": "a\0b"})
    outcomes = await asyncio.gather(
        *(log.append(name, begun(name), expected_seq=0) for name in "ab"),
        log.append("bad", [named], expected_seq=0),
        log.append("stale", [note(8)], expected_seq=7),
        *(log.append(name, begun(name), expected_seq=0) for name in "cd"),
        return_exceptions=True,
    )
    assert [type(outcome).__name__ for outcome in outcomes[2:4]] == ["EventLogError", "ConflictError"]
    assert "NUL" in str(outcomes[2])
    assert ids(await log.list_runs()) == ["a", "b", "c", "d"]


async def test_waiting_batches_are_written_by_one_statement(postgres: str, new_log: MakeLog) -> None:
    log = new_log()
    await log.append("first", begun("first"), expected_seq=0)
    before = await _count_commits(log)
    await asyncio.gather(*(log.append(f"run{number}", begun(f"run{number}"), expected_seq=0) for number in range(200)))
    assert await _count_commits(log) - before <= 3


async def _count_commits(log: PostgresEventLog) -> int:
    """Count the writes of the writing connection."""
    connection = log._engine().write
    if not hasattr(connection, "count"):
        once, counted = connection._once, [0]

        async def count(*arguments: Any) -> Any:
            counted[0] += 1
            return await once(*arguments)

        connection._once, connection.count = count, counted  # type: ignore[attr-defined, method-assign]
    return connection.count[0]  # type: ignore[attr-defined]
