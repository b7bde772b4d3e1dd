from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from rxloop import Agent, tool
from rxloop.errors import RunCancelled, RxloopError
from rxloop.testing import ScriptedModel, call, frames
from support.cancellation import make_endless_model, start_observed_run
from support.run_checks import (
    Recorder,
    assert_ended,
    assert_no_tasks,
    final_events,
    kinds,
    other_tasks,
    run_ready_tasks,
    wait_until,
)


async def test_cancel_of_the_awaiter_cancels_the_run_and_waits_for_its_end() -> None:
    model = make_endless_model()
    run, events = start_observed_run(Agent(model))
    awaiter = asyncio.ensure_future(run.result())
    await wait_until(lambda: "content-delta" in kinds(events))
    awaiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await awaiter
    assert_ended(events, "canceled", "canceled")
    assert model.open == 0
    await assert_no_tasks()


async def test_other_awaiters_get_run_canceled_when_one_awaiter_is_canceled() -> None:
    run, events = start_observed_run(Agent(make_endless_model()))
    first, second = (asyncio.ensure_future(run.result()) for _ in range(2))
    await wait_until(lambda: "content-delta" in kinds(events))
    first.cancel()
    with pytest.raises(RunCancelled):
        await second
    assert first.cancelled() or isinstance(await asyncio.gather(first, return_exceptions=True), list)
    assert first.cancelled()


async def test_repeatedly_canceled_awaiter_waits_for_the_end_of_the_run() -> None:
    cleaned: list[str] = []

    @tool
    async def slow_to_stop() -> str:
        """Stop slowly."""
        try:
            await asyncio.Event().wait()
        finally:
            await run_ready_tasks(30)
            cleaned.append("cleaned")
        return ""

    run, events = start_observed_run(Agent(ScriptedModel(call("slow_to_stop"), "ok"), tools=[slow_to_stop]))
    awaiter = asyncio.ensure_future(run.result())
    await wait_until(lambda: "tool-start" in kinds(events))
    for _ in range(10):
        awaiter.cancel()
        await asyncio.sleep(0)
    assert not awaiter.done()
    with pytest.raises(asyncio.CancelledError):
        await awaiter
    assert cleaned == ["cleaned"]
    assert_ended(events, "canceled", "canceled")


async def test_wait_for_and_timeout_cancel_the_run() -> None:
    run, events = start_observed_run(Agent(make_endless_model()))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run, 0.01)
    assert_ended(events, "canceled", "canceled")
    run, events = start_observed_run(Agent(make_endless_model()))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run
    assert_ended(events, "canceled", "canceled")
    await assert_no_tasks()


async def test_anyio_scope_around_an_await_cancels_the_run() -> None:
    run, events = start_observed_run(Agent(make_endless_model()))
    with anyio.move_on_after(0.01) as scope:
        await run
    assert scope.cancelled_caught
    assert_ended(events, "canceled", "canceled")
    run, events = start_observed_run(Agent(make_endless_model()))
    with pytest.raises(TimeoutError), anyio.fail_after(0.01):
        await run
    assert_ended(events, "canceled", "canceled")
    await anyio.lowlevel.checkpoint()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await assert_no_tasks()


async def test_anyio_scope_around_async_with_waits_for_the_end_of_the_run() -> None:
    cleaned: list[str] = []

    @tool
    async def slow_to_stop() -> str:
        """Stop slowly."""
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)
            cleaned.append("cleaned")
        return ""

    run, events = start_observed_run(Agent(ScriptedModel(call("slow_to_stop"), "ok"), tools=[slow_to_stop]))
    with anyio.move_on_after(0.02) as scope:
        async with run:
            async for _ in run:
                pass
    assert scope.cancelled_caught
    assert cleaned == ["cleaned"]
    assert_ended(events, "canceled", "canceled")


async def test_repeated_cancellation_by_a_scope_does_not_keep_the_loop_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = 0
    original_wait = asyncio.wait

    async def count_and_wait(*args: Any, **options: Any) -> Any:
        nonlocal waits
        waits += 1
        return await original_wait(*args, **options)

    @tool
    async def slow_to_stop() -> str:
        """Stop slowly."""
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
        return ""

    monkeypatch.setattr(asyncio, "wait", count_and_wait)
    run, events = start_observed_run(Agent(ScriptedModel(call("slow_to_stop"), "ok"), tools=[slow_to_stop]))
    with anyio.move_on_after(0.02):
        await run
    assert_ended(events, "canceled", "canceled")
    assert waits < 10


async def test_failing_task_group_cancels_its_runs() -> None:
    async def fail_soon() -> None:
        await asyncio.sleep(0.005)
        raise ZeroDivisionError

    run, events = start_observed_run(Agent(make_endless_model()))
    with pytest.raises(ExceptionGroup):  # noqa: PT012 (the group is what raises)
        async with asyncio.TaskGroup() as group:
            group.create_task(run.result())
            group.create_task(fail_soon())
    assert_ended(events, "canceled", "canceled")
    run, events = start_observed_run(Agent(make_endless_model()))
    with pytest.raises(ExceptionGroup):  # noqa: PT012 (the group is what raises)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.result)
            tasks.start_soon(fail_soon)
    assert_ended(events, "canceled", "canceled")
    await assert_no_tasks()


async def test_canceled_gather_cancels_all_its_runs() -> None:
    agent = Agent(ScriptedModel(*[frames("-a-", frame=0.001)] * 3))
    pairs = [start_observed_run(agent) for _ in range(3)]
    gathered = asyncio.gather(*(run for run, _ in pairs))
    await wait_until(lambda: all("content-delta" in kinds(events) for _, events in pairs))
    gathered.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gathered
    await wait_until(lambda: all(final_events(events) for _, events in pairs))
    for _, events in pairs:
        assert_ended(events, "canceled", "canceled")
    await assert_no_tasks()


async def test_exit_of_async_with_cancels_an_unfinished_run() -> None:
    model = make_endless_model()
    run, events = start_observed_run(Agent(model))
    async with run as entered:
        assert entered is run
        async for event in run:
            if event.kind == "content-delta":
                break
    assert_ended(events, "canceled", "canceled")
    assert model.open == 0
    assert other_tasks() == set()


async def test_exit_of_async_with_propagates_an_exception() -> None:
    run, events = start_observed_run(Agent(make_endless_model()))
    with pytest.raises(ZeroDivisionError):
        async with run:
            raise ZeroDivisionError
    assert_ended(events, "canceled", "canceled")


async def test_exit_of_async_with_keeps_a_completed_run() -> None:
    run, events = start_observed_run(Agent(ScriptedModel("Hi.")))
    async with run:
        assert (await run).output == "Hi."
    assert (await run).output == "Hi."
    assert_ended(events, "completed")


async def test_async_with_starts_the_run() -> None:
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    async with run:
        assert run.started
        await run_ready_tasks()
    assert (await run).output == "Hi."


async def test_exit_of_async_with_inside_a_tool_of_the_run_does_not_hang() -> None:
    holder: list[Any] = []

    @tool
    async def leaves() -> str:
        """Leave."""
        async with holder[0]:
            pass
        await asyncio.Event().wait()
        return "never"

    run, events = start_observed_run(Agent(ScriptedModel(call("leaves"), "ok"), tools=[leaves]))
    holder.append(run)
    async with asyncio.timeout(2):
        with pytest.raises(RunCancelled):
            await run
    assert_ended(events, "canceled", "canceled")
    await assert_no_tasks()


async def test_aclose_in_a_task_of_a_tool_of_the_run_does_not_hang() -> None:
    holder: list[Any] = []

    @tool
    async def leaves() -> str:
        """Leave, by a task."""
        async with asyncio.TaskGroup() as group:
            group.create_task(holder[0].aclose())
        await asyncio.Event().wait()
        return "never"

    run, events = start_observed_run(Agent(ScriptedModel(call("leaves"), "ok"), tools=[leaves]))
    holder.append(run)
    async with asyncio.timeout(2):
        with pytest.raises(RunCancelled):
            await run
    assert_ended(events, "canceled", "canceled")
    await assert_no_tasks()


async def test_tool_that_awaits_its_own_run_fails() -> None:
    holder: list[Any] = []

    @tool
    async def waits() -> str:
        """Wait for itself."""
        return (await holder[0]).output

    model = ScriptedModel(call("waits"), "ok")
    run, _ = start_observed_run(Agent(model, tools=[waits]))
    holder.append(run)
    async with asyncio.timeout(2):
        assert (await run).output == "ok"
    assert "awaits its own run" in model.requests[1].messages[-1].text


async def test_tool_can_run_another_agent() -> None:
    inner = Agent(ScriptedModel(frames("-in-side-|", frame=0.001)))

    @tool
    async def delegate() -> str:
        """Ask another agent."""
        async with inner.run("Inner.") as run:
            return (await run).output

    assert (await Agent(ScriptedModel(call("delegate"), "ok"), tools=[delegate]).run("Go.")).output == "ok"
    await assert_no_tasks()


async def test_cancel_of_a_run_cancels_the_run_that_its_tool_awaits() -> None:
    inner_model = make_endless_model()
    inner = Agent(inner_model)

    @tool
    async def delegate() -> str:
        """Ask another agent."""
        return (await inner.run("Inner.")).output

    run, events = start_observed_run(Agent(ScriptedModel(call("delegate"), "ok"), tools=[delegate]))
    async with run:
        await wait_until(lambda: inner_model.open)
    assert inner_model.open == 0
    assert_ended(events, "canceled", "canceled")
    await assert_no_tasks()


async def test_aclose_waits_for_the_end_and_can_be_repeated() -> None:
    run, events = start_observed_run(Agent(make_endless_model()))
    recorder = Recorder(run.events)
    await wait_until(lambda: "content-delta" in kinds(events))
    await asyncio.gather(run.aclose(), run.aclose())
    assert recorder.completed
    await run.aclose()
    assert other_tasks() == set()


async def test_aclose_of_an_unstarted_run_does_not_start_it() -> None:
    model = ScriptedModel("Hi.")
    run = Agent(model).run("Go.")
    await run.aclose()
    assert model.requests == []
    with pytest.raises(RunCancelled):
        await run
    assert model.requests == []
    await assert_no_tasks()


async def test_aclose_of_agent_cancels_its_runs() -> None:  # L123
    agent = Agent(ScriptedModel(*[frames("-a-", frame=0.001)] * 3))
    entered_run, first = start_observed_run(agent)
    await entered_run.__aenter__()
    run, second = start_observed_run(agent)
    iterator = aiter(run.text())
    reader = asyncio.ensure_future(_read_remaining(iterator))
    run, third = start_observed_run(agent)
    run.text().subscribe(lambda _: None)
    del run
    await wait_until(lambda: all("content-delta" in kinds(events) for events in (first, second, third)))
    await agent.aclose()
    for events in (first, second, third):
        assert_ended(events, "canceled", "canceled")
    assert await reader == ["a"]
    await agent.aclose()
    with pytest.raises(RxloopError, match="closed"):
        agent.run("Later.")
    await assert_no_tasks()


async def _read_remaining(iterator: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in iterator]


async def test_aclose_of_agent_cancels_an_unstarted_run() -> None:  # L123
    model = ScriptedModel("Hi.")
    agent = Agent(model)
    run = agent.run("Go.")
    await agent.aclose()
    with pytest.raises(RunCancelled):
        await run
    assert model.requests == []
