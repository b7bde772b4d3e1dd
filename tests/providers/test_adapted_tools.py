"""Foreign tools at each vendor, over HTTP: what is sent fits, calls come back as calls of the tool as it is."""

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


class Foreign:
    """A tool of somebody else, whose schema and description suit no vendor."""

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


def whole(body: Any) -> Reply:
    return Reply([orjson.dumps(body)], content_type="application/json")


def call_of(api: str, name: str, arguments: dict[str, Any]) -> Reply:
    text = orjson.dumps(arguments).decode()
    if api == "chat":
        call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": text}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return whole({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    if api == "msgs":
        call = {"type": "tool_use", "id": "c1", "name": name, "input": arguments}
        return whole({"type": "message", "role": "assistant", "content": [call], "stop_reason": "tool_use"})
    if api == "gen":
        part = {"functionCall": {"name": name, "args": arguments}}
        content = {"role": "model", "parts": [part]}
        return whole({"candidates": [{"content": content, "finishReason": "STOP"}]})
    call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": name, "arguments": text}
    return whole({"id": "r1", "status": "completed", "output": [{**call, "status": "completed"}]})


def text_of(api: str) -> Reply:
    if api == "chat":
        return whole({"choices": [{"index": 0, "message": {"content": "done"}, "finish_reason": "stop"}]})
    if api == "msgs":
        return whole({"type": "message", "content": [{"type": "text", "text": "done"}], "stop_reason": "end_turn"})
    if api == "gen":
        content = {"role": "model", "parts": [{"text": "done"}]}
        return whole({"candidates": [{"content": content, "finishReason": "STOP"}]})
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}
    return whole({"id": "r2", "status": "completed", "output": [item]})


def judge(api: str, server: Server) -> None:
    for request in server.requests:
        judged = partial(check_gemini, has_signatures=False) if api == "gen" else CHECKS[api]
        judged(request.body)


async def asked(api: str, server: Server, tool: Foreign, **options: Any) -> list[Event]:
    model = MAKE[api](MODELS[api], base_url=server.base_url, api_key="k", stream=False)
    try:
        async with Agent(model, tools=[tool], **options).run("Find Ada.") as run:
            return [event async for event in run.events]
    finally:
        await model.aclose()


# P3 P28
@pytest.mark.parametrize("api", MAKE)
async def test_a_foreign_tool_is_called_with_its_own_names(api: str) -> None:
    tool = Foreign()
    async with start_server() as server:
        server.answer(call_of(api, "find", SENT), text_of(api))
        events = await asked(api, server, tool)
        judge(api, server)
    assert tool.called == [{"user name": "Ada"}]
    deltas = [event.fragment for event in events if isinstance(event, ToolCallDeltaEvent)]
    assert [orjson.loads(text) for text in deltas] == [{"user name": "Ada"}]
    notices = [event for event in events if isinstance(event, LLMNoticeEvent)]
    assert [notice.code for notice in notices] == ["left_out"]  # Once, although there are two requests.
    assert "anyOf" in notices[0].message
    assert "user_name" in notices[0].message


# P3
@pytest.mark.parametrize("api", MAKE)
async def test_a_tool_whose_name_a_vendor_refuses_is_called_by_another_one(api: str) -> None:
    tool = Foreign(name="3d-find")
    name = "_3d-find" if api == "gen" else "3d-find"
    async with start_server() as server:
        server.answer(call_of(api, name, SENT), text_of(api))
        events = await asked(api, server, tool)
        judge(api, server)
    assert tool.called == [{"user name": "Ada"}]
    assert {event.name for event in events if isinstance(event, ToolCallDeltaEvent)} == {"3d-find"}


# P14
@pytest.mark.parametrize("api", MAKE)
async def test_no_word_of_a_long_description_is_lost(api: str) -> None:
    description = " ".join(f"Rule {n} is to be kept." for n in range(100))
    tool = Foreign(description)
    async with start_server() as server:
        server.answer(text_of(api))
        await asked(api, server, tool, instructions="Be brief.")
        judge(api, server)
        sent = server.requests[0].raw.decode()
    assert all(f"Rule {n} is to be kept." in sent for n in range(100))
    assert "Be brief." in sent
