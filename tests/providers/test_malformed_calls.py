"""Malformed tool calls are reported to the model, which is called once more."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from rxloop import Agent, tool
from rxloop.errors import RunError
from rxloop.pipeline.requests import Strategy
from rxloop.protocol.events import ContentCompleteEvent, ToolCompleteEvent, ToolStartEvent
from rxloop.strategies import chain_of_thought, react
from support.http_server import Reply, Server, chat_model, delta, sse, text_reply

REASON = "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details."
GENERATION = '<function=look{"city": "Oslo"}</function>'
ERROR = {"message": REASON, "type": "invalid_request_error", "code": "tool_use_failed", "failed_generation": GENERATION}
WRAPPED: dict[str, Any] = {
    "groq": {"error": ERROR},
    "status in the error": {"error": {**ERROR, "status_code": 400}},
    "no generation": {"error": {**ERROR, "failed_generation": None}},
    "openrouter": {
        "error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": json.dumps({"error": ERROR})}}
    },
    "openrouter, an object": {
        "error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": {"error": ERROR}}}
    },
    "litellm": {
        "error": {
            "message": f"litellm.BadRequestError: GroqException - {json.dumps({'error': ERROR})}",
            "type": None,
            "code": "400",
        }
    },
    "no code": {"error": {"message": f"{REASON} {GENERATION}", "type": "invalid_request_error"}},
    "unreadable output": {"error": {**ERROR, "code": "output_parse_failed"}},
    "a text": {"error": json.dumps({"error": ERROR})},
}


@tool
async def look(city: str) -> str:
    """Look at the weather."""
    return f"rain in {city}"


@asynccontextmanager
async def make_agent(server: Server, **options: Any) -> AsyncGenerator[Agent[Any, Any]]:
    model = chat_model(server, **options)
    yield Agent(model, tools=[look], thoughts=False)
    await model.aclose()


def make_failure(body: Any, way: str) -> Reply:
    if way == "HTTP":
        return Reply([orjson.dumps(body)], status=400, content_type="application/json")
    if way == "whole":
        return Reply([orjson.dumps(body)], content_type="application/json")
    begun = delta(content="Let me see. "), delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "look"}}])
    lines = sse(*begun, done=False)
    return Reply([*lines, b"event: error\ndata: " + orjson.dumps(body) + b"\n\n"])


def make_answer(way: str, text: str) -> Reply:
    if way in ("HTTP", "stream"):
        return text_reply(text)
    body = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    return Reply([orjson.dumps(body)], content_type="application/json")


# P10
@pytest.mark.parametrize("body", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("way", ["HTTP", "stream", "whole"])
async def test_model_is_called_again_with_the_reason_of_a_malformed_call(server: Server, way: str, body: Any) -> None:
    server.answer(make_failure(body, way), make_answer(way, "It rains."))
    async with make_agent(server, stream=way != "whole") as asked:
        events = [event async for event in asked.run("The weather in Oslo?")]
    assert not [event for event in events if isinstance(event, ToolStartEvent)]
    messages = [event for event in events if isinstance(event, ContentCompleteEvent)]
    assert [message.finish_reason for message in messages] == ["tool_calls", "stop"]
    assert [message.tool_calls for message in messages] == [[], []]
    assert messages[0].content == ("Let me see. " if way == "stream" else "")
    assert messages[1].content == "It rains."
    assert len(server.requests) == 2
    last = server.requests[1].body["messages"][-1]
    assert last["role"] == "user"
    assert "See 'failed_generation' for more details" in last["content"]
    if body is not WRAPPED["no generation"]:
        assert "<function=look" in last["content"]


# P10
@pytest.mark.parametrize("way", ["HTTP", "stream", "whole"])
async def test_second_malformed_call_fails_the_run_with_the_reason(server: Server, way: str) -> None:
    server.answer(make_failure(WRAPPED["groq"], way))
    async with make_agent(server, stream=way != "whole") as asked:
        with pytest.raises(RunError, match=r"no usable call .*Failed to call a function"):
            await asked.run("The weather in Oslo?")
    assert len(server.requests) == 2


def make_called(city: str) -> Reply:
    function = {"name": "look", "arguments": orjson.dumps({"city": city}).decode()}
    return Reply(sse(delta(tool_calls=[{"index": 0, "id": city, "function": function}]), delta("tool_calls")))


# P10
async def test_malformed_calls_separated_by_a_valid_call_do_not_fail_the_run(server: Server) -> None:
    failed = make_failure(WRAPPED["groq"], "HTTP")
    server.answer(failed, make_called("Oslo"), failed, make_called("Rome"), text_reply("It rains."))
    async with make_agent(server) as asked:
        assert (await asked.run("The weather?")).content == "It rains."
    assert [message["role"] for message in server.requests[-1].body["messages"]].count("tool") == 2


# P10
async def test_no_call_is_executed_when_one_call_of_a_message_is_malformed(server: Server) -> None:
    ran: list[str] = []

    @tool(read_only=True)
    async def look(city: str) -> str:
        """Look at the weather."""
        ran.append(city)
        return "rain"

    pieces = [
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"city": "Oslo"}'}}]),
        delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "look", "arguments": '{"ci'}}]),
    ]
    error = b"event: error\ndata: " + orjson.dumps(WRAPPED["groq"]) + b"\n\n"
    server.answer(Reply([*sse(*pieces, done=False), error]), text_reply("It rains."))
    model = chat_model(server)
    events = [event async for event in Agent(model, tools=[look], thoughts=False).run("The weather?")]
    await model.aclose()
    assert [event.tool_calls for event in events if isinstance(event, ContentCompleteEvent)] == [[], []]
    assert not [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert len(server.requests[1].body["messages"][-1]["content"]) < 2300


# P10
@pytest.mark.parametrize("strategy", [react(), chain_of_thought()])
async def test_strategy_retries_a_malformed_call(server: Server, strategy: Strategy) -> None:
    server.answer(make_failure(WRAPPED["groq"], "HTTP"), text_reply("It rains."))
    model = chat_model(server)
    make_answer = await Agent(model, tools=[look], thoughts=False, strategy=strategy).run("The weather?")
    await model.aclose()
    assert make_answer.content == "It rains."
    assert "Failed to call a function" in server.requests[1].body["messages"][-1]["content"]


# P10
async def test_other_refusals_are_not_retried(server: Server) -> None:
    error = {"message": "bad", "type": "invalid_request_error", "code": "other"}
    server.answer(make_failure({"error": error}, "HTTP"))
    async with make_agent(server) as asked:
        with pytest.raises(RunError, match="bad"):
            await asked.run("The weather in Oslo?")
    assert len(server.requests) == 1
