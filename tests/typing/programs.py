"""The programs of the documentation as typed calls: the type checker reads this file, and nothing runs it.

Each `ignore` proves that a mistake is an error: without the error it would be an unnecessary comment, which is one too.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_type

import httpx
import reactivex.operators as rx
from pydantic import BaseModel
from reactivex import Observable

from rxloop import (
    Agent,
    AnyEvent,
    ContentDeltaEvent,
    CustomEvent,
    Event,
    Limits,
    MemoryEventLog,
    Message,
    ModelRequest,
    ModelSettings,
    Operator,
    PendingInput,
    Result,
    Run,
    RunContext,
    RunState,
    Signal,
    SlidingWindowCompressor,
    SqliteEventLog,
    StageEvent,
    Strategy,
    Stream,
    ThoughtGraph,
    ThoughtStreamEvent,
    Timeouts,
    ToolCall,
    ToolCompleteEvent,
    ToolDefinition,
    ToolError,
    ToolRequest,
    ToolStartEvent,
    UsageEvent,
    diff,
    follow,
    op,
    openai_chat,
    replay,
    tool,
)
from rxloop.agents import Steer, derive_id
from rxloop.errors import InvalidEvent
from rxloop.operators import Stats
from rxloop.providers import Bounds
from rxloop.recorded import Replay, RunDiff
from rxloop.storage import MemoryArtifacts
from rxloop.strategies import Reply, StrategyRun, strategy, tree_of_thoughts
from rxloop.testing import ScriptedModel, assert_marbles, call, frames, virtual_time
from rxloop.thinking import ThinkingSessions


# 1 Hello, awaited and streamed
async def hello() -> None:
    agent = Agent("zai:glm-4.7", instructions="Answer in one sentence.")
    assert_type(agent, Agent[None, str])
    run = agent.run("Why is the sky blue?")
    assert_type(run, Run[str])
    result = await run
    assert_type(result, Result[str])
    assert_type(result.output, str)
    assert_type(result.messages, list[Message])
    async for text in agent.run("And red at dusk?").text():
        assert_type(text, str)
    await agent.run([*result.messages, "And red at dusk?"], settings=ModelSettings(temperature=0.1))


# 2 Tools with dependencies
@dataclass
class Deps:
    http: httpx.AsyncClient
    user: str


@tool(timeout=10)
async def get_weather(ctx: RunContext[Deps], city: str) -> dict[str, float]:
    """Current weather for a city.

    Args:
        city: A city name, such as "Oslo".
    """
    assert_type(ctx.deps, Deps)
    ctx.progress(f"asking for {city}")
    response = await ctx.deps.http.get("https://weather.example/v1", params={"q": city})
    if response.status_code == 404:
        raise ToolError(f"No city is called {city!r}; try the English name.")
    return response.json()


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def plain(a: int) -> int:
    """Nothing but a function."""
    return a


def no_such_field(ctx: RunContext[Deps]) -> str:
    return ctx.deps.name  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


def other_deps(ctx: RunContext[int]) -> str:
    return f"{ctx.deps}"


async def dependencies(http: httpx.AsyncClient) -> None:
    agent = Agent(
        "zai:glm-4.7", tools=[get_weather], instructions=lambda ctx: f"You help {ctx.deps.user}.", deps_type=Deps
    )
    assert_type(agent, Agent[Deps, str])
    result = await agent.run("Weather in Oslo?", deps=Deps(http, "Ann"))
    assert_type(result.output, str)
    agent.run_sync("Weather in Oslo?", deps=Deps(http, "Ann"))
    agent.resume("task", deps=Deps(http, "Ann"))

    agent.run("Weather in Oslo?")  # pyright: ignore[reportCallIssue]
    agent.run_sync("Weather in Oslo?")  # pyright: ignore[reportCallIssue]
    agent.resume("task")  # pyright: ignore[reportCallIssue]
    agent.fork("task", 3, prompt="In Bergen?", deps=Deps(http, "Ann"))
    agent.fork("task", 3)  # pyright: ignore[reportCallIssue]
    agent.fork("task", 3, context_id="c", deps=Deps(http, "Ann"))  # pyright: ignore[reportCallIssue]
    agent.fork("task", "3", deps=Deps(http, "Ann"))  # pyright: ignore[reportArgumentType]
    agent.run("Weather in Oslo?", deps="Ann")  # pyright: ignore[reportArgumentType]
    agent.run("Weather in Oslo?", deps=Deps(http, "Ann"), prompts=3)  # pyright: ignore[reportCallIssue]
    Agent("zai:glm-4.7").run("Hi", deps=Deps(http, "Ann"))  # pyright: ignore[reportArgumentType, reportCallIssue]
    Agent("zai:glm-4.7", deps_type=Deps, instructions=other_deps)  # pyright: ignore[reportArgumentType]

    # The tool is still the function.
    assert_type(add(1, 2), int)
    assert_type(await get_weather(RunContext(Deps(http, "Ann")), "Oslo"), dict[str, float])
    add("1", 2)  # pyright: ignore[reportArgumentType]
    assert_type(Agent("zai:glm-4.7", tools=[add, plain, get_weather], deps_type=Deps), Agent[Deps, str])
    Agent("zai:glm-4.7", tools=[get_weather])  # pyright: ignore[reportArgumentType]


# 3 A streaming endpoint; the client leaves, the run is cancelled
async def body(agent: Agent[None, str], question: str) -> AsyncIterator[bytes]:
    async with agent.run(question) as run:
        assert_type(run, Run[str])
        async for frame in run.sse(heartbeat=15):
            assert_type(frame, bytes)
            yield frame


# 4 Several views of one run, one model request
async def views(agent: Agent[None, str]) -> None:
    async with agent.run("Plan a weekend in Oslo.") as run:
        thoughts = run.pipe(op.thoughts(min_confidence=0.5))
        assert_type(thoughts, Stream[ThoughtStreamEvent])
        thoughts.subscribe(lambda t: print("thought:", t.content))
        run.pipe(op.usage()).subscribe(lambda u: print("tokens:", u.output_tokens))
        figures = run.pipe(op.stats(), rx.filter(lambda s: s.tokens_per_second < 5))
        assert_type(figures, Stream[Stats])
        figures.subscribe(lambda s: print("slow:", s))
        async for event in run.pipe(op.of_type(ToolStartEvent, ToolCompleteEvent)):
            assert_type(event, ToolStartEvent | ToolCompleteEvent)
            match event:
                case ToolStartEvent(call=call):
                    assert_type(call, ToolCall)
                    print("->", call.name, call.arguments)
                case ToolCompleteEvent(call=call, duration=s):
                    assert_type(s, float)
                    print("<-", call.name, f"{s:.2f} s")
        print((await run).output)


async def more_views(run: Run[str]) -> None:
    assert_type(run.events, Stream[AnyEvent])
    assert_type(run.pipe(), Stream[AnyEvent])
    assert_type(run.pipe(op.usage()), Stream[UsageEvent])
    assert_type(run.pipe(op.text()), Stream[str])
    assert_type(run.pipe(op.tool_calls()), Stream[ToolCompleteEvent])
    assert_type(run.pipe(op.thought_graph(), rx.last()), Stream[ThoughtGraph])
    assert_type(run.stream(overflow="block", buffer=10).pipe(op.thoughts()), Stream[ThoughtStreamEvent])
    assert_type(run.stream(after="task/1.2.0"), Stream[AnyEvent])
    assert_type(run.pipe(rx.map(lambda event: event.seq)), Stream[int])
    two = run.pipe(rx.map(lambda event: event.seq), rx.scan(lambda a, b: a + b, 0))
    assert_type(two, Stream[int])
    three = run.pipe(op.of_type(ContentDeltaEvent), rx.map(lambda event: event.delta), rx.buffer_with_count(3))
    assert_type(three, Stream[list[str]])
    seven = run.pipe(
        op.public(),
        op.coalesce_deltas(),
        op.until_final(),
        op.of_type(ContentDeltaEvent),
        rx.map(lambda event: event.delta),
        rx.map(len),
        rx.filter(lambda size: size > 1),
    )
    assert_type(seven, Stream[int])
    assert_type(thoughts_of(run).pipe(rx.map(lambda thought: thought.confidence)), Stream[float | None])
    assert_type([text async for text in run.text().pipe(rx.map(len))], list[int])
    async for event in run:
        if isinstance(event, ThoughtStreamEvent):
            assert_type(event.content, str)

    async for thought in run.pipe(op.thoughts()):
        print(thought.colour)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    run.pipe(op.thoughts("wishing"))  # pyright: ignore[reportArgumentType]
    run.stream(overflow="explode")  # pyright: ignore[reportArgumentType]


def thoughts_of(run: Run[Any]) -> Stream[ThoughtStreamEvent]:
    return run.pipe(op.thoughts())


# 5 A guard that blocks a call and asks
@op.on(ToolRequest)
async def large_transfers(request: ToolRequest, ctx: RunContext[None]) -> AsyncIterator[Signal]:
    call = request.call
    if call.name == "transfer" and call.arguments["amount"] > 1_000:
        agreed = await ctx.ask(f"Send {call.arguments['amount']} to {call.arguments['to']}?")
        assert_type(agreed, bool)
        if not agreed:
            yield request.refuse("The user refused this transfer.")
            return
    yield request


@tool
async def transfer(to: str, amount: int) -> str:
    """Sends money."""
    return f"sent {amount} to {to}"


async def ask_at_the_terminal(question: PendingInput) -> bool:
    return await asyncio.to_thread(input, question.prompt) == "yes"


async def guard() -> None:
    assert_type(large_transfers, Operator[None])
    agent = Agent(
        "zai:glm-4.7",
        tools=[transfer],
        log=MemoryEventLog(),
        loop=op.standard(before_tools=[large_transfers]),
    )
    await agent.run("Pay Bob 5000", on_input=ask_at_the_terminal)
    result = await agent.run("Pay Bob 5000")
    if result.state == "input-required":
        inputs: Mapping[str, Any] = {result.pending[0].input_id: True}
        result = await agent.resume(result.task_id, inputs=inputs)
        assert_type(result, Result[str])


async def asking(ctx: RunContext[None]) -> None:
    assert_type(await ctx.ask("Sure?"), bool)
    assert_type(await ctx.ask("How many?", int), int)
    assert_type(await ctx.ask("Which?", str, options=["red", "blue"]), str)


# 6 A pipeline of one's own
@op.on(ModelRequest)
async def newest_only(request: ModelRequest, ctx: RunContext[None]) -> AsyncIterator[Signal]:
    yield request.replace(messages=request.messages[-10:])


async def pipeline() -> None:
    agent = Agent(
        "zai:glm-4.7",
        log=MemoryEventLog(),
        limits=Limits(iterations=50, tokens=200_000),
        loop=[newest_only, op.call_model(), op.run_tools(concurrency=5), op.checkpoint()],
    )
    await agent.run("Read the repository.", context_id="repo-42")
    await agent.run("Now fix the failing test.", context_id="repo-42")
    strategy: Strategy = op.iterate
    await agent.run("Hi", strategy=lambda p: op.compose(strategy(p), newest_only))
    Agent("zai:glm-4.7", loop=[op.thoughts()])  # pyright: ignore[reportArgumentType]
    Agent("zai:glm-4.7", loop=op.call_model())  # pyright: ignore[reportArgumentType]


# 7 A chain of thoughts, live and drawn
async def chain(agent: Agent[None, str]) -> None:
    run = agent.run("Is 20 C in Oslo warmer than 65 F in Bergen?")
    async for t in run.pipe(op.thoughts()):
        assert_type(t, ThoughtStreamEvent)
        print(f"[{t.thought_type}] {t.thought_id} <- {t.related_to}: {t.content}")
    result = await run
    print(result.thoughts.tree())
    Path("chain.mmd").write_text(result.thoughts.to_mermaid())


# 9 Tree of thoughts
def can_reach_24(path: Sequence[str]) -> bool:
    return "24" in path[-1]


@strategy
async def of_ones_own(run: StrategyRun) -> str:
    first, second = await run.gather(run.ask("One?", branch="a"), run.ask("Two?", branch="b"))
    assert_type(first, Reply)
    assert_type(await run.gather(run.tools()), list[tuple[ToolDefinition, ...]])
    return await run.conclude(f"{first.text} or {second.text}?")


async def strategies(agent: Agent[None, str]) -> None:
    tree = tree_of_thoughts(propose=3, keep=2, depth=3, evaluate=can_reach_24, max_calls=40)
    assert_type(tree, Strategy)
    assert_type(of_ones_own, Strategy)
    run = agent.run("Make 24 from 4 9 10 13.", strategy=tree)
    async for event in run.pipe(op.of_type(StageEvent, ThoughtStreamEvent)):
        assert_type(event, StageEvent | ThoughtStreamEvent)
    await agent.run("Hi", strategy="rewoo")
    Agent("zai:glm-4.7", strategy=of_ones_own)
    tree_of_thoughts(evaluate="votes")  # pyright: ignore[reportArgumentType]
    agent.run("Hi", strategy=tree_of_thoughts)  # pyright: ignore[reportArgumentType]

    @strategy  # pyright: ignore[reportArgumentType]
    async def says_nothing(run: StrategyRun) -> None: ...

    print(says_nothing)


# 10 Resume after a crash; a fork
async def going_on(log: MemoryEventLog, task_id: str) -> None:
    agent = Agent("zai:glm-4.7", log=log)
    for record in await log.list_runs(unfinished=True):
        assert_type(await agent.resume(record.task_id), Result[str])
    fork = agent.fork(task_id, at=12, results={"call_1": "card declined"}, model="zai:glm-4.6", tools=[add])
    assert_type(fork, Run[str])
    assert_type(await fork, Result[str])

    again = replay(log, task_id, speed=4).until(12)
    assert_type(again, Replay)
    assert_type(again.pipe(op.thoughts()), Stream[ThoughtStreamEvent])
    assert_type(await again.get_state(3), RunState)
    async for event in follow(log, task_id, after="task/1.3.0"):
        assert_type(event, AnyEvent)
    found = await diff(log, task_id, fork.task_id)
    assert_type(found, RunDiff)
    assert_type(found.first, tuple[Event | None, Event | None] | None)


# 11 Tests with no model and no real time
def scripted() -> None:
    model = ScriptedModel(call("add", a=1, b=2), frames("--The service--is slow.|"))
    with virtual_time() as time:
        run = Agent(model, tools=[add]).run("Weather?")
        assert_marbles(run, "(twlcsxl) 150ms (cF|)")
        time.at(0.04, run.cancel)
        assert_type(time.run(run), Result[str])
    assert "3" in model.requests[1].messages[-1].content


# 12 Typed output
class City(BaseModel):
    name: str
    population: int


async def typed_output() -> None:
    agent = Agent("zai:glm-4.7", output_type=City)
    assert_type(agent, Agent[None, City])
    print(agent.run_sync("The capital of Norway").output.population)
    assert_type((await agent.run("The capital of Norway")).output, City)
    both = Agent("zai:glm-4.7", output_type=City, deps_type=Deps, output_mode="native", output_retries=2)
    assert_type(both, Agent[Deps, City])
    city = agent.run_sync("Norway").output
    city.inhabitants  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # noqa: B018
    Agent("zai:glm-4.7", output_type=City, output_mode="telepathy")  # pyright: ignore[reportArgumentType]


# 13 Bounds, and what is for clients
class BookedEvent(Event):
    public_fields = ("room",)
    kind: str = "booked"
    room: str = ""


class NarrowEvent(Event):
    kind: Literal["narrow"] = "narrow"


@tool(approve="Book the {room} room?", max_result=20_000)
async def book(ctx: RunContext[None], room: str) -> str:
    """Books a room."""
    assert_type(ctx.idempotency_key, str)
    try:
        ctx.emit(BookedEvent(room=room))
    except InvalidEvent as error:
        return str(error)
    if not await ctx.ask("Sure?"):
        return "no"
    return "booked"


async def bounded() -> None:
    model = openai_chat(
        "gpt-5", bounds=Bounds(text=20_000_000), timeout=Timeouts(idle=120, event=None, total=7200), thought_tags=False
    )
    window = SlidingWindowCompressor(max_messages=40)
    agent = Agent(
        model,
        tools=[book],
        loop=op.standard(before_model=[op.compress(window, every=10), op.thinking_phase(window, every=10, timeout=20)]),
        limits=Limits(preparation=20),
    )
    assert_type(agent, Agent[None, str])
    run = agent.run("A room", metadata={"public": {"title": "Rooms"}})
    assert_type(await run.has_more("task/1.3.0"), bool)
    event = CustomEvent(name="booked")
    assert_type(event.to_public(), Event | None)
    assert_type(Message.user("Hi", message_id="m-1").message_id, str | None)
    ThinkingSessions(MemoryArtifacts(), max_total=100)
    Bounds(20)  # pyright: ignore[reportCallIssue]
    Limits(preparation="20")  # pyright: ignore[reportArgumentType]


async def operated(agent: Agent[Deps, City], task_id: str) -> None:
    log = SqliteEventLog("runs.db", corrupt="skip", keep_deltas=True)
    kept = agent.with_log(log)
    assert_type(kept, Agent[Deps, City])
    await kept.get_run(task_id).cancel("too dear")
    events = follow(log, task_id, until="end", deltas=True)
    assert_type(events.pipe(op.thoughts()), Stream[ThoughtStreamEvent])
    assert_type(await events.has_more(None), bool)
    SqliteEventLog("runs.db", corrupt="ignore")  # pyright: ignore[reportArgumentType]
    follow(log, task_id, until="never")  # pyright: ignore[reportArgumentType]


async def steered(
    agent: Agent[Deps, City], deps: Deps, typed: Observable[str], chat: AsyncIterator[str | Steer]
) -> None:
    run = await agent.run("Rome", deps=deps, task_id=derive_id("cities", "rome"), owner="bob", steering=typed).begin()
    assert_type(run, Run[City])
    assert_type(run.start(), Run[City])
    run.send("Not that one.")
    run.send([Message.user("The other"), "please"], interrupt=True)
    agent.resume(run.task_id, deps=deps, steering=chat)
    run.send(7)  # pyright: ignore[reportArgumentType]
    agent.run("Rome", deps=deps, steering=["a"])  # pyright: ignore[reportArgumentType]
    agent.resume(run.task_id, deps=deps, owner="bob")  # pyright: ignore[reportCallIssue]
