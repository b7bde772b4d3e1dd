from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import operators as ops
from run_checks import Recorder, assert_ended, assert_numbered, durable, events_of, kinds, nothing_left, places, until

from rxloop import Agent, RunContext, ToolError, op, tool
from rxloop.errors import (
    ConfigurationError,
    EventLogError,
    InvalidOutput,
    LimitReached,
    NotFinished,
    RateLimited,
    RunCancelled,
    RunError,
    RxloopError,
    SlowReader,
)
from rxloop.eventlog import MemoryEventLog
from rxloop.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    CustomEvent,
    Event,
    GapEvent,
    MessageAddedEvent,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
)
from rxloop.messages import Usage
from rxloop.requests import ModelRequest, Signal
from rxloop.settings import Limits
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time

VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="nothing")


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def progressing(ctx: RunContext, steps: int) -> str:
    """Report some progress."""
    for step in range(steps):
        ctx.progress(f"step {step}")
        await asyncio.sleep(0.01)
    return "done"


@tool
async def broken() -> str:
    """Always fail."""
    raise ToolError("it broke")


def two_steps() -> ScriptedModel:
    return ScriptedModel([call("add", a=1, b=2), call("add", a=3, b=4)], "The sums are 3 and 7.")


# -- what a run says


async def test_every_event_is_numbered_and_stamped() -> None:  # L1, L2
    run = Agent(two_steps(), tools=[add]).run("Add.")
    events = await events_of(run)
    assert_numbered(events)
    assert {event.task_id for event in events} == {run.task_id}
    assert {event.context_id for event in events} == {run.context_id}


async def test_ids_that_are_there_are_kept() -> None:  # L2
    @tool
    async def foreign(ctx: RunContext) -> str:
        """Emit an event of somebody else."""
        ctx.emit(CustomEvent(name="x", task_id="theirs", context_id="their context", timestamp=42))
        return ""

    events = await events_of(Agent(ScriptedModel(call("foreign"), "ok"), tools=[foreign]).run("Go."))
    [event] = [event for event in events if isinstance(event, CustomEvent)]
    assert (event.task_id, event.context_id, event.timestamp) == ("theirs", "their context", 42)
    assert_numbered(events)


async def test_a_run_begins_with_the_task_and_the_working_state() -> None:  # L3
    task, status, *_ = await events_of(Agent(ScriptedModel("Hi."), name="greeter").run("Hello."))
    assert isinstance(task, TaskEvent)
    assert (task.initiator, task.agent_name, task.model) == ("user", "greeter", "scripted")
    assert [message.text for message in task.messages] == ["Hello."]
    assert isinstance(status, StatusUpdateEvent)
    assert (status.state, status.final) == ("working", False)


async def test_a_run_that_answers_ends_with_one_final_event() -> None:  # L4
    model = ScriptedModel(turn("Hi.", usage=Usage(input_tokens=3, output_tokens=2)))
    run = Agent(model).run("Hello.")
    final = assert_ended(await events_of(run), "completed")
    assert (final.content, final.finish_reason) == ("Hi.", "stop")
    result = await run
    assert (result.output, result.state, result.reason, result.finish_reason) == ("Hi.", "completed", None, "stop")
    assert result.usage == final.usage == Usage(input_tokens=3, output_tokens=2)
    assert [message.role for message in result.messages] == ["user", "assistant"]
    assert (result.task_id, result.context_id) == (run.task_id, run.context_id)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_an_answer_that_was_cut_short_is_an_answer(reason: str) -> None:
    result = await Agent(ScriptedModel(turn("Hi", finish_reason=reason))).run("Hello.")
    assert (result.output, result.state, result.finish_reason) == ("Hi", "completed", reason)


async def test_the_order_of_a_run_with_tools() -> None:
    assert kinds(durable(await events_of(Agent(two_steps(), tools=[add]).run("Add.")))) == [
        *("task", "status-update", "llm-call", "content-complete"),
        *("tool-start", "tool-complete", "tool-start", "tool-complete", "checkpoint"),
        *("llm-call", "content-complete", "checkpoint", "status-update"),
    ]


ENDS: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("max_iterations", {"limits": Limits(iterations=1)}, "failed", "max_iterations", "max_iterations"),
    ("tokens", {"limits": Limits(tokens=1)}, "failed", "tokens", "tokens"),
]


@pytest.mark.parametrize(("reason", "options"), [(end[0], end[1]) for end in ENDS])
async def test_a_limit_ends_the_run_as_failed_and_is_raised(reason: str, options: dict[str, Any]) -> None:  # L5
    model = ScriptedModel(turn(calls=[call("add", a=1, b=2)], usage=Usage(input_tokens=5)), "never")
    run = Agent(model, tools=[add], **options).run("Add.")
    assert_ended(await events_of(run), "failed", reason)
    with pytest.raises(LimitReached) as caught:
        await run
    assert caught.value.code == caught.value.result.reason == reason
    assert [message.role for message in caught.value.result.messages] == ["user", "assistant", "tool"]


async def test_tools_that_fail_again_and_again_end_the_run() -> None:  # L5
    run = Agent(ScriptedModel(*[call("broken")] * 9), tools=[broken]).run("Go.")
    assert_ended(await events_of(run), "failed", "tool_failures")
    with pytest.raises(LimitReached, match="3 iterations"):
        await run


def test_a_timeout_ends_the_run() -> None:  # L5
    with virtual_time() as time:
        run = Agent(ScriptedModel(frames("--a--b--")), limits=Limits(seconds=2)).run("Go.")
        with pytest.raises(LimitReached) as caught:
            time.run(run)
        assert time.now == 2
    assert caught.value.code == "timeout"
    assert caught.value.result.content == "ab"


def test_slow_instructions_count_against_the_timeout() -> None:  # L5
    async def slow(ctx: RunContext) -> str:
        await asyncio.sleep(60)
        return "never"

    with virtual_time() as time:
        run = Agent(ScriptedModel("Hi."), instructions=slow, limits=Limits(seconds=2)).run("Go.")
        with pytest.raises(LimitReached):
            time.run(run)
        assert time.now == 2


async def test_a_failing_provider_fails_the_run_with_its_code(caplog: pytest.LogCaptureFixture) -> None:  # L5, L81
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


def test_a_provider_that_fails_in_the_middle_leaves_its_text_and_no_message() -> None:  # L5
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


async def test_a_pipeline_that_answers_nothing_fails_the_run() -> None:  # L5
    run = Agent(ScriptedModel("Hi."), loop=[op.run_tools()]).run("Go.")
    assert_ended(await events_of(run), "failed", "error")
    with pytest.raises(RunError) as caught:
        await run
    assert caught.value.code == "pipeline"


async def test_an_operator_that_raises_when_it_is_applied_fails_the_run() -> None:  # L5
    def broken_operator(source: Any) -> Any:
        raise ZeroDivisionError("a bug")

    for options in ({"loop": [broken_operator]}, {"strategy": lambda pipeline: broken_operator}):
        run = Agent(ScriptedModel("Hi."), **options).run("Go.")  # type: ignore[arg-type]
        final = assert_ended(await events_of(run), "failed", "error")
        assert final.error is not None
        with pytest.raises(RunError, match="a bug"):
            await run
    await nothing_left()


async def test_an_operator_that_raises_on_an_event_fails_the_run() -> None:  # L5
    def view(source: Any) -> Any:
        def explode(signal: Signal) -> Signal:
            if isinstance(signal, ContentCompleteEvent):
                raise ZeroDivisionError("a bug")
            return signal

        return ops.map(explode)(source)

    run = Agent(ScriptedModel("Hi."), loop=[op.call_model(), view, op.run_tools()]).run("Go.")
    assert_ended(await events_of(run), "failed", "error")
    with pytest.raises(RunError, match="a bug"):
        await run


async def test_instructions_that_raise_fail_the_run() -> None:  # L5
    def bad(ctx: RunContext) -> str:
        raise ZeroDivisionError("a bug")

    run = Agent(ScriptedModel("Hi."), instructions=bad).run("Go.")
    assert_ended(await events_of(run), "failed", "error")
    with pytest.raises(RunError, match="a bug"):
        await run


async def test_an_answer_that_does_not_fit_fails_the_run() -> None:  # L5
    run = Agent(ScriptedModel(*["no number"] * 5), output_type=int, output_retries=1).run("Go.")
    assert_ended(await events_of(run), "failed", "error")
    with pytest.raises(RunError) as caught:
        await run
    assert caught.value.code == "output"
    assert isinstance(caught.value.__cause__, InvalidOutput)


async def test_a_pause_ends_the_attempt_with_its_questions() -> None:  # L5
    @tool
    async def asks(ctx: RunContext) -> str:
        """Ask."""
        return "yes" if await ctx.ask("Sure?") else "no"

    log = MemoryEventLog()
    run = Agent(ScriptedModel(call("asks"), "ok"), tools=[asks], log=log).run("Go.")
    final = assert_ended(await events_of(run), "input-required", "input")
    result = await run
    assert [pending.prompt for pending in result.pending] == ["Sure?"]
    assert result.pending == final.pending
    with pytest.raises(NotFinished, match=result.pending[0].input_id):
        _ = result.output


async def test_each_awaiter_gets_an_exception_of_its_own() -> None:
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


async def test_each_awaiter_of_a_run_that_was_refused_gets_an_exception_of_its_own() -> None:
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
    await nothing_left()


class FailingLog(MemoryEventLog):
    """Takes some events, and then no more."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int) -> None:
        if events[-1].seq > self.after:
            raise OSError("no space left on device")
        await super().append(task_id, events, expected_seq=expected_seq)


@pytest.mark.parametrize("after", range(13))
async def test_a_failing_log_ends_the_run_with_its_code(after: int) -> None:  # L5
    run = Agent(two_steps(), tools=[add], log=FailingLog(after)).run("Add.")
    recorder = Recorder(run.events)
    with pytest.raises(RunError, match="no space left") as caught:
        await run
    assert caught.value.code == "log"
    final = assert_ended(recorder.events, "failed", "error")
    assert final.error is not None
    assert final.error.code == "log"
    assert_numbered(recorder.events)
    assert recorder.completed
    await nothing_left()


class SlowLog(MemoryEventLog):
    """Appends when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.waiting = 0

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int) -> None:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        await super().append(task_id, events, expected_seq=expected_seq)


async def test_the_final_event_is_published_once_it_is_durable_and_nothing_overtakes_it() -> None:
    context: list[RunContext[Any]] = []

    def keep(ctx: RunContext) -> str:
        context.append(ctx)
        return ""

    log = SlowLog()
    agent = Agent(ScriptedModel("Hi."), instructions=keep, log=log, loop=[op.call_model(), op.run_tools()])
    run = agent.run("Go.")
    recorder = Recorder(run.events)
    await until(lambda: log.waiting and len(recorder.events) > 4)
    for _ in range(50):
        await asyncio.sleep(0)
    context[0].emit(CustomEvent(name="too late"))
    assert not recorder.completed
    log.gate.set()
    await run
    assert_ended(recorder.events, "completed")
    assert_numbered(recorder.events)
    assert places(await log.read(run.task_id)) == places(durable(recorder.events))


async def test_what_the_log_holds_is_what_the_stream_showed() -> None:
    log = MemoryEventLog()
    run = Agent(two_steps(), tools=[add], log=log).run("Add.")
    events = await events_of(run)
    assert list(await log.read(run.task_id)) == durable(events)


async def test_an_event_that_comes_after_the_end_is_dropped() -> None:
    context: list[RunContext[Any]] = []

    def keep(ctx: RunContext) -> str:
        context.append(ctx)
        return ""

    run = Agent(ScriptedModel("Hi."), instructions=keep).run("Go.")
    recorder = Recorder(run.events)
    await run
    before = list(recorder.events)
    context[0].emit(CustomEvent(name="too late"))
    assert recorder.events == before
    assert await events_of(run) == [event for event in before if event.durable]


async def test_an_event_that_is_emitted_twice_is_two_events() -> None:  # L1
    event = CustomEvent(name="x")

    @tool
    async def twice(ctx: RunContext) -> str:
        """Emit."""
        ctx.emit(event)
        ctx.emit(event)
        return ""

    events = await events_of(Agent(ScriptedModel(call("twice"), "ok"), tools=[twice]).run("Go."))
    assert_numbered(events)
    assert len([event for event in events if isinstance(event, CustomEvent)]) == 2


# -- who reads it


async def test_readers_of_every_kind_see_one_run_and_the_model_is_asked_once() -> None:  # L11
    model = two_steps()
    run = Agent(model, tools=[add]).run("Add.")
    first, second, result, last, text = await asyncio.gather(
        events_of(run), events_of(run), run, _await(run.events), _join(run.text())
    )
    assert first == second
    assert last == first[-1]
    assert text == result.output == "The sums are 3 and 7."
    assert len(model.requests) == 2


async def _await(awaitable: Any) -> Any:
    return await awaitable


async def _join(stream: Any) -> str:
    return "".join([text async for text in stream])


async def test_awaiting_a_view_starts_the_run_and_gives_its_last_item() -> None:
    model = ScriptedModel("Hi.")
    assert await Agent(model).run("Hello.").pipe(op.text()) == "Hi."
    assert await Agent(ScriptedModel("Hi.")).run("Hello.").pipe(ops.count()) > 4


@pytest.mark.parametrize("wait", [False, True])
async def test_a_subscriber_that_raises_hurts_nobody(wait: bool, caplog: pytest.LogCaptureFixture) -> None:  # L14
    run = Agent(two_steps(), tools=[add]).run("Add.")

    def fails(event: Event) -> None:
        raise ZeroDivisionError("a bug of the subscriber")

    if wait:
        await run
    run.events.subscribe(fails)
    other = Recorder(run.events)
    assert (await run).output == "The sums are 3 and 7."
    assert_ended(other.events, "completed")
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


async def test_a_subscriber_may_put_events_on_the_stream_and_all_see_one_order() -> None:
    context: list[RunContext[Any]] = []

    def keep(ctx: RunContext) -> str:
        context.append(ctx)
        return ""

    def steer(event: Event) -> None:
        if event.kind == "tool-start":
            context[0].emit(MessageAddedEvent(content="Be brief."))

    model = two_steps()
    run = Agent(model, tools=[add], instructions=keep).run("Add.")
    before = Recorder(run.events)
    run.events.subscribe(steer)
    after = Recorder(run.events)
    await run
    assert before.events == after.events
    assert_numbered(before.events)
    assert kinds(before.events).count("message-added") == 2
    assert [message.role for message in model.requests[1].messages] == [
        *("user", "assistant", "tool", "tool", "user", "user")
    ], "the messages that came in the middle of the batch stand behind it"


def visible_late(live: Sequence[Event], arrived: int) -> list[Event]:
    """What a subscriber that came after `arrived` events has to see of a run."""
    closed: set[tuple[str, object]] = set()
    for event in live[:arrived]:
        if isinstance(event, ContentCompleteEvent):
            closed.add(("message", event.step))
        elif isinstance(event, ToolCompleteEvent):
            closed.add(("call", (event.step, event.index)))
        elif isinstance(event, StatusUpdateEvent) and event.final:
            return [event for event in live if event.durable]

    def is_open(event: Event) -> bool:
        if event.kind == "tool-progress":
            return ("call", (event.step, event.index)) not in closed  # type: ignore[attr-defined]
        return ("message", event.step) not in closed

    return [event for event in live[:arrived] if event.durable or is_open(event)] + list(live[arrived:])


def test_a_late_subscriber_at_any_point_sees_what_it_has_to() -> None:  # L12
    with virtual_time() as time:

        async def main() -> None:
            model = ScriptedModel(
                turn(frames("-let-me-see-|"), reasoning="hm", calls=[call("progressing", steps=2), call("add", a=1, b=2)]),
                frames("-it-is-three-|"),
            )
            run = Agent(model, tools=[progressing, add]).run("Add.")
            live = Recorder()
            late: list[tuple[int, Recorder]] = []

            def arrive(event: Event) -> None:
                live.events.append(event)
                late.append((len(live.events), Recorder(run.events)))

            run.events.subscribe(arrive)
            await run
            late.append((len(live.events), Recorder(run.events)))
            assert len(live.events) > 20
            assert_numbered(live.events)
            for arrived, recorder in late:
                assert recorder.events == visible_late(live.events, arrived), arrived
                assert recorder.completed

        time.run(main())


@given(
    plans=st.lists(
        st.lists(st.tuples(st.sampled_from(["a-b", "--a", "ab-", ""]), st.integers(0, 3)), min_size=1, max_size=3),
        min_size=1,
        max_size=3,
    ),
    arrivals=st.lists(st.integers(0, 400), max_size=6),
)
@settings(max_examples=40, deadline=None)
def test_ids_and_sequences_hold_however_models_tools_and_readers_interleave(
    plans: list[list[tuple[str, int]]], arrivals: list[int]
) -> None:  # L1, L5, L11, L12
    turns: list[Any] = [
        turn(
            frames(text + "|") if text else "",
            calls=[call("progressing", steps=steps) for _, steps in plan],
            usage=Usage(output_tokens=1),
        )
        for plan in plans
        for text in [plan[0][0]]
    ]
    with virtual_time() as time:
        run = Agent(ScriptedModel(*turns, frames("-end-|")), tools=[progressing], limits=Limits(tool_failures=None)).run(
            "Go."
        )
        live = Recorder()
        late: list[tuple[int, Recorder]] = []
        for moment in arrivals:
            time.at(moment / 1000, lambda: late.append((len(live.events), Recorder(run.events))))

        async def main() -> None:
            live.subscription = run.events.subscribe(live)
            await run
            await asyncio.sleep(1)

        time.run(main())
        assert_numbered(live.events)
        assert_ended(live.events, "completed")
        for arrived, recorder in late:
            assert recorder.events == visible_late(live.events, arrived)


async def test_the_context_variables_of_the_caller_are_there_in_tools() -> None:
    seen: list[str] = []

    @tool
    async def on_the_loop() -> str:
        """Look."""
        seen.append(VARIABLE.get())
        VARIABLE.set("changed by a tool")
        return ""

    @tool
    def in_a_thread() -> str:
        """Look."""
        seen.append(VARIABLE.get())
        return ""

    VARIABLE.set("the caller's")
    run = Agent(ScriptedModel(call("on_the_loop"), call("in_a_thread"), "ok"), tools=[on_the_loop, in_a_thread]).run("")
    VARIABLE.set("changed after the call")
    await run
    assert seen == ["the caller's", "the caller's"]
    assert VARIABLE.get() == "changed after the call"


# -- slow readers


def slow_reader(overflow: Any, buffer: int) -> tuple[list[Any], list[Event], ScriptedModel]:
    """What a reader gets that takes a second for each item, and what there was."""
    with virtual_time() as time:
        model = ScriptedModel(frames("a-b-c-d-e-f-g-h-|"))
        run = Agent(model).run("Go.")
        live = Recorder()

        async def main() -> list[Any]:
            live.subscription = run.events.subscribe(live)
            items: list[Any] = []
            try:
                async for item in run.stream(overflow=overflow, buffer=buffer):
                    items.append(item)  # noqa: PERF401 (it may raise in the middle)
                    await asyncio.sleep(1)
            except SlowReader as error:
                items.append(error)
            await run
            return items

        return time.run(main()), live.events, model


def text_of(events: Sequence[Any]) -> str:
    return "".join(event.delta for event in events if isinstance(event, ContentDeltaEvent))


def test_a_slow_reader_gets_merged_deltas_by_default() -> None:  # L13
    items, live, _ = slow_reader("coalesce", 2)
    assert text_of(items) == text_of(live) == "abcdefgh"
    assert len(items) < len(live)
    assert durable(items) == durable(live)


def test_a_slow_reader_can_drop_deltas_and_is_told() -> None:  # L13
    items, live, _ = slow_reader("drop_oldest", 2)
    gaps = [item for item in items if isinstance(item, GapEvent)]
    assert len(items) - len(gaps) + sum(gap.count or 0 for gap in gaps) == len(live)
    assert gaps
    assert durable(items) == durable(live)
    assert places(items) == sorted(places(items))
    assert {item.task_id for item in items} == {live[0].task_id}


def test_a_slow_reader_can_be_an_error_and_the_run_goes_on() -> None:  # L13
    items, live, _ = slow_reader("error", 2)
    assert isinstance(items[-1], SlowReader)
    assert_ended(live, "completed")


def test_a_slow_reader_can_hold_the_model_back() -> None:  # L13
    items, live, _ = slow_reader("block", 2)
    assert items == live
    stamps = [event.timestamp for event in live if isinstance(event, ContentDeltaEvent)]
    assert stamps[-1] - stamps[0] > 4_000, "the model waited for the reader"


@pytest.mark.parametrize("options", [{"overflow": "wait"}, {"buffer": 0}, {"after": "nonsense"}])
async def test_an_option_that_makes_no_sense_is_refused_at_once(options: dict[str, Any]) -> None:
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    with pytest.raises(ConfigurationError):
        run.stream(**options)
    await run


# -- readers that come back


async def test_a_reader_that_comes_back_gets_what_it_has_not() -> None:  # L132
    run = Agent(two_steps(), tools=[add]).run("Add.")
    live = await events_of(run)
    kept = [event for event in live if event.durable]
    for place, event in enumerate(kept):
        assert [later async for later in run.stream(after=event.cursor)] == kept[place + 1 :]


def test_a_reader_that_comes_back_in_the_middle_misses_nothing_and_gets_nothing_twice() -> None:  # L132
    with virtual_time() as time:
        run = Agent(ScriptedModel(frames("-a-b-c-d-|"))).run("Go.")
        live = Recorder()
        back: list[tuple[int, Recorder]] = []

        def leave_and_come_back(event: Event) -> None:
            live.events.append(event)
            back.append((len(live.events), Recorder(run.stream(after=event.cursor))))

        async def main() -> None:
            run.events.subscribe(leave_and_come_back)
            await run

        time.run(main())
        for place, recorder in back:
            assert recorder.events == live.events[place:]


async def test_a_reader_that_had_all_of_an_earlier_attempt_goes_on_without_a_gap() -> None:  # L132
    @tool
    async def asks(ctx: RunContext) -> str:
        """Ask."""
        return "yes" if await ctx.ask("Sure?") else "no"

    agent = Agent(ScriptedModel(call("asks"), "ok"), tools=[asks], log=MemoryEventLog())
    paused = agent.run("Go.")
    before = await events_of(paused)
    [question] = (await paused).pending
    resumed = agent.resume(paused.task_id, inputs={question.input_id: True})
    live = await events_of(resumed)
    assert live[0].seq == before[-1].seq + 1
    assert [event async for event in resumed.stream(after=before[-1].cursor)] == [e for e in live if e.durable]
    gap, *rest = [event async for event in resumed.stream(after=before[-2].cursor)]
    assert isinstance(gap, GapEvent)
    assert gap.reason == "trimmed"
    assert rest == [event for event in live if event.durable]


async def test_the_cursor_of_another_run_is_answered_by_a_gap_and_everything() -> None:  # L133
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    await run
    gap, *rest = [event async for event in run.stream(after="another/1.2.0")]
    assert isinstance(gap, GapEvent)
    assert gap.reason == "unknown-cursor"
    assert rest == await events_of(run)


async def test_a_cursor_that_is_older_than_the_memory_is_answered_by_a_gap() -> None:  # L133, L134
    @tool
    async def chatter(ctx: RunContext) -> str:
        """Emit."""
        for _ in range(10_100):
            ctx.emit(CustomEvent(name="x"))
        return ""

    run = Agent(ScriptedModel(call("chatter"), "ok"), tools=[chatter]).run("Go.")
    await run
    gap, *rest = [event async for event in run.stream(after=f"{run.task_id}/1.5.0", buffer=20_000)]
    assert isinstance(gap, GapEvent)
    assert gap.reason == "trimmed"
    assert len(rest) == 10_000
    assert gap.seq == rest[0].seq - 1
    last = rest[4_999]
    assert [event async for event in run.stream(after=last.cursor, buffer=20_000)] == rest[5_000:]
    assert [event async for event in run.stream(after=gap.cursor, buffer=20_000)] == rest


async def frames_of(stream: AsyncIterator[bytes]) -> list[tuple[str, Event]]:
    found: list[tuple[str, Event]] = []
    async for data in stream:
        lines = dict(line.partition(": ")[::2] for line in data.decode().split("\n") if line)
        found.append((lines.get("id", ""), Event.from_json(lines["data"], strict=True)))
    return found


async def test_the_server_sent_events_of_a_run_are_its_public_events() -> None:  # L136, L139
    run = Agent(two_steps(), tools=[add]).run("Line one\nline two: data: x\n\n")
    live = Recorder(run.events)
    got = await frames_of(run.sse())
    assert [event for _, event in got] == [event for event in live.events if event.public]
    assert [cursor for cursor, _ in got] == [event.cursor for event in live.events if event.public]


async def test_server_sent_events_go_on_behind_the_last_id() -> None:  # L132
    run = Agent(two_steps(), tools=[add]).run("Add.")
    got = await frames_of(run.sse())
    kept = [(cursor, event) for cursor, event in got if event.durable]
    for place, (cursor, _) in enumerate(kept):
        assert await frames_of(run.sse(after=cursor)) == kept[place + 1 :]


async def test_an_id_that_is_none_is_answered_by_a_gap_and_everything() -> None:  # L133
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    await run
    everything = await frames_of(run.sse())
    for nonsense in ("nonsense", "a/b/c", "x/1.2", "١/١.١.١"):
        [(cursor, gap), *rest] = await frames_of(run.sse(after=nonsense))
        assert isinstance(gap, GapEvent), nonsense
        assert cursor == "", "a gap is no place to come back to"
        assert gap.reason == "unknown-cursor"
        assert rest == everything


# -- where it can be used


async def test_runs_work_in_gather_task_groups_and_wait_for() -> None:
    agent = Agent(ScriptedModel(*["Hi."] * 6))
    first, second = await asyncio.gather(agent.run("1"), agent.run("2"))
    async with asyncio.TaskGroup() as group:
        third = group.create_task(agent.run("3").result())
        fourth = group.create_task(agent.run("4").result())
    fifth = await asyncio.wait_for(agent.run("5"), 10)
    async with asyncio.timeout(10):
        sixth = await agent.run("6")
    results = [first, second, third.result(), fourth.result(), fifth, sixth]
    assert [result.output for result in results] == ["Hi."] * 6


def test_a_run_can_be_given_to_asyncio_run() -> None:
    agent = Agent(ScriptedModel("Hi.", "Hi."))
    assert asyncio.run(agent.run("1").result()).output == "Hi."
    assert agent.run_sync("2").output == "Hi."


def test_outside_a_loop_it_says_what_to_do() -> None:
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    for use in (lambda: run.events.subscribe(print), lambda: run.pipe(op.text()).subscribe(print)):
        with pytest.raises(RxloopError, match=r"asyncio\.run\(run\.result\(\)\)"):
            use()
    with pytest.raises(RxloopError, match="run_sync"):
        run.result().send(None)
    assert asyncio.run(run.result()).output == "Hi.", "the run itself is as good as before"


def test_a_run_of_another_loop_is_refused() -> None:
    agent = Agent(ScriptedModel("Hi."))

    async def begin() -> Any:
        run = agent.run("Go.")
        await run
        return run

    run = asyncio.run(begin())
    with pytest.raises(RxloopError, match="another event loop"):
        asyncio.run(run.result())


async def test_run_sync_inside_a_loop_says_what_to_do() -> None:
    with pytest.raises(RxloopError, match="await agent.run"):
        Agent(ScriptedModel("Hi.")).run_sync("Go.")


async def test_fifty_runs_at_once_on_one_agent_are_disjoint() -> None:  # L85
    def answer(request: ModelRequest) -> Any:
        if request.messages[-1].role == "tool":
            return f"It is {request.messages[-1].text}."
        return call("add", a=int(request.messages[0].text), b=0)

    agent = Agent(ScriptedModel(*[answer] * 100), tools=[add])
    runs = [agent.run(str(number)) for number in range(50)]
    seen = [Recorder(run.events) for run in runs]
    results = await asyncio.gather(*runs)
    assert [result.output for result in results] == [f"It is {number}." for number in range(50)]
    for run, recorder in zip(runs, seen, strict=True):
        assert_numbered(recorder.events)
        assert {event.task_id for event in recorder.events} == {run.task_id}
        assert_ended(recorder.events, "completed")
    assert len({run.task_id for run in runs}) == len({run.context_id for run in runs}) == 50
    await nothing_left()


async def test_two_conversations_never_cross() -> None:  # L138
    agent = Agent(ScriptedModel(*[lambda request: str(len(request.messages))] * 4), log=MemoryEventLog())
    for expected in ("1", "3"):
        ann, bob = await asyncio.gather(agent.run("Hi", context_id="ann"), agent.run("Hi", context_id="bob"))
        assert (ann.output, bob.output) == (expected, expected)


async def test_an_error_ends_the_run_and_not_the_agent() -> None:
    agent = Agent(ScriptedModel(RateLimited("slow down"), "Hi."))
    with pytest.raises(RunError):
        await agent.run("1")
    assert (await agent.run("2")).output == "Hi."


async def test_a_cancelled_run_says_so_to_each_who_awaits_it() -> None:  # L5
    run = Agent(ScriptedModel(frames("-a-"))).run("Go.")
    recorder = Recorder(run.events)
    waiting = [asyncio.ensure_future(run.result()) for _ in range(3)]
    await until(lambda: "content-delta" in kinds(recorder.events))
    run.cancel("the user went home")
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in done] == [RunCancelled] * 3
    assert len({id(error) for error in done}) == 3
    final = assert_ended(recorder.events, "canceled", "canceled")
    assert final.error is not None
    assert final.error.message == "the user went home"
    assert "the user went home" in str(done[0])
