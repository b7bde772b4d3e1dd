"""Resume after any event."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rxloop import (
    Agent,
    ConfigurationError,
    ContentCompleteEvent,
    CustomEvent,
    Event,
    Limits,
    LLMCallEvent,
    MemoryEventLog,
    Message,
    RunContext,
    StatusUpdateEvent,
    TaskEvent,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    Usage,
    op,
    tool,
)
from rxloop.errors import UnknownRun
from rxloop.pipeline.requests import ModelRequest, Signal
from rxloop.state.history import INTERRUPTED
from rxloop.testing import ScriptedModel, call, turn, virtual_time
from support.runs import collect, copy_first_events, format_marbles, is_well_formed, outcome, shape
from support.two_branches import two_branches


class World:
    """Tools with effect counters and a scripted model."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.requests: list[ModelRequest] = []

        @tool
        async def pay(amount: int) -> str:
            """Pays; not idempotent."""
            self.effects.append(f"pay {amount}")
            return f"paid {amount}"

        @tool(idempotent=True)
        async def look(n: int) -> int:
            """Looks; idempotent."""
            self.effects.append(f"look {n}")
            return n

        self.tools = [pay, look]

    def turn(self, request: ModelRequest) -> Any:
        self.requests.append(request)
        answer_count = sum(message.role == "assistant" for message in request.messages)
        usage = Usage(input_tokens=10, output_tokens=1)
        if answer_count == 0:
            thought = call("think_aloud", "t0", thought="First I look.", thought_type="planning", thought_id="plan")
            return turn("I begin.", calls=[thought, call("pay", "0", amount=5), call("look", "0", n=1)], usage=usage)
        if answer_count == 1:
            return turn(calls=[call("look", "1", n=2), call("pay", "2", amount=6)], usage=usage, reasoning="Hm.")
        return turn("done", usage=usage)

    def agent(self, log: MemoryEventLog, **fields: Any) -> Agent:
        return Agent(ScriptedModel(*[self.turn] * 20), tools=self.tools, log=log, instructions="Be careful.", **fields)


async def finished_run() -> tuple[MemoryEventLog, str, list[Message]]:
    log = MemoryEventLog()
    world = World()
    result = await world.agent(log).run("Go")
    assert sorted(world.effects) == ["look 1", "look 2", "pay 5", "pay 6"]
    return log, result.task_id, result.messages


EVENT_COUNT = 27


async def test_recorded_run_has_the_expected_number_of_events() -> None:
    log, task_id, _ = await finished_run()

    assert len(await log.read(task_id)) == EVENT_COUNT


def contents(messages: list[Message]) -> list[str]:
    return [text for text in shape(messages) if not text.startswith("tool: ")]


@pytest.mark.parametrize("kept_events", range(1, EVENT_COUNT))
async def test_run_resumed_after_any_event_completes_with_the_same_answer(
    kept_events: int,
) -> None:  # L37, L88, L89, L109
    complete_log, task_id, messages = await finished_run()
    log = await copy_first_events(complete_log, task_id, kept_events)
    before = await log.read(task_id)
    world = World()
    run = world.agent(log).resume(task_id)
    events = await collect(run)
    result = await run

    # Answer and history are unchanged.
    assert result.output == "done"
    assert contents(result.messages) == contents(messages)
    assert is_well_formed(result.messages)
    assert all(is_well_formed(request.messages) for request in world.requests)

    # Sequence numbers continue without gaps.
    had_started = kept_events > 1
    if not had_started:
        # Only the `task` event exists, so the run starts from the beginning.
        assert events[0] == before[0]
        del events[0]
    first = events[0]
    assert isinstance(first, StatusUpdateEvent)
    assert (first.state, first.resumed) == ("working", had_started)
    assert first.after_seq == (kept_events if had_started else None)
    assert not any(isinstance(event, TaskEvent) for event in events)
    assert {event.attempt for event in events} == {2 if had_started else 1}
    assert [event.seq for event in events if event.durable] == list(range(kept_events + 1, events[-1].seq + 1))
    logged = await log.read(task_id)
    assert [event.seq for event in logged] == list(range(1, len(logged) + 1))

    # Finished calls are not repeated. Started calls are repeated if they are idempotent.
    answered = {slot(event) for event in before if isinstance(event, ToolCompleteEvent)}
    started = {slot(event) for event in before if isinstance(event, ToolStartEvent)} - answered
    restarted = {slot(event) for event in events if isinstance(event, ToolStartEvent)}
    assert not restarted & answered
    for event in events:
        if isinstance(event, ToolCompleteEvent) and slot(event) in started and event.name == "pay":
            assert event.content.startswith(INTERRUPTED)
            assert slot(event) not in restarted
    keys = {slot(event): event.idempotency_key for event in logged if isinstance(event, ToolStartEvent)}
    assert all(event.idempotency_key == keys[slot(event)] for event in logged if isinstance(event, ToolStartEvent))

    # Answered steps cause no further requests.
    answered_steps = {event.step for event in before if isinstance(event, ContentCompleteEvent)}
    assert not answered_steps & {event.step for event in events if isinstance(event, LLMCallEvent)}

    # Thoughts are not duplicated and their indexes continue. Only the reasoning of an interrupted message is repeated.
    interrupted_steps = (
        {event.step for event in before if isinstance(event, ThoughtStreamEvent)} - answered_steps - {"1"}
    )
    thoughts = [event for event in logged if isinstance(event, ThoughtStreamEvent)]
    assert [event.source for event in thoughts] == ["tool", "reasoning", "reasoning"][: 2 + len(interrupted_steps)]
    assert [event.index for event in thoughts] == list(range(len(thoughts)))
    assert len(result.thoughts) == len(thoughts)


def slot(event: Any) -> tuple[str, int]:
    return event.step, event.index


async def test_run_that_is_interrupted_repeatedly_completes() -> None:
    log, task_id, messages = await finished_run()
    effects: list[str] = []
    for kept_events in range(1, 80, 2):
        if kept_events >= len(await log.read(task_id)):
            break
        log = await copy_first_events(log, task_id, kept_events)
        world = World()
        result = await world.agent(log).resume(task_id, limits=Limits(attempts=None))
        effects += world.effects
        assert contents(result.messages) == contents(messages)
        assert is_well_formed(result.messages)

    attempts = [event.attempt for event in await log.read(task_id)]
    assert attempts == sorted(attempts)
    assert attempts[-1] > 10


async def test_resume_of_finished_run_returns_its_result_without_a_model_call() -> None:  # L90
    log, task_id, messages = await finished_run()
    before = await log.read(task_id)
    world = World()
    run = world.agent(log).resume(task_id)
    events = await collect(run)
    result = await run

    assert events == [before[-1]]
    assert result.output == "done"
    assert result.messages == messages
    assert next(iter(result.thoughts)).content == "First I look."
    assert world.requests == []
    assert world.effects == []
    assert await log.read(task_id) == before


async def test_resume_of_failed_run_raises_again() -> None:  # L90
    log = MemoryEventLog()
    world = World()
    failed = await outcome(world.agent(log, limits=Limits(iterations=1)).run("Go"))
    assert failed.state == "failed"

    restarted = await outcome(world.agent(log).resume(failed.task_id))

    assert (restarted.state, restarted.reason) == ("failed", "max_iterations")
    assert restarted.content == "I begin."
    assert len(world.requests) == 1


async def test_resume_of_unknown_run_raises() -> None:  # L91
    with pytest.raises(UnknownRun, match="nowhere"):
        await World().agent(MemoryEventLog()).resume("nowhere")


async def test_resume_without_a_log_raises() -> None:
    with pytest.raises(ConfigurationError, match="log=") as caught:
        Agent(ScriptedModel()).resume("somewhere")
    assert "somewhere" in str(caught.value)


def test_canceled_run_can_be_resumed() -> None:
    log = MemoryEventLog()

    @tool
    async def slow() -> str:
        """Takes an hour."""
        await asyncio.sleep(3600)
        return "ok"

    with virtual_time() as time:
        run = Agent(ScriptedModel(call("slow")), tools=[slow], log=log).run("Go")
        time.at(1, run.cancel)
        assert time.run(outcome(run)).state == "canceled"
        model = ScriptedModel("Never mind.")
        result = time.run(Agent(model, tools=[slow], log=log).resume(run.task_id))

    assert result.output == "Never mind."
    assert shape(result.messages)[1:3] == ["assistant: slow", f"tool: {INTERRUPTED}"]
    assert model.requests[0].step == "2"


async def test_limits_count_across_attempts() -> None:
    log, task_id, _ = await finished_run()
    events = await log.read(task_id)
    truncated_log = await copy_first_events(
        log, task_id, next(event.seq for event in events if event.kind == "checkpoint")
    )
    world = World()

    result = await outcome(world.agent(truncated_log, limits=Limits(iterations=1)).resume(task_id))

    assert (result.state, result.reason) == ("failed", "max_iterations")
    assert world.requests == []


async def test_usage_counts_across_attempts() -> None:
    log, task_id, _ = await finished_run()
    for kept_events in (6, 20):
        result = await World().agent(await copy_first_events(log, task_id, kept_events)).resume(task_id)
        assert result.usage == Usage(input_tokens=30, output_tokens=3)


async def test_thought_can_relate_to_a_thought_of_an_earlier_attempt() -> None:  # L37
    log, task_id, _ = await finished_run()
    events = await log.read(task_id)
    kept_events = next(event.seq for event in events if isinstance(event, LLMCallEvent) and event.step == "2")
    truncated_log = await copy_first_events(log, task_id, kept_events)
    thought = {"thought": "Now I know.", "thought_type": "decision"}
    model = ScriptedModel(
        [
            call("think_aloud", **thought, related_to="plan", thought_id="plan"),
            call("think_aloud", **thought, related_to="0"),
            call("think_aloud", **thought, related_to="nowhere"),
        ],
        "done",
    )
    result = await Agent(model, tools=World().tools, log=truncated_log).resume(task_id)

    results = [message.text for message in model.requests[1].messages[-3:]]
    assert ["warning" in text for text in results] == [False, False, True]
    assert "plan-2" in results[0]
    assert [node.index if hasattr(node, "index") else n for n, node in enumerate(result.thoughts)] == [0, 1, 2, 3]


async def test_interrupted_message_is_requested_again_with_the_same_step() -> None:
    log, task_id, _ = await finished_run()
    truncated_log = await copy_first_events(log, task_id, 3)
    assert (await truncated_log.read(task_id))[-1].kind == "llm-call"
    world = World()

    events = await collect(world.agent(truncated_log, limits=Limits(iterations=3)).resume(task_id))

    assert [request.step for request in world.requests] == ["1", "2", "3"]
    assert events[-1].state == "completed"  # type: ignore[attr-defined]


async def test_nested_tool_results_are_not_mistaken_for_results_of_the_outer_run() -> None:  # L10
    log = MemoryEventLog()

    def emit_nested_events(ctx: RunContext[Any]) -> None:
        fields: dict[str, Any] = {"parent_task_id": ctx.task_id, "task_id": "child", "step": "1"}
        tool_call = ctx.call
        assert tool_call is not None
        ctx.emit(ToolStartEvent(call=tool_call, idempotency_key="child", **fields))
        ctx.emit(ToolCompleteEvent(call=tool_call, success=True, content="of the child", **fields))
        fields["step"] = "2"
        ctx.emit(ContentCompleteEvent(content="of the child", **fields))

    @tool(idempotent=True)
    async def delegates(ctx: RunContext[Any]) -> str:
        """Emit events for a nested run."""
        emit_nested_events(ctx)
        return "mine"

    result = await Agent(ScriptedModel(call("delegates"), "done"), tools=[delegates], log=log).run("Go")
    events = await log.read(result.task_id)
    kept_events = next(
        event.seq for event in events if isinstance(event, ContentCompleteEvent) and event.parent_task_id
    )
    truncated_log = await copy_first_events(log, result.task_id, kept_events)

    restarted = await Agent(ScriptedModel("done"), tools=[delegates], log=truncated_log).resume(result.task_id)

    assert shape(restarted.messages) == ["user: Go", "assistant: delegates", "tool: mine", "assistant: done"]


async def test_event_of_another_run_is_published_in_a_later_attempt() -> None:
    log, task_id, _ = await finished_run()
    truncated_log = await copy_first_events(log, task_id, 4)
    foreign = CustomEvent(name="foreign", task_id="another", attempt=1, seq=7)

    @op.on(ModelRequest)
    async def emit_foreign_event(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield foreign
        yield request

    world = World()
    events = await collect(
        world.agent(truncated_log, loop=op.standard(before_model=[emit_foreign_event])).resume(task_id)
    )

    assert [event.task_id for event in events if isinstance(event, CustomEvent)] == ["another"] * len(world.requests)


async def test_run_can_be_resumed_with_other_tools() -> None:
    log, task_id, _ = await finished_run()
    events = await log.read(task_id)
    complete = next(event.seq for event in events if isinstance(event, ContentCompleteEvent))
    truncated_log = await copy_first_events(log, task_id, complete)
    model = ScriptedModel("Then not.")

    result = await Agent(model, tools=[], log=truncated_log).resume(task_id)

    assert result.output == "Then not."
    assert [("There is no tool" in message.text) for message in result.messages if message.role == "tool"] == [
        False,
        True,
        True,
    ]


def answer_on_branch(request: ModelRequest) -> Any:
    if request.messages[-1].role == "user":
        return call("look", n=7)
    return f"{request.branch} says {request.messages[-1].text}"


BRANCHED_EVENT_COUNT = 20


@pytest.mark.parametrize("kept_events", range(1, BRANCHED_EVENT_COUNT))
async def test_strategy_is_resumed_by_repetition_without_repeated_requests(kept_events: int) -> None:
    world = World()
    log = MemoryEventLog()
    complete = await Agent(
        ScriptedModel(*[answer_on_branch] * 9), tools=world.tools, strategy=two_branches, log=log
    ).run("Go")
    assert len(await log.read(complete.task_id)) == BRANCHED_EVENT_COUNT
    truncated_log = await copy_first_events(log, complete.task_id, kept_events)
    before = await truncated_log.read(complete.task_id)
    model = ScriptedModel(*[answer_on_branch] * 9)
    world = World()

    run = Agent(model, tools=world.tools, strategy=two_branches, log=truncated_log).resume(complete.task_id)
    events: list[Event] = await collect(run)
    result = await run

    assert result.output == complete.output == "b1 says 7 and b2 says 7"
    assert shape(result.messages) == ["user: Go", "assistant: b1 says 7 and b2 says 7"]
    steps = [
        event.step or ""
        for event in await truncated_log.read(complete.task_id)
        if isinstance(event, ContentCompleteEvent)
    ]
    assert sorted(steps) == ["b1/1", "b1/2", "b2/1", "b2/2", "both"]
    answered_steps = {event.step for event in before if isinstance(event, ContentCompleteEvent)}
    assert not answered_steps & {request.step for request in model.requests}
    answered = sum(isinstance(event, ToolCompleteEvent) for event in before)
    assert len(world.effects) == 2 - answered
    last_seq = kept_events if kept_events > 1 else 0
    assert [event.seq for event in events if event.durable] == list(range(last_seq + 1, events[-1].seq + 1))
    assert format_marbles(events).endswith("F")


async def test_answer_that_was_not_validated_before_the_crash_is_validated_on_resume() -> None:
    log = MemoryEventLog()
    complete = await Agent(ScriptedModel("seven", "7"), output_type=int, log=log).run("How many?")
    events = await log.read(complete.task_id)
    first = next(event.seq for event in events if isinstance(event, ContentCompleteEvent))

    for kept_events in (first, first + 1):
        truncated_log = await copy_first_events(log, complete.task_id, kept_events)
        result = await Agent(ScriptedModel("7"), output_type=int, log=truncated_log).resume(complete.task_id)
        assert result.output == 7
        assert shape(result.messages)[1] == "assistant: seven"
