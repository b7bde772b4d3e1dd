"""Tests of request settings for each Anthropic model."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.errors import BadRequest
from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.messages import FilePart, Message, ToolCall
from rxloop.protocol.settings import ModelSettings
from rxloop.providers import find_model
from support.http_server import Reply, Server, sse
from support.vendors.claude import EncodedRequest, call_server, encode, end, make_codec, start, text

LOOK = ToolDefinition("look", "Looks.", {"type": "object", "properties": {}})


def encode_settings(
    model: str = "claude-sonnet-4-5", *, tools: tuple[ToolDefinition, ...] = (), **settings: Any
) -> EncodedRequest:
    request = ModelRequest(messages=[Message.user("hi")], tools=tools, settings=ModelSettings(**settings))
    return encode(request, model=model)


def thinking_and_effort(model: str, **settings: Any) -> Any:
    """Return the thinking configuration and the effort."""
    body = encode_settings(model, **settings).body
    return body.get("thinking"), body.get("output_config", {}).get("effort")


def test_request_omits_unset_settings() -> None:
    body = encode_settings().body
    assert set(body) == {"model", "max_tokens", "messages", "stream"}


def test_settings_are_sent_in_their_fields() -> None:
    body = encode_settings(temperature=0.5, max_tokens=99, stop=["x", " "], service_tier="auto").body
    assert (body["temperature"], body["max_tokens"]) == (0.5, 99)
    assert (body["stop_sequences"], body["service_tier"]) == (["x"], "auto")


@pytest.mark.parametrize(
    ("model", "stream", "tokens"),
    [
        ("claude-sonnet-4-5", True, 64_000),
        ("claude-sonnet-4-5", False, 21_000),
        ("claude-opus-4-8", True, 128_000),
        ("claude-sonnet-4-0", True, 16_384),
        ("claude-3-haiku-20240307", True, 4096),
        ("somebody-elses-model", True, 8192),
    ],
)
def test_max_tokens_defaults_to_the_limit_of_the_model(model: str, stream: bool, tokens: int) -> None:
    assert encode([Message.user("hi")], make_codec(model, stream=stream))["max_tokens"] == tokens


def test_max_tokens_is_lowered_to_the_limit_of_the_model() -> None:
    known = find_model("anthropic:claude-sonnet-4-5")
    assert known is not None
    encoded = encode_settings(max_tokens=10**6)
    assert encoded["max_tokens"] == known.output
    assert encoded.notices == ["anthropic:claude-sonnet-4-5 does not accept max_tokens above 64000"]


ADAPTIVE = {"type": "adaptive", "display": "summarized"}


@pytest.mark.parametrize(
    ("model", "settings", "expected"),
    [
        ("claude-sonnet-4-5", {"thinking_budget": 2000}, ({"type": "enabled", "budget_tokens": 2000}, None)),
        ("claude-sonnet-4-5", {"thinking_budget": 5}, ({"type": "enabled", "budget_tokens": 1024}, None)),
        ("claude-sonnet-4-5", {"thinking_budget": 0}, ({"type": "disabled"}, None)),
        ("claude-sonnet-4-5", {"reasoning_effort": "high"}, ({"type": "enabled", "budget_tokens": 16_384}, None)),
        ("claude-sonnet-4-5", {"reasoning_effort": "none"}, ({"type": "disabled"}, None)),
        ("claude-opus-4-5", {"reasoning_effort": "max"}, ({"type": "enabled", "budget_tokens": 49_152}, "high")),
        ("claude-opus-4-6", {"reasoning_effort": "xhigh"}, ({"type": "adaptive"}, "high")),
        ("claude-opus-4-6", {"thinking_budget": 3000}, ({"type": "enabled", "budget_tokens": 3000}, None)),
        ("claude-opus-4-8", {"reasoning_effort": "xhigh"}, (ADAPTIVE, "xhigh")),
        ("claude-opus-4-8", {"reasoning_effort": "minimal"}, (ADAPTIVE, "low")),
        ("claude-opus-4-8", {"thinking_budget": 9000}, (ADAPTIVE, "high")),
        ("claude-sonnet-5", {"reasoning_effort": "none"}, ({"type": "disabled"}, None)),
        ("claude-fable-5", {"reasoning_effort": "none"}, (None, "low")),
        ("claude-3-haiku-20240307", {"reasoning_effort": "high", "thinking_budget": 9}, (None, None)),
        ("claude-3-haiku-20240307", {"reasoning_effort": "none"}, (None, None)),
    ],
)
def test_thinking_settings_depend_on_the_model(model: str, settings: Any, expected: Any) -> None:
    assert thinking_and_effort(model, **settings) == expected


def test_thinking_budget_leaves_tokens_for_the_answer() -> None:
    assert encode_settings("claude-sonnet-4-0", thinking_budget=20_000)["max_tokens"] == 24_096
    encoded = encode_settings(thinking_budget=20_000, max_tokens=4000)
    assert (encoded["max_tokens"], encoded["thinking"]["budget_tokens"]) == (4000, 3000)
    assert "thinking budget" in encoded.notices[0]
    encoded = encode_settings(thinking_budget=2000, max_tokens=1000)
    assert "thinking" not in encoded.body
    assert "is too small" in encoded.notices[0]


def test_interleaved_thinking_budget_may_exceed_max_tokens() -> None:
    settings = ModelSettings(thinking_budget=20_000, max_tokens=4000)
    request = ModelRequest(messages=[Message.user("hi")], tools=(LOOK,), settings=settings)
    by = make_codec(betas=["interleaved-thinking-2025-05-14"])
    assert encode(request, by)["thinking"]["budget_tokens"] == 20_000
    assert by.headers["anthropic-beta"] == "interleaved-thinking-2025-05-14"


@pytest.mark.parametrize(
    ("model", "settings", "expected", "told"),
    [
        ("claude-sonnet-4-0", {"temperature": 0.1, "top_p": 0.9}, {"temperature": 0.1, "top_p": 0.9}, 0),
        ("claude-sonnet-4-5", {"temperature": 0.1, "top_p": 0.9}, {"temperature": 0.1}, 1),
        ("claude-sonnet-4-5", {"temperature": 1.5}, {"temperature": 1.0}, 1),
        ("claude-opus-4-8", {"temperature": 0.1, "top_p": 0.9}, {}, 1),
        ("claude-sonnet-4-5", {"temperature": 0.1, "thinking_budget": 2000}, {}, 1),
        ("claude-sonnet-4-5", {"temperature": 1, "thinking_budget": 2000}, {"temperature": 1}, 0),
        ("claude-sonnet-4-5", {"top_p": 0.96, "thinking_budget": 2000}, {"top_p": 0.96}, 0),
        ("claude-sonnet-4-5", {"top_p": 0.5, "thinking_budget": 2000}, {}, 1),
        ("claude-sonnet-4-5", {"seed": 1, "service_tier": "flex"}, {}, 2),
    ],
)
def test_unsupported_setting_is_omitted_with_a_notice(model: str, settings: Any, expected: Any, told: int) -> None:
    encoded = encode_settings(model, **settings)
    assert {
        name: encoded.body[name] for name in ("temperature", "top_p", "service_tier") if name in encoded.body
    } == expected
    assert len(encoded.notices) == told


def test_notice_about_a_setting_is_reported_once() -> None:
    by = make_codec()
    request = ModelRequest(messages=[Message.user("hi")], settings=ModelSettings(seed=1))
    assert encode(request, by).notices == ["anthropic:claude-sonnet-4-5 does not accept a seed"]
    assert not encode(request, by).notices


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": "look"}, {"type": "tool", "name": "look"}),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        ({"tool_choice": "required", "parallel_tool_calls": True}, {"type": "any", "disable_parallel_tool_use": False}),
        ({"tool_choice": "required", "thinking_budget": 2000}, None),
    ],
)
def test_tool_choice_is_encoded(settings: Any, expected: Any) -> None:
    assert encode_settings(tools=(LOOK,), **settings).body.get("tool_choice") == expected


def test_forced_tool_call_with_adaptive_thinking_depends_on_the_model() -> None:
    settings = {"tool_choice": "required", "reasoning_effort": "low"}
    assert encode_settings("claude-opus-4-8", tools=(LOOK,), **settings)["tool_choice"] == {"type": "any"}
    encoded = encode_settings("claude-fable-5-1", tools=(LOOK,), **settings)
    assert "tool_choice" not in encoded.body
    assert "claude-fable-5-1 does not accept a forced tool call" in encoded.notices[0]


def test_thinking_stays_disabled_in_a_turn_that_started_without_it() -> None:
    called = Message.assistant(tool_calls=[ToolCall(id="a", name="look")])
    history = [Message.user("hi"), called, Message.tool("a", "1")]
    settings = ModelSettings(reasoning_effort="high")
    encoded = encode(ModelRequest(messages=history, tools=(LOOK,), settings=settings))
    assert "thinking" not in encoded.body
    assert "began without it" in encoded.notices[0]
    done = [*history, Message.assistant("so"), Message.user("more")]
    assert "thinking" in encode(ModelRequest(messages=done, tools=(LOOK,), settings=settings)).body
    state = {"anthropic": [{"reasoning": 1, "extra": {"signature": "s"}}, {"call": 0}]}
    thought = called.model_copy(update={"reasoning": "h", "provider_state": state})
    again = [history[0], thought, history[2], called.model_copy(), Message.tool("a", "2")]
    assert "thinking" in encode(ModelRequest(messages=again, tools=(LOOK,), settings=settings)).body


def test_request_allows_dropping_bound_thinking_unless_betas_are_overridden() -> None:
    state = {"anthropic": [{"reasoning": 1, "extra": {"signature": "s"}}, {"text": 2}]}
    thought = Message(role="assistant", content="ok", reasoning="h", provider_state=state)
    by = make_codec("claude-fable-5-1")
    request = ModelRequest(messages=[Message.user("a"), thought, Message.user("b")])
    binding = b'"block_binding":{"prefix_mismatch_behavior":"drop_block"}'
    assert binding in by.encode(request, lambda *_: None)
    other = request.replace(settings=ModelSettings(headers={"anthropic-beta": "other"}))
    assert binding not in by.encode(other, lambda *_: None)
    assert by.headers["anthropic-beta"] == "thinking-binding-controls-2026-08-01"


def test_extra_body_overrides_other_fields() -> None:
    encoded = encode_settings(
        reasoning_effort="low",
        temperature=0.2,
        extra_body={"thinking": {"type": "disabled"}, "metadata": {"user_id": "u"}, "top_k": 5},
    )
    assert encoded["thinking"] == {"type": "disabled"}
    assert (encoded["metadata"], encoded["top_k"], encoded["temperature"]) == ({"user_id": "u"}, 5, 0.2)


def test_request_for_several_answers_is_rejected() -> None:
    with pytest.raises(BadRequest, match="n must be 1, got 2"):
        encode_settings(extra_body={"n": 2})


def test_server_tools_follow_function_tools_unchanged() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    encoded = encode_settings(tools=(LOOK,), server_tools=[search], tool_choice="auto")
    assert encoded["tools"][1] == search
    assert encode_settings(server_tools=[search])["tools"] == [search]


def test_vendor_defined_client_tool_is_defined_once() -> None:
    bash = {"type": "bash_20250124", "name": "bash"}
    ours = ToolDefinition("bash", "Runs.", {"type": "object"})
    assert encode_settings(tools=(ours, LOOK), server_tools=[bash])["tools"][1:] == [bash]


def test_code_container_is_reused_within_a_turn() -> None:
    state = {"anthropic_container": "c1"}
    called = Message(role="assistant", tool_calls=(ToolCall(id="a", name="look"),), provider_state=state)
    code = ModelSettings(server_tools=[{"type": "code_execution_20250825", "name": "code_execution"}])
    history = [Message.user("hi"), called, Message.tool("a", "1")]
    assert encode(ModelRequest(messages=history, settings=code))["container"] == "c1"
    assert (
        "container"
        not in encode(ModelRequest(messages=[*history, Message.assistant("x"), Message.user("y")], settings=code)).body
    )
    assert "container" not in encode(ModelRequest(messages=history)).body


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}


def test_response_schema_is_sent_when_the_model_supports_it() -> None:
    request = ModelRequest(messages=[Message.user("hi")], response_schema=SCHEMA)
    encoded = encode(request)
    assert encoded["output_config"]["format"]["schema"] == {
        "type": "object",
        "properties": {"n": {"type": "integer", "description": "{minimum: 1}"}},
        "additionalProperties": False,
        "required": ["n"],
    }
    assert make_codec().enforces_schema
    assert not make_codec("claude-sonnet-4-0").enforces_schema
    assert "output_config" not in encode(request, model="claude-sonnet-4-0").body


def test_response_schema_without_a_strict_form_is_sent_as_instructions() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    encoded = encode(ModelRequest(messages=[Message.user("hi")], system=(Message.system("s"),), response_schema=schema))
    assert "output_config" not in encoded.body
    assert encoded["system"][1]["text"].endswith('{"type":"object","additionalProperties":{"type":"string"}}')


def test_citations_disable_the_response_schema() -> None:
    by = make_codec(citations=True)
    pdf = FilePart(data=b"%PDF", media_type="application/pdf")
    encoded = encode(ModelRequest(messages=[Message.user([pdf])], response_schema=SCHEMA), by)
    assert encoded.messages[0]["content"][0]["citations"] == {"enabled": True}
    assert "output_config" not in encoded.body
    assert not by.enforces_schema


def test_strict_tools_are_limited_by_schema_and_count() -> None:
    strict = ToolDefinition("s", "", SCHEMA, strict=True)
    free = ToolDefinition("f", "", {"type": "object", "additionalProperties": True}, strict=True)
    encoded = encode_settings(tools=(strict, free, LOOK))
    assert [tool.get("strict", False) for tool in encoded["tools"]] == [True, False, False]
    assert "the tool 'f' (its root: it is sent without strict" in encoded.notices[0]
    many = tuple(ToolDefinition(f"t{n}", "", SCHEMA, strict=True) for n in range(30))
    assert sum("strict" in tool for tool in encode_settings(tools=many)["tools"]) == 20


def test_tool_schema_with_a_root_union_is_sent_as_an_object() -> None:
    odd = ToolDefinition("odd", "", {"anyOf": [{"type": "object"}], "properties": {}})
    encoded = encode_settings(tools=(odd,))
    assert encoded["tools"][0]["input_schema"] == {"type": "object", "properties": {}}
    assert "anyOf" in encoded.notices[0]


async def test_request_headers_contain_version_key_and_betas(server: Server) -> None:
    server.answer(Reply(sse(start(), *text(0, "hi"), *end(), done=False)))
    answer = await call_server(server, ModelRequest(messages=[Message.user("hi")]), betas=["a", "b"])
    assert answer.error is None
    received = server.requests[0]
    assert received.path == "/v1/messages"
    assert received.headers["x-api-key"] == "a-key"
    assert received.headers["anthropic-version"] == "2023-06-01"
    assert received.headers["anthropic-beta"] == "a,b"
    more = ModelRequest(messages=[Message.user("hi")], settings=ModelSettings(headers={"anthropic-beta": "c"}))
    await call_server(server, more, betas=["a"])
    assert server.requests[1].headers["anthropic-beta"] == "c"
    await call_server(server, ModelRequest(messages=[Message.user("hi")]), betas=["a"], headers={"Anthropic-Beta": "d"})
    assert server.requests[2].headers["anthropic-beta"] == "a,d"
