"""Concurrent branches of custom strategies."""

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
    """Return the text."""
    return text


def make_concurrent_strategy(*factories: Callable[[RunContext[Any]], ModelRequest]) -> Callable[[Operator], Operator]:
    """Make a strategy that sends all requests at once and answers `done` on the main branch."""

    def strategy(pipeline: Operator) -> Operator:
        def answer(request: RunRequest) -> Observable[Signal]:
            requests = [make(request.ctx) for make in factories]
            branches = [pipeline(emit(each, IterationEnd(1, each.ctx))) for each in requests]
            events = rx.merge(*branches).pipe(ops.filter(lambda signal: isinstance(signal, Event)))
            return rx.concat(events, emit(ContentCompleteEvent(step="end", content="done")))

        return op.answer_requests(RunRequest, answer)

    return strategy


def make_branch(name: str, **fields: Any) -> Callable[[RunContext[Any]], ModelRequest]:
    def make(ctx: RunContext[Any]) -> ModelRequest:
        step = f"{name}/1"
        request = get_host(ctx).build_request(ctx.bind(step=step, branch=name), 1, 0)
        assert isinstance(request, ModelRequest)
        return request.replace(**fields)

    return make


async def collect_events(
    model: ScriptedModel, *factories: Callable[[RunContext[Any]], ModelRequest], **run: Any
) -> list[Event]:
    agent = Agent(model, tools=[echo], strategy=make_concurrent_strategy(*factories))
    return await collect(agent.run("q", **run))


async def test_tool_events_have_the_branch_of_their_request() -> None:
    def duplicate_requests(source: Observable[Signal]) -> Observable[Signal]:
        def duplicate_request(request: ModelRequest) -> Observable[Signal]:
            return emit(request, request.replace(step="1/b", branch="b"))

        return op.answer_requests(ModelRequest, duplicate_request)(source)

    model = ScriptedModel(call("echo", text="main"), call("echo", text="beside"), "end")
    agent = Agent(model, tools=[echo], loop=[duplicate_requests, op.call_model(), op.run_tools()])
    run = agent.run("q")
    tool_events = []
    async for event in run:
        if isinstance(event, ToolStartEvent | ToolCompleteEvent):
            tool_events.append((event.kind, event.step, event.branch))
        if isinstance(event, LLMCallEvent) and event.iteration == 2:
            run.cancel()
    assert sorted(tool_events) == [
        ("tool-complete", "1", None),
        ("tool-complete", "1/b", "b"),
        ("tool-start", "1", None),
        ("tool-start", "1/b", "b"),
    ]


async def test_custom_request_may_offer_tools() -> None:
    def make_custom_request(ctx: RunContext[Any]) -> ModelRequest:
        return ModelRequest(messages=ctx.state.messages, tools=(echo.definition,), step="h/1", branch="h", ctx=ctx)

    events = await collect_events(ScriptedModel(call("echo", text="hi")), make_custom_request)
    answers = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert [(answer.success, answer.content, answer.step, answer.branch) for answer in answers] == [
        (True, "hi", "h/1", "h")
    ]


async def test_thoughts_of_concurrent_branches_have_different_ids() -> None:
    # L18, L27
    thought = call("think_aloud", thought="Hm.", thought_type="planning")
    events = await collect_events(ScriptedModel(thought, thought), make_branch("a"), make_branch("b"))
    thoughts = [event for event in events if isinstance(event, ThoughtStreamEvent)]
    assert [(each.thought_id, each.index) for each in thoughts] == [("t1", 0), ("t2", 1)]


async def test_usage_on_a_branch_includes_all_branches() -> None:
    token_counts: list[int] = []

    @op.on(ToolRequest)
    async def look(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        token_counts.append(ctx.usage.total_tokens)
        yield request

    usage = Usage(input_tokens=9, output_tokens=1)
    model = ScriptedModel(turn(text="first", usage=usage), turn(calls=[call("echo", text="x")], usage=usage))
    agent = Agent(
        model,
        tools=[echo],
        loop=op.standard(before_tools=[look]),
        strategy=make_concurrent_strategy(make_branch("a"), make_branch("b")),
    )
    result = await agent.run("q")
    assert token_counts == [20]
    assert result.usage.total_tokens == 20


async def test_branch_of_a_nested_run_does_not_change_the_outer_run() -> None:
    # L10
    @tool
    async def forward(ctx: RunContext[None]) -> str:
        """Forward a message of a nested agent."""
        ctx.emit(MessageAddedEvent(content="theirs", task_id="child", parent_task_id=ctx.task_id, branch="b"))
        assert [message.text for message in ctx.port.state("b").messages] == ["q"]
        return "ok"

    result = await Agent(ScriptedModel(call("forward"), "done"), tools=[forward]).run("q")
    assert result.output == "done"
