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


async def test_an_open_gate_holds_nobody_back() -> None:
    gate = Gate()
    assert not gate.closed
    await gate.wait()


async def test_a_closed_gate_holds_everybody_back_until_it_is_open() -> None:
    gate = Gate()
    gate.close()
    waiting = [asyncio.ensure_future(gate.wait()) for _ in range(3)]
    await run_ready_tasks()
    assert not any(task.done() for task in waiting)
    gate.open()
    await asyncio.gather(*waiting)


async def test_a_gate_needs_one_opening_for_each_closing() -> None:
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


async def test_a_gate_that_is_closed_again_at_once_holds_on() -> None:
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


async def test_who_gives_up_waiting_at_a_gate_leaves_it_as_it_is() -> None:
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


async def test_a_task_sees_the_context_variables_of_whoever_made_the_scope() -> None:
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
    ended: list[int] = []

    async def work(number: int) -> None:
        await run_ready_tasks(number)
        ended.append(number)

    for number in (3, 1, 2):
        scope.spawn(work(number), str(number))
    assert await scope.join(5) == []
    assert ended == [1, 2, 3]
    assert await scope.join(5) == []


def test_join_gives_up_after_the_grace_and_names_what_is_left() -> None:
    with virtual_time() as time:

        async def main() -> None:
            scope = Scope()
            scope.spawn(asyncio.sleep(60), "b-slow")
            scope.spawn(asyncio.sleep(60), "a-slow")
            scope.spawn(asyncio.sleep(1), "quick")
            assert await scope.join(5) == ["a-slow", "b-slow"]

        time.run(main())
        assert time.now == 5


async def test_a_task_that_joins_does_not_wait_for_itself() -> None:
    scope = Scope()
    left: list[str] = ["not yet"]

    async def work() -> None:
        assert scope.owns(asyncio.current_task())
        left[:] = await scope.join(60)

    await scope.spawn(work(), "joins")
    assert left == []
    assert not scope.owns(asyncio.current_task())
    assert not scope.owns(None)


async def test_a_scope_surrounds_its_tasks_and_those_that_they_start() -> None:
    outer = Scope()
    found: list[tuple[bool, bool]] = []

    async def deeper(inner: Scope) -> None:
        found.append((outer.contains(), inner.contains()))

    async def work() -> None:
        inner = Scope()
        await asyncio.create_task(deeper(inner))
        await inner.spawn(deeper(inner), "inner")

    await outer.spawn(work(), "outer")
    assert found == [(True, False), (True, True)]
    assert not outer.contains()


async def test_a_context_that_lives_on_does_not_keep_the_scope() -> None:
    contexts: list[Context] = []

    async def work() -> None:
        # As a timer or a connection does that was made in the run.
        contexts.append(copy_context())

    scope = Scope()
    await scope.spawn(work(), "work")
    gone = weakref.ref(scope)
    del scope
    await run_ready_tasks()
    gc.collect()

    assert len(contexts) == 1
    assert gone() is None


async def test_a_task_that_fails_does_not_disturb_join() -> None:
    scope = Scope()

    async def work() -> None:
        raise ZeroDivisionError

    task = scope.spawn(work(), "fails")
    assert await scope.join(5) == []
    with pytest.raises(ZeroDivisionError):
        await task
