"""A fallback from Claude to Gemini and GPT in the middle of a conversation, as a program has it, over real sockets."""

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


def stream(*events: Any, named: bool = False) -> Reply:
    lines = [f"event: {event['type']}\n" if named else "" for event in events]
    return Reply([line.encode() + b"data: " + orjson.dumps(e) + b"\n\n" for line, e in zip(lines, events, strict=True)])


def claude_calls(call_id: str) -> Reply:
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    signed = {"type": "signature_delta", "signature": SIGNED["claude"]}
    thought = block(0, thinking, {"type": "thinking_delta", "thinking": "Hm."}, signed)
    return stream(start(), *thought, *call(1, call_id, "look", '{"at":"sky"}'), *end("tool_use"), named=True)


def gemini(*parts: Any) -> Reply:
    return stream({"candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP"}]})


GEMINI_CALLS = gemini(
    {"functionCall": {"name": "look", "args": {"at": "sea"}}, "thoughtSignature": SIGNED["gemini"]},
    {"functionCall": {"name": "look", "args": {"at": "ice"}}},
)
GEMINI_SAYS = gemini({"text": "All blue.", "thoughtSignature": SIGNED["gemini"]})


def gpt_says() -> Reply:
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
    return stream({"type": "response.completed", "response": response}, named=True)


class Vendors:
    """Three vendors and the agent that asks one after the other."""

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

    def judge(self) -> None:
        """See that none of them would have refused what it was sent."""
        for server, judge, own in (
            (self.claude, check_messages, "claude"),
            (self.google, check_gemini, "gemini"),
            (self.gpt, check_responses, "gpt"),
        ):
            for request in server.requests:
                judge(request.body)
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
        made.judge()


def assert_nothing_shows(events: list[AnyEvent]) -> None:
    shown = b"".join(event.to_json(public=True) for event in events) + repr(events).encode()
    assert not [name for name, sign in SIGNED.items() if sign.encode() in shown]


async def test_the_next_vendor_goes_on_in_the_middle_of_a_run_and_the_first_one_comes_back() -> None:
    async with vendors() as made:
        made.claude.answer(claude_calls("toolu_1"), OVERLOADED, OVERLOADED, claude_calls("toolu_2"), OVERLOADED)
        made.google.answer(GEMINI_CALLS, GEMINI_SAYS, GEMINI_SAYS)
        agent = made.agent()
        run = agent.run("What is blue?", context_id="c")
        events = [event async for event in run]
        assert (await run).output == "All blue."
        assert_nothing_shows(events)
        assert [event.status for event in events if isinstance(event, LLMFailedEvent)] == [529, 529]
        told = [event.message for event in events if isinstance(event, LLMNoticeEvent)]
        # Each once, though Claude is asked in vain before each answer of Gemini's.
        assert len([each for each in told if "the provider state of anthropic" in each]) == 1
        assert len(told) == len(set(told)) == 3, told

        again = agent.run("Sure?", context_id="c")
        more = [event async for event in again]
        assert_nothing_shows(more)
        assert (await again).output == "All blue."
        # What Claude signed comes back to it as it was, although Gemini has spoken since.
        sent = made.claude.requests[3].body["messages"]
        assert sent[1]["content"][0] == {"type": "thinking", "thinking": "Hm.", "signature": SIGNED["claude"]}
        frames = b"".join([frame async for frame in replay(made.log, run.task_id).sse(heartbeat=None)])
        assert not [name for name, sign in SIGNED.items() if sign.encode() in frames]


async def test_a_run_goes_on_with_another_vendor_after_a_crash() -> None:
    async with vendors() as made:
        made.claude.answer(claude_calls("toolu_1"), OVERLOADED)
        made.google.answer(GEMINI_CALLS, GEMINI_SAYS)
        agent = made.agent()
        run = agent.run("What is blue?")
        assert (await run).output == "All blue."
        assert any(SIGNED["gemini"].encode() in event.to_json() for event in await made.log.read(run.task_id))

        made.log = await log_after_crash(made.log, run.task_id, ToolCompleteEvent)
        made.google.answer(OVERLOADED)
        made.gpt.answer(gpt_says())
        agent = made.agent()
        resumed = agent.resume(run.task_id)
        events = [event async for event in resumed]
        assert (await resumed).output == "Blue."
        assert_nothing_shows(events)
        forked = agent.fork(run.task_id, at=1, prompt="Else?")
        assert (await forked).output == "Blue."


@pytest.mark.parametrize("tokens", [60, 150])
async def test_a_compressed_conversation_goes_on_with_any_vendor(tokens: int) -> None:
    async with vendors() as made:
        made.claude.answer(claude_calls("toolu_1"), OVERLOADED, claude_calls("toolu_2"), OVERLOADED)
        made.google.answer(GEMINI_CALLS, OVERLOADED, GEMINI_CALLS, OVERLOADED)
        made.gpt.answer(gpt_says())
        compress = op.compress(SlidingWindowCompressor(max_tokens=tokens))
        agent = made.agent(loop=op.standard(before_model=[compress]))
        events: list[Event] = []
        for _ in range(3):
            run = agent.run("What is blue? " * 10, context_id="c")
            events += [event async for event in run]
            assert (await run).output == "Blue."
        assert any(event.kind == "context-compressed" for event in events)
