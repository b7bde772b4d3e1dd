"""Whole runs: what stands on the stream, in which order, and how a run ends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import reactivex as rx
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop import (
    Agent,
    ContentCompleteEvent,
    CustomEvent,
    Event,
    IterationEnd,
    Limits,
    LLMCallEvent,
    MemoryEventLog,
    Message,
    RunCancelled,
    RunContext,
    RunError,
    StatusUpdateEvent,
    TaskEvent,
    Thoughts,
    ThoughtStreamEvent,
    ToolCall,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    Usage,
    op,
    tool,
)
from rxloop.errors import AttemptError, Overloaded
from rxloop.pipeline.requests import ModelRequest, Signal
from rxloop.state.fold import fold_all
from rxloop.state.history import INTERRUPTED
from rxloop.testing import ScriptedModel, assert_marbles, call, frames, turn, virtual_time
from support.run_checks import check_envelopes
from support.runs import collect, letters, outcome, repeated, shape, well_formed
from support.step_tools import fails, step, think


async def test_every_event_of_a_run_has_its_envelope_and_its_number() -> None:  # L1, L3, L4
    model = ScriptedModel([think(), call("step", n=1), "Let me see."], turn(frames("ab|", 0.001), reasoning="Hm."))
    events = await collect(Agent(model, tools=[step]).run("Hi"))

    check_envelopes(events)
    task, final = events[0], events[-1]
    assert isinstance(task, TaskEvent)
    assert isinstance(final, StatusUpdateEvent)
    assert (task.initiator, task.messages, task.model, task.agent_name) == (
        "user",
        [Message.user("Hi")],
        "scripted",
        "agent",
    )
    assert (final.state, final.content, final.finish_reason, final.reason) == ("completed", "ab", "stop", None)
    assert letters(events) == "twlcshxsxklhckF"
    assert sum(not event.durable for event in events) >= 5


async def test_ids_are_stamped_where_they_are_missing_and_kept_where_they_are_not() -> None:  # L2
    @tool
    async def emits(ctx: RunContext[None]) -> str:
        """Emits."""
        ctx.emit(CustomEvent(name="bare"))
        ctx.emit(CustomEvent(name="own", task_id="another", context_id="elsewhere", timestamp=5, step="mine"))
        return "ok"

    run = Agent(ScriptedModel(call("emits"), "done"), tools=[emits]).run("Hi")
    bare, own = [event for event in await collect(run) if isinstance(event, CustomEvent)]

    assert (bare.task_id, bare.context_id, bare.step) == (run.task_id, run.context_id, "1")
    assert (own.task_id, own.context_id, own.timestamp, own.step) == ("another", "elsewhere", 5, "mine")
    assert own.seq == bare.seq + 1


async def test_an_event_that_is_emitted_twice_is_two_events() -> None:
    @tool
    async def emits(ctx: RunContext[None]) -> str:
        """Emits."""
        event = CustomEvent(name="again", step=ctx.step)
        ctx.emit(event)
        ctx.emit(event)
        return "ok"

    events = await collect(Agent(ScriptedModel(call("emits"), "done"), tools=[emits]).run("Hi"))

    check_envelopes(events)
    one, two = [event for event in events if isinstance(event, CustomEvent)]
    assert (two.seq, two is one) == (one.seq + 1, False)


async def test_the_events_of_a_nested_run_pass_and_count_for_nothing() -> None:  # L10
    nested: dict[str, Any] = {"parent_task_id": "p", "task_id": "child", "agent_path": ("child",), "step": "1"}

    @tool
    async def delegates(ctx: RunContext[None]) -> str:
        """Has a run of its own."""
        ctx.emit(TaskEvent(messages=[Message.user("nested")], model="m", agent_name="child", **nested))
        ctx.emit(ContentCompleteEvent(content="nested answer", **nested))
        ctx.emit(ToolCompleteEvent(call=call_of("x"), success=False, content="no", **nested))
        ctx.emit(StatusUpdateEvent(state="failed", final=True, **nested))
        return "ok"

    log = MemoryEventLog()
    model = ScriptedModel(call("delegates"), "done")
    run = Agent(model, tools=[delegates], log=log, limits=Limits(tool_failures=1)).run("Hi")
    events = await collect(run)
    result = await run

    assert [event.seq for event in events if event.durable] == list(range(1, sum(e.durable for e in events) + 1))
    theirs = [event for event in events if event.parent_task_id == "p"]
    assert [event.kind for event in theirs] == ["task", "content-complete", "tool-complete", "status-update"]
    assert {(event.task_id, event.agent_path) for event in theirs} == {("child", ("child",))}
    assert shape(result.messages) == ["user: Hi", "assistant: delegates", "tool: ok", "assistant: done"]
    assert result.output == "done"
    (record,) = await log.list_runs()
    assert record.state == "completed"


def call_of(name: str) -> Any:
    return ToolCall(id="0", name=name)


async def test_two_subscribers_see_the_same_and_the_model_is_asked_once() -> None:  # L11, L53
    model = ScriptedModel(call("step", n=1), turn(frames("a-b|", 0.001)))
    run = Agent(model, tools=[step]).run("Hi")

    one, two, texts, _ = await asyncio.gather(collect(run), collect(run), collect_text(run), run.result())

    assert one == two
    assert "".join(texts) == "ab"
    assert len(model.requests) == 2


async def collect_text(run: Any) -> list[str]:
    return [text async for text in run.text()]


async def test_nothing_is_asked_before_somebody_uses_the_run() -> None:  # L52
    model = ScriptedModel("done")
    run = Agent(model).run("Hi")
    views = run.pipe(op.text()), run.events, run.stream()
    await asyncio.sleep(0)
    assert (model.requests, run.started, len(views)) == ([], False, 3)

    await run

    assert len(model.requests) == 1


async def test_two_tasks_of_one_conversation_can_be_told_apart() -> None:  # L9
    agent = Agent(ScriptedModel("one", "two"), log=MemoryEventLog())
    first, second = agent.run("1", context_id="c"), agent.run("2", context_id="c")
    events = [*await collect(first), *await collect(second)]
    seen: list[Event] = []

    op.for_task(second.task_id)(rx.from_iterable(events)).subscribe(seen.append)

    assert {event.context_id for event in events} == {"c"}
    assert seen == [event for event in events if event.task_id == second.task_id]


async def test_a_failing_model_is_an_event_and_no_exception_for_subscribers() -> None:  # L81
    seen: list[Event] = []
    ends: list[str] = []
    run = Agent(ScriptedModel(["Hel", call("step")], Overloaded("no room", status=529)), tools=[step]).run("Hi")
    run.events.subscribe(seen.append, lambda error: ends.append(repr(error)), lambda: ends.append("completed"))

    with pytest.raises(RunError, match="no room") as caught:
        await run

    final = seen[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert (final.state, final.reason, final.final) == ("failed", "error", True)
    assert final.error is not None
    assert (final.error.code, final.error.message) == ("overloaded", "no room")
    assert ends == ["completed"]
    assert isinstance(caught.value.__cause__, Overloaded)
    assert letters(seen) == "twlcsxklecF"  # the failure is told, and the message that was open is closed
    check_envelopes(seen)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_an_answer_that_was_cut_short_says_so(reason: str) -> None:  # L84
    run = Agent(ScriptedModel(turn("Half an ans", finish_reason=reason))).run("Hi")
    events = await collect(run)
    result = await run

    final = events[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert (result.state, result.finish_reason, result.output) == ("completed", reason, "Half an ans")
    assert final.finish_reason == reason


def test_a_cancelled_run_closes_what_was_open() -> None:  # L5, L122
    @tool
    async def slow() -> str:
        """Never comes back."""
        await asyncio.sleep(3600)
        return "late"

    log = MemoryEventLog()
    with virtual_time() as time:
        run = Agent(ScriptedModel([call("slow"), call("step", n=3)]), tools=[slow, step], log=log).run("Hi")
        time.at(1, lambda: run.cancel("enough"))
        with pytest.raises(RunCancelled, match="enough") as caught:
            time.run(run)
        events = time.run(collect(run))

    check_envelopes(events)
    result = caught.value.result
    assert (result.state, result.reason) == ("canceled", "canceled")
    assert shape(result.messages)[2:] == [f"tool: {INTERRUPTED}", "tool: 3"]
    assert well_formed(result.messages)


def test_a_cancelled_answer_keeps_its_text_and_stays_out_of_the_history() -> None:  # L5
    with virtual_time() as time:
        model = ScriptedModel(frames("-He-llo-|"))
        run = Agent(model).run("Hi")
        time.at(0.06, run.cancel)
        result = time.run(outcome(run))
        events = time.run(collect(run))

    assert letters(events) == "twlcF"
    complete = events[-2]
    assert isinstance(complete, ContentCompleteEvent)
    assert (complete.content, complete.finish_reason) == ("He", "canceled")
    assert shape(result.messages) == ["user: Hi"]
    assert result.content == "He"
    assert model.open == 0


async def test_a_turn_that_failed_leaves_the_agent_as_it_was() -> None:  # L121
    agent = Agent(ScriptedModel(Overloaded("no room"), "fine"), log=MemoryEventLog())
    assert (await outcome(agent.run("One", context_id="c"))).state == "failed"

    result = await agent.run("Two", context_id="c")

    assert result.output == "fine"
    assert shape(result.messages) == ["user: One", "user: Two", "assistant: fine"]


async def test_an_announcement_comes_before_each_request_and_counts_it() -> None:  # L82
    order: list[str] = []

    def spy(answer: Any) -> Any:
        def asked(request: ModelRequest) -> Any:
            order.append(f"request {request.step}")
            return answer

        return asked

    run = Agent(ScriptedModel(spy(call("step")), spy("done")), tools=[step], instructions="Be brief.").run("Hi")
    run.events.subscribe(
        lambda event: (
            order.append(f"llm-call {event.step} {event.iteration} {event.message_count} {event.tool_count}")
            if isinstance(event, LLMCallEvent)
            else None
        )
    )
    await run

    assert order == ["llm-call 1 1 2 2", "request 1", "llm-call 2 2 4 2", "request 2"]


async def test_layers_surround_the_history_and_never_enter_it() -> None:  # L83
    @op.on(ModelRequest)
    async def layers(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(system=(*request.system, Message.system("workspace")), tail=(Message.system("remember"),))

    model = ScriptedModel(call("step"), "done")
    agent = Agent(model, tools=[step], instructions="Be brief.", loop=op.standard(before_model=[layers]))
    result = await agent.run("Hi")

    assert [[each.text for each in request.system] for request in model.requests] == [["Be brief.", "workspace"]] * 2
    assert [[each.text for each in request.tail] for request in model.requests] == [["remember"]] * 2
    assert shape(result.messages) == ["user: Hi", "assistant: step", "tool: 0", "assistant: done"]


async def test_the_history_is_the_same_live_and_folded_from_the_log() -> None:  # L76, L144
    log = MemoryEventLog()
    model = ScriptedModel(["Text.", think(), call("step", n=4), call("fails")], "done")
    result = await Agent(model, tools=[step, fails], log=log).run("Hi")

    state = fold_all(await log.read(result.task_id))

    assert list(state.messages) == result.messages
    assert (state.usage, state.content, state.state) == (result.usage, result.content, "completed")
    assert [thought.content for thought in state.thoughts.values()] == ["hm"]
    assert [thought.content for thought in result.thoughts] == ["hm"]


async def test_calls_with_the_same_id_are_each_answered() -> None:
    same = [call("step", "0", n=1), call("step", "0", n=2)]
    model = ScriptedModel(same, same, "done")
    result = await Agent(model, tools=[step]).run("Hi")

    assert shape(result.messages)[1:] == ["assistant: step,step", "tool: 1", "tool: 2"] * 2 + ["assistant: done"]
    assert well_formed(result.messages)


async def test_tools_run_whatever_the_finish_reason_says() -> None:  # L56
    model = ScriptedModel(turn(calls=[call("step", n=6)], finish_reason="stop", raw_finish_reason="stop"), "done")
    result = await Agent(model, tools=[step]).run("Hi")

    assert shape(result.messages)[2] == "tool: 6"


async def test_a_thought_stands_between_the_start_and_the_end_of_its_call() -> None:  # L28
    events = await collect(Agent(ScriptedModel(think("I look.", thought_id="plan"), "done")).run("Hi"))

    assert letters(events) == "twlcshxklckF"
    start, thought, end = [event for event in events if event.kind in ("tool-start", "thought-stream", "tool-complete")]
    assert start.call.id == thought.tool_call_id == end.call.id  # type: ignore[attr-defined]
    assert (thought.thought_id, thought.index, thought.source) == ("plan", 0, "tool")  # type: ignore[attr-defined]


async def test_clients_see_only_the_thought_of_a_hidden_call() -> None:  # L29
    model = ScriptedModel([think("I look."), call("step")], "done")
    events = await collect(Agent(model, tools=[step], thoughts=Thoughts(hidden=True)).run("Hi"))
    seen: list[Event] = []
    op.public()(rx.from_iterable(events)).subscribe(seen.append)

    about = [event for event in seen if isinstance(event, ToolCallDeltaEvent | ToolStartEvent | ToolCompleteEvent)]
    assert {event.name for event in about} == {"step"}
    assert [event.content for event in seen if isinstance(event, ThoughtStreamEvent)] == ["I look."]


async def test_thoughts_tell_where_they_are_from_and_share_one_count() -> None:  # L30, L27
    model = ScriptedModel([think("one"), think("two")], "done", reasoning="Hm.")
    events = await collect(Agent(model).run("Hi"))

    thoughts = [event for event in events if isinstance(event, ThoughtStreamEvent)]
    assert [thought.source for thought in thoughts] == ["reasoning", "tool", "tool", "reasoning"]
    assert [thought.index for thought in thoughts] == [0, 1, 2, 3]


async def test_nobody_thinks_for_the_model() -> None:  # L32
    model = ScriptedModel(call("step"), call("fails"), "done")

    assert "h" not in letters(await collect(Agent(model, tools=[step, fails]).run("Hi")))


async def test_words_beside_a_thought_are_no_answer() -> None:  # L33
    model = ScriptedModel(["The answer is 7.", think()], "It is 8.")

    assert (await Agent(model).run("Hi")).output == "It is 8."


def test_two_runs_of_one_agent_share_nothing() -> None:  # L39, L85
    def thinker(request: ModelRequest) -> Any:
        who = request.messages[0].text
        if len(request.messages) == 1:
            return turn(frames("--"), calls=[]) if who == "never" else [think(who, thought_id="t"), call("step", n=1)]
        return frames(f"-{who}-|")

    with virtual_time() as time:
        agent = Agent(ScriptedModel(*repeated(thinker, 20)), tools=[step])

        async def both() -> Any:
            runs = [agent.run(who) for who in "abcde"]
            return await asyncio.gather(*(collect(run) for run in runs)), runs

        streams, runs = time.run(both())

    for events, run, who in zip(streams, runs, "abcde", strict=True):
        check_envelopes(events)
        assert {event.task_id for event in events} == {run.task_id}
        assert [event.content for event in events if isinstance(event, ThoughtStreamEvent)] == [who]
        assert [event.index for event in events if isinstance(event, ThoughtStreamEvent)] == [0]
        assert events[-1].content == who


def test_a_whole_run_as_a_marble_line() -> None:
    @tool
    async def slow() -> str:
        """Half a second."""
        await asyncio.sleep(0.5)
        return "ok"

    with virtual_time():
        model = ScriptedModel(turn(frames("-a-b|"), calls=[call("slow")]), frames("--c|"))
        run = Agent(model, tools=[slow]).run("Hi")
        assert_marbles(run, "(twl)-d--d-(acs) 500ms (xkl)--d-(ckF|)")


turns_of = st.one_of(
    st.sampled_from(["", "text"]),
    st.lists(
        st.sampled_from([call("step", n=1), call("fails"), call("nothing"), think(), call("step", "0", n=2), "text"]),
        min_size=1,
        max_size=4,
    ),
    st.just(Overloaded("no room")),
)


@given(script=st.lists(turns_of, min_size=1, max_size=6), with_log=st.booleans())
@settings(max_examples=60, deadline=None)
def test_whatever_a_model_says_the_stream_is_in_order_and_the_history_well_formed(
    script: list[Any], with_log: bool
) -> None:
    model = ScriptedModel(*script)
    log = MemoryEventLog() if with_log else None
    with virtual_time() as time:
        run = Agent(model, tools=[step, fails], log=log).run("Hi")
        events = time.run(collect(run))
        result = time.run(outcome(run))
        if log is not None:
            assert time.run(log.read(run.task_id)) == tuple(event for event in events if event.durable)

    check_envelopes(events)
    assert well_formed(result.messages)
    assert all(well_formed(request.messages) for request in model.requests)
    assert model.open == 0


async def test_an_operator_of_ones_own_sees_every_event_and_every_request() -> None:
    seen: list[str] = []

    @op.on(IterationEnd)
    async def ends(end: IterationEnd, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        seen.append(f"{end.iteration} {ctx.usage.total_tokens} {len(ctx.state.messages)}")
        yield end

    used = Usage(input_tokens=5)
    model = ScriptedModel(turn(calls=[call("step")], usage=used), turn("done", usage=used))
    await Agent(model, tools=[step], loop=op.standard(at_end=[ends])).run("Hi")

    assert seen == ["1 5 3", "2 10 4"]  # after the tools, not beside them


async def test_an_attempt_error_carries_what_there_is() -> None:
    model = ScriptedModel([think(), call("step", n=1)], Overloaded("no room"))
    with pytest.raises(AttemptError) as caught:
        await Agent(model, tools=[step]).run("Hi")

    partial = caught.value.result
    assert [message.role for message in partial.messages] == ["user", "assistant", "tool", "tool"]
    assert len(partial.thoughts) == 1
