from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from contextvars import ContextVar
from typing import Any

import pytest

from rxloop.errors import RxloopError
from rxloop.support import threads as module
from rxloop.support.threads import Threads, Work, run_in_thread
from rxloop.testing import virtual_time
from support.run_checks import wait_until

USER: ContextVar[str] = ContextVar("user", default="nobody")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Threads:
    """Threads for a test: at most two working and three stuck threads."""
    threads = Threads(max_running=2, max_stuck=3, idle_seconds=0.05)
    monkeypatch.setattr(module, "THREADS", threads)
    return threads


async def test_function_runs_in_a_daemon_thread_with_the_context_of_its_caller() -> None:
    def look() -> tuple[bool, str]:
        return threading.current_thread().daemon, USER.get()

    USER.set("Ada")
    assert await run_in_thread(look) == (True, "Ada")


async def test_idle_thread_is_reused(pool: Threads) -> None:
    names: set[str] = set()
    for _ in range(20):
        names.add(await run_in_thread(lambda: threading.current_thread().name))
        await wait_until(lambda: pool._idle)
    assert len(names) == 1


async def test_thread_ends_after_its_idle_time(pool: Threads) -> None:
    thread = await run_in_thread(threading.current_thread)
    await asyncio.to_thread(thread.join, 5)
    assert not thread.is_alive()
    assert await run_in_thread(lambda: "again") == "again"


async def test_calls_above_the_limit_wait(pool: Threads) -> None:
    go = threading.Event()
    first = [asyncio.ensure_future(run_in_thread(lambda: go.wait(10))) for _ in range(2)]
    later = [asyncio.ensure_future(run_in_thread(lambda: "later")) for _ in range(5)]
    await asyncio.sleep(0)
    assert len(pool._queue) == 5
    go.set()
    assert await asyncio.gather(*first, *later) == [True, True, *["later"] * 5]


async def abandon_calls(count: int, go: threading.Event) -> None:
    """Cancel calls whose functions continue to run."""
    started = threading.Semaphore(0)

    def block() -> None:
        started.release()
        go.wait(10)

    for _ in range(count):
        task = asyncio.ensure_future(run_in_thread(block))
        await asyncio.to_thread(started.acquire)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_hanging_functions_do_not_block_other_calls(pool: Threads) -> None:
    go = threading.Event()
    try:
        await abandon_calls(2, go)
        assert pool.stuck == 2
        assert await run_in_thread(lambda: "done") == "done"
    finally:
        go.set()


async def test_too_many_hanging_functions_are_an_error_until_one_ends(pool: Threads) -> None:
    go = threading.Event()
    try:
        await abandon_calls(3, go)
        with pytest.raises(RxloopError, match="3 canceled calls are still running"):
            await run_in_thread(lambda: "done")
    finally:
        go.set()
    await wait_until(lambda: not pool.stuck)
    assert await run_in_thread(lambda: "done") == "done"


async def test_waiting_call_gets_the_slot_of_an_abandoned_one(pool: Threads) -> None:
    go = threading.Event()
    started = threading.Semaphore(0)

    def block() -> None:
        started.release()
        go.wait(10)

    try:
        hanging = [asyncio.ensure_future(run_in_thread(block)) for _ in range(2)]
        await asyncio.to_thread(lambda: [started.acquire() for _ in hanging])
        waiting = asyncio.ensure_future(run_in_thread(lambda: "done"))
        await asyncio.sleep(0)
        hanging[0].cancel()
        assert await waiting == "done"
        hanging[1].cancel()
        await asyncio.wait(hanging)
    finally:
        go.set()


async def test_call_cancelled_before_its_start_never_runs(pool: Threads) -> None:
    go = threading.Event()
    started: list[str] = []
    first = [asyncio.ensure_future(run_in_thread(lambda: go.wait(10))) for _ in range(2)]
    cancelled_call = asyncio.ensure_future(run_in_thread(lambda: started.append("left")))
    await asyncio.sleep(0)
    cancelled_call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled_call
    go.set()
    await asyncio.gather(*first)
    assert await run_in_thread(lambda: "done") == "done"
    assert started == []
    await wait_until(lambda: not pool._running)


class Odd(BaseException):
    """Exception that does not derive from `Exception`."""


@pytest.mark.parametrize("error", [KeyError("x"), Odd("y")])
async def test_exception_of_a_function_is_raised(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await run_in_thread(fail)
    assert caught.value is error


async def test_exception_is_freed_when_it_is_no_longer_referenced(pool: Threads) -> None:
    class Failure(Exception):
        """Exception that supports weak references."""

    references: list[weakref.ref[Any]] = []

    def fail() -> None:
        error = Failure()
        references.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    gc.collect()
    gc.disable()
    try:
        future = pool.submit(Work(fail))
        await wait_until(future.done)
        del future
        await wait_until(lambda: pool._idle)
        assert references[0]() is None
    finally:
        gc.enable()


def test_virtual_time_stands_still_while_a_thread_works() -> None:
    async def main() -> bool:
        async with asyncio.timeout(5):
            return await run_in_thread(lambda: threading.Event().wait(0.05))

    with virtual_time() as time:
        time.run(main())
        assert time.now == 0


HANGING = """
import asyncio, threading, sys
from rxloop import Agent, tool
from rxloop.testing import ScriptedModel, call

@tool(timeout=0.2)
def hangs() -> str:
    \"\"\"Hang.\"\"\"
    threading.Event().wait()
    return "never"

@tool(timeout=0.2)
def hangs_between():
    \"\"\"Hang, as a generator.\"\"\"
    yield "a step"
    threading.Event().wait()

@tool(timeout=0.2)
def hangs_on():
    \"\"\"Hang in the clean-up.\"\"\"
    try:
        threading.Event().wait()
    finally:
        threading.Event().wait()

name = sys.argv[1]
model = ScriptedModel(*[call(name)] * 2, "Done.")
print(Agent(model, tools=[hangs, hangs_between, hangs_on]).run_sync("Go.").output, flush=True)
"""


@pytest.mark.parametrize("name", ["hangs", "hangs_between", "hangs_on"])
def test_process_ends_when_its_tools_hang_in_threads(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING, name], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (0, "Done.\n"), done.stderr


FORKED = """
import asyncio, os, sys
from rxloop.support.threads import run_in_thread

asyncio.run(run_in_thread(lambda: 1))
child = os.fork()
if child == 0:
    print(asyncio.run(asyncio.wait_for(run_in_thread(lambda: 2), 5)), flush=True)
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(module.os, "fork"), reason="there is no fork here")
def test_forked_process_has_its_own_threads() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
