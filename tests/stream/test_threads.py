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
    """Threads of the test's own: two at work at once, and three that may be stuck."""
    made = Threads(max_running=2, max_stuck=3, idle_seconds=0.05)
    monkeypatch.setattr(module, "THREADS", made)
    return made


async def test_a_function_runs_in_a_daemon_with_the_context_variables_of_its_caller() -> None:
    def look() -> tuple[bool, str]:
        return threading.current_thread().daemon, USER.get()

    USER.set("Ada")
    assert await run_in_thread(look) == (True, "Ada")


async def test_a_thread_that_is_idle_is_used_again(pool: Threads) -> None:
    names: set[str] = set()
    for _ in range(20):
        names.add(await run_in_thread(lambda: threading.current_thread().name))
        await wait_until(lambda: pool._idle)
    assert len(names) == 1


async def test_a_thread_that_stays_idle_ends(pool: Threads) -> None:
    thread = await run_in_thread(threading.current_thread)
    await asyncio.to_thread(thread.join, 5)
    assert not thread.is_alive()
    assert await run_in_thread(lambda: "again") == "again"


async def test_what_is_too_much_at_once_waits_for_its_turn(pool: Threads) -> None:
    go = threading.Event()
    first = [asyncio.ensure_future(run_in_thread(lambda: go.wait(10))) for _ in range(2)]
    later = [asyncio.ensure_future(run_in_thread(lambda: "later")) for _ in range(5)]
    await asyncio.sleep(0)
    assert len(pool._queue) == 5
    go.set()
    assert await asyncio.gather(*first, *later) == [True, True, *["later"] * 5]


async def hang(count: int, go: threading.Event) -> None:
    """Leave functions alone that go on."""
    begun = threading.Semaphore(0)

    def hangs() -> None:
        begun.release()
        go.wait(10)

    for _ in range(count):
        task = asyncio.ensure_future(run_in_thread(hangs))
        await asyncio.to_thread(begun.acquire)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_functions_that_hang_hold_up_nobody_else(pool: Threads) -> None:
    go = threading.Event()
    try:
        await hang(2, go)
        assert pool.stuck == 2
        assert await run_in_thread(lambda: "done") == "done"
    finally:
        go.set()


async def test_too_many_that_hang_are_an_error_until_one_of_them_ends(pool: Threads) -> None:
    go = threading.Event()
    try:
        await hang(3, go)
        with pytest.raises(RxloopError, match="3 canceled calls are still running"):
            await run_in_thread(lambda: "done")
    finally:
        go.set()
    await wait_until(lambda: not pool.stuck)
    assert await run_in_thread(lambda: "done") == "done"


async def test_one_that_waits_for_its_turn_gets_the_place_of_one_that_is_left(pool: Threads) -> None:
    go = threading.Event()
    begun = threading.Semaphore(0)

    def hangs() -> None:
        begun.release()
        go.wait(10)

    try:
        hanging = [asyncio.ensure_future(run_in_thread(hangs)) for _ in range(2)]
        await asyncio.to_thread(lambda: [begun.acquire() for _ in hanging])
        waiting = asyncio.ensure_future(run_in_thread(lambda: "done"))
        await asyncio.sleep(0)
        hanging[0].cancel()
        assert await waiting == "done"
        hanging[1].cancel()
        await asyncio.wait(hanging)
    finally:
        go.set()


async def test_one_that_is_left_before_its_turn_is_never_begun(pool: Threads) -> None:
    go = threading.Event()
    begun: list[str] = []
    first = [asyncio.ensure_future(run_in_thread(lambda: go.wait(10))) for _ in range(2)]
    left = asyncio.ensure_future(run_in_thread(lambda: begun.append("left")))
    await asyncio.sleep(0)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    go.set()
    await asyncio.gather(*first)
    assert await run_in_thread(lambda: "done") == "done"
    assert begun == []
    await wait_until(lambda: not pool._running)


class Odd(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize("error", [KeyError("x"), Odd("y")])
async def test_what_a_function_raises_comes_out(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await run_in_thread(fail)
    assert caught.value is error


async def test_an_error_is_gone_when_nobody_has_it_any_more(pool: Threads) -> None:
    class Failure(Exception):
        """Can be referred to weakly."""

    kept: list[weakref.ref[Any]] = []

    def fail() -> None:
        error = Failure()
        kept.append(weakref.ref(error))
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
        assert kept[0]() is None
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
def test_a_process_whose_tools_hang_in_threads_comes_to_its_end(name: str) -> None:
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
def test_a_process_that_was_forked_has_threads_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
