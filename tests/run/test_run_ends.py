from __future__ import annotations

import asyncio
import traceback
from collections.abc import Sequence
from typing import Any

import pytest
from reactivex import operators as ops

from rxloop import Agent, RunContext, op, tool
from rxloop.errors import (
    EventLogError,
    InvalidOutput,
    LimitReached,
    NotFinished,
    RateLimited,
    RunError,
)
from rxloop.pipeline import log_retry
from rxloop.pipeline.requests import Signal
from rxloop.protocol.events import (
    ContentCompleteEvent,
    CustomEvent,
    Event,
    StatusUpdateEvent,
    TaskEvent,
)
from rxloop.protocol.messages import Usage
from rxloop.protocol.settings import Limits
from rxloop.storage import MemoryEventLog
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time
from support.run_checks import (
    Recorder,
    assert_ended,
    assert_no_tasks,
    assert_numbered,
    collect_events,
    durable_events,
    kinds,
    positions,
    wait_until,
)
from support.slow_log import SlowLog
from support.sum_tools import add, broken, make_two_step_model


async def test_events_have_sequence_numbers_and_ids_of_the_run() -> None:  # L1, L2
    run = Agent(make_two_step_model(), tools=[add]).run("Add.")
    events = await collect_events(run)
    assert_numbered(events)
    assert {event.task_id for event in events} == {run.task_id}
    assert {event.context_id for event in events} == {run.context_id}


async def test_existing_ids_of_an_emitted_event_are_kept() -> None:  # L2
    @tool
    async def foreign(ctx: RunContext) -> str:
        """Emit a foreign event."""
        ctx.emit(CustomEvent(name="x", task_id="theirs", context_id="their context", timestamp=42))
        return ""

    events = await collect_events(Agent(ScriptedModel(call("foreign"), "ok"), tools=[foreign]).run("Go."))
    [event] = [event for event in events if isinstance(event, CustomEvent)]
    assert (event.task_id, event.context_id, event.timestamp) == ("theirs", "their context", 42)
    assert_numbered(events)


async def test_run_starts_with_task_event_and_working_status() -> None:  # L3
    task, status, *_ = await collect_events(Agent(ScriptedModel("Hi."), name="greeter").run("Hello."))
    assert isinstance(task, TaskEvent)
    assert (task.initiator, task.agent_name, task.model) == ("user", "greeter", "scripted")
    assert [message.text for message in task.messages] == ["Hello."]
    assert isinstance(status, StatusUpdateEvent)
    assert (status.state, status.final) == ("working", False)


async def test_completed_run_has_one_final_event() -> None:  # L4
    model = ScriptedModel(turn("Hi.", usage=Usage(input_tokens=3, output_tokens=2)))
    run = Agent(model).run("Hello.")
    final = assert_ended(await collect_events(run), "completed")
    assert (final.content, final.finish_reason) == ("Hi.", "stop")
    result = await run
    assert (result.output, result.finish_reason) == ("Hi.", "stop")
    assert (result.state, result.reason) == ("completed", None)
    assert result.usage == final.usage == Usage(input_tokens=3, output_tokens=2)
    assert [message.role for message in result.messages] == ["user", "assistant"]
    assert (result.task_id, result.context_id) == (run.task_id, run.context_id)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_truncated_answer_completes_the_run(reason: str) -> None:
    result = await Agent(ScriptedModel(turn("Hi", finish_reason=reason))).run("Hello.")
    assert result.output == "Hi"
    assert (result.state, result.finish_reason) == ("completed", reason)


async def test_order_of_events_in_a_run_with_tools() -> None:
    assert kinds(durable_events(await collect_events(Agent(make_two_step_model(), tools=[add]).run("Add.")))) == [
        *("task", "status-update", "llm-call", "content-complete"),
        *("tool-start", "tool-complete", "tool-start", "tool-complete", "checkpoint"),
        *("llm-call", "content-complete", "checkpoint", "status-update"),
    ]


ENDS: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("max_iterations", {"limits": Limits(iterations=1)}, "failed", "max_iterations", "max_iterations"),
    ("tokens", {"limits": Limits(tokens=1)}, "failed", "tokens", "tokens"),
]


@pytest.mark.parametrize(("reason", "options"), [(end[0], end[1]) for end in ENDS])
async def test_run_fails_and_raises_at_a_limit(reason: str, options: dict[str, Any]) -> None:  # L5
    model = ScriptedModel(turn(calls=[call("add", a=1, b=2)], usage=Usage(input_tokens=5)), "never")
    run = Agent(model, tools=[add], **options).run("Add.")
    assert_ended(await collect_events(run), "failed", reason)
    with pytest.raises(LimitReached) as caught:
        await run
    assert caught.value.code == caught.value.result.reason == reason
    assert [message.role for message in caught.value.result.messages] == ["user", "assistant", "tool"]


async def test_repeated_tool_failures_end_the_run() -> None:  # L5
    run = Agent(ScriptedModel(*[call("broken")] * 9), tools=[broken]).run("Go.")
    assert_ended(await collect_events(run), "failed", "tool_failures")
    with pytest.raises(LimitReached, match="3 iterations"):
        await run


def test_time_limit_ends_the_run() -> None:  # L5
    with virtual_time() as time:
        run = Agent(ScriptedModel(frames("--a--b--")), limits=Limits(seconds=2)).run("Go.")
        with pytest.raises(LimitReached) as caught:
            time.run(run)
        assert time.now == 2
    assert caught.value.code == "timeout"
    assert caught.value.result.content == "ab"


def test_slow_instructions_count_for_the_time_limit() -> None:  # L5
    async def wait_in_instructions(ctx: RunContext) -> str:
        await asyncio.sleep(60)
        return "never"

    with virtual_time() as time:
        run = Agent(ScriptedModel("Hi."), instructions=wait_in_instructions, limits=Limits(seconds=2)).run("Go.")
        with pytest.raises(LimitReached):
            time.run(run)
        assert time.now == 2


async def test_provider_error_fails_the_run_with_its_code(caplog: pytest.LogCaptureFixture) -> None:  # L5, L81
    model = ScriptedModel(call("add", a=1, b=2), RateLimited("slow down"))
    run = Agent(model, tools=[add]).run("Add.")
    recorder = Recorder(run.events)
    with pytest.raises(RunError, match="slow down") as caught:
        await run
    final = assert_ended(recorder.events, "failed", "error")
    assert final.error is not None
    assert (final.error.code, final.error.message) == ("rate_limited", "slow down")
    assert recorder.completed
    assert recorder.error is None
    error = caught.value
    assert error.code == "rate_limited"
    assert isinstance(error.__cause__, RateLimited)
    assert error.result.state == "failed"
    assert [message.role for message in error.result.messages] == ["user", "assistant", "tool"]
    with pytest.raises(NotFinished):
        _ = error.result.output


def test_partial_answer_of_a_failing_provider_is_not_in_the_history() -> None:  # L5
    with virtual_time() as time:
        run = Agent(ScriptedModel(frames("-Once-upon-#"))).run("Tell.")
        recorder: list[Event] = []

        async def main() -> None:
            run.events.subscribe(recorder.append)
            with pytest.raises(RunError) as caught:
                await run
            assert [message.role for message in caught.value.result.messages] == ["user"]

        time.run(main())
    [complete] = [event for event in recorder if isinstance(event, ContentCompleteEvent)]
    assert (complete.content, complete.finish_reason) == ("Onceupon", "canceled")
    assert_ended(recorder, "failed", "error")


async def test_pipeline_without_model_operator_fails_the_run() -> None:  # L5
    run = Agent(ScriptedModel("Hi."), loop=[op.run_tools()]).run("Go.")
    assert_ended(await collect_events(run), "failed", "error")
    with pytest.raises(RunError) as caught:
        await run
    assert caught.value.code == "pipeline"


async def test_operator_that_raises_when_applied_fails_the_run() -> None:  # L5
    def broken_operator(source: Any) -> Any:
        raise ZeroDivisionError("a bug")

    for options in ({"loop": [broken_operator]}, {"strategy": lambda pipeline: broken_operator}):
        run = Agent(ScriptedModel("Hi."), **options).run("Go.")  # type: ignore[arg-type]
        final = assert_ended(await collect_events(run), "failed", "error")
        assert final.error is not None
        with pytest.raises(RunError, match="a bug"):
            await run
    await assert_no_tasks()


async def test_operator_that_raises_on_an_event_fails_the_run() -> None:  # L5
    def view(source: Any) -> Any:
        def explode(signal: Signal) -> Signal:
            if isinstance(signal, ContentCompleteEvent):
                raise ZeroDivisionError("a bug")
            return signal

        return ops.map(explode)(source)

    run = Agent(ScriptedModel("Hi."), loop=[op.call_model(), view, op.run_tools()]).run("Go.")
    assert_ended(await collect_events(run), "failed", "error")
    with pytest.raises(RunError, match="a bug"):
        await run


async def test_instructions_that_raise_fail_the_run() -> None:  # L5
    def fail(ctx: RunContext) -> str:
        raise ZeroDivisionError("a bug")

    run = Agent(ScriptedModel("Hi."), instructions=fail).run("Go.")
    assert_ended(await collect_events(run), "failed", "error")
    with pytest.raises(RunError, match="a bug"):
        await run


async def test_invalid_output_fails_the_run() -> None:  # L5
    run = Agent(ScriptedModel(*["no number"] * 5), output_type=int, output_retries=1).run("Go.")
    assert_ended(await collect_events(run), "failed", "error")
    with pytest.raises(RunError) as caught:
        await run
    assert caught.value.code == "output"
    assert isinstance(caught.value.__cause__, InvalidOutput)


async def test_pause_ends_the_attempt_with_its_questions() -> None:  # L5
    @tool
    async def asks(ctx: RunContext) -> str:
        """Ask."""
        return "yes" if await ctx.ask("Sure?") else "no"

    log = MemoryEventLog()
    run = Agent(ScriptedModel(call("asks"), "ok"), tools=[asks], log=log).run("Go.")
    final = assert_ended(await collect_events(run), "input-required", "input")
    result = await run
    assert [pending.prompt for pending in result.pending] == ["Sure?"]
    assert result.pending == final.pending
    with pytest.raises(NotFinished, match=result.pending[0].input_id):
        _ = result.output


async def test_each_awaiter_gets_its_own_exception() -> None:
    run = Agent(ScriptedModel(RateLimited("slow down"))).run("Go.")
    caught: list[RunError] = []
    depths: list[int] = []
    for _ in range(5):
        with pytest.raises(RunError) as info:
            await run
        caught.append(info.value)
        depths.append(len(traceback.extract_tb(info.value.__traceback__)))
    assert len({id(error) for error in caught}) == 5
    assert len(set(depths)) == 1
    causes = [len(traceback.extract_tb(error.__cause__.__traceback__)) for error in caught if error.__cause__]
    assert len(set(causes)) == 1


async def test_each_awaiter_of_a_rejected_run_gets_its_own_exception() -> None:
    run: Any = Agent(ScriptedModel("Hi."), log=MemoryEventLog()).resume("no such run")
    caught: list[BaseException] = []
    depths: list[int] = []
    for _ in range(4):
        with pytest.raises(EventLogError, match="no such run") as info:
            await run
        caught.append(info.value)
        depths.append(len(traceback.extract_tb(info.value.__traceback__)))
    assert len({id(error) for error in caught}) == 4
    assert len(set(depths)) == 1
    await assert_no_tasks()


class FailingLog(MemoryEventLog):
    """Log that accepts events up to a sequence number."""

    def __init__(self, last_seq: int) -> None:
        super().__init__()
        self.last_seq = last_seq

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        if events[-1].seq > self.last_seq:
            raise OSError("no space left on device")
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


@pytest.mark.parametrize("last_seq", range(13))
async def test_failed_log_ends_the_attempt_but_not_the_run(last_seq: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_retry, "RETRY_SECONDS", 0)
    run = Agent(make_two_step_model(), tools=[add], log=FailingLog(last_seq)).run("Add.")
    recorder = Recorder(run.events)
    with pytest.raises(RunError, match="no space left") as caught:
        await run
    assert caught.value.code == "log"
    # The log has no final event, so the run must not be reported as permanently failed.
    final = assert_ended(recorder.events, "working", "error")
    assert final.error is not None
    assert (final.error.code, final.error.retryable) == ("log", True)
    assert "agent.resume" in final.error.message
    assert_numbered(recorder.events)
    assert recorder.completed
    await assert_no_tasks()


async def test_final_event_is_published_after_it_is_durable_and_is_the_last() -> None:
    context: list[RunContext[Any]] = []

    def keep_context(ctx: RunContext) -> str:
        context.append(ctx)
        return ""

    log = SlowLog()
    agent = Agent(ScriptedModel("Hi."), instructions=keep_context, log=log, loop=[op.call_model(), op.run_tools()])
    run = agent.run("Go.")
    recorder = Recorder(run.events)
    await wait_until(lambda: log.waiting and len(recorder.events) > 4)
    for _ in range(50):
        await asyncio.sleep(0)
    context[0].emit(CustomEvent(name="too late"))
    assert not recorder.completed
    log.gate.set()
    await run
    assert_ended(recorder.events, "completed")
    assert_numbered(recorder.events)
    assert positions(await log.read(run.task_id)) == positions(durable_events(recorder.events))


async def test_log_holds_the_durable_events_of_the_stream() -> None:
    log = MemoryEventLog()
    run = Agent(make_two_step_model(), tools=[add], log=log).run("Add.")
    events = await collect_events(run)
    assert list(await log.read(run.task_id)) == durable_events(events)


async def test_event_emitted_after_the_end_is_dropped() -> None:
    context: list[RunContext[Any]] = []

    def keep_context(ctx: RunContext) -> str:
        context.append(ctx)
        return ""

    run = Agent(ScriptedModel("Hi."), instructions=keep_context).run("Go.")
    recorder = Recorder(run.events)
    await run
    before = list(recorder.events)
    context[0].emit(CustomEvent(name="too late"))
    assert recorder.events == before
    assert await collect_events(run) == [event for event in before if event.durable]


async def test_event_that_is_emitted_twice_is_published_twice() -> None:  # L1
    event = CustomEvent(name="x")

    @tool
    async def emit_twice(ctx: RunContext) -> str:
        """Emit."""
        ctx.emit(event)
        ctx.emit(event)
        return ""

    events = await collect_events(Agent(ScriptedModel(call("emit_twice"), "ok"), tools=[emit_twice]).run("Go."))
    assert_numbered(events)
    assert len([event for event in events if isinstance(event, CustomEvent)]) == 2
