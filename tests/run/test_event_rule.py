"""Operators that drop, replace, duplicate or hold events."""

from __future__ import annotations

from typing import Any

import pytest
from reactivex import Observable
from reactivex import operators as ops

from rxloop import (
    Agent,
    CustomEvent,
    Event,
    InputRequiredEvent,
    IterationEnd,
    Limits,
    MemoryEventLog,
    MessageAddedEvent,
    ModelRequest,
    Operator,
    RunContext,
    RunError,
    Signal,
    StatusUpdateEvent,
    ToolStartEvent,
    Usage,
    op,
    tool,
)
from rxloop.errors import ContextLengthExceeded, ProviderConnectionError
from rxloop.protocol.events import ContentCompleteEvent, LLMCallEvent
from rxloop.stream.sources import emit
from rxloop.testing import ScriptedModel, call, turn, virtual_time
from support.nested_agents import check_attempts

KINDS = ["llm-call", "content-delta", "usage", "content-complete", "tool-start", "tool-complete", "checkpoint"]
PLACES = [1, 2, 3]


@tool
async def look() -> str:
    """Look outside."""
    return "rain"


def make_model() -> ScriptedModel:
    usage = Usage(input_tokens=9, output_tokens=1)
    return ScriptedModel(turn("Hm. ", calls=[call("look")], usage=usage), turn("Rain. ", usage=usage))


def run_error(operator: Operator, place: int = 3, *, around: bool = False, log: bool = False) -> RunError:
    """Return the error of a run with an operator in its loop, in virtual time, in which calls take no time."""
    loop = op.standard()
    if not around:
        loop.insert(place, operator)

    def strategy(pipeline: Operator) -> Operator:
        return op.compose(op.iterate(pipeline), *([operator] if around else []))

    log_ = MemoryEventLog() if log else None
    agent = Agent(make_model(), tools=[look], loop=loop, strategy=strategy, log=log_)
    with virtual_time() as time, pytest.raises(RunError) as caught:
        time.run(agent.run("Go.").result())
    assert caught.value.code == "pipeline"
    return caught.value


def is_kind(kind: str, signal: Signal) -> bool:
    return isinstance(signal, Event) and signal.kind == kind


def reaches(kind: str, place: int) -> bool:
    """Return True if events of a kind pass an operator at this place."""
    return place == 3 or (place == 2 and kind != "checkpoint") or (place == 1 and kind not in KINDS[4:])


CASES = [(kind, place) for kind in KINDS for place in PLACES if reaches(kind, place)]


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("kind", "place"), CASES)
def test_run_fails_when_an_operator_drops_events(kind: str, place: int, log: bool) -> None:
    error = run_error(ops.filter(lambda signal: not is_kind(kind, signal)), place, log=log)
    assert "rx.filter" in str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_run_fails_when_an_operator_around_the_loop_drops_events(kind: str) -> None:
    error = run_error(ops.filter(lambda signal: not is_kind(kind, signal)), around=True)
    assert "rx.filter" in str(error) or "content-complete" in str(error) or "unanswered" in str(error)


@pytest.mark.parametrize(("kind", "place"), CASES)
def test_run_fails_when_an_operator_duplicates_events(kind: str, place: int) -> None:
    def twice(signal: Signal) -> Observable[Signal]:
        return emit(signal, signal) if is_kind(kind, signal) else emit(signal)

    assert "must pass events unchanged" in str(run_error(ops.flat_map(twice), place))


@pytest.mark.parametrize("kind", ["llm-call", "usage", "content-delta", "checkpoint"])
def test_run_fails_when_an_operator_replaces_events(kind: str) -> None:
    def replace(signal: Signal) -> Signal:
        return signal.model_copy() if isinstance(signal, Event) and signal.kind == kind else signal

    error = run_error(ops.map(replace))
    assert f"{kind} of step 1" in str(error)


@pytest.mark.parametrize("kind", ["usage", "checkpoint"])
def test_error_names_the_events_the_operators_and_the_remedy(kind: str) -> None:
    text = str(run_error(ops.filter(lambda signal: not is_kind(kind, signal))))
    assert f"an operator dropped, replaced or held events ({kind} of step 1)" in text
    assert "use a view, as in run.pipe(...)" in text
    assert "the loop is iterate(call_model, run_tools, checkpoint, rx.filter)" in text


@pytest.mark.parametrize("kind", ["usage", "llm-call"])
def test_last_iteration_is_checked(kind: str) -> None:
    def keep(signal: Signal) -> bool:
        return not (isinstance(signal, Event) and signal.kind == kind and signal.step == "2")

    assert "step 2" in str(run_error(ops.filter(keep)))


async def test_resumed_run_is_checked() -> None:
    log = MemoryEventLog()

    @tool(approve=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    usage = Usage(input_tokens=9, output_tokens=1)
    model = ScriptedModel(call("pay"), turn("Paid.", usage=usage))
    loop = [*op.standard(), ops.filter(lambda signal: not (is_kind("usage", signal) and signal.step == "2"))]  # type: ignore[union-attr]
    agent = Agent(model, tools=[pay], loop=loop, log=log)
    result = await agent.run("Go.")
    with pytest.raises(RunError, match="usage of step 2"):
        await agent.resume(result.task_id, inputs={result.pending[0].input_id: True})


async def test_operators_may_hold_all_signals_until_the_end_of_an_iteration() -> None:
    def hold(source: Observable[Signal]) -> Observable[Signal]:
        return source.pipe(ops.to_list(), ops.flat_map(lambda signals: emit(*signals)))

    loop: list[Any] = [op.call_model(), op.run_tools(), hold]
    result = await Agent(make_model(), tools=[look], loop=loop, limits=Limits(tokens=100)).run("Go.")
    assert result.output == "Rain. "
    assert result.usage.total_tokens == 20


@pytest.mark.parametrize("kind", ["llm-call", "usage", "content-complete", "tool-start", "tool-complete"])
async def test_nested_run_fails_when_an_operator_duplicates_its_events(kind: str) -> None:
    def double(signal: Signal) -> Observable[Signal]:
        return emit(signal, signal) if getattr(signal, "kind", None) == kind else emit(signal)

    child = Agent(make_model(), name="child", tools=[look], loop=op.standard(at_end=[ops.flat_map(double)]))
    run = Agent(ScriptedModel(call("child", prompt="Go."), "Done."), tools=[child.as_tool()]).run("Go.")
    events: list[Event] = []
    run.events.subscribe(events.append)
    await run
    check_attempts(events)
    [end] = [event for event in events if event.agent_path and isinstance(event, StatusUpdateEvent) and event.final]
    assert end.error is not None
    assert end.error.code == "pipeline"


@pytest.mark.parametrize("nested", [False, True])
async def test_history_has_a_message_that_an_operator_adds_twice(nested: bool) -> None:
    texts: list[str] = []

    def add(signal: Signal) -> Observable[Signal]:
        message = MessageAddedEvent(role="user", content="More.", cause="test")
        is_first = isinstance(signal, IterationEnd) and signal.iteration == 1
        return emit(message, message, signal) if is_first else emit(signal)

    def answer(request: ModelRequest) -> str:
        texts.extend(message.text for message in request.messages)
        return "Rain."

    model = ScriptedModel(call("look"), answer)
    agent = Agent(model, name="child", tools=[look], loop=op.standard(at_end=[ops.flat_map(add)]))
    if nested:
        agent = Agent(ScriptedModel(call("child", prompt="Go."), "Done."), tools=[agent.as_tool()])
    await agent.run("Go.")
    assert texts.count("More.") == 2


@pytest.mark.parametrize("log", [None, MemoryEventLog()])
async def test_run_fails_when_an_operator_drops_a_question_that_is_answered(log: MemoryEventLog | None) -> None:
    @tool
    async def ask(ctx: RunContext[Any]) -> str:
        """Ask."""
        return str(await ctx.ask("Sure?"))

    loop = op.standard(at_end=[ops.filter(lambda signal: not isinstance(signal, InputRequiredEvent))])
    run = Agent(ScriptedModel(call("ask"), "Done."), tools=[ask], loop=loop, log=log).run(
        "Go.", on_input=lambda _: True
    )
    events: list[Event] = []
    run.events.subscribe(events.append)
    with pytest.raises(RunError, match=r"answer to question 1\.0\.1, which is not pending") as caught:
        await run
    assert caught.value.code == "pipeline"
    check_attempts(events)


COMPLETED_STEP: list[Event] = [
    ContentCompleteEvent(step="1", content="Hm."),
    LLMCallEvent(step="1", iteration=1, model="m", message_count=1, tool_count=0, estimated_input_tokens=1),
]


@pytest.mark.parametrize("event", COMPLETED_STEP, ids=["message", "request"])
async def test_run_fails_when_an_operator_repeats_a_completed_step(event: Event) -> None:
    """The step is not the newest one."""

    def add(signal: Signal) -> Observable[Signal]:
        return emit(event, signal) if isinstance(signal, IterationEnd) and signal.iteration == 3 else emit(signal)

    model = ScriptedModel(call("look"), call("look"), "Rain.")
    run = Agent(model, tools=[look], loop=[op.call_model(), ops.flat_map(add), op.run_tools()]).run("Go.")
    events: list[Event] = []
    run.events.pipe(op.grammar()).subscribe(events.append)
    with pytest.raises(RunError, match=f"{event.kind} of step 1, which has a complete message"):
        await run
    assert events[-1].kind == "status-update"


async def test_failed_call_of_another_branch_is_closed_before_the_next_one() -> None:
    def multiply(signal: Signal) -> Observable[Signal]:
        if not isinstance(signal, ModelRequest):
            return emit(signal)
        return emit(signal.replace(branch="b", step=f"b/{signal.step}"), signal)

    model = ScriptedModel(ContextLengthExceeded("too long"), call("look"), "Aside.", "Rain.")
    run = Agent(model, tools=[look], loop=[ops.flat_map(multiply), *op.standard()]).run("Go.")
    messages: list[tuple[str | None, str | None]] = []
    run.events.pipe(op.grammar(), op.of_type(ContentCompleteEvent)).subscribe(
        lambda message: messages.append((message.step, message.finish_reason))
    )
    assert (await run).output == "Rain."
    assert messages == [("1", "tool_calls"), ("b/1", "canceled"), ("b/2", "stop"), ("2", "stop")]


@pytest.mark.parametrize(("step", "is_closed"), [(None, True), ("1", False), ("sorry", True)])
async def test_operator_around_the_loop_may_answer_a_failed_call(step: str | None, is_closed: bool) -> None:
    def apologize(error: Exception, source: Observable[Signal]) -> Observable[Signal]:
        return emit(ContentCompleteEvent(content="Sorry.", step=step))

    def catch(pipeline: Operator) -> Operator:
        return op.compose(op.iterate(pipeline), ops.catch(apologize))

    run = Agent(ScriptedModel(ProviderConnectionError("no line")), strategy=catch).run("Go.")
    messages: list[ContentCompleteEvent] = []
    run.events.pipe(op.grammar(), op.of_type(ContentCompleteEvent)).subscribe(messages.append)
    assert (await run).output == "Sorry."
    assert [message.finish_reason for message in messages[:-1]] == ["canceled"] * is_closed


async def test_operators_may_repeat_their_own_events() -> None:
    tick = CustomEvent(name="tick", data={})

    def add_ticks(signal: Signal) -> Observable[Signal]:
        return emit(tick, signal, tick) if isinstance(signal, ToolStartEvent) else emit(signal)

    agent = Agent(make_model(), tools=[look], loop=[*op.standard(), ops.flat_map(add_ticks)])
    events = [event async for event in agent.run("Go.")]
    assert [event.kind for event in events].count("custom") == 2


def test_view_may_filter_events() -> None:
    with virtual_time() as time:
        run = Agent(make_model(), tools=[look]).run("Go.")
        usages = run.pipe(ops.filter(lambda event: is_kind("usage", event)), ops.count())
        assert time.run(usages.pipe(ops.last())) == 2
