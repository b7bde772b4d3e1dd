"""Request settings for OpenAI Responses."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.errors import BadRequest, ConfigurationError
from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.messages import Message
from rxloop.protocol.settings import ModelSettings
from rxloop.providers import HTTPModel, Preset, openai_responses, resolve_model
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.state.history import History
from support.vendors.responses import (
    WHERE,
    call,
    encode,
    last_message,
    make_codec,
    read_events,
    reasoning,
    response,
    text,
)

LOOK = ToolDefinition("look", "Looks.", {"type": "object", "properties": {}})
SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "City",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}


def encode_settings(
    model: str = "gpt-5", left_out: list[str] | None = None, tools: bool = False, **settings: Any
) -> dict[str, Any]:
    request = ModelRequest(
        messages=[Message.user("hi")], settings=ModelSettings(**settings), tools=(LOOK,) if tools else ()
    )
    return encode(request, make_codec(model))


def test_request_disables_storage_and_includes_encrypted_reasoning() -> None:
    assert encode_settings() == {
        "model": "gpt-5",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "input": [{"role": "user", "content": "hi"}],
    }
    assert "include" not in encode_settings("gpt-4o")
    assert encode_settings("my-deployment", reasoning_effort="low")["include"] == ["reasoning.encrypted_content"]


@pytest.mark.parametrize(
    ("model", "settings", "sent", "told"),
    [
        ("gpt-5", {"temperature": 1.0, "top_p": 0.5}, {}, ["temperature", "top_p"]),
        ("gpt-5.2", {"top_p": 1.0, "reasoning_effort": "none"}, {"top_p": 1.0, "reasoning": {"effort": "none"}}, []),
        ("gpt-4o", {"temperature": 1.0, "top_p": 0.5}, {"temperature": 1.0, "top_p": 0.5}, []),
        ("gpt-4o", {"reasoning_effort": "low"}, {}, ["reasoning_effort"]),
        ("gpt-5", {"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}, []),
        ("gpt-5", {"stop": ["x"], "seed": 7, "thinking_budget": 9}, {}, ["thinking_budget", "stop", "seed"]),
        ("gpt-5", {"max_tokens": 100}, {"max_output_tokens": 100}, []),
        ("gpt-5", {"max_tokens": 5}, {"max_output_tokens": 16}, ["max_tokens=5"]),
        ("llama", {"max_tokens": 5}, {"max_output_tokens": 5}, []),
        ("gpt-5", {"service_tier": "flex"}, {"service_tier": "flex"}, []),
        ("gpt-5", {"tool_choice": "required", "parallel_tool_calls": False}, {}, []),
    ],
)  # fmt: skip
def test_unsupported_setting_is_omitted_with_one_notice(
    model: str, settings: dict[str, Any], sent: dict[str, Any], told: list[str]
) -> None:
    by, notices = make_codec(model), list[str]()
    request = ModelRequest(messages=[Message.user("hi")], settings=ModelSettings(**settings))
    found = encode(request, by, notices)
    assert encode(request, by, notices) == found
    assert {
        name: value for name, value in found.items() if name not in ("model", "stream", "store", "include", "input")
    } == sent
    begin = f"openai_responses:{model} does not accept "
    assert all(what.startswith(begin) for what in notices)
    assert [what.removeprefix(begin).partition(",")[0].partition(";")[0] for what in notices] == told


@pytest.mark.parametrize(
    ("choice", "form"),
    [
        ("auto", "auto"),
        ("look", {"type": "function", "name": "look"}),
        ("run", {"type": "custom", "name": "run"}),
        ("wiki", {"type": "mcp", "server_label": "wiki"}),
        ("web_search", {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}),
    ],
)
def test_tool_choice_is_encoded_by_tool_type(choice: str, form: Any) -> None:
    theirs: list[dict[str, Any]] = [
        {"type": "custom", "name": "run"},
        {"type": "mcp", "server_label": "wiki", "server_url": "https://e.org"},
        {"type": "web_search"},
    ]
    found = encode_settings(tools=True, tool_choice=choice, server_tools=theirs)
    assert found["tool_choice"] == form
    ours = {"type": "function", "name": "look", "description": "Looks.", "parameters": LOOK.parameters, "strict": False}
    assert found["tools"] == [ours, *theirs]


def test_response_schema_is_merged_with_text_settings() -> None:
    settings = ModelSettings(extra_body={"text": {"verbosity": "low"}, "metadata": {"a": "b"}})
    request = ModelRequest(messages=[Message.user("hi")], response_schema=SCHEMA, settings=settings, tools=(LOOK,))
    found = encode(request)
    schema = {**SCHEMA, "additionalProperties": False}
    asked = {"type": "json_schema", "name": "City", "schema": schema, "strict": True}
    assert found["text"] == {"format": asked, "verbosity": "low"}
    assert found["metadata"] == {"a": "b"}


def test_extra_body_overrides_other_fields() -> None:
    found = encode_settings(
        extra_body={"input": "hi!", "tools": [], "store": True, "reasoning": {"summary": "auto"}},
        reasoning_effort="low",
    )
    assert (found["input"], found["tools"], found["store"]) == ("hi!", [], True)
    assert found["reasoning"] == {"effort": "low", "summary": "auto"}


def test_background_request_without_streaming_is_rejected() -> None:
    model = openai_responses("gpt-5", stream=False, api_key="k")
    request = ModelRequest(messages=[Message.user("hi")], settings=ModelSettings(extra_body={"background": True}))
    with pytest.raises(BadRequest, match="stream=True"):
        model._wire.encode(request, lambda code, what: None)  # pyright: ignore[reportPrivateUsage]


FIRST = [Message.user("hi"), last_message(read_events(response(text("Hello"), call("look", "{}"), store=True)))]
NEXT = [*FIRST, Message.tool("call_1", "a cat")]


def test_chain_sends_only_messages_after_the_stored_answer() -> None:
    by, told = make_codec(chain=True), list[str]()
    assert encode(FIRST[:1], by, told)["store"] is True
    found = encode(NEXT, by, told)
    assert found["previous_response_id"] == "resp_1"
    assert found["input"] == [{"type": "function_call_output", "call_id": "call_1", "output": "a cat"}]
    assert told == []


@pytest.mark.parametrize(
    "history",
    [
        [Message.user("hi!"), *NEXT[1:]],
        NEXT[1:],
        [
            *NEXT[:2],
            Message.tool("call_1", "a cat"),
            last_message(read_events(response(text("x"), store=True))),
            Message.user("y"),
        ],
    ],
)
def test_chain_sends_a_different_conversation_completely_with_a_notice(history: list[Message]) -> None:
    by, told = make_codec(chain=True), list[str]()
    encode(FIRST[:1], by)
    found = encode(history, by, told)
    assert "previous_response_id" not in found
    assert len(found["input"]) > len(history) - 1
    assert "previous_response_id" in told[0]


def test_chain_does_not_reuse_items_cached_by_another_codec() -> None:
    by, plain = make_codec(chain=True), make_codec()
    mine, other = History([Message.user("hi")]), History([Message.user("hi!")])
    for each in (mine, other):
        encode(ModelRequest(messages=each), plain)
    encode(ModelRequest(messages=mine), by)
    found = encode(ModelRequest(messages=other.append(*NEXT[1:])), by)
    assert "previous_response_id" not in found


def test_chain_results_have_the_call_ids_of_the_stored_answer() -> None:
    # Gateways number calls from zero in each answer.
    again = last_message(read_events(response(call("look", "{}"), store=True, id="resp_2")))
    before = [Message.user("hi"), FIRST[1], Message.tool("call_1", "a cat")]
    by = make_codec(chain=True)
    encode(before, by)
    found = encode([*before, again, Message.tool("call_1", "a dog")], by)
    assert found["previous_response_id"] == "resp_2"
    assert found["input"] == [{"type": "function_call_output", "call_id": "call_1", "output": "a dog"}]


def test_chain_is_retried_completely_when_the_previous_response_is_unknown() -> None:
    by = make_codec(chain=True)
    encode(FIRST[:1], by)
    assert "previous_response_id" in encode(NEXT, by)
    refused = b'{"error":{"code":"previous_response_not_found","message":"Previous response not found."}}'
    reader = by.make_reader(MessageDraft(lambda event: None, "1", WHERE))
    error = reader.make_error(400, {}, refused)
    assert isinstance(error, BadRequest)
    assert error.retryable
    assert "previous_response_id" not in encode(NEXT, by)
    assert not reader.make_error(400, {}, b'{"error":{"message":"no"}}').retryable


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (resolve_model("openai:gpt-5"), "openai:gpt-5"),
        (resolve_model("openai_responses:gpt-4o"), "openai_responses:gpt-4o"),
        (openai_responses("gpt-5", preset="openai"), "openai:gpt-5"),
        (openai_responses("gpt-4o", preset="openai"), "openai_responses:gpt-4o"),
        (openai_responses("m", base_url="http://localhost:8000/v1"), "openai_responses:http://localhost:8000/v1#m"),
        (openai_responses("m", preset=Preset(name="mine", base_url="http://m/v1")), "mine:m"),
        (openai_responses("openai/gpt-5", preset="openrouter"), "openrouter:openai/gpt-5"),
    ],
)
def test_model_has_a_resolvable_name_and_uses_the_responses_api(made: HTTPModel, name: str) -> None:
    assert made.name == name
    assert made._wire.url("http://m/v1") == "http://m/v1/responses"  # pyright: ignore[reportPrivateUsage]


def test_models_with_and_without_reasoning_share_a_history() -> None:
    thought = last_message(read_events(response(reasoning("Hm."), text("Hello"))))
    history = History([Message.user("hi"), thought, Message.user("And?")])
    for model, kinds in (
        ("gpt-5", {"reasoning", "message"}),
        ("gpt-4o", {"message"}),
        ("gpt-5", {"reasoning", "message"}),
    ):
        found = encode(ModelRequest(messages=history), make_codec(model))
        assert {item.get("type", "message") for item in found["input"]} == kinds


def test_chain_without_storage_and_unsupported_preset_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="chain=True"):
        openai_responses("gpt-5", store=False, chain=True)
    with pytest.raises(ConfigurationError, match="does not support"):
        openai_responses("gemini-3.5-flash", preset="google")
    assert openai_responses("gpt-5", summary="auto")._wire.enforces_schema  # pyright: ignore[reportPrivateUsage]
