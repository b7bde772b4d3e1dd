"""Agents controlled by their prompt, with tools that are slow, ask, or kill the process."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from reactivex import Observable
from reactivex import operators as rx

from rxloop import Agent, ContentCompleteEvent, Event, Limits, Message, RunContext, op, tool
from rxloop.pipeline.requests import ModelRequest, Signal
from rxloop.protocol.messages import ToolCall
from rxloop.stream.sources import Push, from_task
from support.workers import faults


class ScriptedPromptModel:
    """Stateless model that calls the tools named in the prompt, such as `look; wait 3`, and says "Done."."""

    name = "obedient"

    def call(self, request: ModelRequest) -> Observable[Event]:
        async def work(push: Push[Event]) -> None:
            await asyncio.sleep(0)
            push(_message(list(request.messages)))

        return from_task(work, request.ctx, shielded=True)

    async def aclose(self) -> None:
        """Do nothing."""


def _message(messages: list[Message]) -> ContentCompleteEvent:
    prompt_index = max(place for place, each in enumerate(messages) if each.role == "user")
    number = sum(each.role == "assistant" and bool(each.tool_calls) for each in messages[prompt_index:])
    instructions = [line.split() for line in messages[prompt_index].text.split(";")]
    if number >= len(instructions):
        return ContentCompleteEvent(content="Done.", finish_reason="stop")
    name, *argument = instructions[number]
    arguments: dict[str, Any] = {"value": argument[0]} if argument else {}
    return ContentCompleteEvent(
        content="",
        tool_calls=[ToolCall(id=f"c{number}", name=name, arguments=arguments)],
        finish_reason="tool_calls",
    )


@tool
async def pay(ctx: RunContext[Any]) -> str:
    """Pay. The call is not idempotent."""
    return "paid"


@tool
async def pay_slowly(value: str) -> str:
    """Pay after a number of seconds. The call is not idempotent."""
    await asyncio.sleep(float(value))
    return "paid"


@tool(idempotent=True)
async def look() -> str:
    """Look."""
    return "seen"


@tool(idempotent=True)
async def wait(value: str) -> str:
    """Take so many seconds."""
    await asyncio.sleep(float(value))
    return "waited"


@tool(idempotent=True)
async def hold(value: str) -> str:
    """Wait for a file."""
    while not Path(value).exists():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return "held"


@tool(idempotent=True)
async def ask(ctx: RunContext[Any]) -> str:
    """Ask for a rating."""
    return f"{await ctx.ask('How many stars?', answer=int)} stars"


@tool(idempotent=True)
async def die() -> str:
    """Kill the process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "dead"


@tool
async def pay_and_die(value: str) -> str:
    """Pay and kill the process before returning."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "dead"


def die_at_event(source: Observable[Signal]) -> Observable[Signal]:
    """Kill the process once at an event.

    `RXLOOP_DIE_AT` contains the event kind and a marker file, separated by a colon.
    """
    kind, _, marker = os.environ.get("RXLOOP_DIE_AT", "").partition(":")

    def see(each: Signal) -> None:
        if isinstance(each, Event) and each.kind == kind and not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return source.pipe(rx.do_action(see))


def agent(attempts: int = 3) -> Agent[Any, str]:
    """Return the default agent."""
    faults.apply_faults()
    limits = Limits(iterations=30, attempts=attempts)
    loop = op.standard(at_end=[die_at_event])
    tools = [pay, pay_slowly, look, wait, hold, ask, die, pay_and_die]
    return Agent(ScriptedPromptModel(), tools=tools, name="a", limits=limits, loop=loop, thoughts=False)


def durable_agent() -> Agent[Any, str]:
    """Return an agent with a higher limit on attempts, for tests with many faults."""
    return agent(attempts=30)
