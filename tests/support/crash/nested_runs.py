"""Program that executes runs with nested agents in forked processes; see `forked_runs.py`.

An agent calls two agents in parallel. One of them asks before paying. A process that resumes a waiting run answers its
question. Besides the lines of `forked_runs.py`, a process prints `paused` when the run waits.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reactivex import Observable

from rxloop import (
    Agent,
    ContentCompleteEvent,
    Event,
    Limits,
    Message,
    RunContext,
    SqliteEventLog,
    ToolCall,
    UsageEvent,
    tool,
)
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import ContentDeltaEvent
from rxloop.providers.codecs.text import make_text_delta
from rxloop.state.fold import fold_all
from rxloop.stream.sources import Push, from_task
from support.crash.forked_runs import fork_for_each_order, print_line, report_event

ROUNDS = 3
SUM = 2 * sum(n * n for n in range(ROUNDS))


class Worker:
    """Stateless model that squares numbers, pays in rounds, and adds up the squares."""

    name = "worker"

    def call(self, request: ModelRequest) -> Observable[Event]:
        async def work(push: Push[Event]) -> None:
            push(make_text_delta(ContentDeltaEvent, "Hm. ", 0, request.step))
            await asyncio.sleep(random.random() * 0.002)
            push(UsageEvent(input_tokens=10, output_tokens=1))
            push(self.message(request.messages))

        return from_task(work, request.ctx, shielded=True)

    def message(self, messages: Sequence[Message]) -> ContentCompleteEvent:
        """Return the next message, which depends only on the history."""
        number = sum(each.role == "assistant" for each in messages)
        if number == ROUNDS:
            return _sum_message(messages)
        calls = [
            ToolCall(id=f"s{number}", name="square", arguments={"n": number}),
            ToolCall(id=f"p{number}", name="pay", arguments={"number": number}),
        ]
        return ContentCompleteEvent(content="Hm. ", tool_calls=calls, finish_reason="tool_calls")

    async def aclose(self) -> None:
        """Do nothing."""


class Head(Worker):
    """Model that calls both agents, adding their results."""

    name = "head"

    def message(self, messages: Sequence[Message]) -> ContentCompleteEvent:
        """Return the next message, which depends only on the history."""
        if any(each.role == "assistant" for each in messages):
            return _sum_message(messages)
        calls = [ToolCall(id=name, name=name, arguments={"prompt": "Add up."}) for name in ("buyer", "clerk")]
        return ContentCompleteEvent(content="Hm. ", tool_calls=calls, finish_reason="tool_calls")


def _sum_message(messages: Sequence[Message]) -> ContentCompleteEvent:
    found = [int(each.text) for each in messages if each.role == "tool" and each.text.isdigit()]
    return ContentCompleteEvent(content=str(sum(found)), finish_reason="stop")


def agent(db: str, effects: str) -> Agent[None, str]:
    def note(text: str) -> None:
        # A short append is atomic.
        with Path(effects).open("ab", buffering=0) as file:
            file.write(f"{text}\n".encode())

    @tool(idempotent=True)
    async def square(ctx: RunContext[Any], n: int) -> int:
        """Square a number."""
        await asyncio.sleep(random.random() * 0.004)
        return n * n

    @tool
    async def pay(ctx: RunContext[Any], number: int) -> str:
        """Pay a bill."""
        if ctx.agent_name == "buyer" and number == 1 and not await ctx.ask("Pay?"):
            return "refused"
        note(f"pay {ctx.idempotency_key}")
        await asyncio.sleep(random.random() * 0.004)
        return "paid"

    nested = [Agent(Worker(), name=name, tools=[square, pay], thoughts=False) for name in ("buyer", "clerk")]
    tools = [each.as_tool() for each in nested]
    limits = Limits(attempts=50)
    return Agent(Head(), name="head", tools=tools, thoughts=False, log=SqliteEventLog(db), limits=limits)


async def execute(order: dict[str, Any]) -> None:
    async with agent(order["db"], order["effects"]) as head:
        assert head.log is not None
        inputs: dict[str, Any] = {}
        if order["task"]:
            state = fold_all(await head.log.read(order["task"]))
            inputs = {input_id: True for input_id in state.pending if state.state == "input-required"}
        run = (
            head.resume(order["task"], inputs=inputs) if order["task"] else head.run("Go.", context_id=order["context"])
        )
        run.events.subscribe(report_event)
        result = await run
        print_line(f"answer {result.output}" if result.state == "completed" else "paused yes")


if __name__ == "__main__":
    fork_for_each_order(execute)
