"""Strategies of one's own, with model calls side by side."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import reactivex as rx
from reactivex import Observable
from reactivex import operators as ops

from rxloop import (
    Agent,
    ContentCompleteEvent,
    Event,
    LLMCallEvent,
    MessageAddedEvent,
    RunContext,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    Usage,
    op,
    tool,
)
from rxloop.pipeline.host import get_host
from rxloop.pipeline.requests import IterationEnd, ModelRequest, Operator, RunRequest, Signal, ToolRequest
from rxloop.stream.sources import emit
from rxloop.testing import ScriptedModel, call, turn
from support.runs import collect


@tool
async def echo(text: str) -> str:
    """Gives it back."""
    return text


def side_by_side(*make: Callable[[RunContext[Any]], ModelRequest]) -> Callable[[Operator], Operator]:
    """A strategy that sends these requests through the pipeline at once, and answers "done" on the main line."""

    def strategy(pipeline: Operator) -> Operator:
        def answer(request: RunRequest) -> Observable[Signal]:
            branches = [
                pipeline(emit(each, IterationEnd(1, each.ctx))) for each in (made(request.ctx) for made in make)
            ]
            events = rx.merge(*branches).pipe(ops.filter(lambda signal: isinstance(signal, Event)))
            return rx.concat(events, emit(ContentCompleteEvent(step="end", content="done")))

        return op.answer_requests(RunRequest, answer)

    return strategy


def branch(name: str, **fields: Any) -> Callable[[RunContext[Any]], ModelRequest]:
    def make(ctx: RunContext[Any]) -> ModelRequest:
        step = f"{name}/1"
        made = get_host(ctx).build_request(ctx.bind(step=step, branch=name), 1, 0)
        assert isinstance(made, ModelRequest)
        return made.replace(**fields)

    return make


async def events_of(model: ScriptedModel, *make: Callable[[RunContext[Any]], ModelRequest], **run: Any) -> list[Event]:
    agent = Agent(model, tools=[echo], strategy=side_by_side(*make))
    return await collect(agent.run("q", **run))


async def test_the_tools_of_a_request_with_another_branch_belong_to_that_branch() -> None:
    def multiplied(source: Observable[Signal]) -> Observable[Signal]:
        def twice(request: ModelRequest) -> Observable[Signal]:
            return emit(request, request.replace(step="1/b", branch="b"))

        return op.answer_requests(ModelRequest, twice)(source)

    model = ScriptedModel(call("echo", text="main"), call("echo", text="beside"), "end")
    agent = Agent(model, tools=[echo], loop=[multiplied, op.call_model(), op.run_tools()])
    run = agent.run("q")
    seen = []
    async for event in run:
        if isinstance(event, ToolStartEvent | ToolCompleteEvent):
            seen.append((event.kind, event.step, event.branch))
        if isinstance(event, LLMCallEvent) and event.iteration == 2:
            run.cancel()
    assert sorted(seen) == [
        ("tool-complete", "1", None),
        ("tool-complete", "1/b", "b"),
        ("tool-start", "1", None),
        ("tool-start", "1/b", "b"),
    ]


async def test_a_strategy_may_offer_tools_in_a_request_that_it_made_itself() -> None:
    def by_hand(ctx: RunContext[Any]) -> ModelRequest:
        return ModelRequest(messages=ctx.state.messages, tools=(echo.definition,), step="h/1", branch="h", ctx=ctx)

    events = await events_of(ScriptedModel(call("echo", text="hi")), by_hand)
    answers = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert [(answer.success, answer.content, answer.step, answer.branch) for answer in answers] == [
        (True, "hi", "h/1", "h")
    ]


async def test_thoughts_of_branches_side_by_side_have_ids_of_their_own() -> None:
    # L18, L27
    thought = call("think_aloud", thought="Hm.", thought_type="planning")
    events = await events_of(ScriptedModel(thought, thought), branch("a"), branch("b"))
    thoughts = [event for event in events if isinstance(event, ThoughtStreamEvent)]
    assert [(each.thought_id, each.index) for each in thoughts] == [("t1", 0), ("t2", 1)]


async def test_a_branch_sees_the_tokens_of_the_whole_run() -> None:
    spent: list[int] = []

    @op.on(ToolRequest)
    async def look(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        spent.append(ctx.usage.total_tokens)
        yield request

    usage = Usage(input_tokens=9, output_tokens=1)
    model = ScriptedModel(turn(text="first", usage=usage), turn(calls=[call("echo", text="x")], usage=usage))
    agent = Agent(
        model,
        tools=[echo],
        loop=op.standard(before_tools=[look]),
        strategy=side_by_side(branch("a"), branch("b")),
    )
    result = await agent.run("q")
    assert spent == [20]
    assert result.usage.total_tokens == 20


async def test_a_branch_of_another_run_is_none_of_ours() -> None:
    # L10
    @tool
    async def forward(ctx: RunContext[None]) -> str:
        """Passes on what a nested agent says."""
        ctx.emit(MessageAddedEvent(content="theirs", task_id="child", parent_task_id=ctx.task_id, branch="b"))
        assert [message.text for message in ctx.port.state("b").messages] == ["q"]
        return "ok"

    result = await Agent(ScriptedModel(call("forward"), "done"), tools=[forward]).run("q")
    assert result.output == "done"
