"""Foreign tool schemas at each vendor, over HTTP."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson
import pytest

from rxloop import Agent
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import Event, LLMNoticeEvent, ToolCallDeltaEvent
from rxloop.providers import anthropic_messages, google_gemini, openai_chat, openai_responses
from support.http_server import Reply, Server, start_server
from support.vendors.vendor_rules import CHECKS, check_gemini

MAKE = {"chat": openai_chat, "msgs": anthropic_messages, "gen": google_gemini, "resp": openai_responses}
MODELS = {"chat": "gpt-4o", "msgs": "claude-sonnet-4-5", "gen": "gemini-2.5-flash", "resp": "gpt-4o"}
FOREIGN: dict[str, Any] = {
    "anyOf": [
        {"type": "object", "properties": {"user name": {"type": "string"}}, "required": ["user name"]},
        {"type": "object", "properties": {"$id": {"type": "array"}}, "required": None},
    ]
}
SENT = {"user_name": "Ada"}


class ForeignTool:
    """Tool whose schema and description break vendor rules."""

    timeout = None
    idempotent = True
    approve = False

    def __init__(self, description: str = "", name: str = "find") -> None:
        self.definition = ToolDefinition(name, description, FOREIGN, strict=True)
        self.called: list[dict[str, Any]] = []

    def enabled(self, ctx: RunContext[Any]) -> bool:
        return True

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> str:
        self.called.append(arguments)
        return "found"


def make_reply(body: Any) -> Reply:
    return Reply([orjson.dumps(body)], content_type="application/json")


def make_call_reply(api: str, name: str, arguments: dict[str, Any]) -> Reply:
    text = orjson.dumps(arguments).decode()
    if api == "chat":
        call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": text}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return make_reply({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    if api == "msgs":
        call = {"type": "tool_use", "id": "c1", "name": name, "input": arguments}
        return make_reply({"type": "message", "role": "assistant", "content": [call], "stop_reason": "tool_use"})
    if api == "gen":
        part = {"functionCall": {"name": name, "args": arguments}}
        content = {"role": "model", "parts": [part]}
        return make_reply({"candidates": [{"content": content, "finishReason": "STOP"}]})
    call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": name, "arguments": text}
    return make_reply({"id": "r1", "status": "completed", "output": [{**call, "status": "completed"}]})


def make_text_reply(api: str) -> Reply:
    if api == "chat":
        return make_reply({"choices": [{"index": 0, "message": {"content": "done"}, "finish_reason": "stop"}]})
    if api == "msgs":
        return make_reply({"type": "message", "content": [{"type": "text", "text": "done"}], "stop_reason": "end_turn"})
    if api == "gen":
        content = {"role": "model", "parts": [{"text": "done"}]}
        return make_reply({"candidates": [{"content": content, "finishReason": "STOP"}]})
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}
    return make_reply({"id": "r2", "status": "completed", "output": [item]})


def check_requests(api: str, server: Server) -> None:
    for request in server.requests:
        judged = partial(check_gemini, has_signatures=False) if api == "gen" else CHECKS[api]
        judged(request.body)


async def run_agent(api: str, server: Server, tool: ForeignTool, **options: Any) -> list[Event]:
    model = MAKE[api](MODELS[api], base_url=server.base_url, api_key="k", stream=False)
    try:
        async with Agent(model, tools=[tool], **options).run("Find Ada.") as run:
            return [event async for event in run.events]
    finally:
        await model.aclose()


# P3 P28
@pytest.mark.parametrize("api", MAKE)
async def test_foreign_tool_is_called_with_its_own_argument_names(api: str) -> None:
    tool = ForeignTool()
    async with start_server() as server:
        server.answer(make_call_reply(api, "find", SENT), make_text_reply(api))
        events = await run_agent(api, server, tool)
        check_requests(api, server)
    assert tool.called == [{"user name": "Ada"}]
    deltas = [event.fragment for event in events if isinstance(event, ToolCallDeltaEvent)]
    assert [orjson.loads(text) for text in deltas] == [{"user name": "Ada"}]
    notices = [event for event in events if isinstance(event, LLMNoticeEvent)]
    assert [notice.code for notice in notices] == ["left_out"]  # Reported once, despite two requests.
    assert "anyOf" in notices[0].message
    assert "user_name" in notices[0].message


# P3
@pytest.mark.parametrize("api", MAKE)
async def test_tool_is_called_when_the_vendor_requires_another_name(api: str) -> None:
    tool = ForeignTool(name="3d-find")
    name = "_3d-find" if api == "gen" else "3d-find"
    async with start_server() as server:
        server.answer(make_call_reply(api, name, SENT), make_text_reply(api))
        events = await run_agent(api, server, tool)
        check_requests(api, server)
    assert tool.called == [{"user name": "Ada"}]
    assert {event.name for event in events if isinstance(event, ToolCallDeltaEvent)} == {"3d-find"}


# P14
@pytest.mark.parametrize("api", MAKE)
async def test_long_description_is_sent_completely(api: str) -> None:
    description = " ".join(f"Rule {n} is to be kept." for n in range(100))
    tool = ForeignTool(description)
    async with start_server() as server:
        server.answer(make_text_reply(api))
        await run_agent(api, server, tool, instructions="Be brief.")
        check_requests(api, server)
        sent = server.requests[0].raw.decode()
    assert all(f"Rule {n} is to be kept." in sent for n in range(100))
    assert "Be brief." in sent
