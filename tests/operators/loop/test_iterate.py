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
from support.runs import collect, is_well_formed, marble_letters, outcome, repeat_turn, shape
from support.step_tools import step


async def test_each_iteration_subscribes_the_pipeline_anew() -> None:
    fed: list[list[str]] = []

    def spy(source: Observable[Any]) -> Observable[Any]:
        fed.append([])
        return source.pipe(ops.do_action(lambda signal: fed[-1].append(type(signal).__name__)))

    model = ScriptedModel(call("step"), "done")
    await Agent(model, tools=[step], loop=[spy, *op.standard()]).run("Hi")

    assert fed == [["ModelRequest", "IterationEnd"], ["ModelRequest", "IterationEnd"]]


async def test_what_stands_in_a_request_is_the_fold_of_the_stream() -> None:
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


async def test_the_end_of_an_iteration_may_be_swallowed() -> None:
    def swallows(source: Observable[Any]) -> Observable[Any]:
        return source.pipe(ops.filter(lambda signal: not isinstance(signal, IterationEnd)))

    agent = Agent(ScriptedModel(call("step"), "done"), tools=[step], loop=[*op.standard(), swallows])

    assert (await agent.run("Hi")).output == "done"


async def test_an_operator_may_answer_a_model_request_itself() -> None:
    @op.on(ModelRequest)
    async def cached(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield ContentCompleteEvent(content="From the cache.", step=request.step)

    model = ScriptedModel()
    result = await Agent(model, loop=[cached, *op.standard()]).run("Hi")

    assert result.output == "From the cache."
    assert model.requests == []


async def test_a_guard_that_lets_a_call_through_twice_answers_it_once_in_the_history() -> None:
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


async def test_a_guard_may_change_the_arguments_and_the_history_keeps_what_the_model_wrote() -> None:
    @op.on(ToolRequest)
    async def clamps(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(n=min(request.call.arguments["n"], 10))

    model = ScriptedModel(call("step", n=99), "done")
    events = await collect(Agent(model, tools=[step], loop=op.standard(before_tools=[clamps])).run("Hi"))

    (answer,) = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert (answer.result, answer.call.arguments) == (10, {"n": 10})
    assert model.requests[1].messages[1].tool_calls[0].arguments == {"n": 99}


async def test_a_guard_may_answer_and_refuse_and_emit() -> None:
    @op.on(ToolRequest)
    async def guard(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        if request.call.arguments["n"] == 1:
            yield MessageAddedEvent(content="The first was cached.", role="system", cause="tool")
            yield request.answer(41, "41")
        else:
            yield request.refuse("Too large.")

    model = ScriptedModel([call("step", n=1), call("step", n=2)], "done")
    events = await collect(Agent(model, tools=[step], loop=op.standard(before_tools=[guard])).run("Hi"))

    assert marble_letters(events) == "twlcmxxklckF"
    assert shape(model.requests[1].messages)[2:] == ["tool: 41", "tool: Too large.", "system: The first was cached."]


async def test_a_message_that_comes_behind_the_answer_is_answered_too() -> None:
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


async def test_a_message_from_outside_is_what_the_model_sees_next() -> None:
    @tool
    async def slow(ctx: RunContext[Any]) -> str:
        """Is steered meanwhile."""
        ctx.port.publish(MessageAddedEvent(content="Faster!"))
        return "ok"

    model = ScriptedModel([call("slow"), call("step", n=5)], "done")
    await Agent(model, tools=[slow, step]).run("Hi")

    assert shape(model.requests[1].messages)[1:] == ["assistant: slow,step", "tool: ok", "tool: 5", "user: Faster!"]


async def test_a_request_that_is_too_long_is_sent_again_under_more_pressure() -> None:
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
    # A checkpoint tells of an iteration that is finished, and of no other.
    assert marble_letters(events) == "twlelelcsxklelckF"
    assert events[-1].state == "completed"  # type: ignore[attr-defined]


async def test_pressure_has_an_end() -> None:
    model = ScriptedModel(*repeat_turn(ContextLengthExceeded("still too long"), 10))

    with pytest.raises(RunError, match="still too long") as caught:
        await Agent(model).run("Hi")

    assert caught.value.code == "context_length"
    assert len(model.requests) == MAX_PRESSURE + 1


async def test_pressure_is_no_iteration() -> None:
    model = ScriptedModel(ContextLengthExceeded("too long"), "done")

    assert (await Agent(model, limits=Limits(iterations=1)).run("Hi")).output == "done"


def beside(pipeline: Operator) -> Operator:
    """Two lines side by side; the main line gives the longer answer."""

    def answer(request: RunRequest) -> Observable[Signal]:
        lines = [answer_on(request, branch) for branch in ("b/1", "b/2")]
        return op.answering(ModelRequest, lambda asked: pipeline(emit(asked)))(emit(*lines)).pipe(
            op_then(lambda: best(request))
        )

    def answer_on(request: RunRequest, branch: str) -> ModelRequest:
        ctx = request.ctx.bind(step=f"{branch}/1", branch=branch)
        made = get_host(ctx).build_request(ctx, 1, 0)
        assert isinstance(made, ModelRequest)
        return made

    def best(request: RunRequest) -> ContentCompleteEvent:
        contents = [request.ctx.bind(branch=branch).state.content for branch in ("b/1", "b/2")]
        return ContentCompleteEvent(step="best", content=max(contents, key=len))

    return op.answering(RunRequest, answer)


def op_then(last: Any) -> Any:
    """Everything of the source, and one more event."""

    def operator(source: Observable[Any]) -> Observable[Any]:
        def subscribe(observer: abc.ObserverBase[Any], scheduler: Any = None) -> abc.DisposableBase:
            def on_completed() -> None:
                observer.on_next(last())
                observer.on_completed()

            return source.subscribe(observer.on_next, observer.on_error, on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator


async def test_a_strategy_runs_lines_side_by_side_and_answers_on_the_main_line() -> None:
    def turn(request: ModelRequest) -> Any:
        if request.branch == "b/1":
            return "short"
        return call("step", n=1) if request.messages[-1].role == "user" else "quite long"

    model = ScriptedModel(turn, turn)
    agent = Agent(model, tools=[step], strategy=beside)
    result = await agent.run("Hi")
    assert result.output == "short"
    assert shape(result.messages) == ["user: Hi", "assistant: short"]
    assert {request.branch for request in model.requests} == {"b/1", "b/2"}


async def lines(request_of: Any, strategy: Any, log: MemoryEventLog | None = None) -> tuple[Result[Any], ScriptedModel]:
    model = ScriptedModel(*repeat_turn(request_of, 20))
    return await outcome(Agent(model, tools=[step], strategy=strategy, log=log).run("Hi")), model


def iterating(pipeline: Operator) -> Operator:
    """Two whole loops side by side, on branches; the main line answers with what both said."""
    loop = iterate(pipeline)

    def answer(request: RunRequest) -> Observable[Signal]:
        branches = [RunRequest(request.ctx.bind(branch=branch)) for branch in ("b1", "b2")]

        def both() -> ContentCompleteEvent:
            said = [request.ctx.bind(branch=branch).state.content for branch in ("b1", "b2")]
            return ContentCompleteEvent(step="both", content=" and ".join(said))

        return loop(emit(*branches)).pipe(op_then(both))

    return op.answering(RunRequest, answer)


def on_a_branch(request: ModelRequest) -> Any:
    return call("step", n=7) if request.messages[-1].role == "user" else f"{request.branch} says 7"


async def test_iterate_works_on_a_branch_as_it_does_on_the_main_line() -> None:
    result, model = await lines(on_a_branch, iterating)

    assert result.output == "b1 says 7 and b2 says 7"
    assert shape(result.messages) == ["user: Hi", "assistant: b1 says 7 and b2 says 7"]
    assert sorted(request.step for request in model.requests) == ["b1/1", "b1/2", "b2/1", "b2/2"]
    assert all(is_well_formed(request.messages) for request in model.requests)


async def test_a_strategy_that_passes_its_request_on_is_no_answer() -> None:
    result, _ = await lines("never", lambda pipeline: pipeline)

    assert (result.state, result.error and result.error.code) == ("failed", "pipeline")


async def test_an_operator_around_iterate_sees_the_whole_run() -> None:
    seen: list[str] = []

    def around(source: Observable[Any]) -> Observable[Any]:
        return source.pipe(ops.do_action(lambda signal: seen.append(getattr(signal, "kind", "request"))))

    await lines(
        lambda request: "done" if len(request.messages) > 4 else call("step"),
        lambda pipeline: op.compose(op.iterate(pipeline), around),
    )

    assert seen.count("llm-call") == 3
    assert "request" not in seen


def depth() -> int:
    """How many frames the stack has; `inspect.stack` reads their source as well."""
    frame, frames = inspect.currentframe(), 0
    while frame is not None:
        frame, frames = frame.f_back, frames + 1
    return frames


def test_ten_thousand_iterations_keep_a_flat_stack() -> None:
    depths: list[int] = []

    @tool(idempotent=True)
    async def deep(n: int) -> int:
        """How deep it is."""
        depths.append(depth())
        return n

    made = iter(range(10_000))

    def turn(request: ModelRequest) -> Any:
        n = next(made, None)
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


def test_iterations_that_wait_for_nothing_keep_a_flat_stack() -> None:
    """No task at all lies between these iterations: each ends inside the subscription of the one before."""
    depths: set[int] = set()

    def answers(request: ToolRequest) -> Observable[Signal]:
        depths.add(depth())
        return emit(request.answer(1, "1"))

    loop = [op.call_model(), op.answering(ToolRequest, answers)]
    model = ScriptedModel(*repeat_turn(call("step"), 1_000), "done")
    with virtual_time() as time:
        time.run(Agent(model, tools=[step], loop=loop, limits=Limits(iterations=None)).run("Go"))

    assert len(depths) == 1


async def test_a_message_that_calls_tools_without_a_usable_call_is_asked_for_again_once() -> None:
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
async def test_it_stops_after_so_many_iterations_though_there_is_no_answer(times: int) -> None:
    model = ScriptedModel(*repeat_turn(call("step", n=1), 2), "Done.")
    result = await outcome(Agent(model, tools=[step], strategy=lambda loop: iterate(loop, times)).run("Hi"))
    assert len(model.requests) == times
    assert result.state == ("completed" if times == 3 else "failed")
    assert [message.role for message in result.messages][-1] == ("assistant" if times == 3 else "tool")
