"""Conversation leases within one process."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from typing_extensions import override

from rxloop import Agent, MemoryEventLog, Message, RunCancelled, SqliteEventLog
from rxloop.coordination.lease import ConversationLocks, Lease
from rxloop.errors import ConfigurationError, ContextBusy
from rxloop.testing import ScriptedModel, frames


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()


@pytest.fixture
def locks(log: MemoryEventLog) -> ConversationLocks:
    return log.local.get(ConversationLocks)


def acquire_and_release(locks: ConversationLocks) -> None:
    assert locks.acquire("c")
    locks.release("c")


async def test_wait_acquires_a_free_lock_immediately(locks: ConversationLocks) -> None:
    acquire_and_release(locks)

    await locks.wait("c")

    assert not locks.acquire("c")
    locks.release("c")
    acquire_and_release(locks)


async def test_waiting_run_starts_at_any_end_of_the_previous_run() -> None:
    for loop_iterations in range(20):
        log = MemoryEventLog()
        agent = Agent(ScriptedModel("one", "two"), log=log)
        first = agent.run("1", context_id="c")
        first.events.subscribe(lambda event: None)
        for _ in range(loop_iterations):
            await asyncio.sleep(0)
        second = await agent.run("2", context_id="c", when_busy="wait")
        assert [message.text for message in second.messages] == ["1", "one", "2", "two"]
        await first


async def test_canceled_waiters_pass_the_lock_to_the_next_waiter(locks: ConversationLocks) -> None:
    assert locks.acquire("c")
    waiters = [asyncio.create_task(locks.wait("c")) for _ in range(3)]
    await asyncio.sleep(0)

    waiters[0].cancel()
    await asyncio.wait(waiters[:1])
    locks.release("c")
    # This waiter already owns the lock, although its task has not resumed.
    waiters[1].cancel()
    await asyncio.wait(waiters, timeout=5)

    assert [task.cancelled() for task in waiters] == [True, True, False]
    locks.release("c")
    acquire_and_release(locks)


def start_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_release_wakes_a_waiter_in_the_event_loop_of_another_thread(locks: ConversationLocks) -> None:
    assert locks.acquire("c")
    waits = threading.Event()

    async def wait() -> None:
        asyncio.get_running_loop().call_later(0.01, waits.set)
        await locks.wait("c")
        locks.release("c")

    thread = start_thread(lambda: asyncio.run(wait()))
    assert waits.wait(5)
    locks.release("c")

    thread.join(5)
    assert not thread.is_alive()
    acquire_and_release(locks)


def test_release_skips_waiters_of_a_closed_event_loop(locks: ConversationLocks) -> None:
    assert locks.acquire("c")
    loop = asyncio.new_event_loop()
    waiter = loop.create_task(locks.wait("c"))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    locks.release("c")

    acquire_and_release(locks)
    waiter._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]
    waiter.get_coro().close()  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]


def test_threads_hold_the_lock_one_at_a_time(locks: ConversationLocks) -> None:
    inside, peak, count = 0, 0, 0

    async def work() -> None:
        nonlocal inside, peak, count
        for _ in range(50):
            if not locks.acquire("c"):
                await locks.wait("c")
            inside += 1
            peak = max(peak, inside)
            await asyncio.sleep(0)
            inside -= 1
            count += 1
            locks.release("c")

    threads = [start_thread(lambda: asyncio.run(work())) for _ in range(4)]
    for thread in threads:
        thread.join(30)

    assert count == 200
    assert peak == 1


@pytest.mark.parametrize("path_kind", ["same", "relative", "link"])
async def test_two_logs_on_one_file_share_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path_kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link.db").symlink_to("runs.db")
    path = {"same": tmp_path / "runs.db", "relative": Path("runs.db"), "link": Path("link.db")}[path_kind]
    first, second = SqliteEventLog(tmp_path / "runs.db"), SqliteEventLog(path)
    started, gate = asyncio.Event(), asyncio.Event()

    async def instructions(ctx: object) -> str:
        started.set()
        await gate.wait()
        return "Be brief."

    running = Agent(ScriptedModel("one"), instructions=instructions, log=first).run("1", context_id="c")
    running.events.subscribe(lambda event: None)
    await started.wait()
    other = Agent(ScriptedModel("two"), log=second)

    with pytest.raises(ContextBusy):
        await other.run("2", context_id="c")
    gate.set()
    result = await other.run("2", context_id="c", when_busy="wait")

    assert [message.text for message in result.messages] == ["1", "one", "2", "two"]
    assert result.messages[0] == Message.user("1")
    await running
    await first.aclose()
    await second.aclose()


async def test_conversations_of_two_files_are_independent(tmp_path: Path) -> None:
    logs = [SqliteEventLog(tmp_path / name) for name in ("a.db", "b.db")]
    for locks in [log.local.get(ConversationLocks) for log in logs]:
        assert locks.acquire("c")


def test_forked_process_holds_no_locks_of_its_parent() -> None:
    program = """
import os
from rxloop import MemoryEventLog
from rxloop.coordination.lease import ConversationLocks
log = MemoryEventLog()
assert log.local.get(ConversationLocks).acquire("c")
if os.fork() == 0:
    os._exit(0 if log.local.get(ConversationLocks).acquire("c") else 1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert not log.local.get(ConversationLocks).acquire("c")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_run_can_be_canceled_by_another_agent_of_the_same_log(log: MemoryEventLog) -> None:
    running = Agent(ScriptedModel(frames("-" * 100 + "|")), log=log, name="first").run("Go", context_id="c")
    events = running.events.subscribe(lambda event: None)
    await asyncio.sleep(0)
    await Agent(ScriptedModel(), log=log, name="second").get_run(running.task_id).cancel("enough")

    assert (await log.get_record(running.task_id)).state == "canceled"
    events.dispose()


async def test_run_without_log_can_be_canceled_only_by_its_agent() -> None:
    first, second = (Agent(ScriptedModel(frames("-" * 100 + "|"))) for _ in range(2))
    running = first.run("Go")
    events = running.events.subscribe(lambda event: None)
    await asyncio.sleep(0)
    with pytest.raises(ConfigurationError, match="requires an agent with its event log"):
        await second.get_run(running.task_id).cancel()
    await first.get_run(running.task_id).cancel("enough")

    with pytest.raises(RunCancelled, match="enough"):
        await running
    events.dispose()


class SlowLog(MemoryEventLog):
    """Log with slow lease release."""

    @override
    async def release_lease(self, conversation: str, task_id: str) -> None:
        await asyncio.sleep(0)
        await super().release_lease(conversation, task_id)


async def test_release_can_be_repeated_after_it_was_interrupted() -> None:
    log = SlowLog()
    lease = Lease(log, "c", "r", lambda error: None)
    assert await lease.try_acquire()
    release_task = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    release_task.cancel()
    await asyncio.wait([release_task])
    assert await log.has_lease("c", "r")
    await lease.release()
    assert not await log.has_lease("c", "r")
