"""Mistakes that pyright and mypy must detect, checked by `test_mistakes.py`.

Each wrong line is marked. If a type checker cannot detect a mistake, the mark contains the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from reactivex import Observable

from rxloop import (
    Agent,
    AnyEvent,
    CustomEvent,
    Event,
    EventLog,
    Limits,
    MemoryEventLog,
    Message,
    ModelRequest,
    ModelSettings,
    PendingInput,
    Result,
    Run,
    RunContext,
    Signal,
    SlidingWindowCompressor,
    ToolRequest,
    ToolStartEvent,
    client_tool,
    emit,
    follow,
    op,
    replay,
    tool,
)
from rxloop.evals import Case, experiment, score
from rxloop.pipeline import Budget
from rxloop.pipeline.requests import Operator
from rxloop.strategies import StrategyRun, strategy
from rxloop.tools import FunctionTool


@dataclass
class Mine:
    user: str


@dataclass
class Other:
    tenant: int


class City(BaseModel):
    name: str


# Deps


@tool
def of_mine(ctx: RunContext[Mine], city: str) -> str:
    return ctx.deps.user + city


@tool(timeout=10)
async def of_other(ctx: RunContext[Other], city: str) -> str:
    return city * ctx.deps.tenant


@tool
def misspelt_deps(ctx: RunContext[Mine]) -> str:
    return ctx.deps.usr  # wrong


@op.on(ToolRequest)
async def guard_of_other(request: ToolRequest, ctx: RunContext[Other]) -> AsyncIterator[Signal]:
    yield request


@op.on(ModelRequest)
async def shape_of_other(request: ModelRequest, ctx: RunContext[Other]) -> AsyncIterator[Signal]:
    yield request


def prompt_of_other(ctx: RunContext[Other]) -> str:
    return str(ctx.deps.tenant)


def around_of_other(pipeline: Operator[Other]) -> Operator[Other]:
    return op.compose(op.iterate(pipeline), shape_of_other)


def plain_of_other(ctx: RunContext[Other]) -> int:
    return ctx.deps.tenant


def deps() -> None:
    Agent("m", deps_type=Mine, tools=[of_other])  # wrong
    Agent("m", deps_type=Mine, tools=[of_mine, of_other])  # wrong
    Agent("m", tools=[of_mine])  # wrong
    Agent("m", deps_type=Mine, loop=[guard_of_other, *op.standard()])  # wrong
    Agent("m", deps_type=Mine, loop=op.standard(before_tools=[guard_of_other]))  # wrong
    Agent("m", deps_type=Mine, loop=op.standard([shape_of_other]))  # wrong
    Agent("m", deps_type=Mine, loop=[op.compose(guard_of_other), *op.standard()])  # wrong
    Agent("m", loop=op.standard(before_tools=[guard_of_other]))  # wrong
    Agent("m", deps_type=Mine, instructions=prompt_of_other)  # wrong
    Agent("m", instructions=prompt_of_other)  # wrong
    Agent("m", deps_type=Mine, instructions=lambda ctx: ctx.deps.tenant)  # wrong
    Agent("m", deps_type=Mine, strategy=around_of_other)  # wrong
    Agent(
        "m", deps_type=Mine, tools=[plain_of_other]
    )  # wrong: unseen by both, a plain function may have any parameters; @tool reads them
    Agent("m", deps_type=Mine(user="Ann"))  # wrong


def forgotten(agent: Agent[Mine, str], log: EventLog) -> None:
    agent.run("Hi")  # wrong
    agent.run_sync("Hi")  # wrong
    agent.resume("task")  # wrong
    agent.fork("task", 3)  # wrong
    agent.observe("Hi")  # wrong
    agent.map(["Hi"])  # wrong
    agent.get_run("task").execute()  # wrong
    agent.run("Hi", deps=Other(3))  # wrong
    agent.run("Hi", deps=Mine)  # wrong
    Agent("m").run("Hi", deps=Mine("Ann"))  # wrong


# Arguments


def arguments(agent: Agent[None, str], log: MemoryEventLog) -> None:
    Agent()  # wrong
    Agent(3)  # wrong
    Agent("m", tols=[])  # wrong
    Agent("m", tools=of_mine)  # wrong
    Agent("m", tools=["get_weather"])  # wrong
    Agent("m", log="runs.db")  # wrong
    Agent("m", limits=20)  # wrong
    Agent("m", settings={"temperature": 0})  # wrong
    Agent("m", output_mode="yaml")  # wrong
    Agent("m", loop=op.call_model())  # wrong
    Agent("m", loop=[op.call_model])  # wrong
    agent.run()  # wrong
    agent.run(42)  # wrong
    agent.run("Hi", promt="x")  # wrong
    agent.run("Hi", when_busy="later")  # wrong
    agent.run("Hi", limits=Limits(iteration=3))  # wrong
    agent.run("Hi", settings=ModelSettings(temperature="hot"))  # wrong
    agent.run("Hi", strategy=3)  # wrong
    agent.resume("task", inputs=[True])  # wrong
    agent.fork("task", "3")  # wrong
    agent.fork("task", 3, context_id="c")  # wrong
    Limits(tokens="many")  # wrong
    tool(timeout="soon")  # wrong
    tool(of_mine, aprove=True)  # wrong
    FunctionTool(of_mine, aprove=True)  # wrong
    FunctionTool(of_mine, strict="yes")  # wrong
    Agent("m").as_tool(strict=True)  # wrong
    op.run_tools(concurrency="5")  # wrong
    op.thoughts("wishing")  # wrong
    op.of_type("tool-start")  # wrong
    op.on("tool")  # wrong
    op.on(ToolStartEvent)  # wrong
    SlidingWindowCompressor(max_tokens="60_000")  # wrong
    follow("runs.db", "task")  # wrong
    replay(log, 3)  # wrong
    Message.user(text="Hi")  # wrong


def changed(request: ModelRequest, call: ToolRequest, ctx: RunContext[Mine]) -> None:
    request.replace(mesages=[])  # wrong
    request.replace(settings={"temperature": 0})  # wrong
    request.replace(step=1)  # wrong
    ctx.bind(setp="1")  # wrong
    ctx.bind(index="1")  # wrong
    ctx.emit({"kind": "custom"})  # wrong
    ctx.emit("booked")  # wrong
    ctx.progress(0.5)  # wrong
    call.refuse()  # wrong
    call.refuse(403)  # wrong
    call.arguments  # wrong
    request.replace(messages="Hi")  # wrong
    CustomEvent(data=3)  # wrong
    ToolStartEvent(nme="x")  # wrong


# Awaiting, iterating


async def awaited(agent: Agent[None, str], run: Run[str]) -> None:
    print(agent.run("Hi").output)  # wrong
    print(run.messages)  # wrong
    async for event in agent:  # wrong
        print(event)
    for event in run:  # wrong
        print(event)
    with run:  # wrong
        pass
    await agent  # wrong
    await agent.run_sync("Hi")  # wrong
    await run.cancel()  # wrong
    asyncio.run(run)  # wrong
    async for event in await run:  # wrong
        print(event)
    print((await run).thought)  # wrong


async def asked(ctx: RunContext[None]) -> bool:
    yes: bool = ctx.ask("Sure?")  # wrong
    number: int = await ctx.ask("How many?", str)  # wrong
    await ctx.ask(3)  # wrong
    await ctx.ask("Which?", str, options=[1, 2])  # wrong: unseen by both, the answer may be of either type
    return yes and number > 3


async def asks_in_a_condition(ctx: RunContext[None]) -> str:
    if not ctx.ask("Sure?"):  # wrong: unseen by mypy, it ignores the return type of `__bool__`
        return "no"
    return "yes"


def takes_a_question_for_an_answer(ctx: RunContext[None]) -> bool:
    return ctx.ask("Sure?")  # wrong


# Events


async def events(agent: Agent[None, str], run: Run[str], log: EventLog) -> None:
    async for event in run:
        if event.kind == "tool-strat":  # wrong
            print(event)
        if event.kind == "tool-start":
            print(event.delta)  # wrong
        match event:
            case ToolStartEvent():
                print(event.result)  # wrong
            case _:
                pass
    async for event in run.events:
        print(event.kind == "content_delta")  # wrong
        print(event.call)  # wrong
    async for event in replay(log, "task"):
        print(event.kind == "usgae")  # wrong
    async for event in follow(log, "task"):
        print(event.kind == "final")  # wrong
    async for event in run.pipe(op.public()):
        print(event.kind == "thought")  # wrong
    async for event in run.pipe(op.of_type(ToolStartEvent)):
        print(event.fragment)  # wrong
    async for thought in run.pipe(op.thoughts()):
        print(thought.text)  # wrong
    run.pipe(op.thoughts()).subscribe(lambda thought: print(thought.colour))  # wrong
    run.stream(overflow="explode")  # wrong
    run.sse(heartbeat="15")  # wrong


# Operators and views


def mixed_up(run: Run[str], agent: Agent[None, str]) -> None:
    Agent("m", loop=op.standard(before_tools=[op.thoughts()]))  # wrong
    Agent("m", loop=[op.thoughts(), *op.standard()])  # wrong
    op.standard(at_end=[op.usage()])  # wrong
    op.compose(op.call_model(), op.text())  # wrong
    run.pipe(op.call_model())  # wrong
    run.pipe(op.run_tools())  # wrong
    run.pipe(guard_of_other)  # wrong
    run.events.pipe(op.checkpoint())  # wrong
    run.pipe(op.public(), op.call_model())  # wrong
    run.stream().pipe(op.call_model())  # wrong
    run.pipe(op.thoughts)  # wrong
    run.pipe(op.text(), op.thoughts())  # wrong
    agent.run("Hi", strategy=op.iterate(op.call_model()))  # wrong


# What is given back


@op.on(ToolRequest)  # wrong
async def yields_text(request: ToolRequest, ctx: RunContext[None]) -> AsyncIterator[str]:
    yield "no"


@op.on(ToolRequest)  # wrong
async def returns_a_request(request: ToolRequest, ctx: RunContext[None]) -> Signal:
    return request


@op.on(ToolRequest)  # wrong
async def takes_another_request(request: ModelRequest, ctx: RunContext[None]) -> AsyncIterator[Signal]:
    yield request


@op.on(ToolRequest)
async def yields_its_reason(request: ToolRequest, ctx: RunContext[None]) -> AsyncIterator[Signal]:
    yield "The user refused."  # wrong


@strategy  # wrong
async def says_nothing(run: StrategyRun) -> None: ...


@tool(enabled=lambda ctx: "yes")  # wrong
def enabled_by_text() -> None: ...


@tool
def tells_a_number(a: int) -> int:
    return f"{a}"  # wrong


class NoCompressor:
    max_tokens = 1_000

    def compress(self, messages: Sequence[Message], budget: Budget) -> str:
        return "shorter"


class NoProvider:
    name = "mine"

    async def call(self, request: ModelRequest) -> Message:
        return request.messages[-1]

    async def aclose(self) -> None: ...


class NoLog(MemoryEventLog):
    async def read(self, task_id: str) -> list[Event]:  # wrong
        return []


class NoTool:
    def call(self, arguments: dict[str, Any]) -> str:
        return "done"


async def answers_with_nothing(question: PendingInput, other: str) -> bool:
    return True


def seams(agent: Agent[None, str]) -> None:
    op.compress(NoCompressor())  # wrong
    Agent(NoProvider())  # wrong
    Agent("m", tools=[NoTool()])  # wrong
    agent.run("Hi", on_input=answers_with_nothing)  # wrong
    agent.run("Hi", client_tools=["show_map"])  # wrong
    agent.run("Hi", client_tools=[{1: "show_map"}])  # wrong
    client_tool("show_map", [City])  # wrong
    client_tool("show_map", str)  # wrong
    client_tool("show_map", hidden=True)  # wrong
    RunContext().require_auth()  # wrong
    RunContext().require_auth("github", "https://github.com")  # wrong
    op.answer_requests(ToolRequest, lambda request: "text")  # wrong
    op.answer_requests(ModelRequest, lambda request: emit("text"))  # wrong


# Outputs


async def outputs(agent: Agent[None, City], plain: Agent[None, str]) -> None:
    (await agent.run("Norway")).output.capital  # wrong
    text: str = (await agent.run("Norway")).output  # wrong
    city: City = plain.run_sync("Norway").output  # wrong
    result: Result[int] = await agent.run("Norway")  # wrong
    other: Agent[None, int] = Agent("m", output_type=City)  # wrong
    print((await plain.run("Norway")).output.name)  # wrong
    print(text, city, result, other)


def of_the_log(events: Observable[AnyEvent]) -> Observable[str]:
    return events  # wrong


def used_as_the_function() -> None:
    of_mine("Oslo")  # wrong
    of_mine(RunContext(Other(3)), "Oslo")  # wrong
    tells_a_number("1")  # wrong
    tells_a_number(1).upper()  # wrong


async def experiments(agent: Agent[None, str], cases: list[Case]) -> None:
    experiment(cases, agent, score.exact())  # wrong
    experiment(cases, agent, [score.exact()], repeat=3)  # wrong
    experiment(cases, {"a": "zai:glm-4.7"}, [score.exact()])  # wrong
    score.view("n", op.text(), op.tool_calls())  # wrong
    score.cost(better="more")  # wrong
    report = await experiment(cases, agent, [score.exact()]).run()
    report.mean(score.exact())  # wrong
    report.means("exact")  # wrong
