"""Mistakes of newcomers, mostly habits from other frameworks, checked by `test_mistakes.py` like `mistakes.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import reactivex as rx

from rxloop import (
    Agent,
    EventLog,
    Limits,
    MemoryEventLog,
    Message,
    ModelRequest,
    ModelSettings,
    PromptCache,
    Result,
    Retry,
    Run,
    RunContext,
    Runtime,
    Signal,
    SlidingWindowCompressor,
    SqliteEventLog,
    ToolRequest,
    fallback,
    follow,
    limited,
    op,
    open_log,
    openai_chat,
    replay,
    tool,
)
from rxloop.testing import ScriptedModel, assert_marbles, call, turn


@dataclass
class Deps:
    user: str


@tool
async def look(ctx: RunContext[Deps], city: str) -> str:
    """Look."""
    return city


@tool
def plain(city: str) -> str:
    """Look."""
    return city


# Options of an agent


def options_of_an_agent(log: EventLog) -> None:
    Agent("m", system_prompt="Be brief.")  # wrong
    Agent("m", result_type=int)  # wrong
    Agent("m", response_format=int)  # wrong
    Agent("m", functions=[plain])  # wrong
    Agent("m", toolsets=[])  # wrong
    Agent("m", mcp_servers=[])  # wrong
    Agent("m", max_turns=3)  # wrong
    Agent("m", temperature=0.0)  # wrong
    Agent("m", model_settings=ModelSettings())  # wrong
    Agent("m", checkpointer=log)  # wrong
    Agent("m", handoffs=[])  # wrong
    Agent("m", hooks=None)  # wrong
    Agent("m", input_guardrails=[])  # wrong
    Agent("m", retries=2)  # wrong
    Agent("m", context_id="c")  # wrong
    Agent("m", deps=Deps("Ann"))  # wrong
    Agent("m", "Be brief.")  # wrong
    Agent(name="support")  # wrong
    Agent("m", deps_type=Deps("Ann"))  # wrong
    Agent("m", output_type="City")  # wrong
    Agent("m", output_type=Deps("Ann"))  # wrong
    Agent("m", output_type={"type": "object"})  # wrong
    Agent("m", output_mode="json")  # wrong
    Agent("m", strategy="reakt")  # wrong
    Agent("m", tools=plain)  # wrong
    Agent("m", tools=[Agent("m")])  # wrong
    Agent("m", tools=[{"type": "function"}])  # wrong
    Agent("m", tools=[plain("Oslo")])  # wrong
    Agent("m", log=MemoryEventLog)  # wrong
    Agent("m", log=":memory:")  # wrong
    Agent("m", limits=Limits)  # wrong
    Agent("m", thoughts=None)  # wrong
    Agent("m", instructions=None)  # wrong
    Agent("m", instructions=["Be brief."])  # wrong
    Agent(ScriptedModel)  # wrong


# Methods and attributes


async def methods_of_an_agent(agent: Agent[None, str]) -> None:
    agent.run_stream("Hi")  # wrong
    agent.stream("Hi")  # wrong
    agent.arun("Hi")  # wrong
    await agent.invoke("Hi")  # wrong
    agent.iter("Hi")  # wrong
    agent("Hi")  # wrong
    agent.batch(["Hi"])  # wrong
    agent.tool(plain)  # wrong
    agent.instructions = "two"  # wrong
    agent.model = "openai:gpt-5"  # wrong
    agent.name = "other"  # wrong
    agent.tools = []  # wrong
    agent.definition = agent.definition  # wrong
    agent.definition.instructions = "two"  # wrong
    print(agent.tools)  # wrong


async def arguments_of_a_run(agent: Agent[None, str], log: EventLog) -> None:
    agent.run("Hi", deps=Deps("Ann"))  # wrong
    agent.run("Hi", message_history=[])  # wrong
    agent.run("Hi", thread_id="c")  # wrong
    agent.run("Hi", session="c")  # wrong
    agent.run("Hi", stream=True)  # wrong
    agent.run("Hi", max_turns=3)  # wrong
    agent.run("Hi", tools=[plain])  # wrong
    agent.run("Hi", output_type=int)  # wrong
    agent.run("Hi", "there")  # wrong
    agent.run({"role": "user", "content": "Hi"})  # wrong
    agent.run([{"role": "user", "content": "Hi"}])  # wrong
    agent.run([("user", "Hi")])  # wrong
    agent.run(user_prompt="Hi")  # wrong
    agent.run("Hi", context_id=3)  # wrong
    agent.run("Hi", when_busy="queue")  # wrong
    agent.run("Hi", on_input=True)  # wrong
    agent.run("Hi", strategy="plan")  # wrong
    agent.run("Hi", metadata="c")  # wrong
    agent.run("Hi", model=ScriptedModel)  # wrong
    agent.map(["Hi"], max_concurrency=3)  # wrong
    agent.map(3)  # wrong
    agent.map([3])  # wrong
    agent.map([3], prompt=lambda item: item)  # wrong
    agent.map(["Hi"], name="batch", context_id="c")  # wrong
    agent.resume("task", inputs=True)  # wrong
    agent.resume(await agent.run("Hi"))  # wrong
    agent.fork("task")  # wrong
    await agent.submit("Hi", deps=Deps("Ann"))  # wrong
    await agent.get_run("task").answer(True)  # wrong
    await agent.get_run("task")  # wrong
    agent.get_run("task").result()  # wrong
    agent.as_tool(description=3)  # wrong


async def results(agent: Agent[None, str], run: Run[str]) -> None:
    result = await agent.run("Hi")
    print(result.data)  # wrong
    print(result.text)  # wrong
    print(result.final_output)  # wrong
    print(result.all_messages())  # wrong
    print(result["messages"])  # wrong
    print(result.usage())  # wrong
    print(result.cost)  # wrong
    result.output = "two"  # wrong
    result.content = "two"  # wrong
    result.cancel()  # wrong
    await result  # wrong
    print(run.output)  # wrong
    print(run.final_output)  # wrong
    run.stream_events()  # wrong
    run.id  # wrong
    run.subscribe(print)  # wrong
    run.task_id = "two"  # wrong
    (await run).messages.append("Hi")  # wrong


# Awaiting and iterating


async def awaiting(agent: Agent[None, str], runtime: Runtime, ctx: RunContext[None], log: EventLog) -> None:
    agent.run("Hi")  # wrong: unseen by both, a run is no coroutine; the run warns that it was never started
    agent.submit("Hi")  # wrong
    runtime.start("support", "Hi")  # wrong
    agent.get_run("task").execute()  # wrong
    log.list_runs()  # wrong
    ctx.ask("Sure?")  # wrong
    ctx.require_auth("github")  # wrong
    asyncio.create_task(agent.run("Hi"))  # wrong
    await agent.run_sync("Hi")  # wrong
    await agent.run("Hi").cancel()  # wrong
    await agent.run("Hi").text  # wrong
    await agent.run("Hi").begin().result()  # wrong


async def iterating(agent: Agent[None, str], run: Run[str], log: EventLog) -> None:
    for event in run:  # wrong
        print(event)
    for event in run.events:  # wrong
        print(event)
    for text in run.text():  # wrong
        print(text)
    for outcome in agent.map(["Hi"]):  # wrong
        print(outcome)
    for event in replay(log, "task"):  # wrong
        print(event)
    for event in follow(log, "task"):  # wrong
        print(event)
    async for event in agent:  # wrong
        print(event)
    async for event in await run:  # wrong
        print(event)
    async for text in run.text:  # wrong
        print(text)
    async for event in run.stream:  # wrong
        print(event)
    with run:  # wrong
        pass
    with agent:  # wrong
        pass


# Views and operators


def views(run: Run[str]) -> None:
    run.pipe(op.text)  # wrong
    run.pipe(op.thoughts)  # wrong
    run.pipe(op.public)  # wrong
    run.pipe("text")  # wrong
    run.pipe([op.text()])  # wrong
    run.pipe(print)  # wrong
    run.pipe(op.filter(lambda event: True))  # wrong
    run.pipe(rx.operators.filter)  # wrong
    print(run | op.text())  # wrong
    Agent("m", loop=[op.text()])  # wrong
    Agent("m", loop=[op.standard()])  # wrong
    Agent("m", loop=op.standard)  # wrong
    op.run_tools(parallel=3)  # wrong
    op.compress("window")  # wrong
    op.compress()  # wrong
    op.of_type(ToolRequest)  # wrong


@op.on(ToolRequest)  # wrong
async def lacks_the_context(request: ToolRequest) -> AsyncIterator[Signal]:
    yield request


@op.on(ToolRequest)
def is_not_async(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    return rx.empty()  # wrong


@op.on(ToolRequest)
async def changes_the_request(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    request.call = request.call  # wrong
    request.call.name = "other"  # wrong
    request.arguments["city"] = "Oslo"  # wrong
    yield request


@op.on(ModelRequest)
async def changes_the_messages(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    request.messages.append(Message.user("Hi"))  # wrong
    request.settings = ModelSettings()  # wrong
    yield request


# Tools


@tool("look")  # wrong
def named_by_position() -> None: ...


@tool(retries=3)  # wrong
def retried() -> None: ...


@tool(timeout="5s")  # wrong
def timed() -> None: ...


@tool(requires_approval=True)  # wrong
def approved() -> None: ...


@tool
def uses_another_context(ctx: RunContext[Deps]) -> str:
    ctx.context  # wrong
    ctx.deps.usr  # wrong
    ctx.interrupt("Sure?")  # wrong
    ctx.progress(0.5)  # wrong
    return ctx.ask("Sure?")  # wrong


# Values


def values(log: EventLog) -> None:
    Limits(max_iterations=3)  # wrong
    Limits(timeout=5)  # wrong
    Limits(seconds="5s")  # wrong
    Limits(3)  # wrong
    Limits(iterations="many")  # wrong
    ModelSettings(max_output_tokens=3)  # wrong
    ModelSettings(reasoning_effort="huge")  # wrong
    ModelSettings(stop="END")  # wrong
    PromptCache(ttl="2h")  # wrong
    Message("Hi")  # wrong
    Message(role="human", content="Hi")  # wrong
    Message(role="user", text="Hi")  # wrong
    Message.user({"type": "text"})  # wrong
    Message.user([{"type": "text", "text": "Hi"}])  # wrong
    Message.tool("Hi")  # wrong
    Message.user("Hi").content = "two"  # wrong
    Retry(3)  # wrong
    Retry(max_retries=3)  # wrong
    openai_chat("m", nonsense=5)  # wrong
    openai_chat("m", temperature=0)  # wrong
    fallback(["openai:gpt-5", "zai:glm-4.7"])  # wrong
    limited("openai:gpt-5", rpm=3)  # wrong
    SqliteEventLog()  # wrong
    SqliteEventLog("runs.db", fsync="always")  # wrong
    open_log(log)  # wrong
    replay("runs.db", "task")  # wrong
    replay("task", log)  # wrong
    SlidingWindowCompressor(tokens=1)  # wrong


async def runtimes(agent: Agent[None, str], log: EventLog) -> None:
    Runtime({"a": agent})  # wrong
    Runtime(agent, log=log)  # wrong
    Runtime([agent], log=log)  # wrong
    Runtime({"a": agent}, log="runs.db")  # wrong
    runtime = Runtime({"a": agent}, log=log)
    await runtime.run("a", "Hi")  # wrong
    await runtime.start(agent, "Hi")  # wrong
    await runtime.start("a", "Hi", task_id="x")  # wrong
    await runtime.start("a", "Hi", model=ScriptedModel("Hi."))  # wrong
    await runtime.start("a", "Hi", deps=Deps("Ann"))  # wrong
    await runtime.answer("task", True)  # wrong
    await log.list_runs(state="working")  # wrong
    await log.list_runs(states=["waiting"])  # wrong
    with runtime:  # wrong
        pass


def testing(agent: Agent[None, str], result: Result[str]) -> None:
    ScriptedModel(3)  # wrong
    ScriptedModel([3])  # wrong
    call(plain, city="Oslo")  # wrong
    turn(call("plain", city="Oslo"))  # wrong
    assert_marbles(agent, "tw")  # wrong
    assert_marbles(agent.run("Hi"), ["tw"])  # wrong
    agent.override(tools=plain)  # wrong
    agent.override(temperature=0)  # wrong
