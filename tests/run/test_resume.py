"""Resume: a run goes on where its log ends, wherever that is."""

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
from support.runs import collect, first_events, letters, outcome, shape, well_formed
from support.two_branches import both


class World:
    """Tools whose effects can be counted, and a model that answers by what it is sent."""

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
        done = sum(message.role == "assistant" for message in request.messages)
        used = Usage(input_tokens=10, output_tokens=1)
        if done == 0:
            thought = call("think_aloud", "t0", thought="First I look.", thought_type="planning", thought_id="plan")
            return turn("I begin.", calls=[thought, call("pay", "0", amount=5), call("look", "0", n=1)], usage=used)
        if done == 1:
            return turn(calls=[call("look", "1", n=2), call("pay", "2", amount=6)], usage=used, reasoning="Hm.")
        return turn("done", usage=used)

    def agent(self, log: MemoryEventLog, **fields: Any) -> Agent:
        return Agent(ScriptedModel(*[self.turn] * 20), tools=self.tools, log=log, instructions="Be careful.", **fields)


async def finished_run() -> tuple[MemoryEventLog, str, list[Message]]:
    log = MemoryEventLog()
    world = World()
    result = await world.agent(log).run("Go")
    assert sorted(world.effects) == ["look 1", "look 2", "pay 5", "pay 6"]
    return log, result.task_id, result.messages


WHOLE = 27


async def test_the_run_that_is_cut_has_the_length_that_is_cut_through() -> None:
    log, task_id, _ = await finished_run()

    assert len(await log.read(task_id)) == WHOLE


def contents(messages: list[Message]) -> list[str]:
    return [text for text in shape(messages) if not text.startswith("tool: ")]


@pytest.mark.parametrize("held", range(1, WHOLE))
async def test_wherever_a_run_is_cut_it_comes_to_the_same_answer(held: int) -> None:  # L37, L88, L89, L109
    whole, task_id, messages = await finished_run()
    log = await first_events(whole, task_id, held)
    before = await log.read(task_id)
    world = World()
    run = world.agent(log).resume(task_id)
    events = await collect(run)
    result = await run

    # The answer, and what stands before it.
    assert result.output == "done"
    assert contents(result.messages) == contents(messages)
    assert well_formed(result.messages)
    assert all(well_formed(request.messages) for request in world.requests)

    # The stream goes on without a gap, in a new attempt that says where it begins.
    begun = held > 1
    if not begun:
        # Only the `task` is there: nobody has begun the run, and it is told from the start.
        assert events[0] == before[0]
        del events[0]
    first = events[0]
    assert isinstance(first, StatusUpdateEvent)
    assert (first.state, first.resumed, first.after_seq) == ("working", begun, held if begun else None)
    assert not any(isinstance(event, TaskEvent) for event in events)
    assert {event.attempt for event in events} == {2 if begun else 1}
    assert [event.seq for event in events if event.durable] == list(range(held + 1, events[-1].seq + 1))
    logged = await log.read(task_id)
    assert [event.seq for event in logged] == list(range(1, len(logged) + 1))

    # What was finished is not done again; what was begun is, if it may be.
    answered = {slot(event) for event in before if isinstance(event, ToolCompleteEvent)}
    started = {slot(event) for event in before if isinstance(event, ToolStartEvent)} - answered
    again = {slot(event) for event in events if isinstance(event, ToolStartEvent)}
    assert not again & answered
    for event in events:
        if isinstance(event, ToolCompleteEvent) and slot(event) in started and event.name == "pay":
            assert event.content.startswith(INTERRUPTED)
            assert slot(event) not in again
    keys = {slot(event): event.idempotency_key for event in logged if isinstance(event, ToolStartEvent)}
    assert all(event.idempotency_key == keys[slot(event)] for event in logged if isinstance(event, ToolStartEvent))

    # No answer is paid for twice.
    known = {event.step for event in before if isinstance(event, ContentCompleteEvent)}
    assert not known & {event.step for event in events if isinstance(event, LLMCallEvent)}

    # Thoughts are there once, and count on; only the reasoning of a message that was cut off is there twice.
    cut_off = {event.step for event in before if isinstance(event, ThoughtStreamEvent)} - known - {"1"}
    thoughts = [event for event in logged if isinstance(event, ThoughtStreamEvent)]
    assert [event.source for event in thoughts] == ["tool", "reasoning", "reasoning"][: 2 + len(cut_off)]
    assert [event.index for event in thoughts] == list(range(len(thoughts)))
    assert len(result.thoughts) == len(thoughts)


def slot(event: Any) -> tuple[str, int]:
    return event.step, event.index


async def test_a_run_that_is_cut_again_and_again_still_comes_to_its_end() -> None:
    log, task_id, messages = await finished_run()
    effects: list[str] = []
    for held in range(1, 80, 2):
        if held >= len(await log.read(task_id)):
            break
        log = await first_events(log, task_id, held)
        world = World()
        result = await world.agent(log).resume(task_id, limits=Limits(attempts=None))
        effects += world.effects
        assert contents(result.messages) == contents(messages)
        assert well_formed(result.messages)

    attempts = [event.attempt for event in await log.read(task_id)]
    assert attempts == sorted(attempts)
    assert attempts[-1] > 10


async def test_a_finished_run_gives_its_end_once_more_and_asks_no_model() -> None:  # L90
    log, task_id, messages = await finished_run()
    before = await log.read(task_id)
    world = World()
    run = world.agent(log).resume(task_id)
    events = await collect(run)
    result = await run

    assert events == [before[-1]]
    assert (result.output, result.messages) == ("done", messages)
    assert next(iter(result.thoughts)).content == "First I look."
    assert (world.requests, world.effects) == ([], [])
    assert await log.read(task_id) == before


async def test_a_failed_run_raises_once_more() -> None:  # L90
    log = MemoryEventLog()
    world = World()
    failed = await outcome(world.agent(log, limits=Limits(iterations=1)).run("Go"))
    assert failed.state == "failed"

    again = await outcome(world.agent(log).resume(failed.task_id))

    assert (again.state, again.reason, again.content) == ("failed", "max_iterations", "I begin.")
    assert len(world.requests) == 1


async def test_an_unknown_run_is_refused_by_its_id() -> None:  # L91
    with pytest.raises(UnknownRun, match="nowhere"):
        await World().agent(MemoryEventLog()).resume("nowhere")


async def test_without_a_log_nothing_can_be_resumed() -> None:
    with pytest.raises(ConfigurationError, match="log=") as caught:
        Agent(ScriptedModel()).resume("somewhere")
    assert "somewhere" in str(caught.value)


def test_a_cancelled_run_can_go_on() -> None:
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


async def test_limits_count_over_all_attempts() -> None:
    log, task_id, _ = await finished_run()
    events = await log.read(task_id)
    cut = await first_events(log, task_id, next(event.seq for event in events if event.kind == "checkpoint"))
    world = World()

    result = await outcome(world.agent(cut, limits=Limits(iterations=1)).resume(task_id))

    assert (result.state, result.reason) == ("failed", "max_iterations")
    assert world.requests == []


async def test_usage_counts_over_all_attempts() -> None:
    log, task_id, _ = await finished_run()
    for held in (6, 20):
        result = await World().agent(await first_events(log, task_id, held)).resume(task_id)
        assert result.usage == Usage(input_tokens=30, output_tokens=3)


async def test_a_thought_of_before_can_be_related_to() -> None:  # L37
    log, task_id, _ = await finished_run()
    events = await log.read(task_id)
    held = next(event.seq for event in events if isinstance(event, LLMCallEvent) and event.step == "2")
    cut = await first_events(log, task_id, held)
    thought = {"thought": "Now I know.", "thought_type": "decision"}
    model = ScriptedModel(
        [
            call("think_aloud", **thought, related_to="plan", thought_id="plan"),
            call("think_aloud", **thought, related_to="0"),
            call("think_aloud", **thought, related_to="nowhere"),
        ],
        "done",
    )
    result = await Agent(model, tools=World().tools, log=cut).resume(task_id)

    said = [message.text for message in model.requests[1].messages[-3:]]
    assert ["warning" in text for text in said] == [False, False, True]
    assert "plan-2" in said[0]
    assert [node.index if hasattr(node, "index") else n for n, node in enumerate(result.thoughts)] == [0, 1, 2, 3]


async def test_a_message_that_was_open_is_asked_for_again_under_its_step() -> None:
    log, task_id, _ = await finished_run()
    cut = await first_events(log, task_id, 3)
    assert (await cut.read(task_id))[-1].kind == "llm-call"
    world = World()

    events = await collect(world.agent(cut, limits=Limits(iterations=3)).resume(task_id))

    assert [request.step for request in world.requests] == ["1", "2", "3"]
    assert events[-1].state == "completed"  # type: ignore[attr-defined]


async def test_the_calls_of_a_nested_run_are_not_taken_for_those_of_the_run() -> None:  # L10
    log = MemoryEventLog()

    def nested(ctx: RunContext[Any]) -> None:
        theirs: dict[str, Any] = {"parent_task_id": ctx.task_id, "task_id": "child", "step": "1"}
        made = ctx.call
        assert made is not None
        ctx.emit(ToolStartEvent(call=made, idempotency_key="child", **theirs))
        ctx.emit(ToolCompleteEvent(call=made, success=True, content="of the child", **theirs))
        theirs["step"] = "2"
        ctx.emit(ContentCompleteEvent(content="of the child", **theirs))

    @tool(idempotent=True)
    async def delegates(ctx: RunContext[Any]) -> str:
        """Has a run of its own."""
        nested(ctx)
        return "mine"

    result = await Agent(ScriptedModel(call("delegates"), "done"), tools=[delegates], log=log).run("Go")
    events = await log.read(result.task_id)
    held = next(event.seq for event in events if isinstance(event, ContentCompleteEvent) and event.parent_task_id)
    cut = await first_events(log, result.task_id, held)

    again = await Agent(ScriptedModel("done"), tools=[delegates], log=cut).resume(result.task_id)

    assert shape(again.messages) == ["user: Go", "assistant: delegates", "tool: mine", "assistant: done"]


async def test_an_event_of_another_run_is_published_in_a_later_attempt_too() -> None:
    log, task_id, _ = await finished_run()
    cut = await first_events(log, task_id, 4)
    foreign = CustomEvent(name="foreign", task_id="another", attempt=1, seq=7)

    @op.on(ModelRequest)
    async def emits(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield foreign
        yield request

    world = World()
    events = await collect(world.agent(cut, loop=op.standard(before_model=[emits])).resume(task_id))

    assert [event.task_id for event in events if isinstance(event, CustomEvent)] == ["another"] * len(world.requests)


async def test_tools_may_have_changed_between_attempts() -> None:
    log, task_id, _ = await finished_run()
    events = await log.read(task_id)
    complete = next(event.seq for event in events if isinstance(event, ContentCompleteEvent))
    cut = await first_events(log, task_id, complete)
    model = ScriptedModel("Then not.")

    result = await Agent(model, tools=[], log=cut).resume(task_id)

    assert result.output == "Then not."
    assert [("There is no tool" in message.text) for message in result.messages if message.role == "tool"] == [
        False,
        True,
        True,
    ]


def on_a_branch(request: ModelRequest) -> Any:
    if request.messages[-1].role == "user":
        return call("look", n=7)
    return f"{request.branch} says {request.messages[-1].text}"


BRANCHED = 20


@pytest.mark.parametrize("held", range(1, BRANCHED))
async def test_a_strategy_resumes_by_running_again_and_asks_for_nothing_twice(held: int) -> None:
    world = World()
    log = MemoryEventLog()
    whole = await Agent(ScriptedModel(*[on_a_branch] * 9), tools=world.tools, strategy=both, log=log).run("Go")
    assert len(await log.read(whole.task_id)) == BRANCHED
    cut = await first_events(log, whole.task_id, held)
    before = await cut.read(whole.task_id)
    model = ScriptedModel(*[on_a_branch] * 9)
    world = World()

    run = Agent(model, tools=world.tools, strategy=both, log=cut).resume(whole.task_id)
    events: list[Event] = await collect(run)
    result = await run

    assert result.output == whole.output == "b1 says 7 and b2 says 7"
    assert shape(result.messages) == ["user: Go", "assistant: b1 says 7 and b2 says 7"]
    steps = [event.step or "" for event in await cut.read(whole.task_id) if isinstance(event, ContentCompleteEvent)]
    assert sorted(steps) == ["b1/1", "b1/2", "b2/1", "b2/2", "both"]
    known = {event.step for event in before if isinstance(event, ContentCompleteEvent)}
    assert not known & {request.step for request in model.requests}
    answered = sum(isinstance(event, ToolCompleteEvent) for event in before)
    assert len(world.effects) == 2 - answered
    told_before = held if held > 1 else 0
    assert [event.seq for event in events if event.durable] == list(range(told_before + 1, events[-1].seq + 1))
    assert letters(events).endswith("F")


async def test_an_answer_that_nobody_has_looked_at_yet_is_looked_at() -> None:
    log = MemoryEventLog()
    whole = await Agent(ScriptedModel("seven", "7"), output_type=int, log=log).run("How many?")
    events = await log.read(whole.task_id)
    first = next(event.seq for event in events if isinstance(event, ContentCompleteEvent))

    for held in (first, first + 1):
        cut = await first_events(log, whole.task_id, held)
        result = await Agent(ScriptedModel("7"), output_type=int, log=cut).resume(whole.task_id)
        assert result.output == 7
        assert shape(result.messages)[1] == "assistant: seven"
