import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest
from reactivex import Observable, abc
from reactivex import operators as ops

from rxloop import (
    Agent,
    ContentCompleteEvent,
    Limits,
    LLMCallEvent,
    MemoryEventLog,
    MessageAddedEvent,
    Result,
    RunContext,
    RunError,
    ToolCompleteEvent,
    op,
    tool,
)
from rxloop.errors import ContextLengthExceeded
from rxloop.operators.loop.checks import MAX_PRESSURE
from rxloop.operators.loop.iterate import iterate
from rxloop.pipeline.host import get_host
from rxloop.pipeline.requests import IterationEnd, ModelRequest, Operator, RunRequest, Signal, ToolRequest
from rxloop.stream.sources import emit
from rxloop.testing import ScriptedModel, call, turn, virtual_time
from support.runs import collect, format_marbles, is_well_formed, outcome, repeat_turn, shape
from support.step_tools import step


async def test_each_iteration_subscribes_to_the_pipeline_again() -> None:
    signals_of_iterations: list[list[str]] = []

    def spy(source: Observable[Any]) -> Observable[Any]:
        signals_of_iterations.append([])
        return source.pipe(ops.do_action(lambda signal: signals_of_iterations[-1].append(type(signal).__name__)))

    model = ScriptedModel(call("step"), "done")
    await Agent(model, tools=[step], loop=[spy, *op.standard()]).run("Hi")

    assert signals_of_iterations == [["ModelRequest", "IterationEnd"], ["ModelRequest", "IterationEnd"]]


async def test_request_holds_the_folded_messages_of_the_stream() -> None:
    model = ScriptedModel(["Let me see.", call("step", n=1)], call("step", n=2), "done")
    await Agent(model, tools=[step], instructions="Be brief.").run("Hi")

    assert [request.step for request in model.requests] == ["1", "2", "3"]
    assert [request.iteration for request in model.requests] == [1, 2, 3]
    assert [len(request.messages) for request in model.requests] == [1, 3, 5]
    assert shape(model.requests[2].messages) == [
        "user: Hi",
        "assistant: Let me see.",
        "tool: 1",
        "assistant: step",
        "tool: 2",
    ]
    assert [message.text for message in model.requests[2].system] == ["Be brief."]


async def test_operator_may_swallow_the_iteration_end() -> None:
    def swallow_end(source: Observable[Any]) -> Observable[Any]:
        return source.pipe(ops.filter(lambda signal: not isinstance(signal, IterationEnd)))

    agent = Agent(ScriptedModel(call("step"), "done"), tools=[step], loop=[*op.standard(), swallow_end])

    assert (await agent.run("Hi")).output == "done"


async def test_operator_may_answer_a_model_request_itself() -> None:
    @op.on(ModelRequest)
    async def answer_from_cache(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield ContentCompleteEvent(content="From the cache.", step=request.step)

    model = ScriptedModel()
    result = await Agent(model, loop=[answer_from_cache, *op.standard()]).run("Hi")

    assert result.output == "From the cache."
    assert model.requests == []


async def test_duplicated_tool_request_is_executed_and_recorded_once() -> None:
    calls: list[int] = []

    @tool
    async def counted() -> int:
        """Counts."""
        calls.append(1)
        return len(calls)

    @op.on(ToolRequest)
    async def twice(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request
        yield request

    model = ScriptedModel(call("counted"), "done")
    result = await Agent(model, tools=[counted], loop=op.standard(before_tools=[twice])).run("Hi")

    assert result.output == "done"
    assert is_well_formed(model.requests[1].messages)
    assert [message.text for message in model.requests[1].messages if message.role == "tool"] in (["1"], ["2"])
    assert calls == [1], "a request that is doubled does not double what its tool does"


async def test_guard_changes_the_executed_arguments_but_not_the_history() -> None:
    @op.on(ToolRequest)
    async def clamp(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(n=min(request.call.arguments["n"], 10))

    model = ScriptedModel(call("step", n=99), "done")
    events = await collect(Agent(model, tools=[step], loop=op.standard(before_tools=[clamp])).run("Hi"))

    (answer,) = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert answer.result == 10
    assert answer.call.arguments == {"n": 10}
    assert model.requests[1].messages[1].tool_calls[0].arguments == {"n": 99}


async def test_guard_may_answer_refuse_and_emit_messages() -> None:
    @op.on(ToolRequest)
    async def guard(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        if request.call.arguments["n"] == 1:
            yield MessageAddedEvent(content="The first was cached.", role="system", cause="tool")
            yield request.answer(41, "41")
        else:
            yield request.refuse("Too large.")

    model = ScriptedModel([call("step", n=1), call("step", n=2)], "done")
    events = await collect(Agent(model, tools=[step], loop=op.standard(before_tools=[guard])).run("Hi"))

    assert format_marbles(events) == "twlcmxxklckF"
    assert shape(model.requests[1].messages)[2:] == ["tool: 41", "tool: Too large.", "system: The first was cached."]


async def test_message_added_after_the_answer_is_answered_in_the_next_iteration() -> None:
    steered = [False]

    @op.on(IterationEnd)
    async def steer(end: IterationEnd, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        if not steered[0]:
            steered[0] = True
            yield MessageAddedEvent(content="In French!")
        yield end

    model = ScriptedModel("Hello.", "Bonjour.")
    result = await Agent(model, loop=op.standard(at_end=[steer])).run("Hi")

    assert result.output == "Bonjour."
    assert shape(model.requests[1].messages) == ["user: Hi", "assistant: Hello.", "user: In French!"]


async def test_message_published_by_a_tool_is_sent_in_the_next_request() -> None:
    @tool
    async def slow(ctx: RunContext[Any]) -> str:
        """Is steered meanwhile."""
        ctx.port.publish(MessageAddedEvent(content="Faster!"))
        return "ok"

    model = ScriptedModel([call("slow"), call("step", n=5)], "done")
    await Agent(model, tools=[slow, step]).run("Hi")

    assert shape(model.requests[1].messages)[1:] == ["assistant: slow,step", "tool: ok", "tool: 5", "user: Faster!"]


async def test_request_that_is_too_long_is_retried_with_higher_pressure() -> None:
    pressures: list[int] = []

    @op.on(ModelRequest)
    async def shorten(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        pressures.append(request.pressure)
        yield request

    long = ContextLengthExceeded("too long")
    model = ScriptedModel(long, long, call("step"), long, "done")
    log = MemoryEventLog()
    agent = Agent(model, tools=[step], loop=op.standard(before_model=[shorten]), log=log)
    events = await collect(agent.run("Hi"))

    assert pressures == [0, 1, 2, 0, 1]
    assert [request.step for request in model.requests] == ["1", "1", "1", "2", "2"]
    assert [event.iteration for event in events if isinstance(event, LLMCallEvent)] == [1, 1, 1, 2, 2]
    # Only a finished iteration has a checkpoint.
    assert format_marbles(events) == "twlelelcsxklelckF"
    assert events[-1].state == "completed"  # type: ignore[attr-defined]


async def test_retries_end_at_the_maximum_pressure() -> None:
    model = ScriptedModel(*repeat_turn(ContextLengthExceeded("still too long"), 10))

    with pytest.raises(RunError, match="still too long") as caught:
        await Agent(model).run("Hi")

    assert caught.value.code == "context_length"
    assert len(model.requests) == MAX_PRESSURE + 1


async def test_retry_with_higher_pressure_does_not_count_as_an_iteration() -> None:
    model = ScriptedModel(ContextLengthExceeded("too long"), "done")

    assert (await Agent(model, limits=Limits(iterations=1)).run("Hi")).output == "done"


def parallel_branches(pipeline: Operator) -> Operator:
    """Strategy that asks on two branches and answers on the main branch with the longer text."""

    def answer(request: RunRequest) -> Observable[Signal]:
        requests = [request_on_branch(request, branch) for branch in ("b/1", "b/2")]
        return op.answer_requests(ModelRequest, lambda request: pipeline(emit(request)))(emit(*requests)).pipe(
            append_event(lambda: best(request))
        )

    def request_on_branch(request: RunRequest, branch: str) -> ModelRequest:
        ctx = request.ctx.bind(step=f"{branch}/1", branch=branch)
        built = get_host(ctx).build_request(ctx, 1, 0)
        assert isinstance(built, ModelRequest)
        return built

    def best(request: RunRequest) -> ContentCompleteEvent:
        contents = [request.ctx.bind(branch=branch).state.content for branch in ("b/1", "b/2")]
        return ContentCompleteEvent(step="best", content=max(contents, key=len))

    return op.answer_requests(RunRequest, answer)


def append_event(last: Any) -> Any:
    """Append an event to a source that completes."""

    def operator(source: Observable[Any]) -> Observable[Any]:
        def subscribe(observer: abc.ObserverBase[Any], scheduler: Any = None) -> abc.DisposableBase:
            def on_completed() -> None:
                observer.on_next(last())
                observer.on_completed()

            return source.subscribe(observer.on_next, observer.on_error, on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator


async def test_strategy_asks_on_parallel_branches_and_answers_on_the_main_branch() -> None:
    def turn(request: ModelRequest) -> Any:
        if request.branch == "b/1":
            return "short"
        return call("step", n=1) if request.messages[-1].role == "user" else "quite long"

    model = ScriptedModel(turn, turn)
    agent = Agent(model, tools=[step], strategy=parallel_branches)
    result = await agent.run("Hi")
    assert result.output == "short"
    assert shape(result.messages) == ["user: Hi", "assistant: short"]
    assert {request.branch for request in model.requests} == {"b/1", "b/2"}


async def run_strategy(
    make_turn: Any, strategy: Any, log: MemoryEventLog | None = None
) -> tuple[Result[Any], ScriptedModel]:
    model = ScriptedModel(*repeat_turn(make_turn, 20))
    return await outcome(Agent(model, tools=[step], strategy=strategy, log=log).run("Hi")), model


def parallel_loops(pipeline: Operator) -> Operator:
    """Strategy that runs two loops on branches and joins their answers on the main branch."""
    loop = iterate(pipeline)

    def answer(request: RunRequest) -> Observable[Signal]:
        branches = [RunRequest(request.ctx.bind(branch=branch)) for branch in ("b1", "b2")]

        def join_answers() -> ContentCompleteEvent:
            answers = [request.ctx.bind(branch=branch).state.content for branch in ("b1", "b2")]
            return ContentCompleteEvent(step="both", content=" and ".join(answers))

        return loop(emit(*branches)).pipe(append_event(join_answers))

    return op.answer_requests(RunRequest, answer)


def turn_on_branch(request: ModelRequest) -> Any:
    return call("step", n=7) if request.messages[-1].role == "user" else f"{request.branch} says 7"


async def test_iterate_works_on_a_branch_as_on_the_main_branch() -> None:
    result, model = await run_strategy(turn_on_branch, parallel_loops)

    assert result.output == "b1 says 7 and b2 says 7"
    assert shape(result.messages) == ["user: Hi", "assistant: b1 says 7 and b2 says 7"]
    assert sorted(request.step for request in model.requests) == ["b1/1", "b1/2", "b2/1", "b2/2"]
    assert all(is_well_formed(request.messages) for request in model.requests)


async def test_strategy_that_emits_its_request_fails_the_run() -> None:
    result, _ = await run_strategy("never", lambda pipeline: pipeline)

    assert result.state == "failed"
    assert (result.error and result.error.code) == "pipeline"


async def test_operator_around_iterate_sees_events_of_all_iterations() -> None:
    seen: list[str] = []

    def around(source: Observable[Any]) -> Observable[Any]:
        return source.pipe(ops.do_action(lambda signal: seen.append(getattr(signal, "kind", "request"))))

    await run_strategy(
        lambda request: "done" if len(request.messages) > 4 else call("step"),
        lambda pipeline: op.compose(op.iterate(pipeline), around),
    )

    assert seen.count("llm-call") == 3
    assert "request" not in seen


def stack_depth() -> int:
    """Count the frames of the stack without reading source files, which `inspect.stack` does."""
    frame, frames = inspect.currentframe(), 0
    while frame is not None:
        frame, frames = frame.f_back, frames + 1
    return frames


def test_ten_thousand_iterations_keep_a_flat_stack() -> None:
    depths: list[int] = []

    @tool(idempotent=True)
    async def deep(n: int) -> int:
        """How deep it is."""
        depths.append(stack_depth())
        return n

    numbers = iter(range(10_000))

    def turn(request: ModelRequest) -> Any:
        n = next(numbers, None)
        return "done" if n is None else call("deep", n=n)

    model = ScriptedModel(*repeat_turn(turn, 10_001))
    loop = [op.call_model(), op.run_tools()]
    agent = Agent(model, tools=[deep], loop=loop, thoughts=False, limits=Limits(iterations=None))
    with virtual_time() as time:
        result = time.run(agent.run("Go"))

    assert result.output == "done"
    assert len(result.messages) == 20_002
    assert len(depths) == 10_000
    assert max(depths) == min(depths)


def test_synchronous_iterations_keep_a_flat_stack() -> None:
    """Iterations end inside the subscription of the previous one. Only some start in a new turn of the event loop."""
    depths: set[int] = set()

    def answers(request: ToolRequest) -> Observable[Signal]:
        depths.add(stack_depth())
        return emit(request.answer(1, "1"))

    loop = [op.call_model(), op.answer_requests(ToolRequest, answers)]
    model = ScriptedModel(*repeat_turn(call("step"), 1_000), "done")
    with virtual_time() as time:
        time.run(Agent(model, tools=[step], loop=loop, limits=Limits(iterations=None)).run("Go"))

    assert len(depths) <= 3


async def test_message_without_a_usable_tool_call_is_requested_again_once() -> None:
    # L57
    lost = turn(text="I look it up.", finish_reason="tool_calls")
    model = ScriptedModel(lost, "It is 7.")
    result = await Agent(model).run("Weather?")
    assert result.output == "It is 7."
    assert "no usable call" in model.requests[1].messages[-1].text

    with pytest.raises(RunError) as caught:
        await Agent(ScriptedModel(lost, lost, "never asked"), tools=[step]).run("Hi")
    assert caught.value.code == "protocol"
    assert caught.value.result.content == "I look it up."


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_iterate_stops_after_the_given_number_of_iterations(times: int) -> None:
    model = ScriptedModel(*repeat_turn(call("step", n=1), 2), "Done.")
    result = await outcome(Agent(model, tools=[step], strategy=lambda loop: iterate(loop, times)).run("Hi"))
    assert len(model.requests) == times
    assert result.state == ("completed" if times == 3 else "failed")
    assert [message.role for message in result.messages][-1] == ("assistant" if times == 3 else "tool")
