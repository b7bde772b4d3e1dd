"""Cached parts of encoded requests, and their memory."""

import tracemalloc
from typing import Any

import orjson
import pytest

from rxloop import Message, ModelSettings
from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.providers import PRESETS
from rxloop.providers.codecs.chat.request import RequestEncoder
from rxloop.providers.codecs.fields import dumps
from support.vendors.codecs import ignore_notice

MESSAGES = 200


def test_cached_form_does_not_retain_the_encoding_buffer() -> None:
    encoder = RequestEncoder("m", PRESETS["openai"], stream=True)
    encoder.encode(ModelRequest(messages=[Message.user("first")]), ignore_notice)
    messages = [Message.user(f"Message {number}.") for number in range(MESSAGES)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        encoder.encode(ModelRequest(messages=messages), ignore_notice)
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    # A bytes object within a tuple.
    assert kept < MESSAGES * 400


def test_settings_and_tools_are_encoded_again_only_if_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Any] = []

    def record(value: Any) -> bytes:
        encoded.append(value)
        return dumps(value)

    monkeypatch.setattr("rxloop.providers.codecs.chat.request.dumps", record)
    encoder = RequestEncoder("m", PRESETS["openai"], stream=True)
    first = ModelRequest(messages=[Message.user("Hi")], tools=(ToolDefinition("add", "Add", {"type": "object"}),))
    schema = {"type": "object", "properties": {}}

    def encode(request: ModelRequest) -> dict[str, Any]:
        encoded.clear()
        return orjson.loads(encoder.encode(request, ignore_notice))

    body = encode(first)
    assert [tool["function"]["name"] for tool in body["tools"]] == ["add"]
    assert encode(first.replace(messages=first.messages, step="2")) == body
    assert encoded == []
    assert encode(first.replace(settings=ModelSettings(temperature=0.5))) == {**body, "temperature": 0.5}
    assert encode(first.replace(tools=())) == {name: value for name, value in body.items() if name != "tools"}
    assert encode(first.replace(response_schema=schema))["response_format"]["type"] == "json_schema"
    assert encode(first) == body
