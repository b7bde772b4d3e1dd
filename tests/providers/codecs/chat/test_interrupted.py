"""Interrupted answers. The connection is closed, and partial signed content is not sent back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import Agent, AnyEvent, ContentDeltaEvent, ThoughtDeltaEvent, ToolCallDeltaEvent, ToolStartEvent, tool
from rxloop.providers import openai_chat
from support.http_server import Reply, active_connections, delta, sse, start_server

SIGNED = {"type": "reasoning.text", "index": 0, "text": "hm", "signature": None}
ENCRYPTED = {"type": "reasoning.encrypted", "index": 1, "data": "b3BhcXVl"}
CALL = {
    "index": 0,
    "id": "a",
    "type": "function",
    "function": {"name": "look", "arguments": '{"n": '},
    "extra_content": {"google": {"thought_signature": "c2lnbmF0dXJl"}},
}


@tool
async def look(n: int) -> str:
    """Looks."""
    return f"{n} cat"


async def interrupt(
    kind: type[AnyEvent], preset: str, *deltas: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[AnyEvent]]:
    """Interrupt an answer, and return the messages of the next request."""
    async with start_server() as server:
        server.answer(Reply(sse(*deltas, done=False), end="hang"), Reply(sse(delta("stop", content="A cat."))))
        model = openai_chat("m", preset=preset, base_url=server.base_url, api_key="k")
        run = Agent(model, tools=[look]).run("What is it?")
        events: list[AnyEvent] = []
        async for event in run:
            events.append(event)
            if isinstance(event, kind) and len(server.requests) == 1:
                # Data already sent by the server is received first.
                await asyncio.sleep(0.05)
                run.send("In short.", interrupt=True)
        assert (await run).output == "A cat."
        assert active_connections(model) == []
        await model.aclose()
    return server.requests[1].body["messages"], events


@pytest.mark.parametrize("preset", ["openrouter", "vercel"])
async def test_partial_signed_reasoning_is_omitted(preset: str) -> None:
    sent, events = await interrupt(
        ContentDeltaEvent,
        preset,
        delta(reasoning="hm", reasoning_details=[SIGNED]),
        delta(reasoning_details=[ENCRYPTED]),
        delta(content="It is"),
    )

    assert sent[-2:] == [{"role": "assistant", "content": "It is"}, {"role": "user", "content": "In short."}]
    thoughts = [event for event in events if event.kind == "thought-stream"]
    assert [(thought.content, thought.incomplete) for thought in thoughts] == [("hm", True)]


@pytest.mark.parametrize("preset", ["zai", "deepseek"])
async def test_partial_plain_reasoning_is_omitted(preset: str) -> None:
    sent, _ = await interrupt(ContentDeltaEvent, preset, delta(reasoning_content="hm"), delta(content="It is"))

    assert sent[-2] == {"role": "assistant", "content": "It is"}


async def test_partial_signed_call_is_neither_executed_nor_sent_back() -> None:
    sent, events = await interrupt(
        ToolCallDeltaEvent, "google_chat", delta(content="I look."), delta(tool_calls=[CALL])
    )

    assert sent[-2] == {"role": "assistant", "content": "I look."}
    assert not any(isinstance(event, ToolStartEvent) for event in events)


async def test_answer_with_only_thoughts_is_not_sent_back() -> None:
    sent, _ = await interrupt(ThoughtDeltaEvent, "openrouter", delta(reasoning="hm", reasoning_details=[SIGNED]))

    assert [message["role"] for message in sent if message["role"] != "system"] == ["user", "user"]
