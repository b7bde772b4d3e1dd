from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import operators as ops

from rxloop import Agent, RunContext, op, tool
from rxloop.errors import (
    ConfigurationError,
    SlowReader,
)
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    GapEvent,
    MessageAddedEvent,
    StatusUpdateEvent,
    ToolCompleteEvent,
)
from rxloop.protocol.messages import Usage
from rxloop.protocol.settings import Limits
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time
from support.run_checks import Recorder, assert_ended, assert_numbered, collect_events, durable_events, kinds, positions
from support.sum_tools import add, make_two_step_model, progressing

VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="nothing")


async def test_readers_of_every_kind_share_one_run() -> None:  # L11
    model = make_two_step_model()
    run = Agent(model, tools=[add]).run("Add.")
    first, second, result, last, text = await asyncio.gather(
        collect_events(run), collect_events(run), run, _await(run.events), _join(run.text())
    )
    assert first == second
    assert last == first[-1]
    assert text == result.output == "The sums are 3 and 7."
    assert len(model.requests) == 2


async def _await(awaitable: Any) -> Any:
    return await awaitable


async def _join(stream: Any) -> str:
    return "".join([text async for text in stream])


async def test_awaiting_a_view_starts_the_run_and_returns_its_last_item() -> None:
    model = ScriptedModel("Hi.")
    assert await Agent(model).run("Hello.").pipe(op.text()) == "Hi."
    assert await Agent(ScriptedModel("Hi.")).run("Hello.").pipe(ops.count()) > 4


@pytest.mark.parametrize("after_end", [False, True])
async def test_exception_in_a_subscriber_is_logged_and_does_not_affect_others(
    after_end: bool, caplog: pytest.LogCaptureFixture
) -> None:  # L14
    run = Agent(make_two_step_model(), tools=[add]).run("Add.")

    def fail(event: Event) -> None:
        raise ZeroDivisionError("a bug of the subscriber")

    if after_end:
        await run
    run.events.subscribe(fail)
    other = Recorder(run.events)
    assert (await run).output == "The sums are 3 and 7."
    assert_ended(other.events, "completed")
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


async def test_subscribers_see_one_order_when_a_subscriber_emits_events() -> None:
    context: list[RunContext[Any]] = []

    def keep_context(ctx: RunContext) -> str:
        context.append(ctx)
        return ""

    def steer(event: Event) -> None:
        if event.kind == "tool-start":
            context[0].emit(MessageAddedEvent(content="Be brief."))

    model = make_two_step_model()
    run = Agent(model, tools=[add], instructions=keep_context).run("Add.")
    before = Recorder(run.events)
    run.events.subscribe(steer)
    after = Recorder(run.events)
    await run
    assert before.events == after.events
    assert_numbered(before.events)
    assert kinds(before.events).count("message-added") == 2
    assert [message.role for message in model.requests[1].messages] == [
        *("user", "assistant", "tool", "tool", "user", "user")
    ], "the messages must follow the batch during which they arrived"


def select_late_events(live: Sequence[Event], count: int) -> list[Event]:
    """Select events visible to subscribers that arrive after `count` events."""
    closed: set[tuple[str, object]] = set()
    for event in live[:count]:
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

    return [event for event in live[:count] if event.durable or is_open(event)] + list(live[count:])


def test_late_subscriber_at_any_event_sees_durable_and_open_events() -> None:  # L12
    with virtual_time() as time:

        async def main() -> None:
            model = ScriptedModel(
                turn(
                    frames("-let-me-see-|"), reasoning="hm", calls=[call("progressing", steps=2), call("add", a=1, b=2)]
                ),
                frames("-it-is-three-|"),
            )
            run = Agent(model, tools=[progressing, add]).run("Add.")
            live = Recorder()
            late_readers: list[tuple[int, Recorder]] = []

            def record_and_subscribe(event: Event) -> None:
                live.events.append(event)
                late_readers.append((len(live.events), Recorder(run.events)))

            run.events.subscribe(record_and_subscribe)
            await run
            late_readers.append((len(live.events), Recorder(run.events)))
            assert len(live.events) > 20
            assert_numbered(live.events)
            for count, recorder in late_readers:
                assert recorder.events == select_late_events(live.events, count), count
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
def test_late_subscribers_see_consistent_events_for_random_interleavings(
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
        run = Agent(
            ScriptedModel(*turns, frames("-end-|")), tools=[progressing], limits=Limits(tool_failures=None)
        ).run("Go.")
        live = Recorder()
        late_readers: list[tuple[int, Recorder]] = []
        for milliseconds in arrivals:
            time.at(milliseconds / 1000, lambda: late_readers.append((len(live.events), Recorder(run.events))))

        async def main() -> None:
            live.subscription = run.events.subscribe(live)
            await run
            await asyncio.sleep(1)

        time.run(main())
        assert_numbered(live.events)
        assert_ended(live.events, "completed")
        for count, recorder in late_readers:
            assert recorder.events == select_late_events(live.events, count)


async def test_tools_see_the_context_variables_of_the_caller() -> None:
    values: list[str] = []

    @tool
    async def on_the_loop() -> str:
        """Look."""
        values.append(VARIABLE.get())
        VARIABLE.set("changed by a tool")
        return ""

    @tool
    def in_a_thread() -> str:
        """Look."""
        values.append(VARIABLE.get())
        return ""

    VARIABLE.set("the caller's")
    run = Agent(ScriptedModel(call("on_the_loop"), call("in_a_thread"), "ok"), tools=[on_the_loop, in_a_thread]).run(
        "q"
    )
    VARIABLE.set("changed after the call")
    await run
    assert values == ["the caller's", "the caller's"]
    assert VARIABLE.get() == "changed after the call"


def read_slowly(overflow: Any, buffer: int) -> tuple[list[Any], list[Event], ScriptedModel]:
    """Read one item per second and return items, live events and model."""
    with virtual_time() as time:
        model = ScriptedModel(frames("a-b-c-d-e-f-g-h-|"))
        run = Agent(model).run("Go.")
        live = Recorder()

        async def main() -> list[Any]:
            live.subscription = run.events.subscribe(live)
            items: list[Any] = []
            try:
                async for item in run.stream(overflow=overflow, buffer=buffer):
                    items.append(item)
                    await asyncio.sleep(1)
            except SlowReader as error:
                items.append(error)
            await run
            return items

        return time.run(main()), live.events, model


def join_deltas(events: Sequence[Any]) -> str:
    return "".join(event.delta for event in events if isinstance(event, ContentDeltaEvent))


def test_slow_reader_gets_merged_deltas_by_default() -> None:  # L13
    items, live, _ = read_slowly("coalesce", 2)
    assert join_deltas(items) == join_deltas(live) == "abcdefgh"
    assert len(items) < len(live)
    assert durable_events(items) == durable_events(live)


def test_slow_reader_with_drop_oldest_gets_gaps_for_dropped_deltas() -> None:  # L13
    items, live, _ = read_slowly("drop_oldest", 2)
    gaps = [item for item in items if isinstance(item, GapEvent)]
    assert len(items) - len(gaps) + sum(gap.count or 0 for gap in gaps) == len(live)
    assert gaps
    assert durable_events(items) == durable_events(live)
    assert positions(items) == sorted(positions(items))
    assert {item.task_id for item in items} == {live[0].task_id}


def test_slow_reader_with_overflow_error_raises_and_the_run_continues() -> None:  # L13
    items, live, _ = read_slowly("error", 2)
    assert isinstance(items[-1], SlowReader)
    assert_ended(live, "completed")


def test_slow_reader_with_overflow_block_applies_backpressure() -> None:  # L13
    items, live, _ = read_slowly("block", 2)
    assert items == live
    stamps = [event.timestamp for event in live if isinstance(event, ContentDeltaEvent)]
    assert stamps[-1] - stamps[0] > 4_000, "the model did not wait for the reader"


@pytest.mark.parametrize("options", [{"overflow": "wait"}, {"buffer": 0}, {"after": "nonsense"}])
async def test_stream_rejects_invalid_option(options: dict[str, Any]) -> None:
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    with pytest.raises(ConfigurationError):
        run.stream(**options)
    await run
