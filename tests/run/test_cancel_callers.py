from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from rxloop import Agent, RunContext, tool
from rxloop.errors import RunCancelled
from rxloop.protocol.events import CustomEvent, Event, ToolCompleteEvent
from rxloop.storage import MemoryEventLog
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.cancellation import assert_answered, assert_canceled, make_endless_model, quick, waits
from support.run_checks import (
    Recorder,
    assert_ended,
    final_events,
    kinds,
    run_ready_tasks,
    wait_until,
)


async def test_cancel_from_another_thread() -> None:
    # Debug mode detects loop calls that are not thread-safe.
    asyncio.get_running_loop().set_debug(True)
    model = make_endless_model()
    run = Agent(model).run("Go.")
    recorder = Recorder(run.events)
    await wait_until(lambda: "content-delta" in kinds(recorder.events))
    thread = threading.Thread(target=run.cancel, args=["from a thread"])
    thread.start()
    await assert_canceled(run, recorder)
    thread.join()


async def test_cancel_from_another_thread_before_the_start() -> None:
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    thread = threading.Thread(target=run.cancel)
    thread.start()
    thread.join()
    with pytest.raises(RunCancelled):
        await run


async def test_cancel_from_a_tool_of_the_run() -> None:
    holder: list[Any] = []

    @tool
    async def cancel_run(ctx: RunContext) -> str:
        """Cancel the run."""
        holder[0].cancel("from a tool")
        await asyncio.Event().wait()
        return "never"

    run = Agent(ScriptedModel(call("cancel_run"), "never"), tools=[cancel_run]).run("Go.")
    holder.append(run)
    recorder = Recorder(run.events)
    await assert_canceled(run, recorder)


async def test_aclose_from_a_tool_that_returns() -> None:
    holder: list[Any] = []

    @tool
    async def cancel_run() -> str:
        """Close the run."""
        await holder[0].aclose()
        return "closed"

    run = Agent(ScriptedModel(call("cancel_run"), "never"), tools=[cancel_run]).run("Go.")
    holder.append(run)
    recorder = Recorder(run.events)
    async with asyncio.timeout(2):
        await assert_canceled(run, recorder)


async def test_cancel_from_a_synchronous_tool() -> None:
    holder: list[Any] = []
    release = threading.Event()

    @tool
    def cancel_run() -> str:
        """Cancel the run from a thread."""
        holder[0].cancel("from a thread")
        release.wait(5)
        return "late"

    run = Agent(ScriptedModel(call("cancel_run"), "never"), tools=[cancel_run]).run("Go.")
    holder.append(run)
    recorder = Recorder(run.events)
    try:
        await assert_canceled(run, recorder)
    finally:
        release.set()


async def test_cancel_from_a_subscriber_during_replay() -> None:
    run = Agent(make_endless_model()).run("Go.")
    recorder = Recorder(run.events)
    await wait_until(lambda: "content-delta" in kinds(recorder.events))
    run.events.subscribe(lambda _: run.cancel())
    await assert_canceled(run, recorder)


async def test_cancel_at_the_final_event_has_no_effect() -> None:
    run = Agent(ScriptedModel("Hi.")).run("Go.")

    def cancel(event: Event) -> None:
        if final_events([event]):
            run.cancel()

    run.events.subscribe(cancel)
    assert (await run).output == "Hi."


def test_tool_that_ignores_cancellation_is_logged_and_its_result_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with virtual_time() as time:
        late_results: list[str] = []

        @tool
        async def stubborn(ctx: RunContext) -> str:
            """Go on regardless."""
            for _ in range(100):
                try:
                    await asyncio.sleep(0.2)
                except asyncio.CancelledError:
                    ctx.progress("I do not care")
            late_results.append("returned")
            ctx.emit(CustomEvent(name="late"))
            return "late"

        async def main() -> None:
            run = Agent(ScriptedModel(call("stubborn"), "never"), tools=[stubborn]).run("Go.")
            recorder = Recorder(run.events)
            await asyncio.sleep(1)
            with caplog.at_level(logging.ERROR, "rxloop"):
                run.cancel()
                with pytest.raises(RunCancelled):
                    await run
            assert time.now == pytest.approx(6)
            events = list(recorder.events)
            [complete] = [event for event in events if isinstance(event, ToolCompleteEvent)]
            assert not complete.success
            assert complete.error == "canceled"
            assert_ended(events, "canceled", "canceled")
            await asyncio.sleep(60)
            assert late_results == ["returned"]
            assert recorder.events == events

        time.run(main())
    assert any("rxloop-tool-stubborn" in record.getMessage() for record in caplog.records)


async def test_blocked_synchronous_tool_is_logged_and_its_result_dropped(caplog: pytest.LogCaptureFixture) -> None:
    release, began, ended = threading.Event(), threading.Event(), threading.Event()

    @tool
    def blocks(ctx: RunContext) -> str:
        """Block."""
        began.set()
        release.wait(5)
        ctx.progress("late")
        ctx.emit(CustomEvent(name="late"))
        ended.set()
        return "late"

    run = Agent(ScriptedModel(call("blocks"), "never"), tools=[blocks]).run("Go.")
    recorder = Recorder(run.events)
    await wait_until(began.is_set)
    run.cancel()
    async with asyncio.timeout(3):
        await assert_canceled(run, recorder)
    events = list(recorder.events)
    assert any("blocks" in record.getMessage() for record in caplog.records)
    release.set()
    await wait_until(ended.is_set)
    await run_ready_tasks()
    assert recorder.events == events
    assert "custom" not in kinds(events)


async def test_progress_during_the_cleanup_of_a_canceled_tool_is_dropped() -> None:
    cleaned: list[str] = []

    @tool
    async def careful(ctx: RunContext) -> str:
        """Clean up."""
        try:
            await asyncio.Event().wait()
        finally:
            await run_ready_tasks()
            ctx.progress("cleaning")
            cleaned.append("cleaned")
        return ""

    run = Agent(ScriptedModel(call("careful")), tools=[careful]).run("Go.")
    recorder = Recorder(run.events)
    await wait_until(lambda: "tool-start" in kinds(recorder.events))
    run.cancel()
    await assert_canceled(run, recorder)
    assert cleaned == ["cleaned"]
    assert "tool-progress" not in kinds(recorder.events)


async def test_exception_in_the_cleanup_of_a_canceled_tool_is_ignored() -> None:
    @tool
    async def careless() -> str:
        """Fail during cleanup."""
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    run = Agent(ScriptedModel(call("careless")), tools=[careless]).run("Go.")
    recorder = Recorder(run.events)
    await wait_until(lambda: "tool-start" in kinds(recorder.events))
    run.cancel()
    await assert_canceled(run, recorder)


async def test_agent_is_usable_after_a_canceled_run() -> None:  # L122
    agent = Agent(ScriptedModel(frames("-a-", frame=0.001), "Hi."))
    run = agent.run("1")
    recorder = Recorder(run.events)
    await wait_until(lambda: "content-delta" in kinds(recorder.events))
    run.cancel()
    await assert_canceled(run, recorder)
    assert (await agent.run("2")).output == "Hi."


async def test_canceled_run_leaves_no_open_call_in_the_history() -> None:  # L122
    log = MemoryEventLog()
    model = ScriptedModel([call("waits"), call("quick")], "Hi.")
    agent = Agent(model, tools=[waits, quick], log=log)
    run = agent.run("1", context_id="c")
    recorder = Recorder(run.events)
    await wait_until(lambda: kinds(recorder.events).count("tool-start") == 2)
    run.cancel()
    await assert_canceled(run, recorder)
    assert (await agent.run("2", context_id="c")).output == "Hi."
    messages = list(model.requests[1].messages)
    assert_answered(messages)
    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool", "user"]
    [record, _] = await log.list_runs(context_id="c")
    assert record.state == "canceled"


async def test_canceled_run_can_be_resumed() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(frames("-a-", frame=0.001), "Hi."), log=log)
    run = agent.run("1")
    recorder = Recorder(run.events)
    await wait_until(lambda: "content-delta" in kinds(recorder.events))
    run.cancel()
    await assert_canceled(run, recorder)
    resumed = agent.resume(run.task_id)
    assert (await resumed).output == "Hi."
