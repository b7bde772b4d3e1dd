"""Agents for servers and workers that are killed. Their answers depend only on the messages."""

from __future__ import annotations

import asyncio

from reactivex import Observable

from rxloop import Agent, ModelRequest, RunContext, ToolCall, tool
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
)
from rxloop.providers.script import Turn
from rxloop.stream.sources import Push, from_task
from rxloop.testing import ScriptedModel, call, frames


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@tool(idempotent=True)
async def look(ctx: RunContext[None], where: str = "here") -> str:
    """Look for a while."""
    for number in range(20):
        ctx.progress(f"{number}")
        await asyncio.sleep(0.1)
    return "seen"


def _answer(request: ModelRequest) -> Turn:
    last = request.messages[-1]
    prompt = next(message.text for message in reversed(request.messages) if message.role == "user")
    if last.role == "tool" and "tell" not in prompt:
        return frames(f"-It is -{last.text}-.|", 0.02)
    if "for ever" in last.text:
        # Followers in other processes receive no earlier deltas, so the stream must continue until they are connected.
        return frames("-and on " * 1_000, 0.05)
    if "Talk on" in last.text:
        return frames("-and " * 1_000 + "|", 0.05)
    if "Pay" in last.text:
        return call("pay", amount=5)
    if "Look" in last.text and last.role == "user":
        return call("look")
    return frames("".join(f"-word{number} " for number in range(40)) + "|", 0.05)


async def _think_and_look(push: Push[Event]) -> None:
    """Stream a thought and a tool call in pieces."""
    thoughts = [f"thought{number} " for number in range(10)]
    for index, each in enumerate(thoughts):
        push(ThoughtDeltaEvent(delta=each, index=index))
        await asyncio.sleep(0.1)
    thought = "".join(thoughts)
    push(ThoughtStreamEvent(thought_id="thought", content=thought, source="reasoning"))
    pieces = ['{"where": "', *(f"place{number} " for number in range(20)), '"}']
    for each in pieces:
        push(ToolCallDeltaEvent(index=0, tool_call_id="call", name="look", fragment=each))
        await asyncio.sleep(0.1)
    tool_call = ToolCall.parse("call", "look", "".join(pieces))
    push(ContentCompleteEvent(content="", reasoning=thought, tool_calls=[tool_call], finish_reason="tool_calls"))


class _Model(ScriptedModel):
    def call(self, request: ModelRequest) -> Observable[Event]:
        """Answer a request."""
        return from_task(_think_and_look) if "Think" in request.messages[-1].text else super().call(request)


def agents() -> dict[str, Agent[None, str]]:
    """Create this process's agents."""
    return {"clerk": Agent(_Model(*[_answer] * 10_000), tools=[pay, look], thoughts=False)}
