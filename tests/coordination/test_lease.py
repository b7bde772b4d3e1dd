"""One run at a time in each conversation, whichever log object and event loop of the process it is in."""

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


async def test_wait_acquires_a_free_lock_at_once(locks: ConversationLocks) -> None:
    acquire_and_release(locks)

    await locks.wait("c")

    assert not locks.acquire("c")
    locks.release("c")
    acquire_and_release(locks)


async def test_a_run_that_waits_goes_on_whenever_the_one_before_it_ends() -> None:
    for turns_of_the_loop in range(20):
        log = MemoryEventLog()
        agent = Agent(ScriptedModel("one", "two"), log=log)
        first = agent.run("1", context_id="c")
        first.events.subscribe(lambda event: None)
        for _ in range(turns_of_the_loop):
            await asyncio.sleep(0)
        second = await agent.run("2", context_id="c", when_busy="wait")
        assert [message.text for message in second.messages] == ["1", "one", "2", "two"]
        await first


async def test_cancelled_waiters_pass_the_lock_on(locks: ConversationLocks) -> None:
    assert locks.acquire("c")
    waiting = [asyncio.create_task(locks.wait("c")) for _ in range(3)]
    await asyncio.sleep(0)

    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    locks.release("c")
    # This waiter has the lock, but its task has not run yet.
    waiting[1].cancel()
    await asyncio.wait(waiting, timeout=5)

    assert [task.cancelled() for task in waiting] == [True, True, False]
    locks.release("c")
    acquire_and_release(locks)


def in_a_thread(work: Callable[[], None]) -> threading.Thread:
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

    thread = in_a_thread(lambda: asyncio.run(wait()))
    assert waits.wait(5)
    locks.release("c")

    thread.join(5)
    assert not thread.is_alive()
    acquire_and_release(locks)


def test_release_skips_waiters_of_a_closed_event_loop(locks: ConversationLocks) -> None:
    assert locks.acquire("c")
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(locks.wait("c"))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    locks.release("c")

    acquire_and_release(locks)
    waiting._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]
    waiting.get_coro().close()  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]


def test_threads_hold_the_lock_one_at_a_time(locks: ConversationLocks) -> None:
    inside, most, done = 0, 0, 0

    async def work() -> None:
        nonlocal inside, most, done
        for _ in range(50):
            if not locks.acquire("c"):
                await locks.wait("c")
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1
            done += 1
            locks.release("c")

    threads = [in_a_thread(lambda: asyncio.run(work())) for _ in range(4)]
    for thread in threads:
        thread.join(30)

    assert (done, most) == (200, 1)


@pytest.mark.parametrize("named", ["same", "relative", "link"])
async def test_two_logs_on_one_file_have_one_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link.db").symlink_to("runs.db")
    path = {"same": tmp_path / "runs.db", "relative": Path("runs.db"), "link": Path("link.db")}[named]
    first, second = SqliteEventLog(tmp_path / "runs.db"), SqliteEventLog(path)
    begun, gate = asyncio.Event(), asyncio.Event()

    async def instructions(ctx: object) -> str:
        begun.set()
        await gate.wait()
        return "Be brief."

    running = Agent(ScriptedModel("one"), instructions=instructions, log=first).run("1", context_id="c")
    running.events.subscribe(lambda event: None)
    await begun.wait()
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


async def test_conversations_of_two_files_do_not_wait_for_each_other(tmp_path: Path) -> None:
    logs = [SqliteEventLog(tmp_path / name) for name in ("a.db", "b.db")]
    for locks in [log.local.get(ConversationLocks) for log in logs]:
        assert locks.acquire("c")


def test_a_forked_process_has_none_of_the_turns_of_its_parent() -> None:
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


async def test_another_agent_of_the_same_log_finds_and_cancels_a_run(log: MemoryEventLog) -> None:
    running = Agent(ScriptedModel(frames("-" * 100 + "|")), log=log, name="first").run("Go", context_id="c")
    events = running.events.subscribe(lambda event: None)
    await asyncio.sleep(0)
    await Agent(ScriptedModel(), log=log, name="second").get_run(running.task_id).cancel("enough")

    assert (await log.get_record(running.task_id)).state == "canceled"
    events.dispose()


async def test_a_run_without_a_log_is_found_by_its_agent_alone() -> None:
    first, second = (Agent(ScriptedModel(frames("-" * 100 + "|"))) for _ in range(2))
    running = first.run("Go")
    events = running.events.subscribe(lambda event: None)
    await asyncio.sleep(0)
    with pytest.raises(ConfigurationError, match="needs the log"):
        await second.get_run(running.task_id).cancel()
    await first.get_run(running.task_id).cancel("enough")

    with pytest.raises(RunCancelled, match="enough"):
        await running
    events.dispose()


class SlowLog(MemoryEventLog):
    """Log that takes a while to release a lease."""

    @override
    async def release_lease(self, context_id: str, task_id: str) -> None:
        await asyncio.sleep(0)
        await super().release_lease(context_id, task_id)


async def test_release_can_be_repeated_after_it_was_interrupted() -> None:
    log = SlowLog()
    lease = Lease(log, "c", "r", lambda error: None)
    assert await lease.try_acquire()
    releasing = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    releasing.cancel()
    await asyncio.wait([releasing])
    assert await log.has_lease("c", "r")
    await lease.release()
    assert not await log.has_lease("c", "r")
