from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart, ToolCall
from rxloop.protocol.settings import ModelSettings
from rxloop.providers import PRESETS, Preset
from rxloop.providers.codecs.chat import request as _encode
from rxloop.providers.codecs.chat.request import RequestEncoder
from support.vendors.codecs import ignore_notice

OPENAI = PRESETS["openai"]
LOOK = ToolDefinition("look", "Looks.", {"type": "object", "properties": {}}, strict=True)


def encode_body(request: ModelRequest, preset: Preset = OPENAI, *, stream: bool = True) -> dict[str, Any]:
    return orjson.loads(RequestEncoder("m", preset, stream).encode(request, ignore_notice))


CALLED = Message.assistant("Let me see.", tool_calls=[ToolCall(id="a", name="look")])


def encode_message(message: Message, preset: Preset = OPENAI) -> dict[str, Any]:
    if message.role == "tool":
        return encode_body(ModelRequest(messages=[CALLED, message]), preset)["messages"][1]
    return encode_body(ModelRequest(messages=[message]), preset)["messages"][0]


def encode_settings(preset: Preset = OPENAI, tools: tuple[ToolDefinition, ...] = (), **settings: Any) -> dict[str, Any]:
    request = ModelRequest(messages=[Message.user("hi")], tools=tools, settings=ModelSettings(**settings))
    return encode_body(request, preset)


def test_layers_surround_the_history() -> None:
    request = ModelRequest(
        system=(Message.system("Be brief."),), messages=[Message.user("Hi")], tail=(Message.user("Files: none"),)
    )
    assert [m["content"] for m in encode_body(request)["messages"]] == ["Be brief.", "Hi", "Files: none"]


def test_messages_and_tools_are_encoded_once() -> None:
    history = [Message.user(f"message {n}") for n in range(50)]
    encoder = RequestEncoder("m", OPENAI, stream=True)
    encoder.encode(ModelRequest(messages=history, tools=(LOOK,)), ignore_notice)
    with patch.object(_encode, "dumps", wraps=_encode.dumps) as dumps:
        raw = encoder.encode(ModelRequest(messages=[*history, Message.user("new")], tools=(LOOK,)), ignore_notice)
    assert dumps.call_count == 2  # Settings and new message.
    assert [m["content"] for m in orjson.loads(raw)["messages"]][-2:] == ["message 49", "new"]
    assert orjson.loads(raw)["tools"][0]["function"]["name"] == "look"


def test_message_is_encoded_again_for_an_endpoint_with_another_form() -> None:
    message = Message(role="assistant", content="Hi", reasoning="hmm")
    assert "reasoning_content" not in encode_message(message, OPENAI)
    assert encode_message(message, PRESETS["zai"])["reasoning_content"] == "hmm"
    assert "reasoning_content" not in encode_message(message, OPENAI)


def test_message_with_calls_is_one_message() -> None:
    call = ToolCall.parse("a", "look", '{"city":  "Oslo"}')
    assert encode_message(Message.assistant("Let me look.", tool_calls=[call])) == {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"city":  "Oslo"}'}}],
    }
    assert encode_message(Message.assistant(tool_calls=[call]))["content"] is None
    # Empty messages are rejected.
    assert encode_message(Message.assistant(""))["content"] == "(No answer.)"


def test_arguments_are_sent_unchanged_unless_malformed() -> None:
    def encode_arguments(call: ToolCall) -> str:
        return encode_message(Message.assistant(tool_calls=[call]))["tool_calls"][0]["function"]["arguments"]

    assert encode_arguments(ToolCall.parse("a", "look", '{"a" : 1}')) == '{"a" : 1}'
    assert encode_arguments(ToolCall.parse("a", "look", '{"a" : oops')) == "{}"
    assert encode_arguments(ToolCall.parse("a", "look", "")) == "{}"
    assert encode_arguments(ToolCall(id="a", name="look", arguments={"a": 1})) == '{"a":1}'


def test_tool_result_names_its_call() -> None:
    assert encode_message(Message.tool("a", "7 C")) == {"role": "tool", "tool_call_id": "a", "content": "7 C"}


def test_opaque_reasoning_is_sent_back_where_supported() -> None:
    details = [{"type": "reasoning.encrypted", "data": "opaque"}]
    message = Message(role="assistant", content="Hi", provider_state={"reasoning_details": details})
    assert "reasoning_details" not in encode_message(message)
    assert encode_message(message, replace(OPENAI, reasoning_details=True))["reasoning_details"] == details


def test_images_and_files_are_sent_as_parts() -> None:
    message = Message.user(
        [
            TextPart(text="What is this?"),
            ImagePart(url="https://example.com/cat.png"),
            ImagePart(data=b"png", media_type="image/png"),
            FilePart(data=b"pdf", media_type="application/pdf", filename="a.pdf"),
        ]
    )
    assert encode_message(message)["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,cGRm", "filename": "a.pdf"}},
    ]


IMAGE = ImagePart(data=b"x" * 4_000, media_type="image/png")


def test_images_of_a_tool_result_are_described_once() -> None:
    named = Message.tool("a", [TextPart(text="See [image/png, 4.0 kB]."), IMAGE])
    assert encode_message(named)["content"] == "See [image/png, 4.0 kB]."
    file = FilePart(url="https://example.org/a.pdf", filename="a.pdf")
    unnamed = Message.tool("a", [IMAGE, TextPart(text="See."), file])
    assert encode_message(unnamed)["content"] == "See.\n[image/png, 4.0 kB]\n[a.pdf at https://example.org/a.pdf]"


def test_images_of_an_answer_are_described() -> None:
    assert encode_message(Message.assistant([TextPart(text="A cat."), IMAGE])) == {
        "role": "assistant",
        "content": "A cat.",
    }
    # Empty messages are rejected.
    assert encode_message(Message.assistant([IMAGE]))["content"] == "[image/png, 4.0 kB]"


@pytest.mark.parametrize("message", [Message.tool("a", [IMAGE, IMAGE]), Message.assistant([IMAGE])])
def test_omitted_image_is_reported_once(message: Message) -> None:
    told: list[tuple[str, str]] = []
    encoder = RequestEncoder("m", OPENAI, stream=True)
    for _ in range(2):
        history = [CALLED, message, Message.user([IMAGE])]
        encoder.encode(ModelRequest(messages=history), lambda *notice: told.append(notice))
    [(code, text)] = told
    assert code == "left_out"
    left_out = ", ".join(["[image/png, 4.0 kB]"] * len(message.media))
    assert text.startswith(f"openai:m does not receive {left_out}, since this protocol accepts only text")


def test_only_given_settings_are_sent() -> None:
    settings: dict[str, Any] = {
        "temperature": 0.0,
        "top_p": 0.5,
        "max_tokens": 9,
        "seed": 1,
        "stop": ["x"],
        "reasoning_effort": "low",
    }
    plain = encode_settings(**settings)
    assert plain.pop("messages")
    assert plain == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "top_p": 0.5,
        "max_completion_tokens": 9,
        "seed": 1,
        "stop": ["x"],
        "reasoning_effort": "low",
    }
    assert encode_settings().keys() == {"model", "stream", "stream_options", "messages"}


def test_preset_maps_settings_to_the_fields_of_the_endpoint() -> None:
    fields = encode_settings(PRESETS["zai"], (LOOK,), max_tokens=9, reasoning_effort="none", parallel_tool_calls=True)
    assert fields["max_tokens"] == 9
    assert fields["thinking"] == {"type": "disabled"}
    assert "parallel_tool_calls" not in fields
    assert "strict" not in fields["tools"][0]["function"]
    assert "stream_options" not in encode_settings(replace(OPENAI, stream_options=False))
    assert encode_settings(replace(OPENAI, effort="reasoning"), reasoning_effort="low")["reasoning"] == {
        "effort": "low"
    }


def test_unsupported_setting_is_reported_once() -> None:
    settings = ModelSettings(thinking_budget=9, reasoning_effort="low", parallel_tool_calls=False)
    request = ModelRequest(messages=[Message.user("hi")], tools=(LOOK,), settings=settings)
    told: list[str] = []
    encoder = RequestEncoder("m", replace(PRESETS["zai"], effort=None), stream=True)
    for _ in range(2):
        encode_message = orjson.loads(encoder.encode(request, lambda code, text: told.append(text)))
        assert encode_message.keys() == {"model", "stream", "stream_options", "messages", "tools"}
    assert told == [
        "zai:m does not accept thinking_budget; use reasoning_effort instead",
        "zai:m does not accept reasoning_effort",
        "zai:m does not accept parallel_tool_calls=False",
    ]


def test_request_without_streaming_has_no_stream_options() -> None:
    plain = encode_body(ModelRequest(messages=[Message.user("hi")]), stream=False)
    assert (plain["stream"], "stream_options" in plain) == (False, False)


CLOSED = {"type": "object", "properties": {}, "additionalProperties": False, "required": []}


def test_tool_choice_by_name_selects_the_function() -> None:
    named = encode_settings(tools=(LOOK,), tool_choice="look", parallel_tool_calls=False)
    assert named["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert named["parallel_tool_calls"] is False
    assert named["tools"] == [
        {
            "type": "function",
            "function": {"name": "look", "description": "Looks.", "parameters": CLOSED, "strict": True},
        }
    ]
    assert encode_settings(tools=(LOOK,), tool_choice="required")["tool_choice"] == "required"


def test_tool_choice_without_tools_is_not_sent() -> None:
    assert "tool_choice" not in encode_settings(tool_choice="auto", parallel_tool_calls=True)


def test_extra_fields_are_merged_last() -> None:
    fields = encode_settings(temperature=0.1, extra_body={"temperature": 1, "stream_options": {"x": 1}, "top_k": 4})
    assert (fields["temperature"], fields["top_k"]) == (1, 4)
    assert fields["stream_options"] == {"include_usage": True, "x": 1}
    assert encode_settings(extra_body={"messages": []})["messages"] == []


def test_invalid_unicode_is_sent_escaped() -> None:
    raw = RequestEncoder("m", OPENAI, stream=True).encode(
        ModelRequest(messages=[Message.model_construct(role="user", content="a\ud83d")]), ignore_notice
    )
    assert b"a\\ud83d" in raw


CITY = {"type": "object", "title": "City", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def encode_response_format(preset: Preset, tools: tuple[ToolDefinition, ...] = (), **extra: Any) -> Any:
    settings = ModelSettings(extra_body=extra)
    request = ModelRequest(messages=[Message.user("hi")], tools=tools, response_schema=CITY, settings=settings)
    return encode_body(request, preset).get("response_format")


def test_typed_answer_uses_the_response_format_of_the_endpoint() -> None:
    assert encode_response_format(OPENAI)["json_schema"]["strict"] is True
    assert encode_response_format(OPENAI, (LOOK,))["json_schema"]["schema"]["additionalProperties"] is False
    assert encode_response_format(replace(OPENAI, strict=False))["json_schema"] == {"name": "City", "schema": CITY}
    assert encode_response_format(replace(OPENAI, response_format="json_object")) == {"type": "json_object"}
    assert encode_response_format(replace(OPENAI, response_format=None)) is None


def test_endpoint_that_cannot_combine_both_gets_only_the_tools() -> None:
    careful = replace(OPENAI, response_format_with_tools=False)
    assert encode_response_format(careful, (LOOK,)) is None
    assert encode_response_format(careful)["type"] == "json_schema"


def test_custom_response_format_takes_precedence() -> None:
    assert encode_response_format(OPENAI, response_format={"type": "json_object"}) == {"type": "json_object"}
