"""An agent for workers that are killed: its model has no memory, so that what it says follows from the messages."""

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
    """Pays, looks, asks and says that it is done."""

    name = "planner"

    def __init__(self, slow: float) -> None:
        self._slow = slow

    def call(self, request: ModelRequest) -> Observable[Event]:
        async def work(push: Push[Event]) -> None:
            await asyncio.sleep(random.random() * self._slow)
            push(_message(request.messages))

        return from_task(work, request.ctx, shielded=True)

    async def aclose(self) -> None:
        """Nothing is open."""


def _message(messages: Any) -> ContentCompleteEvent:
    asked: list[Message] = list(messages)
    begun = max(place for place, each in enumerate(asked) if each.role == "user")
    number = sum(each.role == "assistant" and bool(each.tool_calls) for each in asked[begun:])
    if number == ROUNDS:
        return ContentCompleteEvent(content="Done.", finish_reason="stop")
    calls = [ToolCall(id=f"p{number}", name="pay", arguments={"number": number})]
    if number == 2 and "ask" in asked[begun].text:
        calls = [ToolCall(id=f"a{number}", name="approved", arguments={"number": number})]
    calls.append(ToolCall(id=f"l{number}", name="look", arguments={}))
    return ContentCompleteEvent(content="", tool_calls=calls, finish_reason="tool_calls")


def clerk(slow: float = 0.4) -> Agent[Any, str]:
    """The agent; `slow` is how long its model and its tools take at most, in seconds."""

    @tool
    async def pay(number: int, ctx: RunContext[Any]) -> str:
        """Pay a bill."""
        await asyncio.sleep(random.random() * slow)
        return f"paid {number}"

    @tool(approve=True)
    async def approved(number: int, ctx: RunContext[Any]) -> str:
        """Pay a bill that somebody approves."""
        await asyncio.sleep(random.random() * slow)
        return f"paid {number}"

    @tool(idempotent=True)
    async def look() -> str:
        """Look."""
        await asyncio.sleep(random.random() * slow)
        return "seen"

    return Agent(Planner(slow), tools=[pay, approved, look], name="clerk", limits=Limits(iterations=30))
