"""Agent for workers that are killed. Its model is stateless, so any worker can resume a run."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from reactivex import Observable

from rxloop import Agent, ContentCompleteEvent, Event, Limits, Message, RunContext, tool
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import ToolCall
from rxloop.stream.sources import Push, from_task

ROUNDS = 4


class Planner:
    """Model that calls tools, asks, and finishes."""

    name = "planner"

    def __init__(self, slow: float) -> None:
        self._slow = slow

    def call(self, request: ModelRequest) -> Observable[Event]:
        async def work(push: Push[Event]) -> None:
            await asyncio.sleep(random.random() * self._slow)
            push(_message(request.messages))

        return from_task(work, request.ctx, shielded=True)

    async def aclose(self) -> None:
        """Do nothing."""


def _message(messages: Any) -> ContentCompleteEvent:
    history: list[Message] = list(messages)
    prompt_index = max(place for place, each in enumerate(history) if each.role == "user")
    round_number = sum(each.role == "assistant" and bool(each.tool_calls) for each in history[prompt_index:])
    if round_number == ROUNDS:
        return ContentCompleteEvent(content="Done.", finish_reason="stop")
    calls = [ToolCall(id=f"p{round_number}", name="pay", arguments={"number": round_number})]
    if round_number == 2 and "ask" in history[prompt_index].text:
        calls = [ToolCall(id=f"a{round_number}", name="approved", arguments={"number": round_number})]
    calls.append(ToolCall(id=f"l{round_number}", name="look", arguments={}))
    return ContentCompleteEvent(content="", tool_calls=calls, finish_reason="tool_calls")


def clerk(slow: float = 0.4) -> Agent[Any, str]:
    """Return the agent. Its model and tools take at most `slow` seconds."""

    @tool
    async def pay(number: int, ctx: RunContext[Any]) -> str:
        """Pay a bill."""
        await asyncio.sleep(random.random() * slow)
        return f"paid {number}"

    @tool(approve=True)
    async def approved(number: int, ctx: RunContext[Any]) -> str:
        """Pay a bill after approval."""
        await asyncio.sleep(random.random() * slow)
        return f"paid {number}"

    @tool(idempotent=True)
    async def look() -> str:
        """Look."""
        await asyncio.sleep(random.random() * slow)
        return "seen"

    return Agent(Planner(slow), tools=[pay, approved, look], name="clerk", limits=Limits(iterations=30))
