from __future__ import annotations

import asyncio
import gc
import weakref
from contextvars import Context, ContextVar, copy_context

import pytest

from rxloop.stream.back_pressure import Gate
from rxloop.stream.scope import Scope
from rxloop.testing import virtual_time
from support.run_checks import run_ready_tasks

VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="nothing")


async def test_open_gate_does_not_block() -> None:
    gate = Gate()
    assert not gate.closed
    await gate.wait()


async def test_closed_gate_blocks_all_waiters_until_it_opens() -> None:
    gate = Gate()
    gate.close()
    waiting = [asyncio.ensure_future(gate.wait()) for _ in range(3)]
    await run_ready_tasks()
    assert not any(task.done() for task in waiting)
    gate.open()
    await asyncio.gather(*waiting)


async def test_gate_requires_one_opening_per_closing() -> None:
    gate = Gate()
    gate.close()
    gate.close()
    waiting = asyncio.ensure_future(gate.wait())
    gate.open()
    await run_ready_tasks()
    assert gate.closed
    assert not waiting.done()
    gate.open()
    await waiting


async def test_gate_that_closes_again_immediately_keeps_its_waiters() -> None:
    gate = Gate()
    gate.close()
    waiting = asyncio.ensure_future(gate.wait())
    await run_ready_tasks()
    gate.open()
    gate.close()
    await run_ready_tasks()
    assert not waiting.done()
    gate.open()
    await waiting


async def test_cancelled_waiter_does_not_change_the_gate() -> None:
    gate = Gate()
    gate.close()
    waiting = asyncio.ensure_future(gate.wait())
    await run_ready_tasks()
    waiting.cancel()
    await run_ready_tasks()
    other = asyncio.ensure_future(gate.wait())
    await run_ready_tasks()
    gate.open()
    await other


async def test_task_gets_the_context_variables_of_the_creator_of_the_scope() -> None:
    seen: list[str] = []

    async def work() -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set("changed by a task")

    VARIABLE.set("the caller's")
    scope = Scope()
    VARIABLE.set("changed later")
    await scope.spawn(work(), "first")
    await scope.spawn(work(), "second")
    assert seen == ["the caller's", "the caller's"]
    assert VARIABLE.get() == "changed later"


async def test_join_waits_for_all_tasks() -> None:
    scope = Scope()
    finished: list[int] = []

    async def work(number: int) -> None:
        await run_ready_tasks(number)
        finished.append(number)

    for number in (3, 1, 2):
        scope.spawn(work(number), str(number))
    assert await scope.join(5) == []
    assert finished == [1, 2, 3]
    assert await scope.join(5) == []


def test_join_returns_the_remaining_tasks_after_the_grace_period() -> None:
    with virtual_time() as time:

        async def main() -> None:
            scope = Scope()
            scope.spawn(asyncio.sleep(60), "b-slow")
            scope.spawn(asyncio.sleep(60), "a-slow")
            scope.spawn(asyncio.sleep(1), "quick")
            assert await scope.join(5) == ["a-slow", "b-slow"]

        time.run(main())
        assert time.now == 5


async def test_task_that_joins_does_not_wait_for_itself() -> None:
    scope = Scope()
    remaining: list[str] = ["not yet"]

    async def work() -> None:
        assert scope.owns(asyncio.current_task())
        remaining[:] = await scope.join(60)

    await scope.spawn(work(), "joins")
    assert remaining == []
    assert not scope.owns(asyncio.current_task())
    assert not scope.owns(None)


async def test_scope_surrounds_its_tasks_and_their_tasks() -> None:
    outer = Scope()
    results: list[tuple[bool, bool]] = []

    async def check_nested(inner: Scope) -> None:
        results.append((outer.contains(), inner.contains()))

    async def work() -> None:
        inner = Scope()
        await asyncio.create_task(check_nested(inner))
        await inner.spawn(check_nested(inner), "inner")

    await outer.spawn(work(), "outer")
    assert results == [(True, False), (True, True)]
    assert not outer.contains()


async def test_surviving_context_does_not_keep_the_scope_alive() -> None:
    contexts: list[Context] = []

    async def work() -> None:
        # For example, timers and connections keep the context in which they were created.
        contexts.append(copy_context())

    scope = Scope()
    await scope.spawn(work(), "work")
    reference = weakref.ref(scope)
    del scope
    await run_ready_tasks()
    gc.collect()

    assert len(contexts) == 1
    assert reference() is None


async def test_failing_task_does_not_disturb_join() -> None:
    scope = Scope()

    async def work() -> None:
        raise ZeroDivisionError

    task = scope.spawn(work(), "fails")
    assert await scope.join(5) == []
    with pytest.raises(ZeroDivisionError):
        await task
