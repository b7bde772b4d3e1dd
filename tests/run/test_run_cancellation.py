from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import Observable, abc
from reactivex.disposable import Disposable

from rxloop import Agent, Limits, RunContext, op, tool
from rxloop.errors import LimitReached, RunCancelled, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.requests import ModelRequest, Signal
from rxloop.protocol.events import ContentCompleteEvent, Event, ToolCompleteEvent
from rxloop.storage import MemoryEventLog
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time
from support.cancellation import assert_answered, assert_canceled, make_endless_model, quick, waits
from support.run_checks import (
    Recorder,
    assert_ended,
    assert_no_tasks,
    assert_numbered,
    collect_events,
    kinds,
    other_tasks,
    run_ready_tasks,
    wait_until,
)
from support.runs import outcome
from support.slow_log import SlowLog


async def test_cancel_before_the_start() -> None:
    model = ScriptedModel("Hi.")
    run = Agent(model).run("Go.")
    run.cancel("changed my mind")
    recorder = Recorder(run.events)
    await assert_canceled(run, recorder)
    assert kinds(recorder.events) == ["task", "status-update", "status-update"]
    assert model.requests == []


async def test_cancel_ends_the_run_when_disposal_of_its_provider_raises(caplog: pytest.LogCaptureFixture) -> None:
    class UndisposableModel:
        name = "stuck"

        def call(self, request: ModelRequest) -> Observable[Event]:
            def subscribe(
                observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
            ) -> abc.DisposableBase:
                # Keep a timer pending, because runs without pending work fail immediately.
                timer = asyncio.get_running_loop().call_later(60, observer.on_completed)

                def dispose() -> None:
                    timer.cancel()
                    raise RuntimeError("the socket is gone")

                return Disposable(dispose)

            return Observable(subscribe)

        async def aclose(self) -> None: ...

    run = Agent(UndisposableModel()).run("Go.")
    recorder = Recorder(run.events)
    await run_ready_tasks()
    run.cancel()
    await assert_canceled(run, recorder)
    assert "the socket is gone" in caplog.text


async def test_cancel_immediately_after_the_start() -> None:
    model = ScriptedModel("Hi.")
    run = Agent(model).run("Go.")
    recorder = Recorder(run.events)
    run.cancel()
    await assert_canceled(run, recorder)
    assert model.requests == []


class StuckLog(MemoryEventLog):
    """Log that hangs in a chosen method."""

    def __init__(self) -> None:
        super().__init__()
        self.hanging_method = ""
        self.hanging_calls = 0

    async def _hang(self, method: str) -> None:
        if method == self.hanging_method:
            self.hanging_calls += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.hanging_calls -= 1

    # The memory log would not call `read`.
    read_conversation = EventLog.read_conversation

    async def list_runs(self, **options: Any) -> Any:
        await self._hang("list_runs")
        return await super().list_runs(**options)

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Any:
        await self._hang("read")
        return await super().read(task_id, after_seq=after_seq)


@pytest.mark.parametrize("method", ["list_runs", "read"])
async def test_cancel_while_the_conversation_is_loaded(method: str) -> None:
    log = StuckLog()
    model = ScriptedModel("Hi.", "Hi again.", "And again.")
    agent = Agent(model, log=log)
    await agent.run("1", context_id="c")
    log.hanging_method = method
    run = agent.run("2", context_id="c")
    recorder = Recorder(run.events)
    await wait_until(lambda: log.hanging_calls)
    run.cancel()
    await assert_canceled(run, recorder)
    assert log.hanging_calls == 0
    log.hanging_method = ""
    assert (await agent.run("3", context_id="c")).output == "Hi again.", "the conversation was not released"


@pytest.mark.parametrize("cause", ["cancel", "limit"])
async def test_cancel_while_the_run_waits_for_the_conversation(cause: str) -> None:
    log = MemoryEventLog()
    model = ScriptedModel(call("waits"), "One.", "Three.")
    agent = Agent(model, tools=[waits], log=log)
    first = agent.run("1", context_id="c")
    Recorder(first.events)
    await wait_until(lambda: model.requests)
    # Runs without a lease are not recorded.
    limits = Limits(seconds=0.01) if cause == "limit" else None
    run = agent.run("2", context_id="c", when_busy="wait", limits=limits)
    recorder = Recorder(run.events)
    await run_ready_tasks()
    if cause == "cancel":
        run.cancel()
    with pytest.raises(RunCancelled if cause == "cancel" else LimitReached) as caught:
        await run
    assert caught.value.result.messages == []
    assert kinds(recorder.events) == ["status-update"]
    assert recorder.completed
    with pytest.raises(UnknownRun):
        await agent.resume(run.task_id)
    first.cancel()
    await outcome(first)
    assert [record.task_id for record in await log.list_runs()] == [first.task_id]
    last = await agent.run("3", context_id="c")
    assert [message.text for message in last.messages if message.role == "user"] == ["1", "3"]
    await assert_no_tasks()


async def test_cancel_while_a_fork_reads_its_parent() -> None:
    log = StuckLog()
    agent = Agent(ScriptedModel("One.", "Two."), log=log)
    parent = await agent.run("1")
    log.hanging_method = "read"
    run = agent.fork(parent.task_id, 1)
    recorder = Recorder(run.events)
    await wait_until(lambda: log.hanging_calls)
    run.cancel()
    with pytest.raises(RunCancelled):
        await run
    assert kinds(recorder.events) == ["status-update"]
    assert log.hanging_calls == 0
    assert [record.task_id for record in await log.list_runs()] == [parent.task_id]
    await assert_no_tasks()


async def test_cancel_while_a_run_is_resumed() -> None:
    @tool
    async def asks(ctx: RunContext) -> str:
        """Ask."""
        return str(await ctx.ask("Sure?"))

    log = StuckLog()
    agent = Agent(ScriptedModel(call("asks"), "ok"), tools=[asks], log=log)
    paused = await agent.run("Go.")
    log.hanging_method = "read"
    inputs = {paused.pending[0].input_id: True}
    run = agent.resume(paused.task_id, inputs=inputs)
    recorder = Recorder(run.events)
    await wait_until(lambda: log.hanging_calls)
    run.cancel()
    with pytest.raises(RunCancelled):
        await run
    assert_ended(recorder.events, "canceled", "canceled")
    await assert_no_tasks()
    log.hanging_method = ""
    assert (await agent.resume(paused.task_id, inputs=inputs)).output == "ok", "the canceled resumption had an effect"


async def test_cancel_while_the_instructions_are_prepared() -> None:
    started: list[int] = []

    async def wait_forever(ctx: RunContext) -> str:
        started.append(1)
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel("Hi.")
    run = Agent(model, instructions=wait_forever).run("Go.")
    recorder = Recorder(run.events)
    await wait_until(lambda: started)
    run.cancel()
    await assert_canceled(run, recorder)
    assert model.requests == []


async def test_cancel_at_any_step_of_the_start_leaves_no_unawaited_coroutine() -> None:
    async def brief(ctx: RunContext) -> str:
        await asyncio.sleep(0)
        return "Be brief."

    agent = Agent(ScriptedModel(*["Hi."] * 40), instructions=brief, log=MemoryEventLog())
    for steps in range(40):
        run = agent.run("Go.")
        outcome_task = asyncio.ensure_future(outcome(run))
        for _ in range(steps):
            await asyncio.sleep(0)
        run.cancel()
        await outcome_task
    gc.collect()


async def test_cancel_while_a_toolset_lists_its_tools() -> None:
    started: list[int] = []

    class HangingToolset:
        async def tools(self, ctx: RunContext[Any]) -> Sequence[Any]:
            started.append(1)
            await asyncio.Event().wait()
            return []

    run = Agent(ScriptedModel("Hi."), tools=[HangingToolset()]).run("Go.")
    recorder = Recorder(run.events)
    await wait_until(lambda: started)
    run.cancel()
    await assert_canceled(run, recorder)


async def test_cancel_while_the_model_answers() -> None:
    model = make_endless_model()
    run = Agent(model).run("Go.")
    recorder = Recorder(run.events)
    await wait_until(lambda: "content-delta" in kinds(recorder.events))
    run.cancel()
    await assert_canceled(run, recorder)
    assert model.open == 0
    [complete] = [event for event in recorder.events if isinstance(event, ContentCompleteEvent)]
    assert (complete.content, complete.finish_reason) == ("a", "canceled")


async def test_cancel_while_tools_run() -> None:
    model = ScriptedModel([call("quick"), call("waits"), call("waits")], "never")
    run = Agent(model, tools=[quick, waits]).run("Go.")
    recorder = Recorder(run.events)
    await wait_until(lambda: kinds(recorder.events).count("tool-start") == 3)
    run.cancel()
    await assert_canceled(run, recorder)
    completes = [event for event in recorder.events if isinstance(event, ToolCompleteEvent)]
    assert [(event.index, event.success) for event in completes] == [(0, True), (1, False), (2, False)]
    assert [event.error for event in completes[1:]] == ["canceled", "canceled"]
    assert len(model.requests) == 1


async def test_cancel_while_calls_wait_for_a_free_slot() -> None:
    model = ScriptedModel([call("waits")] * 4, "never")
    run = Agent(model, tools=[waits], loop=[op.call_model(), op.run_tools(concurrency=1)]).run("Go.")
    recorder = Recorder(run.events)
    await wait_until(lambda: "tool-start" in kinds(recorder.events))
    run.cancel()
    await assert_canceled(run, recorder)
    assert kinds(recorder.events).count("tool-start") == 1
    assert kinds(recorder.events).count("tool-complete") == 4


async def test_cancel_while_a_guard_runs() -> None:
    @op.on(ModelRequest)
    async def slow_guard(request: ModelRequest, ctx: RunContext[None]) -> AsyncIterator[Signal]:
        await asyncio.Event().wait()
        yield request

    model = ScriptedModel("never")
    run = Agent(model, loop=op.standard(before_model=[slow_guard])).run("Go.")
    recorder = Recorder(run.events)
    await wait_until(lambda: any("slow_guard" in task.get_name() for task in other_tasks()))
    run.cancel()
    await assert_canceled(run, recorder)
    assert model.requests == []


async def test_cancel_while_the_log_is_slow() -> None:
    log = SlowLog()
    run = Agent(ScriptedModel(call("quick"), "never"), tools=[quick], log=log).run("Go.")
    recorder = Recorder(run.events)
    await wait_until(lambda: log.waiting)
    run.cancel()
    await run_ready_tasks()
    assert not recorder.completed, "the end must wait until it is durable"
    log.gate.set()
    await assert_canceled(run, recorder)
    assert [event.kind for event in await log.read(run.task_id)][-1] == "status-update"


async def test_second_cancel_keeps_the_first_reason() -> None:
    stopping: list[int] = []

    @tool
    async def slow_to_stop() -> str:
        """Stop slowly."""
        try:
            await asyncio.Event().wait()
        finally:
            stopping.append(1)
            await run_ready_tasks(20)
        return ""

    run = Agent(ScriptedModel(call("slow_to_stop")), tools=[slow_to_stop]).run("Go.")
    recorder = Recorder(run.events)
    await wait_until(lambda: "tool-start" in kinds(recorder.events))
    run.cancel("first")
    await wait_until(lambda: stopping)
    run.cancel("second")
    run.cancel("third")
    await run.aclose()
    final = assert_ended(recorder.events, "canceled", "canceled")
    assert final.error is not None
    assert final.error.message == "first"


async def test_cancel_after_the_end_changes_nothing() -> None:
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    recorder = Recorder(run.events)
    await run
    run.cancel()
    await run.aclose()
    assert (await run).output == "Hi."
    assert_ended(recorder.events, "completed")


def make_model() -> ScriptedModel:
    return ScriptedModel(
        turn(frames("-a-b-|", frame=0.002), calls=[call("quick"), call("naps")]), frames("-c-d-|", frame=0.002)
    )


@tool
async def naps(ctx: RunContext) -> str:
    """Take a nap."""
    for _ in range(3):
        ctx.progress("z")
        await asyncio.sleep(0.002)
    return "rested"


def count_events() -> int:
    with virtual_time() as time:
        return len(time.run(collect_events(Agent(make_model(), tools=[quick, naps]).run("Go."))))


@pytest.mark.parametrize("with_log", [False, True])
def test_subscriber_can_cancel_at_any_event(with_log: bool) -> None:
    for position in range(1, count_events()):
        with virtual_time() as time:
            log = MemoryEventLog() if with_log else None
            model = make_model()
            run = Agent(model, tools=[quick, naps], log=log).run("Go.")
            recorder = Recorder()

            def cancel(event: Event, run: Any = run, recorder: Recorder = recorder, position: int = position) -> None:
                recorder.on_next(event)
                if len(recorder.events) == position:
                    run.cancel("from a callback")

            async def main(run: Any = run, recorder: Recorder = recorder, cancel: Any = cancel) -> None:
                run.events.subscribe(cancel, recorder.on_error, recorder.on_completed)
                await assert_canceled(run, recorder)

            time.run(main())
            assert model.open == 0
            if log is not None:
                recorded = time.run(log.read(run.task_id))
                assert list(recorded) == [event for event in recorder.events if event.durable]


@given(microseconds=st.integers(0, 40_000), delay=st.integers(0, 3_000))
@settings(max_examples=60, deadline=None)
def test_run_ends_once_when_canceled_at_any_moment(microseconds: int, delay: int) -> None:
    with virtual_time() as time:
        model = make_model()
        run = Agent(model, tools=[quick, naps]).run("Go.")
        recorder = Recorder()
        time.at(microseconds / 1_000_000, run.cancel)
        time.at((microseconds + delay) / 1_000_000, run.cancel)

        async def main() -> str:
            run.events.subscribe(recorder)
            try:
                return (await run).state
            except RunCancelled as error:
                assert_answered(error.result.messages)
                return error.result.state

        state = time.run(main())
        assert_ended(recorder.events, state, "canceled" if state == "canceled" else None)
        assert_numbered(recorder.events)
        assert model.open == 0
