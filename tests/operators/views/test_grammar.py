"""The grammar of a stream: silent on a right one, loud on each way to break it."""

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


def checked(events: Sequence[Event], **options: Any) -> list[Event]:
    """The events behind `op.grammar`; what it raises is raised."""
    seen: list[Event] = []
    errors: list[Exception] = []
    emit(*events).pipe(op.grammar(**options)).subscribe(seen.append, errors.append)
    for error in errors:
        raise error
    return seen


# Right streams.


@pytest.mark.parametrize("name", STREAMS)
def test_a_right_stream_passes_as_it_is(name: str) -> None:  # L1, L3, L4, L5
    events = list(STREAMS[name]())
    assert checked(events) == events
    assert checked(renumber(events)) == events


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_right_from_every_place_on(name: str) -> None:
    events = list(STREAMS[name]())
    for begin in range(1, len(events)):
        assert checked(events[begin:], whole=False) == events[begin:]


@pytest.mark.parametrize("name", STREAMS)
def test_what_was_written_as_json_is_right(name: str) -> None:  # L6
    events = [Event.from_json(event.to_json()) for event in STREAMS[name]()]
    assert checked(events) == events


@pytest.mark.parametrize("name", STREAMS)
def test_durable_events_alone_are_right(name: str) -> None:
    events = [event for event in STREAMS[name]() if event.durable]
    assert checked(events) == events


def test_an_attempt_alone_is_right() -> None:
    second = [event for event in valid_stream() if event.attempt == 2]
    assert checked(second) == second


@pytest.mark.parametrize("reason", ["trimmed", "unknown-cursor", "lost-attempt"])
def test_behind_a_gap_a_stream_may_begin_anywhere(reason: Any) -> None:
    events = list(valid_stream())
    gap = GapEvent(reason=reason, context_id=events[0].context_id, task_id=events[0].task_id)
    for at in range(len(events)):
        assert checked([gap, *events[at:]]) == [gap, *events[at:]]
        # A reader that had a part goes on somewhere else, or begins once more.
        for again in (0, at // 2, at):
            whole = [*events[:at], gap, *events[again:]]
            assert checked(whole) == whole


def test_behind_a_gap_the_rules_hold_again() -> None:
    events = list(valid_stream())
    gap = GapEvent(reason="trimmed")
    at = find_position(events, "tool-start")
    with pytest.raises(GrammarError, match="final-last"):
        checked([*events[:at], gap, *events[at:], events[-2].model_copy(update={"seq": events[-1].seq + 1})])


def test_deltas_may_be_missing_where_a_gap_says_so_and_where_it_does_not() -> None:
    events = list(valid_stream())
    at = find_position(events, "content-delta")
    gap = GapEvent(reason="dropped", count=1, seq=events[at].seq, sub=events[at].sub)
    assert checked([*events[:at], gap, *events[at + 1 :]]) == [*events[:at], gap, *events[at + 1 :]]
    assert checked([*events[:at], *events[at + 1 :]]) == [*events[:at], *events[at + 1 :]]


def test_events_of_kinds_that_are_not_known_are_numbered_like_others() -> None:
    events = list(valid_stream())
    unknown = UnknownEvent(kind="later", **{name: getattr(events[1], name) for name in ("context_id", "task_id")})
    for changes in ({"seq": 2, "sub": 1, "attempt": 1}, {"seq": 2, "attempt": 1}):
        with_it = [*events[:2], unknown.model_copy(update=changes), *events[2:]]
        if not changes.get("sub"):
            with_it = renumber(with_it)
        assert checked(with_it) == with_it


async def test_the_end_of_a_run_that_is_over_comes_alone() -> None:  # L90
    log = MemoryEventLog()
    result = await Agent(ScriptedModel("Hello."), log=log).run("Hi")
    again = await collect(Agent(ScriptedModel(), log=log).resume(result.task_id))
    assert len(again) == 1
    assert checked(again) == again


async def test_a_fork_goes_on_behind_the_end_that_it_has_taken_over() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("Hello.", "Well."), log=log)
    parent = await agent.run("Hi")
    events = await collect(agent.fork(parent.task_id, len(await log.read(parent.task_id)), prompt="And?"))
    assert checked(events) == events
    assert [event.state for event in events if isinstance(event, StatusUpdateEvent)][1::2] == ["completed"] * 2
    for begin in range(1, len(events)):
        assert checked(events[begin:], whole=False) == events[begin:]


@pytest.mark.parametrize("kind", ["llm-call", "tool-start"])
async def test_a_line_that_a_crash_cut_off_may_be_left_behind(kind: str) -> None:
    events = [event for event in valid_branched_stream() if event.durable]
    at = [at for at, event in enumerate(events) if event.kind == kind and event.branch][-1]
    log = MemoryEventLog()
    await log.append(events[0].task_id, events[: at + 1], expected_seq=0)

    def unable(ctx: RunContext[Any]) -> str:
        raise LookupError("no instructions")

    agent = Agent(ScriptedModel(), log=log, instructions=unable)
    with pytest.raises(RunError):
        await agent.resume(events[0].task_id)

    whole = list(await log.read(events[0].task_id))
    assert checked(whole) == whole


async def test_whoever_reads_on_behind_a_cursor_says_so() -> None:
    log = MemoryEventLog()
    run = Agent(ScriptedModel(call("f"), "Hello."), log=log).run("Hi")
    events = await collect(run)
    durable = [event for event in events if event.durable]
    for event in durable[:-1]:
        assert await follow(log, run.task_id, after=event.cursor).pipe(op.grammar(whole=False)) == durable[-1]


# Broken streams.


def loud(events: Sequence[Event], rule: str) -> None:
    """The error comes in the place of the event that breaks the rule, and names it and another one."""
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
        assert (error.other, len(good)) == (events[-1], len(events))
        assert f"the last event: {events[-1]!r}" in message
        return
    assert error.event is events[len(good)]
    assert repr(error.event) in message
    if good:
        # Only the first event of a stream stands alone.
        assert any(error.other is event for event in good)
        assert f"the other event: {error.other!r}" in message


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stream_is_refused_with_both_events(name: str) -> None:  # L1, L3, L4, L5
    rule, broken = BROKEN[name]
    loud(broken(list(valid_stream())), rule)


@pytest.mark.parametrize("name", BROKEN_NESTED)
def test_a_broken_nested_run_is_refused_with_both_events(name: str) -> None:  # L10
    rule, broken = BROKEN_NESTED[name]
    loud(broken(list(valid_nested_stream())), rule)


@pytest.mark.parametrize("name", BROKEN_BRANCHES)
def test_a_broken_line_beside_the_main_one_is_refused_with_both_events(name: str) -> None:
    rule, broken = BROKEN_BRANCHES[name]
    loud(broken(list(valid_branched_stream())), rule)


def test_there_are_more_than_twenty_ways_to_break_a_stream_and_most_have_a_rule_of_their_own() -> None:
    cases = [*BROKEN.values(), *BROKEN_NESTED.values(), *BROKEN_BRANCHES.values()]
    assert len(cases) >= 20
    assert len({rule for rule, _ in cases}) >= 30


@pytest.mark.parametrize(
    "kind", sorted({event.kind for event in valid_stream() if event.durable} - {"checkpoint", "task"})
)
def test_a_durable_event_that_is_lost_is_missed(kind: str) -> None:  # L1
    events = list(valid_stream())
    at = find_position(events, kind)
    with pytest.raises(GrammarError) as raised:
        checked([*events[:at], *events[at + 1 :]])
    assert raised.value.rule in ("seq", "working-second")


def test_a_stream_that_begins_in_the_middle_is_refused_unless_that_is_said() -> None:
    events = list(valid_stream())[5:]
    with pytest.raises(GrammarError, match="the first event of a run must be its task"):
        checked(events)


# The view.


def test_events_pass_at_once_and_the_error_ends_the_subscription() -> None:
    scheduler = TestScheduler()
    task, working, asked, delta, message, *_ = [
        event for event in valid_stream() if event.kind in ("task", "status-update", "llm-call", "content-delta")
    ]
    asked, delta = (event.model_copy(update={"seq": 3, "sub": sub}) for event, sub in ((asked, 0), (delta, 1)))
    said = ContentCompleteEvent(step="1", seq=4, attempt=1, task_id=task.task_id, context_id=task.context_id)
    late = delta.model_copy(update={"seq": 4})
    source = scheduler.create_hot_observable(
        on_next(210, task),
        on_next(220, working),
        on_next(230, asked),
        on_next(240, delta),
        on_next(250, said),
        on_next(260, late),
        on_next(270, message),
        on_completed(280),
    )

    seen = scheduler.start(lambda: source.pipe(op.grammar()))

    assert seen.messages[:-1] == [on_next(210 + 10 * at, e) for at, e in enumerate([task, working, asked, delta, said])]
    assert seen.messages[-1].time == 260
    error = vars(seen.messages[-1].value)["exception"]
    assert isinstance(error, GrammarError)
    assert error.rule == "delta-late"
    assert source.subscriptions == [ReactiveTest.subscribe(200, 260)]


def test_the_end_of_the_source_is_the_end() -> None:
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


def test_each_subscription_counts_for_itself() -> None:
    stream = emit(*valid_stream()).pipe(op.grammar())
    for _ in range(2):
        seen: list[Event] = []
        stream.subscribe(seen.append)
        assert len(seen) == len(valid_stream())


def test_an_error_of_the_source_is_not_one_of_the_grammar() -> None:
    errors: list[Exception] = []
    rx.concat(emit(*valid_stream()[:4]), rx.throw(LookupError("gone"))).pipe(op.grammar()).subscribe(
        on_error=errors.append
    )
    assert [type(error) for error in errors] == [LookupError]


def test_a_run_can_be_watched_while_it_goes_on() -> None:
    with virtual_time():
        model = ScriptedModel(turn(frames("-Let-me see.|"), calls=[call("f")]), frames("--It is--done.|"))
        assert_marbles(Agent(model).run("Go").pipe(op.grammar()), "(twl)----(cxl) 150ms (cF|)")


async def test_a_view_that_finds_a_fault_hurts_neither_the_run_nor_its_other_readers() -> None:  # L14
    @tool
    async def again(ctx: RunContext[Any]) -> str:
        """Puts the end of a message on the stream that nobody has begun."""
        ctx.emit(ContentCompleteEvent(step="9", branch="aside", finish_reason="canceled"))
        return "done"

    run = Agent(ScriptedModel(call("again"), "done"), tools=[again]).run("Go")
    errors: list[Exception] = []
    run.pipe(op.grammar()).subscribe(on_error=errors.append)
    events = await collect(run)
    result = await run

    assert (result.output, len(events)) == ("done", events[-1].seq + sum(not event.durable for event in events))
    (error,) = errors
    assert isinstance(error, GrammarError)
    assert error.rule == "canceled-nothing"


async def test_it_can_be_awaited_and_gives_the_final_event() -> None:
    last = await Agent(ScriptedModel("Hello.")).run("Hi").pipe(op.grammar())
    assert isinstance(last, StatusUpdateEvent)
    first = await Agent(ScriptedModel("Hello.")).run("Hi").pipe(op.grammar(), ops.first())
    assert isinstance(first, TaskEvent)
