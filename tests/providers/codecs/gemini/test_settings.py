"""Tests of request settings for Gemini."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rxloop.errors import BadRequest
from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.settings import PromptCache
from rxloop.providers import PRESETS, google_gemini, resolve_model
from support.vendors.gemini import THREE, TWO, NoticeRecorder, encode_body, make_codec

LOOK = ToolDefinition("look", "Looks.", {"type": "object", "properties": {"at": {"const": "x", "examples": ["x"]}}})
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
OTHER = ("gemini-2.0-flash", "gemma-4-27b-it", "gemini-2.5-flash-image", "tunedModels/mine")


def config(model: str = THREE, notices: NoticeRecorder | None = None, **settings: Any) -> dict[str, Any]:
    return encode_body(model=model, notices=notices, **settings).get("generationConfig", {})


def test_common_settings_are_encoded() -> None:
    fields: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 9, "seed": 7, "stop": ["END"]}
    assert config(**fields) == {
        "temperature": 0.5,
        "topP": 0.9,
        "maxOutputTokens": 9,
        "seed": 7,
        "stopSequences": ["END"],
    }
    assert encode_body(service_tier="flex")["serviceTier"] == "flex"
    assert set(encode_body(prompt_cache=PromptCache())) == {"contents"}


def test_excess_stop_sequences_and_large_seeds_are_omitted() -> None:
    notices = NoticeRecorder()
    sent_config = config(stop=list("abcdefg"), seed=2**40, notices=notices)
    assert sent_config == {"stopSequences": list("abcde")}
    assert len(notices.notices) == 2


@pytest.mark.parametrize(
    ("model", "effort", "sent"),
    [
        (THREE, "none", {"thinkingLevel": "MINIMAL", "includeThoughts": False}),
        (THREE, "medium", {"thinkingLevel": "MEDIUM", "includeThoughts": True}),
        (THREE, "max", {"thinkingLevel": "HIGH", "includeThoughts": True}),
        ("gemini-3-pro-preview", "medium", {"thinkingLevel": "HIGH", "includeThoughts": True}),
        ("gemini-3.1-pro-preview", "medium", {"thinkingLevel": "MEDIUM", "includeThoughts": True}),
        ("gemini-3.1-pro-preview", "minimal", {"thinkingLevel": "LOW", "includeThoughts": True}),
        ("gemini-flash-latest", "low", {"thinkingLevel": "LOW", "includeThoughts": True}),
        (TWO, "none", {"thinkingBudget": 0, "includeThoughts": False}),
        (TWO, "low", {"thinkingBudget": 1024, "includeThoughts": True}),
        (TWO, "max", {"thinkingBudget": 24576, "includeThoughts": True}),
        ("gemini-2.5-pro", "none", {"thinkingBudget": 128, "includeThoughts": True}),
        ("gemini-2.5-pro", "max", {"thinkingBudget": 32768, "includeThoughts": True}),
    ],
)
def test_reasoning_effort_becomes_a_level_or_a_budget(model: str, effort: str, sent: dict[str, Any]) -> None:
    assert config(model, reasoning_effort=effort)["thinkingConfig"] == sent


@pytest.mark.parametrize(
    ("model", "budget", "sent"),
    [
        (TWO, 2000, 2000),
        (TWO, 0, 0),
        (TWO, -1, -1),
        (TWO, 99_999, 24_576),
        ("gemini-2.5-pro", 0, 128),
        ("gemini-2.5-flash-lite", 1, 512),
        (THREE, 2000, 2000),
    ],
)
def test_thinking_budget_is_clamped_to_the_limits_of_the_model(model: str, budget: int, sent: int) -> None:
    notices = NoticeRecorder()
    sent_config = config(model, notices, thinking_budget=budget, reasoning_effort="high")
    assert sent_config["thinkingConfig"] == {"thinkingBudget": sent, "includeThoughts": sent != 0}
    assert len(notices.notices) == (sent != budget)


@pytest.mark.parametrize("model", OTHER)
def test_models_without_thinking_receive_no_thinking_config(model: str) -> None:
    notices = NoticeRecorder()
    assert config(model, notices, reasoning_effort="high") == {}
    assert len(notices.notices) == 1


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("look", {"mode": "ANY", "allowedFunctionNames": ["look"]}),
    ],
)
def test_tool_choice_is_encoded(choice: str, sent: dict[str, Any]) -> None:
    assert encode_body(tools=(LOOK,), tool_choice=choice)["toolConfig"] == {"functionCallingConfig": sent}
    assert "toolConfig" not in encode_body(tool_choice=choice)


def test_tools_are_declared_with_their_json_schema() -> None:
    parameters = {"type": "object", "properties": {"at": {"enum": ["x"], "type": "string"}}}
    declared = {"name": "look", "description": "Looks.", "parametersJsonSchema": parameters}
    assert encode_body(tools=(LOOK,))["tools"] == [{"functionDeclarations": [declared]}]


def test_disabling_parallel_tool_calls_is_reported_once() -> None:
    notices, codec = NoticeRecorder(), make_codec()
    for _ in range(2):
        encode_body(tools=(LOOK,), parallel_tool_calls=False, codec=codec, notices=notices)
    assert ["parallel_tool_calls" in each for each in notices.notices] == [True, False]
    encode_body(tools=(LOOK,), parallel_tool_calls=True, notices=notices)
    assert sum("parallel_tool_calls" in each for each in notices.notices) == 1


def test_response_schema_is_sent_with_tools_when_the_model_supports_both() -> None:
    fields = {"response_schema": SCHEMA}
    expected = {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}
    assert encode_body(request=fields, model=TWO)["generationConfig"] == expected
    assert encode_body(request=fields, tools=(LOOK,), model=THREE)["generationConfig"] == expected
    assert "generationConfig" not in encode_body(request=fields, tools=(LOOK,), model=TWO)
    assert "generationConfig" not in encode_body(request=fields, model="gemma-3-27b-it")
    assert [make_codec(model).enforces_schema for model in (THREE, TWO, *OTHER)] == [
        True,
        False,
        False,
        False,
        False,
        False,
    ]


def test_server_tools_follow_functions_and_report_invocations() -> None:
    search = {"googleSearch": {}}
    sent = encode_body(tools=(LOOK,), server_tools=[search], tool_choice="auto")
    assert sent["tools"][1:] == [search]
    assert sent["toolConfig"] == {"includeServerSideToolInvocations": True}
    assert "toolConfig" not in encode_body(server_tools=[search], model=TWO)
    vertex = make_codec(THREE, replace(PRESETS["google"], name="vertex"))
    assert "toolConfig" not in encode_body(server_tools=[search], codec=vertex)


def test_server_tools_of_other_vendors_are_omitted() -> None:
    notices = NoticeRecorder()
    assert "tools" not in encode_body(
        server_tools=[{"type": "web_search_20250305", "name": "web_search"}], notices=notices
    )
    assert len(notices.notices) == 1


def test_extra_body_is_merged_and_takes_precedence() -> None:
    extra = {
        "generationConfig": {"topK": 3, "temperature": 1, "thinkingConfig": {"includeThoughts": False}},
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        "labels": {"team": "a"},
    }
    sent = encode_body(temperature=0, reasoning_effort="low", extra_body=extra)
    assert sent["generationConfig"] == {
        "topK": 3,
        "temperature": 1,
        "thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": False},
    }
    assert (sent["safetySettings"], sent["labels"]) == (extra["safetySettings"], extra["labels"])
    by_hand = encode_body(tools=(LOOK,), extra_body={"contents": [], "tools": []})
    assert (by_hand["contents"], by_hand["tools"]) == ([], [])


@pytest.mark.parametrize("name", ["candidateCount", "candidate_count"])
def test_request_for_several_candidates_is_rejected(name: str) -> None:
    with pytest.raises(BadRequest, match=name):
        encode_body(extra_body={"generationConfig": {name: 2}})
    encode_body(extra_body={"generationConfig": {name: 1}})


def test_cached_content_replaces_the_prompt_and_the_tools() -> None:
    from rxloop.protocol.messages import Message

    notices = NoticeRecorder()
    request = {"system": (Message.system("be brief"),)}
    extra = {"cachedContent": "cachedContents/1"}
    sent = encode_body(tools=(LOOK,), request=request, tool_choice="auto", extra_body=extra, notices=notices)
    assert sorted(sent) == ["cachedContent", "contents"]
    assert len(notices.notices) == 1
    assert sorted(encode_body(extra_body=extra, notices=notices)) == ["cachedContent", "contents"]
    assert len(notices.notices) == 1


@pytest.mark.parametrize(
    ("model", "base", "stream", "url"),
    [
        ("m", "https://g.com", True, "https://g.com/v1beta/models/m:streamGenerateContent?alt=sse"),
        ("m", "https://g.com", False, "https://g.com/v1beta/models/m:generateContent"),
        ("tunedModels/m", "https://g.com/v1", False, "https://g.com/v1/tunedModels/m:generateContent"),
        ("m", "https://g.com?a=b", True, "https://g.com/v1beta/models/m:streamGenerateContent?a=b&alt=sse"),
        ("m", "https://g.com?alt=json", True, "https://g.com/v1beta/models/m:streamGenerateContent?alt=json"),
        (
            "m",
            "https://v.com/v1/publishers/google",
            False,
            "https://v.com/v1/publishers/google/models/m:generateContent",
        ),
        ("a b?", "https://g.com", False, "https://g.com/v1beta/models/a%20b%3F:generateContent"),
    ],
)
def test_model_url_is_built(model: str, base: str, stream: bool, url: str) -> None:
    assert make_codec(model, stream=stream).url(base) == url


async def test_api_key_is_read_from_either_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "second")
    assert PRESETS["google"].key() == "second"
    monkeypatch.setenv("GEMINI_API_KEY", "first")
    assert PRESETS["google"].key() == "first"
    model = google_gemini()
    assert model.name == "google:gemini-3.5-flash"
    assert getattr(resolve_model("google:gemini-2.5-pro"), "enforces_schema", None) is False
