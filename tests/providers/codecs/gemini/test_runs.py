"""Tests of agents that use Gemini over HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import orjson
import pytest

from rxloop import Agent
from rxloop.errors import RunError
from rxloop.providers import google_gemini
from support.http_server import Reply, Server
from support.vendors.gemini import THREE, Body, chunk

pytestmark = pytest.mark.usefixtures("transport")
SIGNED: dict[str, Any] = {
    "functionCall": {"name": "add", "args": {"a": 2, "b": 3}, "id": "v1"},
    "thoughtSignature": "c2ln",
}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def streamed(*chunks: Any) -> Reply:
    return Reply([b"data: %b\r\n\r\n" % orjson.dumps(each) for each in chunks])


def as_array(*chunks: Any) -> Reply:
    """Encode events as an array, the format without `alt=sse`."""
    return Reply([b"[" + b"\n,\r\n".join(map(orjson.dumps, chunks)), b"]"], content_type="application/json")


@contextlib.asynccontextmanager
async def asking(server: Server, *, stream: bool = True) -> AsyncGenerator[Agent]:
    model = google_gemini(THREE, base_url=server.base_url, api_key="k", stream=stream)
    async with Agent(model, tools=[add], thoughts=False) as agent:
        yield agent
    await model.aclose()


@pytest.mark.parametrize("framed", [streamed, as_array])
async def test_signature_of_a_call_is_sent_back_with_its_result(server: Server, framed: Any) -> None:
    thought = {"text": "I add.", "thought": True}
    server.answer(framed(chunk(thought), chunk(SIGNED, finish="STOP")), framed(chunk({"text": "5"}, finish="STOP")))
    async with asking(server) as agent:
        result = await agent.run("2 and 3?")
    assert result.output == "5"
    assert [request.headers["x-goog-api-key"] for request in server.requests] == ["k", "k"]
    for request in server.requests:
        Body.model_validate_json(request.raw)
    assert server.requests[1].body["contents"][1:] == [
        {"role": "model", "parts": [SIGNED]},
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "add", "response": {"output": "5"}, "id": "v1"}}],
        },
    ]


async def test_unstreamed_answer_is_read(server: Server) -> None:
    whole = orjson.dumps(chunk({"text": "5"}, finish="STOP"))
    server.answer(Reply([whole], content_type="application/json"))
    async with asking(server, stream=False) as agent:
        assert (await agent.run("2 and 3?")).output == "5"
    assert server.requests[0].path.endswith(f"/models/{THREE}:generateContent")


async def test_blocked_prompt_is_an_empty_answer_with_its_reason(server: Server) -> None:
    server.answer(streamed({"promptFeedback": {"blockReason": "SAFETY"}}))
    async with asking(server) as agent:
        result = await agent.run("?")
    assert (result.content, result.finish_reason) == ("", "content_filter")


async def test_malformed_call_is_requested_once_more(server: Server) -> None:
    malformed = {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "call:add{"}]}
    server.answer(streamed(malformed), streamed(chunk({"text": "5"}, finish="STOP")))
    async with asking(server) as agent:
        assert (await agent.run("2 and 3?")).output == "5"
    server.answer(streamed(malformed))
    async with asking(server) as agent:
        with pytest.raises(RunError):
            await agent.run("2 and 3?")


async def test_error_in_an_array_is_read(server: Server) -> None:
    error = {"error": {"code": 400, "message": "no such field", "status": "INVALID_ARGUMENT"}}
    server.answer(Reply([orjson.dumps([error])], status=400, content_type="application/json"))
    async with asking(server) as agent:
        with pytest.raises(RunError, match="no such field"):
            await agent.run("?")
