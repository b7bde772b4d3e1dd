"""Client and server of OpenAI Responses together, over real sockets."""

from __future__ import annotations

import pytest

from rxloop import Agent, Result, tool
from rxloop.protocol.events import ContentDeltaEvent, ThoughtStreamEvent, UsageEvent
from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart, Usage
from rxloop.providers import openai_responses
from rxloop.testing import ScriptedModel, call, frames, turn
from support.clients.openai import serve_openai


@tool
async def weather(city: str) -> str:
    """Tell the weather."""
    return f"7 C in {city}"


def clerk() -> Agent:
    first = turn("Let me see.", calls=[call("weather", city="Oslo")], reasoning="Hm.", usage=Usage(input_tokens=10))
    second = turn(frames("-It -is -7 C.|", 0.001), usage=Usage(input_tokens=20, output_tokens=4, cached_tokens=5))
    return Agent(ScriptedModel(first, second), tools=[weather], thoughts=False, name="clerk")


@pytest.mark.parametrize("stream", [True, False])
async def test_agent_answers_another_agent(stream: bool) -> None:
    async with serve_openai(clerk()) as served:
        model = openai_responses("clerk", base_url=f"{served.url}/v1", api_key="ann-key", stream=stream)
        async with Agent(model).run("What is the weather in Oslo?") as run:
            events = [event async for event in run.events]
            result: Result[str] = await run
        await model.aclose()
    assert result.output == "Let me see.It is 7 C."
    assert "".join(event.delta for event in events if isinstance(event, ContentDeltaEvent)) == result.output
    assert [event.content for event in events if isinstance(event, ThoughtStreamEvent)] == ["Hm."]
    [usage] = [event.usage for event in events if isinstance(event, UsageEvent)]
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (30, 4, 5)


async def test_conversation_continues_with_its_history() -> None:
    inner = ScriptedModel(turn("One.", reasoning="Hm."), turn("Two."))
    async with serve_openai(Agent(inner, name="clerk")) as served:
        model = openai_responses("clerk", base_url=f"{served.url}/v1", api_key="ann-key")
        agent = Agent(model, thoughts=False)
        first = await agent.run([Message.user([TextPart(text="Go"), ImagePart(data=b"x", media_type="image/png")])])
        second = await agent.run(
            [*first.messages, Message.user([TextPart(text="on"), FilePart(data=b"%PDF", media_type="application/pdf")])]
        )
        await model.aclose()
    assert (first.output, second.output) == ("One.", "Two.")
    assert [message.role for message in inner.requests[1].messages] == ["user", "assistant", "user"]
    assert [message.text for message in inner.requests[1].messages] == ["Go", "One.", "on"]
