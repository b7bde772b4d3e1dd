"""Correct programs, for which `test_mistakes.py` expects no errors of pyright and mypy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never, assert_type

import reactivex.operators as rx
from pydantic import BaseModel
from reactivex import Observable

from rxloop import (
    Agent,
    AnyEvent,
    ContentDeltaEvent,
    CustomEvent,
    Event,
    EventLog,
    IterationEnd,
    Limits,
    MemoryEventLog,
    Message,
    ModelRequest,
    ModelSettings,
    Operator,
    Outcome,
    PendingInput,
    Result,
    Run,
    RunContext,
    RunRecord,
    Signal,
    Strategy,
    Stream,
    ThoughtStreamEvent,
    Tool,
    ToolCompleteEvent,
    ToolDefinition,
    ToolRequest,
    Toolset,
    ToolStartEvent,
    UsageEvent,
    client_tool,
    emit,
    follow,
    merge,
    op,
    replay,
    tool,
)
from rxloop.evals import Case, Report, Variant, compare, experiment, score
from rxloop.operators import Stats, View, ViewOutput
from rxloop.pipeline import Budget
from rxloop.recorded import Replay
from rxloop.strategies import StrategyRun, strategy, tree_of_thoughts
from rxloop.testing import ScriptedModel, call
from rxloop.tools import AnyTool


@dataclass
class Deps:
    user: str


class Admin(Deps):
    pass


class City(BaseModel):
    name: str


# Tools: for some deps, for any, and of every make


@tool
def add(a: int, b: int) -> int:
    return a + b


@tool(timeout=10, approve="Tell {city}?")
async def weather(ctx: RunContext[Deps], city: str) -> dict[str, float]:
    assert_type(ctx.deps, Deps)
    ctx.progress(f"{ctx.deps.user} asks for {city}", 0.5)
    return {city: 18.0}


@tool
def who(ctx: RunContext) -> str:
    return ctx.task_id


@tool
async def counts(ctx: RunContext[object], to: int) -> AsyncIterator[str]:
    for number in range(to):
        yield str(number)


@tool
def anything(ctx: RunContext[Any]) -> str:
    return str(ctx.deps)


@tool
async def signs_in(ctx: RunContext[Deps]) -> str:
    token: str = await ctx.require_auth("github", url="https://github.com/login/device", public_key=None)
    return token


@tool
def nothing(ctx: RunContext[None]) -> None:
    assert_type(ctx.deps, None)


def plain(a: int) -> int:
    return a


class Own:
    timeout: float | None = None
    idempotent = False
    approve: bool | str = False
    definition = ToolDefinition("own", "", {})

    def enabled(self, ctx: RunContext[Any]) -> bool:
        return True

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> Any:
        return arguments


class Family:
    async def tools(self, ctx: RunContext[Deps]) -> Sequence[Tool[Deps]]:
        return [weather, add] if ctx.deps.user else [Own()]


class Methods:
    def look(self, place: str) -> str:
        return place


async def tools(some: Sequence[AnyTool]) -> None:
    assert_type(Agent("m"), Agent[None, str])
    assert_type(Agent("m", tools=[add, plain, who, counts, anything, nothing, Own()]), Agent[None, str])
    mine = Agent("m", tools=[add, plain, who, counts, anything, weather, Own(), Family()], deps_type=Deps)
    assert_type(mine, Agent[Deps, str])
    assert_type(Agent("m", tools=[weather, Methods().look], deps_type=Admin, output_type=City), Agent[Admin, City])
    Agent("m", tools=some, deps_type=Deps)
    assert_type(Agent("m", tools=some), Agent[None, str])
    show = client_tool("show", {"type": "object"}, description="Shows.", result=bool)
    assert_type(Agent("m", tools=[show, client_tool("book", City)]), Agent[None, str])
    assert_type(Agent("m", tools=[show, weather], deps_type=Deps), Agent[Deps, str])
    client: list[dict[str, Any]] = [{"name": "locate"}]
    Agent("m").run("Hi", client_tools=client)
    Agent("m").resume("t", client_tools=[show, *client], inputs={"1.0.1": {"error": "no"}})
    family: Toolset[Deps] = Family()
    Agent("m", tools=[family, plain], deps_type=Admin, instructions=lambda ctx: f"You help {ctx.deps.user}.")
    mine.map([1, 2], prompt=lambda number: f"{number + 1}", key=lambda number: number, deps=Deps("Ann"))
    assert_type(mine.map(["Oslo"], deps=Deps("Ann")), Stream[Outcome[str, str]])
    assert_type(Agent("m").map([1, 2], prompt=str), Stream[Outcome[int, str]])
    assert_type(Agent("m").map(["Oslo"], name="cities", key=len), Stream[Outcome[str, str]])
    conversation: list[str | Message] = ["Hi", Message.user("Oslo")]
    assert_type(Agent("m").map([conversation]), Stream[Outcome[list[str | Message], str]])
    Agent("m", strategy="rewoo").run("Hi", strategy="react")
    assert_type(await mine.get_run("t").execute(deps=Deps("Ann"), on_run=lambda run: run.cancel()), RunRecord)
    assert_type(await Agent("m").get_run("t").execute(when_busy="refuse"), RunRecord)
    mine.run("Hi", deps=Admin("Ann"), limits=Limits(tokens=5), settings=ModelSettings(temperature=0))
    assert_type(add(1, 2), int)
    assert_type(await weather(RunContext(Deps("Ann")), "Oslo"), dict[str, float])
    who(RunContext())


# Operators


@op.on(ToolRequest)
async def for_deps(request: ToolRequest, ctx: RunContext[Deps]) -> AsyncIterator[Signal]:
    if request.call.name == "delete" and not await ctx.ask(f"May {ctx.deps.user} delete?"):
        yield request.refuse("No.")
    else:
        yield request.replace(path="/tmp")


@op.on(ModelRequest)
async def for_all(request: ModelRequest, ctx: RunContext) -> AsyncIterator[Signal]:
    yield CustomEvent(name="asked", data={"step": ctx.step})
    yield request.replace(messages=request.messages[-10:], tail=(Message.user("Be brief."),), step="2")


@op.on(IterationEnd)
async def at_the_end(request: IterationEnd, ctx: RunContext[None]) -> AsyncIterator[Signal]:
    yield request


def by_hand(source: Observable[Signal]) -> Observable[Signal]:
    return source.pipe(rx.filter(lambda signal: not isinstance(signal, CustomEvent)))


def around(pipeline: Operator) -> Operator:
    return op.compose(op.iterate(pipeline), by_hand)


@strategy
async def twice(run: StrategyRun) -> str:
    first = await run.ask("One?")
    return await run.conclude(f"{first.text}?")


def operators(agent: Agent[None, str]) -> None:
    assert_type(for_deps, Operator[Deps])
    mine = op.standard(before_model=[for_all, by_hand], before_tools=[for_deps])
    Agent("m", deps_type=Deps, loop=mine)
    Agent("m", deps_type=Admin, loop=[op.compose(for_all, for_deps), *op.standard()])
    Agent("m", loop=[for_all, by_hand, op.call_model(), op.run_tools(5), at_the_end, op.checkpoint()])
    Agent("m", loop=[rx.filter(lambda signal: True), *op.standard(at_end=[at_the_end])])
    own: Strategy = op.iterate
    agent.run("Hi", strategy=lambda pipeline: op.compose(own(pipeline), for_all))
    Agent("m", strategy=around, deps_type=Deps)
    Agent("m", strategy=twice)
    Agent("m", strategy=tree_of_thoughts())
    assert_type(emit(ModelRequest(messages=[])).pipe(op.call_model()), Observable[Signal])
    op.answer_requests(ToolRequest, lambda request: emit(request.answer(3, "3")))


# Events


class BookedEvent(Event):
    kind: str = "booked"
    room: str = ""


class NamedEvent(CustomEvent):
    name: str = "named"
    room: str = ""


async def reading(run: Run[str], log: EventLog) -> None:
    async for event in run:
        assert_type(event.seq, int)
        show(event)
        if event.kind == "content-delta":
            assert_type(event, ContentDeltaEvent)
        elif event.kind == "tool-start" or event.kind == "tool-complete":
            print(event.call.name)
        match event:
            case ToolStartEvent(call=begun):
                assert_type(begun.name, str)
            case ToolCompleteEvent():
                assert_type(event.success, bool)
            case NamedEvent():
                assert_type(event.room, str)
            case _:
                pass
        if isinstance(event, BookedEvent):
            print(event.room)
    async for booked in run.pipe(op.of_type(BookedEvent)):
        assert_type(booked, BookedEvent)
    async for event in run.pipe(op.public(), op.until_final()):
        assert_type(event.kind == "usage", bool)
    async for event in follow(log, "task"):
        print(event.kind == "usage")
    again: Replay = replay(log, "task", speed=None)
    kinds = [event.kind async for event in again if event.kind != "usage"]
    print(kinds)
    handlers: list[Event] = []
    run.events.subscribe(handlers.append)
    stream: Stream[Event] = run.events
    print(stream)


def show(event: Event) -> None:
    match event:
        case BookedEvent(room=room):
            assert_type(room, str)
        case UsageEvent():
            print(event.usage)
        case _:
            pass


def is_known(event: ToolStartEvent | ToolCompleteEvent) -> str:
    if event.kind == "tool-start":
        return event.call.name
    if event.kind == "tool-complete":
        return event.content
    assert_never(event)


def kind_of(event: AnyEvent) -> Literal["usage"] | None:
    return event.kind if event.kind == "usage" else None


def own_view(source: Observable[Event]) -> Observable[str]:
    def kind(event: Event) -> str:
        return event.kind

    return source.pipe(rx.map(kind))


def lengths(out: ViewOutput[int]) -> Callable[[str], None]:
    def take(text: str) -> None:
        out.emit(len(text))

    return take


def seq(event: Event) -> int:
    return event.seq


def token_rate(stats: Stats) -> float:
    return stats.tokens_per_second


def views(run: Run[str]) -> None:
    assert_type(run.pipe(), Stream[AnyEvent])
    assert_type(run.pipe(op.usage()), Stream[UsageEvent])
    assert_type(run.pipe(op.thoughts()), Stream[ThoughtStreamEvent])
    assert_type(run.pipe(own_view), Stream[str])
    assert_type(op.make_view(lengths), View[str, int])
    assert_type(run.pipe(op.text(), op.make_view(lengths, name="lengths")), Stream[int])
    assert_type(run.pipe(rx.map(seq)), Stream[int])
    assert_type(run.pipe(op.text(), rx.buffer_with_count(3)), Stream[list[str]])
    assert_type(run.stream(overflow="block", after="task/1.2.0").pipe(op.thoughts()), Stream[ThoughtStreamEvent])
    run.pipe(op.record("run.jsonl"), op.grammar(), op.coalesce_deltas(0.1)).subscribe(print)
    assert_type(run.pipe(op.stats(), rx.map(token_rate)), Stream[float])
    run.pipe(op.thoughts(), rx.take(1)).subscribe(lambda thought: print(thought.confidence))
    run.pipe(rx.timestamp()).subscribe(lambda item: print(item.value.kind))


# Seams and outputs


class Newest:
    max_tokens = 1_000

    def compress(self, messages: Sequence[Message], budget: Budget) -> Sequence[Message]:
        return messages[-1:]


class Echo:
    name = "echo"

    def call(self, request: ModelRequest) -> Observable[Event]:
        return emit(ContentDeltaEvent(delta=request.messages[-1].text))

    async def aclose(self) -> None: ...


async def answer(question: PendingInput) -> bool:
    return question.prompt == "Sure?"


async def outputs() -> None:
    Agent(Echo(), loop=op.standard(before_model=[op.compress(Newest())]), log=MemoryEventLog())
    agent = Agent(ScriptedModel(call("add", a=1, b=2), "3"), output_type=City, tools=[add])
    assert_type(agent, Agent[None, City])
    result = await agent.run("Norway?", on_input=answer, metadata={"a": 1})
    assert_type(result, Result[City])
    inputs: Mapping[str, Any] = {result.pending[0].input_id: True} if result.pending else {}
    assert_type((await agent.resume(result.task_id, inputs=inputs)).output, City)
    assert_type(Agent("m", output_type=list[int]).run_sync("Primes?").output, list[int])
    async with agent.run("Hi") as run:
        async for text in run.text():
            assert_type(text, str)


async def many_runs(agent: Agent[None, int], questions: Observable[str]) -> None:
    def asked(question: str) -> Stream[Result[int]]:
        return agent.observe(question).result()

    assert_type(merge(agent.run("?"), agent.run("?")), Stream[AnyEvent])
    assert_type(merge(agent.run("?").text(), agent.observe("?").text()), Stream[str])
    async for event in merge(questions.pipe(rx.flat_map(agent.observe))):
        assert_type(event, AnyEvent)
    async for result in merge(questions.pipe(rx.debounce(0.3), rx.flat_map_latest(asked))):
        assert_type(result.output, int)


def short(result: Result[City]) -> bool:
    return len(result.output.name) < 9


async def experiments(agent: Agent[None, City], cases: list[Case]) -> None:
    made = experiment(
        cases,
        {"usual": agent, "thinking": Variant(agent, strategy="react", limits=Limits(iterations=3))},
        [short, score.exact(), score.called("look_up"), score.view("n", op.tool_calls(), rx.count(), better="lower")],
        deps=lambda case: case.metadata["deps"],
    )
    async for report in made.run():
        assert_type(report, Report)
    report = await made.run()
    assert_type(report.of("usual").mean("exact"), float)
    assert_type(compare(report, made.run_sync()).worse[0].difference, float)


def deps_are_asked_for(agent: Agent[Deps, str]) -> None:
    agent.observe("?", deps=Deps("Ann"), metadata={"n": 1})
