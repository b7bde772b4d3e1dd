"""Limits on the number of JSON values and levels in the bodies of all adapters."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict
from starlette.requests import Request
from starlette.types import Message

from rxloop import Agent, MemoryEventLog, Runtime
from rxloop.server import ServerLimits, a2a, agui, api, mcp_server, openai_api, ui_stream
from rxloop.server.a2a.calls import MAX_DEPTH as A2A_DEPTH
from rxloop.server.a2a.parts import remove_data
from rxloop.server.core.bodies import DEFAULT_VALUES, MAX_DEPTH, SDK_VALUES, parse_text, read_bytes
from rxloop.server.core.errors import Refused
from rxloop.testing import ScriptedModel
from support.api_server import serve_app

MARK = '"DATA"'
"""JSON string in a body that is replaced by the test data."""

A2A_MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Hi"}, {"data": "DATA"}]}
AGUI_INPUT = {
    "threadId": "t",
    "runId": "r",
    "state": "DATA",
    "messages": [{"id": "m", "role": "user", "content": "Hi"}],
    "tools": [],
    "context": [],
    "forwardedProps": {},
}
UI_MESSAGE = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "Hi"}], "metadata": {"a": "DATA"}}
MCP_CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ask", "arguments": {"a": "DATA"}}}

BODIES: dict[str, tuple[Callable[..., Any], str, dict[str, Any]]] = {
    "api": (api, "/runs", {"input": "Hi", "metadata": {"a": "DATA"}}),
    "agui": (agui, "/", AGUI_INPUT),
    "ui_stream": (ui_stream, "/api/chat", {"id": "c", "messages": [UI_MESSAGE]}),
    "openai chat": (
        openai_api,
        "/v1/chat/completions",
        {"model": "clerk", "messages": [{"role": "user", "content": "Hi"}], "metadata": {"a": "DATA"}},
    ),
    "openai responses": (
        openai_api,
        "/v1/responses",
        {"model": "clerk", "input": "Hi", "metadata": {"a": "DATA"}},
    ),
    "a2a": (a2a, "/message:send", {"message": A2A_MESSAGE}),
    "a2a rpc": (
        a2a,
        "/rpc",
        {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": A2A_MESSAGE}},
    ),
    "mcp": (mcp_server, "/mcp", MCP_CALL),
}


async def post(name: str, data: str, **options: Any) -> tuple[httpx.Response, int]:
    """Return the response to a body that contains the data, and the number of started runs."""
    make, path, body = BODIES[name]
    runtime = Runtime({"clerk": Agent(ScriptedModel("Hello."), name="clerk")}, log=MemoryEventLog(), grace=0.2)
    async with runtime:
        app = make(runtime, **options)
        async with serve_app(app) as url, httpx.AsyncClient(base_url=url, timeout=20) as http:
            headers = {
                "content-type": "application/json",
                "accept": "application/json, text/event-stream",
                "a2a-version": "1.0",
            }
            content = orjson.dumps(body).decode().replace(MARK, data)
            response = await http.post(path, content=content, headers=headers)
            return response, len(await runtime.log.list_runs())


@pytest.mark.parametrize("name", BODIES)
async def test_body_with_too_many_values_is_refused_before_it_is_parsed(name: str) -> None:
    response, runs = await post(name, f"[{'1,' * 400_000}1]")
    # AG-UI reports refusals as events.
    assert (response.status_code, runs) == (200 if name == "agui" else 413, 0), response.text
    assert f"the body must have at most {DEFAULT_VALUES} JSON values" in response.text


@pytest.mark.parametrize("name", BODIES)
async def test_bodies_for_sdks_have_a_lower_limit_of_values(name: str) -> None:
    response, runs = await post(name, f"[{'1,' * (SDK_VALUES + 100)}1]")
    is_lower = name.startswith(("a2a", "mcp"))
    assert (response.status_code == 413) == is_lower, response.text
    assert (f"the body must have at most {SDK_VALUES} JSON values" in response.text) == is_lower
    assert not (is_lower and runs)


@pytest.mark.parametrize("text", [b"", b'"' + b"x" * 2**16 + b'",'], ids=["numbers", "text and numbers"])
async def test_rest_of_a_body_with_too_many_values_is_read_but_not_stored(text: bytes) -> None:
    chunk = b"1," * 2**15
    chunks = [text, *[chunk] * 14]
    messages: list[Message] = [{"type": "http.request", "body": each, "more_body": True} for each in chunks]
    messages[-1]["more_body"] = False
    headers = [(b"content-type", b"application/json")]

    async def receive() -> Message:
        return messages.pop(0)

    tracemalloc.start()
    try:
        with pytest.raises(Refused, match="20000 JSON values"):
            await read_bytes(Request({"type": "http", "method": "POST", "headers": headers}, receive), ServerLimits())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert messages == []
    # The beginning is copied several times to count its values.
    assert peak < 11 * len(chunk)


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("depth", [MAX_DEPTH, 100, 1_500])
async def test_body_that_is_nested_too_deeply_is_refused(name: str, depth: int) -> None:
    response, runs = await post(name, "[" * depth + "]" * depth)
    assert runs == 0
    assert response.status_code == (200 if name in ("agui", "a2a rpc") else 400), response.text
    limit = A2A_DEPTH if name.startswith("a2a") else MAX_DEPTH
    assert f"the body must have at most {limit} nested JSON levels" in response.text


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("depth", [A2A_DEPTH - 8, MAX_DEPTH - 10, 98, 99, 100, 101])
async def test_deep_body_does_not_cause_an_internal_error(
    name: str, depth: int, caplog: pytest.LogCaptureFixture
) -> None:
    response, _ = await post(name, f'{"[" * depth}"PLANTED"{"]" * depth}')
    assert response.status_code < 500
    assert "PLANTED" not in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("name", ["api", "a2a", "openai responses"])
async def test_number_of_values_is_configurable(name: str) -> None:
    response, runs = await post(name, "[1,2,3,4,5,6,7,8,9,10]", limits=ServerLimits(values=10))
    assert (response.status_code, runs) == (413, 0), response.text
    assert "the body must have at most 10 JSON values" in response.text


async def test_commas_and_brackets_in_text_do_not_count() -> None:
    text = "[1, 2, 3], " * 8_000
    runtime = Runtime({"clerk": Agent(ScriptedModel("Hello."), name="clerk")}, log=MemoryEventLog(), grace=0.2)
    async with runtime, serve_app(api(runtime)) as url, httpx.AsyncClient(base_url=url, timeout=20) as http:
        response = await http.post("/runs?wait=10", json={"input": text})
    assert response.status_code == 200, response.text


async def test_required_fields_of_a2a_are_checked_without_free_form_data() -> None:
    message = {**A2A_MESSAGE, "parts": [{"data": {"a": [1] * 50}, "metadata": {"b": 1}}], "metadata": {"c": 1}}
    params = ParseDict({"message": message, "metadata": {"d": 1}}, pb.SendMessageRequest())
    small = remove_data(params)
    assert params.message.parts[0].data.struct_value.fields["a"].list_value.values
    assert small.ByteSize() < 30
    assert [part.WhichOneof("content") for part in small.message.parts] == ["data"]
    assert not remove_data(pb.SendMessageRequest()).HasField("message")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ('{"a": [1]}', {"a": [1]}),
        ("seven", "seven"),
        ("\ud800", "\ud800"),
        ("[" * 65 + "]" * 65, "[" * 65 + "]" * 65),
        (f"[{'1,' * 20_000}1]", f"[{'1,' * 20_000}1]"),
    ],
    ids=["number", "object", "text", "half a character", "deep", "many values"],
)
def test_text_is_parsed_only_within_the_limits(text: str, value: object) -> None:
    assert parse_text(text) == value
