"""Event streams from start to end."""

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
from support.runs import collect, format_marbles, is_well_formed, outcome, repeat_turn, shape
from support.step_tools import fails, step, think


async def test_events_of_a_run_have_envelopes_and_sequence_numbers() -> None:  # L1, L3, L4
    model = ScriptedModel([think(), call("step", n=1), "Let me see."], turn(frames("ab|", 0.001), reasoning="Hm."))
    events = await collect(Agent(model, tools=[step]).run("Hi"))

    check_envelopes(events)
    task, final = events[0], events[-1]
    assert isinstance(task, TaskEvent)
    assert isinstance(final, StatusUpdateEvent)
    assert task.initiator == "user"
    assert task.messages == [Message.user("Hi")]
    assert (task.model, task.agent_name) == ("scripted", "agent")
    assert (final.state, final.reason) == ("completed", None)
    assert (final.content, final.finish_reason) == ("ab", "stop")
    assert format_marbles(events) == "twlcshxsxklhckF"
    assert sum(not event.durable for event in events) >= 5


async def test_missing_event_ids_are_stamped_and_existing_ids_are_kept() -> None:  # L2
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


async def test_event_that_is_emitted_twice_gets_two_sequence_numbers() -> None:
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
    assert two.seq == one.seq + 1
    assert two is not one


async def test_nested_run_events_are_forwarded_without_affecting_the_outer_run() -> None:  # L10
    nested: dict[str, Any] = {"parent_task_id": "p", "task_id": "child", "agent_path": ("child",), "step": "1"}

    @tool
    async def delegates(ctx: RunContext[None]) -> str:
        """Emit events for a nested run."""
        ctx.emit(TaskEvent(messages=[Message.user("nested")], model="m", agent_name="child", **nested))
        ctx.emit(ContentCompleteEvent(content="nested answer", **nested))
        ctx.emit(ToolCompleteEvent(call=make_call("x"), success=False, content="no", **nested))
        ctx.emit(StatusUpdateEvent(state="failed", final=True, **nested))
        return "ok"

    log = MemoryEventLog()
    model = ScriptedModel(call("delegates"), "done")
    run = Agent(model, tools=[delegates], log=log, limits=Limits(tool_failures=1)).run("Hi")
    events = await collect(run)
    result = await run

    assert [event.seq for event in events if event.durable] == list(range(1, sum(e.durable for e in events) + 1))
    nested_events = [event for event in events if event.parent_task_id == "p"]
    assert [event.kind for event in nested_events] == ["task", "content-complete", "tool-complete", "status-update"]
    assert {(event.task_id, event.agent_path) for event in nested_events} == {("child", ("child",))}
    assert shape(result.messages) == ["user: Hi", "assistant: delegates", "tool: ok", "assistant: done"]
    assert result.output == "done"
    (record,) = await log.list_runs()
    assert record.state == "completed"


def make_call(name: str) -> Any:
    return ToolCall(id="0", name=name)


async def test_two_subscribers_share_one_run() -> None:  # L11, L53
    model = ScriptedModel(call("step", n=1), turn(frames("a-b|", 0.001)))
    run = Agent(model, tools=[step]).run("Hi")

    one, two, texts, _ = await asyncio.gather(collect(run), collect(run), collect_text(run), run.result())

    assert one == two
    assert "".join(texts) == "ab"
    assert len(model.requests) == 2


async def collect_text(run: Any) -> list[str]:
    return [text async for text in run.text()]


async def test_model_is_not_called_before_the_run_is_used() -> None:  # L52
    model = ScriptedModel("done")
    run = Agent(model).run("Hi")
    views = run.pipe(op.text()), run.events, run.stream()
    await asyncio.sleep(0)
    assert model.requests == []
    assert not run.started
    assert len(views) == 3

    await run

    assert len(model.requests) == 1


async def test_for_task_selects_events_of_one_run_of_a_conversation() -> None:  # L9
    agent = Agent(ScriptedModel("one", "two"), log=MemoryEventLog())
    first, second = agent.run("1", context_id="c"), agent.run("2", context_id="c")
    events = [*await collect(first), *await collect(second)]
    received: list[Event] = []

    op.for_task(second.task_id)(rx.from_iterable(events)).subscribe(received.append)

    assert {event.context_id for event in events} == {"c"}
    assert received == [event for event in events if event.task_id == second.task_id]


async def test_model_failure_is_an_event_and_not_an_error_for_subscribers() -> None:  # L81
    received: list[Event] = []
    record_iteration: list[str] = []
    run = Agent(ScriptedModel(["Hel", call("step")], Overloaded("no room", status=529)), tools=[step]).run("Hi")
    run.events.subscribe(
        received.append,
        lambda error: record_iteration.append(repr(error)),
        lambda: record_iteration.append("completed"),
    )

    with pytest.raises(RunError, match="no room") as caught:
        await run

    final = received[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert (final.state, final.reason) == ("failed", "error")
    assert final.final
    assert final.error is not None
    assert (final.error.code, final.error.message) == ("overloaded", "no room")
    assert record_iteration == ["completed"]
    assert isinstance(caught.value.__cause__, Overloaded)
    assert format_marbles(received) == "twlcsxklecF"  # error reported, open message closed
    check_envelopes(received)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_truncated_answer_reports_its_finish_reason(reason: str) -> None:  # L84
    run = Agent(ScriptedModel(turn("Half an ans", finish_reason=reason))).run("Hi")
    events = await collect(run)
    result = await run

    final = events[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert (result.state, result.finish_reason) == ("completed", reason)
    assert result.output == "Half an ans"
    assert final.finish_reason == reason


def test_cancel_closes_open_calls() -> None:  # L5, L122
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
    assert is_well_formed(result.messages)


def test_canceled_answer_keeps_its_text_but_is_not_in_the_history() -> None:  # L5
    with virtual_time() as time:
        model = ScriptedModel(frames("-He-llo-|"))
        run = Agent(model).run("Hi")
        time.at(0.06, run.cancel)
        result = time.run(outcome(run))
        events = time.run(collect(run))

    assert format_marbles(events) == "twlcF"
    complete = events[-2]
    assert isinstance(complete, ContentCompleteEvent)
    assert (complete.content, complete.finish_reason) == ("He", "canceled")
    assert shape(result.messages) == ["user: Hi"]
    assert result.content == "He"
    assert model.open == 0


async def test_agent_is_usable_after_a_failed_run() -> None:  # L121
    agent = Agent(ScriptedModel(Overloaded("no room"), "fine"), log=MemoryEventLog())
    assert (await outcome(agent.run("One", context_id="c"))).state == "failed"

    result = await agent.run("Two", context_id="c")

    assert result.output == "fine"
    assert shape(result.messages) == ["user: One", "user: Two", "assistant: fine"]


async def test_llm_call_event_precedes_each_request_and_counts_its_messages() -> None:  # L82
    order: list[str] = []

    def spy(answer: Any) -> Any:
        def record_request(request: ModelRequest) -> Any:
            order.append(f"request {request.step}")
            return answer

        return record_request

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


async def test_system_and_tail_messages_of_a_guard_do_not_enter_the_history() -> None:  # L83
    @op.on(ModelRequest)
    async def add_layers(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(system=(*request.system, Message.system("workspace")), tail=(Message.system("remember"),))

    model = ScriptedModel(call("step"), "done")
    agent = Agent(model, tools=[step], instructions="Be brief.", loop=op.standard(before_model=[add_layers]))
    result = await agent.run("Hi")

    assert [[message.text for message in request.system] for request in model.requests] == [
        ["Be brief.", "workspace"]
    ] * 2
    assert [[message.text for message in request.tail] for request in model.requests] == [["remember"]] * 2
    assert shape(result.messages) == ["user: Hi", "assistant: step", "tool: 0", "assistant: done"]


async def test_history_folded_from_the_log_equals_the_live_history() -> None:  # L76, L144
    log = MemoryEventLog()
    model = ScriptedModel(["Text.", think(), call("step", n=4), call("fails")], "done")
    result = await Agent(model, tools=[step, fails], log=log).run("Hi")

    state = fold_all(await log.read(result.task_id))

    assert list(state.messages) == result.messages
    assert state.usage == result.usage
    assert (state.content, state.state) == (result.content, "completed")
    assert [thought.content for thought in state.thoughts.values()] == ["hm"]
    assert [thought.content for thought in result.thoughts] == ["hm"]


async def test_calls_with_the_same_id_are_all_answered() -> None:
    same = [call("step", "0", n=1), call("step", "0", n=2)]
    model = ScriptedModel(same, same, "done")
    result = await Agent(model, tools=[step]).run("Hi")

    assert shape(result.messages)[1:] == ["assistant: step,step", "tool: 1", "tool: 2"] * 2 + ["assistant: done"]
    assert is_well_formed(result.messages)


async def test_tools_run_when_the_finish_reason_is_stop() -> None:  # L56
    model = ScriptedModel(turn(calls=[call("step", n=6)], finish_reason="stop", raw_finish_reason="stop"), "done")
    result = await Agent(model, tools=[step]).run("Hi")

    assert shape(result.messages)[2] == "tool: 6"


async def test_thought_event_is_between_start_and_completion_of_its_call() -> None:  # L28
    events = await collect(Agent(ScriptedModel(think("I look.", thought_id="plan"), "done")).run("Hi"))

    assert format_marbles(events) == "twlcshxklckF"
    start, thought, end = [event for event in events if event.kind in ("tool-start", "thought-stream", "tool-complete")]
    assert start.call.id == thought.tool_call_id == end.call.id  # type: ignore[attr-defined]
    assert (thought.thought_id, thought.index, thought.source) == ("plan", 0, "tool")  # type: ignore[attr-defined]


async def test_only_the_thought_of_a_hidden_thinking_call_is_public() -> None:  # L29
    model = ScriptedModel([think("I look."), call("step")], "done")
    events = await collect(Agent(model, tools=[step], thoughts=Thoughts(hidden=True)).run("Hi"))
    received: list[Event] = []
    op.public()(rx.from_iterable(events)).subscribe(received.append)

    tool_events = [
        event for event in received if isinstance(event, ToolCallDeltaEvent | ToolStartEvent | ToolCompleteEvent)
    ]
    assert {event.name for event in tool_events} == {"step"}
    assert [event.content for event in received if isinstance(event, ThoughtStreamEvent)] == ["I look."]


async def test_thoughts_have_a_source_and_share_one_index() -> None:  # L30, L27
    model = ScriptedModel([think("one"), think("two")], "done", reasoning="Hm.")
    events = await collect(Agent(model).run("Hi"))

    thoughts = [event for event in events if isinstance(event, ThoughtStreamEvent)]
    assert [thought.source for thought in thoughts] == ["reasoning", "tool", "tool", "reasoning"]
    assert [thought.index for thought in thoughts] == [0, 1, 2, 3]


async def test_run_has_no_thoughts_when_the_model_has_none() -> None:  # L32
    model = ScriptedModel(call("step"), call("fails"), "done")

    assert "h" not in format_marbles(await collect(Agent(model, tools=[step, fails]).run("Hi")))


async def test_text_next_to_a_thought_is_not_an_answer() -> None:  # L33
    model = ScriptedModel(["The answer is 7.", think()], "It is 8.")

    assert (await Agent(model).run("Hi")).output == "It is 8."


def test_concurrent_runs_of_one_agent_are_independent() -> None:  # L39, L85
    def answer_with_thought(request: ModelRequest) -> Any:
        prompt = request.messages[0].text
        if len(request.messages) == 1:
            return (
                turn(frames("--"), calls=[])
                if prompt == "never"
                else [think(prompt, thought_id="t"), call("step", n=1)]
            )
        return frames(f"-{prompt}-|")

    with virtual_time() as time:
        agent = Agent(ScriptedModel(*repeat_turn(answer_with_thought, 20)), tools=[step])

        async def run_concurrently() -> Any:
            runs = [agent.run(prompt) for prompt in "abcde"]
            return await asyncio.gather(*(collect(run) for run in runs)), runs

        streams, runs = time.run(run_concurrently())

    for events, run, prompt in zip(streams, runs, "abcde", strict=True):
        check_envelopes(events)
        assert {event.task_id for event in events} == {run.task_id}
        assert [event.content for event in events if isinstance(event, ThoughtStreamEvent)] == [prompt]
        assert [event.index for event in events if isinstance(event, ThoughtStreamEvent)] == [0]
        assert events[-1].content == prompt


def test_marbles_of_a_whole_run() -> None:
    @tool
    async def slow() -> str:
        """Half a second."""
        await asyncio.sleep(0.5)
        return "ok"

    with virtual_time():
        model = ScriptedModel(turn(frames("-a-b|"), calls=[call("slow")]), frames("--c|"))
        run = Agent(model, tools=[slow]).run("Hi")
        assert_marbles(run, "(twl)-d--d-(acs) 500ms (xkl)--d-(ckF|)")


scripted_turns = st.one_of(
    st.sampled_from(["", "text"]),
    st.lists(
        st.sampled_from([call("step", n=1), call("fails"), call("nothing"), think(), call("step", "0", n=2), "text"]),
        min_size=1,
        max_size=4,
    ),
    st.just(Overloaded("no room")),
)


@given(script=st.lists(scripted_turns, min_size=1, max_size=6), with_log=st.booleans())
@settings(max_examples=60, deadline=None)
def test_stream_is_ordered_and_history_well_formed_for_any_answers(script: list[Any], with_log: bool) -> None:
    model = ScriptedModel(*script)
    log = MemoryEventLog() if with_log else None
    with virtual_time() as time:
        run = Agent(model, tools=[step, fails], log=log).run("Hi")
        events = time.run(collect(run))
        result = time.run(outcome(run))
        if log is not None:
            assert time.run(log.read(run.task_id)) == tuple(event for event in events if event.durable)

    check_envelopes(events)
    assert is_well_formed(result.messages)
    assert all(is_well_formed(request.messages) for request in model.requests)
    assert model.open == 0


async def test_custom_operator_sees_each_iteration_end() -> None:
    received: list[str] = []

    @op.on(IterationEnd)
    async def record_iteration(end: IterationEnd, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        received.append(f"{end.iteration} {ctx.usage.total_tokens} {len(ctx.state.messages)}")
        yield end

    usage = Usage(input_tokens=5)
    model = ScriptedModel(turn(calls=[call("step")], usage=usage), turn("done", usage=usage))
    await Agent(model, tools=[step], loop=op.standard(at_end=[record_iteration])).run("Hi")

    assert received == ["1 5 3", "2 10 4"]  # recorded after all tools


async def test_attempt_error_carries_the_partial_result() -> None:
    model = ScriptedModel([think(), call("step", n=1)], Overloaded("no room"))
    with pytest.raises(AttemptError) as caught:
        await Agent(model, tools=[step]).run("Hi")

    partial = caught.value.result
    assert [message.role for message in partial.messages] == ["user", "assistant", "tool", "tool"]
    assert len(partial.thoughts) == 1
