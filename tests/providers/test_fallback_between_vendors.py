"""Fallback from Claude to Gemini and GPT in the middle of a conversation, over real sockets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import orjson
import pytest

from rxloop import Agent, AnyEvent, Event, MemoryEventLog, SlidingWindowCompressor, op, replay, tool
from rxloop.protocol.events import LLMFailedEvent, LLMNoticeEvent, ToolCompleteEvent
from rxloop.providers import Fallback, Retry, anthropic_messages, fallback, google_gemini, openai_responses
from support.bank import log_after_crash
from support.http_server import Reply, Server, start_server
from support.vendors.claude import block, call, end, start
from support.vendors.vendor_rules import check_gemini, check_messages, check_responses

SIGNED = {"claude": "c2lnbmVkQ2xhdWRl", "gemini": "c2lnbmVkR2VtaW5p", "gpt": "c2lnbmVkR1BU"}
OVERLOADED = Reply(
    [b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'],
    529,
    content_type="application/json",
)


@tool
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is blue"


def encode_stream(*events: Any, named: bool = False) -> Reply:
    lines = [f"event: {event['type']}\n" if named else "" for event in events]
    return Reply([line.encode() + b"data: " + orjson.dumps(e) + b"\n\n" for line, e in zip(lines, events, strict=True)])


def stream_claude(call_id: str) -> Reply:
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    signed = {"type": "signature_delta", "signature": SIGNED["claude"]}
    thought = block(0, thinking, {"type": "thinking_delta", "thinking": "Hm."}, signed)
    return encode_stream(start(), *thought, *call(1, call_id, "look", '{"at":"sky"}'), *end("tool_use"), named=True)


def stream_gemini(*parts: Any) -> Reply:
    return encode_stream({"candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP"}]})


GEMINI_CALLS = stream_gemini(
    {"functionCall": {"name": "look", "args": {"at": "sea"}}, "thoughtSignature": SIGNED["gemini"]},
    {"functionCall": {"name": "look", "args": {"at": "ice"}}},
)
GEMINI_SAYS = stream_gemini({"text": "All blue.", "thoughtSignature": SIGNED["gemini"]})


def stream_gpt_text() -> Reply:
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": SIGNED["gpt"]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Blue.", "annotations": []}],
        },
    ]
    response = {"id": "resp_1", "status": "completed", "output": items}
    return encode_stream({"type": "response.completed", "response": response}, named=True)


class Vendors:
    """Three vendor servers, and an agent with a fallback chain."""

    def __init__(self, claude: Server, google: Server, gpt: Server) -> None:
        self.claude, self.google, self.gpt = claude, google, gpt
        self.log = MemoryEventLog()
        self.models: list[Fallback] = []

    def agent(self, **options: Any) -> Agent[Any, str]:
        once: Any = {"retry": Retry(attempts=1), "api_key": "a-key"}
        models = (
            anthropic_messages("claude-sonnet-4-5", base_url=self.claude.base_url, **once),
            google_gemini("gemini-3-flash-preview", base_url=self.google.base_url, **once),
            openai_responses("gpt-5", base_url=self.gpt.base_url, **once),
        )
        self.models.append(fallback(*models))
        given: Any = {"tools": [look], "log": self.log, **options}
        return Agent(self.models[-1], **given)

    def check_requests(self) -> None:
        """Validate all requests by the rules of their vendor."""
        for server, check_requests, own in (
            (self.claude, check_messages, "claude"),
            (self.google, check_gemini, "gemini"),
            (self.gpt, check_responses, "gpt"),
        ):
            for request in server.requests:
                check_requests(request.body)
                assert not any(sign.encode() in request.raw for name, sign in SIGNED.items() if name != own)


@contextlib.asynccontextmanager
async def vendors() -> AsyncGenerator[Vendors]:
    async with start_server() as claude, start_server() as google, start_server() as gpt:
        made = Vendors(claude, google, gpt)
        try:
            yield made
        finally:
            for model in made.models:
                await model.aclose()
        made.check_requests()


def assert_no_signature_is_visible(events: list[AnyEvent]) -> None:
    shown = b"".join(event.to_json(public=True) for event in events) + repr(events).encode()
    assert not [name for name, sign in SIGNED.items() if sign.encode() in shown]


async def test_run_continues_with_the_next_vendor_and_returns_to_the_first() -> None:
    async with vendors() as made:
        made.claude.answer(stream_claude("toolu_1"), OVERLOADED, OVERLOADED, stream_claude("toolu_2"), OVERLOADED)
        made.google.answer(GEMINI_CALLS, GEMINI_SAYS, GEMINI_SAYS)
        agent = made.agent()
        run = agent.run("What is blue?", context_id="c")
        events = [event async for event in run]
        assert (await run).output == "All blue."
        assert_no_signature_is_visible(events)
        assert [event.status for event in events if isinstance(event, LLMFailedEvent)] == [529, 529]
        told = [event.message for event in events if isinstance(event, LLMNoticeEvent)]
        # Once per vendor, although Claude fails before each answer of Gemini.
        assert len([each for each in told if "the provider state of anthropic" in each]) == 1
        assert len(told) == len(set(told)) == 3, told

        again = agent.run("Sure?", context_id="c")
        more = [event async for event in again]
        assert_no_signature_is_visible(more)
        assert (await again).output == "All blue."
        # Claude gets its signatures back unchanged, despite later Gemini answers.
        sent = made.claude.requests[3].body["messages"]
        assert sent[1]["content"][0] == {"type": "thinking", "thinking": "Hm.", "signature": SIGNED["claude"]}
        frames = b"".join([frame async for frame in replay(made.log, run.task_id).sse(heartbeat=None)])
        assert not [name for name, sign in SIGNED.items() if sign.encode() in frames]


async def test_run_continues_with_another_vendor_after_a_crash() -> None:
    async with vendors() as made:
        made.claude.answer(stream_claude("toolu_1"), OVERLOADED)
        made.google.answer(GEMINI_CALLS, GEMINI_SAYS)
        agent = made.agent()
        run = agent.run("What is blue?")
        assert (await run).output == "All blue."
        assert any(SIGNED["gemini"].encode() in event.to_json() for event in await made.log.read(run.task_id))

        made.log = await log_after_crash(made.log, run.task_id, ToolCompleteEvent)
        made.google.answer(OVERLOADED)
        made.gpt.answer(stream_gpt_text())
        agent = made.agent()
        resumed = agent.resume(run.task_id)
        events = [event async for event in resumed]
        assert (await resumed).output == "Blue."
        assert_no_signature_is_visible(events)
        forked = agent.fork(run.task_id, at=1, prompt="Else?")
        assert (await forked).output == "Blue."


@pytest.mark.parametrize("tokens", [60, 150])
async def test_compressed_conversation_continues_with_any_vendor(tokens: int) -> None:
    async with vendors() as made:
        made.claude.answer(stream_claude("toolu_1"), OVERLOADED, stream_claude("toolu_2"), OVERLOADED)
        made.google.answer(GEMINI_CALLS, OVERLOADED, GEMINI_CALLS, OVERLOADED)
        made.gpt.answer(stream_gpt_text())
        compress = op.compress(SlidingWindowCompressor(max_tokens=tokens))
        agent = made.agent(loop=op.standard(before_model=[compress]))
        events: list[Event] = []
        for _ in range(3):
            run = agent.run("What is blue? " * 10, context_id="c")
            events += [event async for event in run]
            assert (await run).output == "Blue."
        assert any(event.kind == "context-compressed" for event in events)
