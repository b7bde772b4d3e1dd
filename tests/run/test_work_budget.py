"""Limits of pipelines that drop, repeat or multiply requests and events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import reactivex as rx
from reactivex import Observable
from reactivex import operators as ops

from rxloop import (
    Agent,
    Event,
    Limits,
    MemoryEventLog,
    ModelRequest,
    Operator,
    RunContext,
    RunError,
    Signal,
    ToolRequest,
    op,
    tool,
)
from rxloop.errors import AttemptError, ContextLengthExceeded, LimitReached, ProviderConnectionError
from rxloop.operators.loop.compose import describe
from rxloop.protocol.events import ContentCompleteEvent, MessageAddedEvent, UsageEvent
from rxloop.protocol.messages import ToolCall
from rxloop.run.steering import MAX_RECURSIVE_SENDS
from rxloop.stream.sources import emit
from rxloop.testing import ScriptedModel, call, virtual_time
from support.run_checks import Recorder, final_events
from support.runs import outcome


class SyncModel:
    """Model that answers during `call`, without a task."""

    name = "sync"

    def __init__(self, *, tool_name: str | None = "look", error: Exception | None = None) -> None:
        self.requests = 0
        self._tool_name = tool_name
        self._error = error

    def call(self, request: ModelRequest) -> Observable[Event]:
        self.requests += 1
        if self.requests > 5_000:
            raise KeyboardInterrupt("the run does not end")
        if self._error is not None:
            return Observable(lambda observer, scheduler=None: observer.on_error(self._error))  # type: ignore[arg-type]
        calls = [] if self._tool_name is None else [ToolCall(id="a", name=self._tool_name)]
        reason = "tool_calls" if calls else "stop"
        message = ContentCompleteEvent(content="Hm.", tool_calls=calls, finish_reason=reason)
        return emit(UsageEvent(input_tokens=9, output_tokens=1), message)

    async def aclose(self) -> None: ...


@tool
async def look() -> str:
    """Look outside."""
    return "rain"


def drop(*kinds: str) -> Operator:
    return ops.filter(lambda signal: getattr(signal, "kind", None) not in kinds)


def around_call(*operators: Any) -> list[Operator]:
    """Return a loop with operators around the model call."""
    return [lambda source: source.pipe(op.call_model(), *operators), op.run_tools(), op.checkpoint()]


def multiply(count: int, branch: Callable[[int], str | None] = lambda number: f"b{number}") -> Operator:
    def repeat_request(signal: Signal) -> Observable[Signal]:
        if not isinstance(signal, ModelRequest):
            return emit(signal)
        return emit(*(signal.replace(branch=branch(n), step=f"{n}/{signal.step}") for n in range(count - 1)), signal)

    return ops.flat_map(repeat_request)


async def fail(agent: Agent[Any, Any], **options: Any) -> AttemptError:
    """Return the error of a run, after checking its stream."""
    run = agent.run("Go.", **options)
    recorder = Recorder(run.events)
    async with asyncio.timeout(20):
        with pytest.raises(AttemptError) as caught:
            await run
    assert recorder.completed
    assert final_events(recorder.events) == [recorder.events[-1]]
    return caught.value


ENDLESS: dict[str, Callable[[], list[Operator]]] = {
    "take_last": lambda: [op.call_model(), ops.take_last(3), op.run_tools(), op.checkpoint()],
    "take_last and catch": lambda: [op.call_model(), ops.take_last(3), ops.catch(rx.empty()), op.run_tools()],
    "drop llm-call": lambda: [*op.standard(), drop("llm-call")],
    "drop all but messages": lambda: [op.call_model(), drop("llm-call", "usage"), op.run_tools(), op.checkpoint()],
    "repeat the call": lambda: around_call(ops.repeat()),
    "repeat the hidden call": lambda: around_call(ops.repeat(), drop("llm-call", "usage", "content-complete")),
    "repeat the requests": lambda: [ops.repeat(), *op.standard()],
    "repeat the iteration": lambda: [*op.standard(), ops.repeat()],
    "multiply": lambda: [multiply(1_000), *op.standard()],
    "multiply on one branch": lambda: [multiply(1_000, lambda number: None), *op.standard()],
    "multiply hidden": lambda: [multiply(1_000), op.call_model(), ops.distinct(lambda s: getattr(s, "kind", id(s)))],
}


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("logged", [False, True])
async def test_pipeline_sends_no_more_requests_than_allowed(name: str, logged: bool) -> None:
    model = SyncModel()
    log = MemoryEventLog() if logged else None
    await fail(Agent(model, tools=[look], loop=ENDLESS[name](), limits=Limits(iterations=5), log=log))
    assert model.requests <= 5


@pytest.mark.parametrize("name", [name for name in ENDLESS if name != "repeat the requests"])
async def test_token_limit_applies_when_an_operator_drops_usage(name: str) -> None:
    model = SyncModel()
    loop = [*ENDLESS[name](), drop("usage")]
    limits = Limits(iterations=100, tokens=30)
    error = await fail(Agent(model, tools=[look], loop=loop, limits=limits))
    assert isinstance(error, LimitReached | RunError)
    assert model.requests <= 3


@pytest.mark.parametrize("failing", [True, False])
async def test_endless_repetition_around_the_call_yields_to_the_event_loop(failing: bool) -> None:
    model = SyncModel(error=ProviderConnectionError("no line") if failing else None)
    hidden = drop("llm-call", "usage", "content-complete", "llm-failed")
    no_calls = ops.filter(lambda signal: not isinstance(signal, ToolRequest))
    loop = around_call(no_calls, ops.retry() if failing else ops.repeat(), hidden)
    run = Agent(model, tools=[look], loop=loop, limits=Limits(iterations=None)).run("Go.").start()
    turns = 0
    while model.requests < 200:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 10
    await run.aclose()
    assert model.requests < 300


async def test_synchronous_iterations_yield_to_the_event_loop() -> None:
    model = SyncModel()
    answers = op.answer_requests(ToolRequest, lambda request: emit(request.answer(1, "1")))
    agent = Agent(model, tools=[look], loop=[op.call_model(), answers], limits=Limits(iterations=None, seconds=0.05))
    error = await fail(agent)
    assert isinstance(error, LimitReached)
    assert error.code == "timeout"


async def test_synchronous_iterations_without_llm_call_yield_and_are_counted() -> None:
    requests: list[str] = []

    def answer(request: ModelRequest) -> Observable[Signal]:
        requests.append(request.step)
        message = ContentCompleteEvent(
            step=request.step, tool_calls=[ToolCall(id="a", name="look")], finish_reason="tool_calls"
        )
        return emit(message, ToolRequest(message.tool_calls[0], request.ctx))

    answers = op.answer_requests(ToolRequest, lambda request: emit(request.answer(1, "1")))
    loop = [op.answer_requests(ModelRequest, answer), answers]
    error = await fail(Agent(SyncModel(), tools=[look], loop=loop, limits=Limits(iterations=50)))
    assert error.code == "max_iterations"
    assert requests == [str(number) for number in range(1, 51)]


@pytest.mark.parametrize("wrap", [ops.retry(), ops.repeat(), ops.catch(rx.empty())], ids=["retry", "repeat", "catch"])
async def test_run_ends_when_an_operator_restarts_the_loop_without_end(wrap: Any) -> None:
    def restart(pipeline: Operator) -> Operator:
        return op.compose(op.iterate(pipeline), wrap)

    model = SyncModel()
    error = await fail(Agent(model, tools=[look], strategy=restart, limits=Limits(iterations=5)))
    assert model.requests == 5
    assert "rx." in str(error) or error.code == "max_iterations" or "without an answer" in str(error)


async def test_run_ends_when_an_operator_repeats_the_loop_after_its_answer() -> None:
    def restart(pipeline: Operator) -> Operator:
        return op.compose(op.iterate(pipeline), ops.repeat())

    model = SyncModel(tool_name=None)
    error = await fail(Agent(model, strategy=restart, limits=Limits(iterations=5)))
    assert model.requests == 1
    assert "limit its repetitions, as in rx.retry(3)" in str(error)
    assert "iterate(call_model, run_tools, checkpoint), rx.repeat" in str(error)


async def test_run_ends_when_an_operator_before_the_model_call_fails_and_is_retried() -> None:
    def boom(signal: Signal) -> Signal:
        raise ZeroDivisionError

    error = await fail(
        Agent(SyncModel(), loop=[lambda source: source.pipe(ops.map(boom), ops.retry()), *op.standard()])
    )
    assert error.code == "pipeline"
    assert "limit its repetitions" in str(error)


async def test_run_ends_when_an_operator_sends_requests_without_a_turn_of_the_event_loop() -> None:
    def repeat_request(signal: Signal) -> Observable[Signal]:
        return rx.repeat_value(signal) if isinstance(signal, ModelRequest) else emit(signal)

    for limits in (Limits(iterations=5), Limits(iterations=None)):
        model = SyncModel()
        await fail(Agent(model, tools=[look], loop=[ops.flat_map(repeat_request), *op.standard()], limits=limits))
        assert model.requests <= 50


async def test_operator_that_keeps_sending_requests_after_the_failure_of_a_call_is_stopped() -> None:
    def repeat_request(signal: Signal) -> Observable[Signal]:
        return rx.repeat_value(signal) if isinstance(signal, ModelRequest) else emit(signal)

    model = SyncModel(error=ProviderConnectionError("no line"))
    error = await fail(Agent(model, loop=[ops.flat_map(repeat_request), *op.standard()]))
    assert error.code == "connection"
    assert model.requests == 1


def test_limited_retries_of_a_step_are_allowed_and_counted() -> None:
    for iterations, state in ((3, "completed"), (2, "failed")):
        model = ScriptedModel(ProviderConnectionError("no line"), ProviderConnectionError("no line"), "Hi.")
        loop = [op.answer_requests(ModelRequest, lambda request: emit(request).pipe(op.call_model(), ops.retry(3)))]
        with virtual_time() as time:
            result = time.run(outcome(Agent(model, loop=loop, limits=Limits(iterations=iterations)).run("Go.")))
        assert result.state == state
        assert len(model.requests) == iterations


async def test_request_that_was_too_long_is_repeated_without_counting() -> None:
    too_long = ContextLengthExceeded("too long")
    model = ScriptedModel(too_long, too_long, "Hi.")
    assert (await Agent(model, limits=Limits(iterations=1)).run("Go.")).output == "Hi."


async def test_resumed_run_may_repeat_its_interrupted_last_request() -> None:
    log = MemoryEventLog()
    started = asyncio.Event()

    class Waiting(ScriptedModel):
        def call(self, request: ModelRequest) -> Observable[Event]:
            started.set()
            return rx.never()

    run = Agent(Waiting("x"), name="a", log=log, limits=Limits(iterations=1, tokens=5)).run("Go.").start()
    await started.wait()
    await run.release()
    agent = Agent(ScriptedModel("Hi."), name="a", log=log, limits=Limits(iterations=1, tokens=5))
    assert (await agent.resume(run.task_id)).output == "Hi."


async def test_resumed_run_repeats_its_interrupted_request_only_once() -> None:
    log = MemoryEventLog()
    started = asyncio.Event()

    class Interrupted(ScriptedModel):
        def call(self, request: ModelRequest) -> Observable[Event]:
            started.set()
            return rx.concat(emit(UsageEvent(input_tokens=9)), rx.never())

    limits = Limits(tokens=5)
    run = Agent(Interrupted("x"), name="a", log=log, limits=limits).run("Go.").start()
    await started.wait()
    await run.release()
    model = SyncModel(tool_name=None)
    agent = Agent(model, name="a", log=log, loop=around_call(ops.repeat()), limits=limits)
    with pytest.raises(AttemptError):
        await agent.resume(run.task_id)
    assert model.requests == 1


async def test_resumed_run_counts_the_calls_of_all_branches() -> None:
    log = MemoryEventLog()

    @tool
    async def ask(ctx: RunContext[Any]) -> str:
        """Ask."""
        return str(await ctx.ask("Sure?"))

    model = ScriptedModel(*["Hm."] * 3, call("ask"), *["Hm."] * 20)
    agent = Agent(model, tools=[ask], log=log, loop=[multiply(4), *op.standard()], limits=Limits(iterations=7))
    result = await agent.run("Go.")
    assert len(model.requests) == 4
    with pytest.raises(LimitReached):
        await agent.resume(result.task_id, inputs={result.pending[0].input_id: True})
    assert len(model.requests) == 7


async def test_tokens_of_dropped_events_count_when_an_operator_handles_the_error() -> None:
    def retry(pipeline: Operator) -> Operator:
        return op.compose(op.iterate(pipeline), ops.retry(5))

    model = SyncModel()
    loop = [*op.standard(), drop("usage")]
    error = await fail(Agent(model, tools=[look], loop=loop, strategy=retry, limits=Limits(tokens=10)))
    assert error.code == "tokens"
    assert model.requests == 1


async def test_limit_error_names_the_operators_and_the_remedy() -> None:
    error = await fail(
        Agent(SyncModel(), tools=[look], loop=[multiply(30), *op.standard()], limits=Limits(iterations=5))
    )
    assert error.code == "max_iterations"
    assert "raise the limit, or send fewer requests per iteration" in str(error)
    assert f"the loop is iterate({describe(multiply(30))}, call_model, run_tools, checkpoint)" in str(error)


@pytest.mark.parametrize("offset", [0, 1])
async def test_call_that_no_message_contains_is_not_executed(offset: int) -> None:
    executed: list[int] = []

    @tool
    async def count() -> str:
        """Count."""
        executed.append(1)
        return "counted"

    def further(request: ToolRequest) -> Observable[Signal]:
        more = (ToolRequest(request.call, request.ctx.bind(index=offset + number)) for number in range(100))
        return emit(request, *more)

    model = ScriptedModel(call("count"), "Done.")
    hidden = ops.filter(lambda signal: getattr(signal, "index", 0) == 0)
    loop = [op.call_model(), op.answer_requests(ToolRequest, further), op.run_tools(), hidden]
    error = await fail(Agent(model, tools=[count], loop=loop))
    assert error.code == "pipeline"
    assert "no open message contains this call" in str(error)
    assert len(executed) <= 1


async def test_requests_of_an_ending_run_are_not_sent() -> None:
    model = SyncModel()
    run = Agent(model, tools=[look], limits=Limits(iterations=None)).run("Go.")
    run.events.subscribe(lambda event: run.cancel() if event.kind == "tool-complete" else None, lambda _: None)
    with pytest.raises(AttemptError):
        await run
    assert model.requests == 1


# -- messages


async def test_subscriber_that_sends_a_message_for_each_event_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    model = SyncModel()
    run = Agent(model, tools=[look], limits=Limits(iterations=3)).run("Go.")
    recorder = Recorder(run.events)
    run.events.subscribe(lambda _: run.send("More."), lambda _: None)
    with pytest.raises(LimitReached):
        await run
    assert model.requests == 3
    assert sum(isinstance(event, MessageAddedEvent) for event in recorder.events) <= MAX_RECURSIVE_SENDS + 2
    assert "subscribers must not send a message for each message-added event" in caplog.text


async def test_subscriber_may_send_many_messages_at_once() -> None:
    model = ScriptedModel("Hi.", "Hello.")
    run = Agent(model).run("Go.")

    def send(event: Event) -> None:
        if event.kind == "llm-call" and len(model.requests) == 0:
            for number in range(1_500):
                run.send(f"More {number}.")

    run.events.subscribe(send)
    await run
    assert len(model.requests[-1].messages) > 1_500
