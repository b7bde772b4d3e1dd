"""Valid and invalid streams for `op.grammar`."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import reactivex as rx
from reactivex import operators as ops
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop import Agent, Event, GapEvent, MemoryEventLog, RunContext, RunError, follow, op, tool
from rxloop.errors import GrammarError
from rxloop.protocol.envelope import UnknownEvent
from rxloop.protocol.events import ContentCompleteEvent, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import ErrorInfo
from rxloop.stream.sources import emit
from rxloop.testing import ScriptedModel, assert_marbles, call, frames, turn, virtual_time
from support.broken_streams import (
    BROKEN,
    BROKEN_BRANCHES,
    BROKEN_NESTED,
    find_position,
    renumber,
    valid_branched_stream,
    valid_nested_stream,
    valid_stream,
)
from support.runs import collect

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed: Callable[[int], Recorded[Any]] = ReactiveTest.on_completed
STREAMS = {
    "two attempts": valid_stream,
    "a nested run": valid_nested_stream,
    "lines side by side": valid_branched_stream,
}


def check_grammar(events: Sequence[Event], **options: Any) -> list[Event]:
    """Apply `op.grammar` to a stream, raising its error."""
    seen: list[Event] = []
    errors: list[Exception] = []
    emit(*events).pipe(op.grammar(**options)).subscribe(seen.append, errors.append)
    for error in errors:
        raise error
    return seen


@pytest.fixture
def branched_stream() -> Sequence[Event]:
    """Return a stream that was created outside of the event loop of the test."""
    return valid_branched_stream()


# Valid streams.


@pytest.mark.parametrize("name", STREAMS)
def test_valid_stream_passes_unchanged(name: str) -> None:  # L1, L3, L4, L5
    events = list(STREAMS[name]())
    assert check_grammar(events) == events
    assert check_grammar(renumber(events)) == events


async def test_run_may_wait_for_the_question_of_a_nested_run() -> None:
    @tool
    async def sure(ctx: RunContext[Any]) -> str:
        """Ask."""
        return str(await ctx.ask("Sure?"))

    child = Agent(ScriptedModel(call("sure"), "Yes."), name="child", tools=[sure])
    model, log = ScriptedModel(call("child", prompt="Go."), "Done."), MemoryEventLog()
    agent = Agent(model, tools=[child.as_tool()], log=log)
    result = await agent.run("Go.")
    [question] = result.pending
    assert check_grammar(await log.read(result.task_id))[-1].kind == "status-update"
    await agent.resume(result.task_id, inputs={question.input_id: True})
    assert check_grammar(await log.read(result.task_id))[-1].kind == "status-update"


async def test_cancelled_run_may_close_a_nested_run_that_waits() -> None:
    @tool(approve=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    child = Agent(ScriptedModel(call("pay")), name="child", tools=[pay])
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("child", prompt="Go.")), tools=[child.as_tool()], log=log)
    result = await agent.run("Go.")
    await agent.get_run(result.task_id).cancel()
    events = list(await log.read(result.task_id))
    assert check_grammar(events) == events
    last = next(event for event in reversed(events) if event.agent_path)
    repeated = last.model_copy(update={"seq": events[-1].seq, "timestamp": last.timestamp})
    with pytest.raises(GrammarError, match="final"):
        check_grammar([*events[:-1], repeated])


async def test_stream_of_a_released_run_is_valid() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(frames("-never")), log=log)
    run = agent.run("Go")
    events: list[Event] = []
    errors: list[Exception] = []
    run.pipe(op.grammar()).subscribe(events.append, errors.append)
    await run.begin()
    await run.release()
    assert errors == []
    final = events[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert (final.state, final.error and final.error.code) == ("working", "released")


@pytest.mark.parametrize("code", ["log", "conflict", "fenced", "released"])
def test_unrecorded_end_may_leave_the_run_working(code: str) -> None:
    events = list(valid_stream())
    start = next(i for i, event in enumerate(events) if isinstance(event, StatusUpdateEvent))
    end = StatusUpdateEvent(state="working", final=True, error=ErrorInfo(code=code, message="The log has no end."))
    last = events[start]
    envelope = {name: getattr(last, name) for name in ("task_id", "context_id", "attempt", "timestamp")}
    stream = [*events[: start + 1], end.model_copy(update={**envelope, "seq": last.seq + 1})]
    assert check_grammar(stream) == stream


@pytest.mark.parametrize("name", STREAMS)
def test_valid_stream_may_be_checked_from_any_event(name: str) -> None:
    events = list(STREAMS[name]())
    for begin in range(1, len(events)):
        assert check_grammar(events[begin:], whole=False) == events[begin:]


@pytest.mark.parametrize("name", STREAMS)
def test_stream_read_from_json_is_valid(name: str) -> None:  # L6
    events = [Event.from_json(event.to_json()) for event in STREAMS[name]()]
    assert check_grammar(events) == events


@pytest.mark.parametrize("name", STREAMS)
def test_durable_events_alone_are_valid(name: str) -> None:
    events = [event for event in STREAMS[name]() if event.durable]
    assert check_grammar(events) == events


def test_single_attempt_is_valid() -> None:
    second = [event for event in valid_stream() if event.attempt == 2]
    assert check_grammar(second) == second


@pytest.mark.parametrize("reason", ["trimmed", "unknown-cursor", "lost-attempt"])
def test_stream_may_start_anywhere_after_a_gap(reason: Any) -> None:
    events = list(valid_stream())
    gap = GapEvent(reason=reason, context_id=events[0].context_id, task_id=events[0].task_id)
    for at in range(len(events)):
        assert check_grammar([gap, *events[at:]]) == [gap, *events[at:]]
        # Readers may continue after a gap or start again.
        for again in (0, at // 2, at):
            whole = [*events[:at], gap, *events[again:]]
            assert check_grammar(whole) == whole


def test_rules_apply_again_after_a_gap() -> None:
    events = list(valid_stream())
    gap = GapEvent(reason="trimmed")
    at = find_position(events, "tool-start")
    with pytest.raises(GrammarError, match="final-last"):
        check_grammar([*events[:at], gap, *events[at:], events[-2].model_copy(update={"seq": events[-1].seq + 1})])


def test_deltas_may_be_missing_with_or_without_a_gap() -> None:
    events = list(valid_stream())
    at = find_position(events, "content-delta")
    gap = GapEvent(reason="dropped", count=1, seq=events[at].seq, sub=events[at].sub)
    assert check_grammar([*events[:at], gap, *events[at + 1 :]]) == [*events[:at], gap, *events[at + 1 :]]
    assert check_grammar([*events[:at], *events[at + 1 :]]) == [*events[:at], *events[at + 1 :]]


def test_unknown_kinds_are_numbered_like_others() -> None:
    events = list(valid_stream())
    unknown = UnknownEvent(kind="later", **{name: getattr(events[1], name) for name in ("context_id", "task_id")})
    for changes in ({"seq": 2, "sub": 1, "attempt": 1}, {"seq": 2, "attempt": 1}):
        with_it = [*events[:2], unknown.model_copy(update=changes), *events[2:]]
        if not changes.get("sub"):
            with_it = renumber(with_it)
        assert check_grammar(with_it) == with_it


async def test_final_event_of_a_finished_run_is_valid_alone() -> None:  # L90
    log = MemoryEventLog()
    result = await Agent(ScriptedModel("Hello."), log=log).run("Hi")
    again = await collect(Agent(ScriptedModel(), log=log).resume(result.task_id))
    assert len(again) == 1
    assert check_grammar(again) == again


async def test_fork_continues_after_the_end_that_it_copied() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("Hello.", "Well."), log=log)
    parent = await agent.run("Hi")
    events = await collect(agent.fork(parent.task_id, len(await log.read(parent.task_id)), prompt="And?"))
    assert check_grammar(events) == events
    assert [event.state for event in events if isinstance(event, StatusUpdateEvent)][1::2] == ["completed"] * 2
    for begin in range(1, len(events)):
        assert check_grammar(events[begin:], whole=False) == events[begin:]


@pytest.mark.parametrize("kind", ["llm-call", "tool-start"])
async def test_branch_interrupted_by_a_crash_may_stay_unfinished(kind: str, branched_stream: Sequence[Event]) -> None:
    events = [event for event in branched_stream if event.durable]
    at = [at for at, event in enumerate(events) if event.kind == kind and event.branch][-1]
    log = MemoryEventLog()
    await log.append(events[0].task_id, events[: at + 1], expected_seq=0)

    def fail_instructions(ctx: RunContext[Any]) -> str:
        raise LookupError("no instructions")

    agent = Agent(ScriptedModel(), log=log, instructions=fail_instructions)
    with pytest.raises(RunError):
        await agent.resume(events[0].task_id)

    whole = list(await log.read(events[0].task_id))
    assert check_grammar(whole) == whole


async def test_stream_after_a_cursor_is_valid_when_not_whole() -> None:
    log = MemoryEventLog()
    run = Agent(ScriptedModel(call("f"), "Hello."), log=log).run("Hi")
    events = await collect(run)
    durable = [event for event in events if event.durable]
    for event in durable[:-1]:
        assert await follow(log, run.task_id, after=event.cursor).pipe(op.grammar(whole=False)) == durable[-1]


# Invalid streams.


def assert_refused(events: Sequence[Event], rule: str) -> None:
    """Check the error, which replaces the invalid event and names the rule and both events."""
    good: list[Event] = []
    errors: list[Exception] = []
    emit(*events).pipe(op.grammar()).subscribe(good.append, errors.append)

    (error,) = errors
    assert isinstance(error, GrammarError)
    assert error.rule == rule
    assert good == events[: len(good)]
    message = str(error)
    assert f"({rule})" in message
    if error.event is None:
        assert error.other == events[-1]
        assert len(good) == len(events)
        assert f"the last event: {events[-1]!r}" in message
        return
    assert error.event is events[len(good)]
    assert repr(error.event) in message
    if good:
        # Errors about the first event name only one event.
        assert any(error.other is event for event in good)
        assert f"the other event: {error.other!r}" in message


@pytest.mark.parametrize("name", BROKEN)
def test_invalid_stream_is_refused_with_both_events(name: str) -> None:  # L1, L3, L4, L5
    rule, broken = BROKEN[name]
    assert_refused(broken(list(valid_stream())), rule)


@pytest.mark.parametrize("name", BROKEN_NESTED)
def test_invalid_nested_run_is_refused_with_both_events(name: str) -> None:  # L10
    rule, broken = BROKEN_NESTED[name]
    assert_refused(broken(list(valid_nested_stream())), rule)


@pytest.mark.parametrize("name", BROKEN_BRANCHES)
def test_invalid_branch_is_refused_with_both_events(name: str) -> None:
    rule, broken = BROKEN_BRANCHES[name]
    assert_refused(broken(list(valid_branched_stream())), rule)


def test_invalid_streams_cover_most_rules() -> None:
    cases = [*BROKEN.values(), *BROKEN_NESTED.values(), *BROKEN_BRANCHES.values()]
    assert len(cases) >= 20
    assert len({rule for rule, _ in cases}) >= 30


@pytest.mark.parametrize(
    "kind", sorted({event.kind for event in valid_stream() if event.durable} - {"checkpoint", "task"})
)
def test_missing_durable_event_is_detected(kind: str) -> None:  # L1
    events = list(valid_stream())
    at = find_position(events, kind)
    with pytest.raises(GrammarError) as raised:
        check_grammar([*events[:at], *events[at + 1 :]])
    assert raised.value.rule in ("seq", "working-second")


def test_incomplete_start_is_refused_by_default() -> None:
    events = list(valid_stream())[5:]
    with pytest.raises(GrammarError, match="the first event of a run must be its task"):
        check_grammar(events)


# Behaviour as a view.


def test_events_pass_at_once_and_the_error_ends_the_subscription() -> None:
    scheduler = TestScheduler()
    task, working, llm_call, delta, message, *_ = [
        event for event in valid_stream() if event.kind in ("task", "status-update", "llm-call", "content-delta")
    ]
    llm_call, delta = (event.model_copy(update={"seq": 3, "sub": sub}) for event, sub in ((llm_call, 0), (delta, 1)))
    content = ContentCompleteEvent(step="1", seq=4, attempt=1, task_id=task.task_id, context_id=task.context_id)
    late = delta.model_copy(update={"seq": 4})
    source = scheduler.create_hot_observable(
        on_next(210, task),
        on_next(220, working),
        on_next(230, llm_call),
        on_next(240, delta),
        on_next(250, content),
        on_next(260, late),
        on_next(270, message),
        on_completed(280),
    )

    seen = scheduler.start(lambda: source.pipe(op.grammar()))

    assert seen.messages[:-1] == [
        on_next(210 + 10 * at, e) for at, e in enumerate([task, working, llm_call, delta, content])
    ]
    assert seen.messages[-1].time == 260
    error = vars(seen.messages[-1].value)["exception"]
    assert isinstance(error, GrammarError)
    assert error.rule == "delta-late"
    assert source.subscriptions == [ReactiveTest.subscribe(200, 260)]


def test_stream_completes_with_its_source() -> None:
    scheduler = TestScheduler()
    events = valid_stream()
    source = scheduler.create_cold_observable(
        *(on_next(10 + at, event) for at, event in enumerate(events)), on_completed(10 + len(events))
    )
    seen = scheduler.start(lambda: source.pipe(op.grammar()))
    assert seen.messages == [
        *(on_next(210 + at, event) for at, event in enumerate(events)),
        on_completed(210 + len(events)),
    ]


def test_each_subscription_has_its_own_state() -> None:
    stream = emit(*valid_stream()).pipe(op.grammar())
    for _ in range(2):
        seen: list[Event] = []
        stream.subscribe(seen.append)
        assert len(seen) == len(valid_stream())


def test_error_of_the_source_passes() -> None:
    errors: list[Exception] = []
    rx.concat(emit(*valid_stream()[:4]), rx.throw(LookupError("gone"))).pipe(op.grammar()).subscribe(
        on_error=errors.append
    )
    assert [type(error) for error in errors] == [LookupError]


def test_live_run_can_be_checked() -> None:
    with virtual_time():
        model = ScriptedModel(turn(frames("-Let-me see.|"), calls=[call("f")]), frames("--It is--done.|"))
        assert_marbles(Agent(model).run("Go").pipe(op.grammar()), "(twl)----(cxl) 150ms (cF|)")


async def test_grammar_error_affects_neither_the_run_nor_other_subscribers() -> None:  # L14
    @tool
    async def again(ctx: RunContext[Any]) -> str:
        """Publish the end of a message that has no beginning."""
        ctx.emit(ContentCompleteEvent(step="9", branch="aside", finish_reason="canceled"))
        return "done"

    run = Agent(ScriptedModel(call("again"), "done"), tools=[again]).run("Go")
    errors: list[Exception] = []
    run.pipe(op.grammar()).subscribe(on_error=errors.append)
    events = await collect(run)
    result = await run

    assert result.output == "done"
    assert len(events) == events[-1].seq + sum(not event.durable for event in events)
    (error,) = errors
    assert isinstance(error, GrammarError)
    assert error.rule == "canceled-nothing"


async def test_grammar_can_be_awaited_and_returns_the_final_event() -> None:
    last = await Agent(ScriptedModel("Hello.")).run("Hi").pipe(op.grammar())
    assert isinstance(last, StatusUpdateEvent)
    first = await Agent(ScriptedModel("Hello.")).run("Hi").pipe(op.grammar(), ops.first())
    assert isinstance(first, TaskEvent)
