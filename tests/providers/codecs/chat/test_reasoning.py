"""Vendor formats for reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop import Agent, AnyEvent, MemoryEventLog, ThoughtStreamEvent, tool
from rxloop.protocol.events import ThoughtDeltaEvent
from rxloop.providers import openai_chat
from support.http_server import Reply, delta, sse, start_server

SIGNED = {"type": "reasoning.text", "index": 0, "text": "hmm", "signature": "sig=="}
ENCRYPTED = {"type": "reasoning.encrypted", "index": 1, "data": "b3BhcXVl"}
SIGNATURE = {"google": {"thought_signature": "c2lnbmF0dXJl"}}
LOOK = {"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}
MISTRAL = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "hmm"}]},
    {"type": "text", "text": "Let me look."},
]


@tool
async def look(n: int) -> str:
    """Looks."""
    return f"{n} cat"


async def run_two_steps(
    preset: str, *deltas: dict[str, Any], stream: bool = True
) -> tuple[dict[str, Any], list[AnyEvent]]:
    """Run two model calls, and return the final assistant message with all events."""
    chunks = [*deltas, delta(tool_calls=[LOOK]), delta("tool_calls")]
    first = Reply(sse(*chunks))
    async with start_server() as server:
        server.answer(first, Reply(sse(delta("stop", content="A cat."))))
        model = openai_chat("m", preset=preset, base_url=server.base_url, api_key="k", stream=stream)
        run = Agent(model, tools=[look], log=MemoryEventLog()).run("What is it?")
        events = [event async for event in run]
        assert (await run).output == "A cat."
        await model.aclose()
    (sent,) = [each for each in server.requests[1].body["messages"] if each["role"] == "assistant"]
    assert sent["tool_calls"][0]["function"] == LOOK["function"]
    return sent, events


def read_thoughts(events: list[AnyEvent]) -> tuple[str, list[str]]:
    """Return the streamed reasoning, and the resulting thoughts."""
    live = "".join(event.delta for event in events if isinstance(event, ThoughtDeltaEvent))
    whole = [event for event in events if isinstance(event, ThoughtStreamEvent)]
    return live, [event.content for event in whole]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("preset", ["zai", "deepseek", "moonshot", "llama_cpp"])
async def test_reasoning_text_is_sent_back_where_required(preset: str, field: str) -> None:
    sent, events = await run_two_steps(preset, delta(**{field: "hm"}), delta(**{field: "m"}))
    assert sent["reasoning_content"] == "hmm"
    assert "reasoning" not in sent
    assert read_thoughts(events) == ("hmm", ["hmm"])


@pytest.mark.parametrize("preset", ["openai", "xai", "groq", "mistral", "together", "ollama", "vllm", "google_chat"])
async def test_reasoning_is_not_sent_back_elsewhere(preset: str) -> None:
    sent, events = await run_two_steps(
        preset, delta(reasoning="hm"), delta(reasoning_content="m", reasoning_details=[SIGNED, ENCRYPTED])
    )
    assert sent.keys() == {"role", "content", "tool_calls"}
    assert read_thoughts(events) == ("hmm", ["hmm"])


@pytest.mark.parametrize("preset", ["openrouter", "vercel"])
async def test_signed_and_encrypted_reasoning_is_sent_back_unchanged(preset: str) -> None:
    unsigned = {**SIGNED, "text": "hm", "signature": None}
    signed = {**SIGNED, "text": "m"}
    sent, events = await run_two_steps(
        preset,
        delta(reasoning="hm", reasoning_details=[unsigned]),
        delta(reasoning="m", reasoning_details=[signed]),
        delta(reasoning_details=[ENCRYPTED]),
    )
    assert sent["reasoning_details"] == [SIGNED, ENCRYPTED]
    assert not sent.keys() & {"reasoning", "reasoning_content"}
    assert read_thoughts(events) == ("hmm", ["hmm"])


@pytest.mark.parametrize(
    "pieces", [("<think>hmm</think>Let me look.",), ("<thi", "nk>h", "mm</th", "ink>Let me look.")]
)
async def test_tagged_thoughts_are_not_sent_back(pieces: tuple[str, ...]) -> None:
    sent, events = await run_two_steps("huggingface", *(delta(content=piece) for piece in pieces))
    assert sent["content"] == "Let me look."
    assert sent.keys() == {"role", "content", "tool_calls"}
    assert read_thoughts(events)[1] == ["hmm"]


async def test_content_list_contains_thought_and_text() -> None:
    sent, events = await run_two_steps("mistral", delta(content=MISTRAL[:1]), delta(content=MISTRAL[1:]))
    assert sent["content"] == "Let me look."
    assert sent.keys() == {"role", "content", "tool_calls"}
    assert read_thoughts(events) == ("hmm", ["hmm"])


@pytest.mark.parametrize("preset", ["google_chat", "openai"])
async def test_thought_signature_is_sent_back_only_to_google(preset: str) -> None:
    signed = delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "look", "arguments": '{"n":'}}])
    rest = {"index": 1, "function": {"arguments": " 2}"}, "extra_content": SIGNATURE}
    sent, _ = await run_two_steps(preset, signed, delta(tool_calls=[rest]))

    expected = SIGNATURE if preset == "google_chat" else None
    assert [call.get("extra_content") for call in sent["tool_calls"]] == [None, expected]


async def test_thought_signature_is_stored_in_the_log() -> None:
    log = MemoryEventLog()
    call = {**LOOK, "extra_content": SIGNATURE}
    async with start_server() as server:
        server.answer(Reply(sse(delta("tool_calls", tool_calls=[call]))), Reply(sse(delta("stop", content="A cat."))))
        model = openai_chat("m", preset="google_chat", base_url=server.base_url, api_key="k")
        agent = Agent(model, tools=[look], log=log)
        await agent.run("What is it?", context_id="c")
        await agent.run("And now?", context_id="c")
        await model.aclose()
    (sent, *_) = [each for each in server.requests[2].body["messages"] if each["role"] == "assistant"]
    assert sent["tool_calls"][0]["extra_content"] == SIGNATURE


async def test_answer_without_streaming_keeps_its_state() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hmm",
        "tool_calls": [{**LOOK, "extra_content": SIGNATURE}],
    }
    done = {"role": "assistant", "content": "A cat."}
    bodies = [{"choices": [{"index": 0, "message": each, "finish_reason": "stop"}]} for each in (message, done)]
    async with start_server() as server:
        server.answer(*(Reply(pieces(body), content_type="application/json") for body in bodies))
        model = openai_chat("m", preset="google_chat", base_url=server.base_url, api_key="k", stream=False)
        run = Agent(model, tools=[look]).run("What is it?")
        events = [event async for event in run]
        await model.aclose()
    sent = server.requests[1].body["messages"][-2]
    assert sent["tool_calls"][0]["extra_content"] == SIGNATURE
    assert read_thoughts(events)[1] == ["hmm"]


def pieces(body: dict[str, Any]) -> list[bytes]:
    """Return a whole answer as one piece."""
    return [sse(body, done=False)[0].removeprefix(b"data: ")]
