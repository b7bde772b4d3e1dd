"""Codes of failed tool calls in `tool-complete` events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, RunContext, ToolCompleteEvent, ToolError, ToolRequest, op, tool
from rxloop.pipeline.requests import Signal
from rxloop.protocol.envelope import Event
from rxloop.testing import ScriptedModel, call, turn
from support.runs import outcome


@tool
async def fail() -> None:
    """Fails."""
    raise ToolError("no")


@tool(timeout=1)
async def hang() -> None:
    """Never returns."""
    await asyncio.Event().wait()


@tool
async def add(a: int) -> int:
    """Adds one."""
    return a + 1


@tool(approve=True)
async def pay() -> str:
    """Pays."""
    return "paid"


@op.on(ToolRequest)
async def guard(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    yield request.refuse("not today") if request.call.arguments.get("a") == 13 else request


CASES: dict[str, tuple[Any, str | None]] = {
    "success": (call("add", a=1), None),
    "tool error": (call("fail"), "error"),
    "timeout": (call("hang"), "timeout"),
    "guard": (call("add", a=13), "refused"),
    "person": (call("pay"), "refused"),
    "unknown tool": (call("ad", a=1), "unavailable"),
    "arguments that do not match": (call("add", a="x"), "invalid_arguments"),
    "incomplete message": (turn(calls=[call("add", a=1)], finish_reason="length"), "incomplete"),
}


async def collect_codes(agent: Agent, prompt: str = "Go.") -> list[str | None]:
    run = agent.run(prompt, on_input=lambda question: False)
    codes: list[str | None] = []
    run.events.subscribe(lambda event: codes.append(event.code) if isinstance(event, ToolCompleteEvent) else None)
    await outcome(run)
    return codes


@pytest.mark.parametrize(("answer", "code"), CASES.values(), ids=CASES)
async def test_failed_tool_call_has_the_code_of_its_cause(answer: Any, code: str | None) -> None:
    loop = op.standard(before_tools=[guard])
    agent = Agent(ScriptedModel(answer, "done"), tools=[fail, hang, add, pay], loop=loop, thoughts=False)
    assert await collect_codes(agent) == [code]


async def test_call_of_a_canceled_run_has_the_code_canceled() -> None:
    started = asyncio.Event()

    @tool
    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    log = MemoryEventLog()
    run = Agent(ScriptedModel(call("wait")), tools=[wait], log=log, thoughts=False).run("Go.")
    run.start()
    await started.wait()
    run.cancel()
    await outcome(run)
    assert [event.code for event in await log.read(run.task_id) if isinstance(event, ToolCompleteEvent)] == ["canceled"]


async def test_code_is_public_and_omitted_from_successful_calls() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("fail"), call("add", a=1), "done"), tools=[fail, add], log=log, thoughts=False)
    run = agent.run("Go.")
    await run
    first, second = [event for event in await log.read(run.task_id) if isinstance(event, ToolCompleteEvent)]
    assert b'"code":"error"' in first.to_json(public=True)
    assert b'"code"' not in second.to_json()
    assert Event.from_json(second.to_json()) == second


async def test_fork_that_replaces_a_failure_has_no_code() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("fail", "c1"), "done", "again"), tools=[fail], log=log, thoughts=False)
    run = agent.run("Go.")
    await run
    (failed,) = [event for event in await log.read(run.task_id) if isinstance(event, ToolCompleteEvent)]
    forked = agent.fork(run.task_id, at=failed.seq, results={"c1": 3})
    await forked
    (replaced,) = [event for event in await log.read(forked.task_id) if isinstance(event, ToolCompleteEvent)]
    assert (replaced.success, replaced.result, replaced.code) == (True, 3, None)
