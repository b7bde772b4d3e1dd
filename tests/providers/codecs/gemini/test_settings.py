"""Settings of a call as Gemini takes them."""

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


def config(model: str = THREE, told: NoticeRecorder | None = None, **settings: Any) -> dict[str, Any]:
    return encode_body(model=model, notices=told, **settings).get("generationConfig", {})


def test_the_common_settings_have_their_names() -> None:
    asked: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 9, "seed": 7, "stop": ["END"]}
    assert config(**asked) == {
        "temperature": 0.5,
        "topP": 0.9,
        "maxOutputTokens": 9,
        "seed": 7,
        "stopSequences": ["END"],
    }
    assert encode_body(service_tier="flex")["serviceTier"] == "flex"
    assert set(encode_body(prompt_cache=PromptCache())) == {"contents"}


def test_what_it_takes_no_more_of_is_left_out() -> None:
    told = NoticeRecorder()
    found = config(stop=list("abcdefg"), seed=2**40, told=told)
    assert found == {"stopSequences": list("abcde")}
    assert len(told.notices) == 2


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
def test_effort_is_a_level_or_a_budget_as_the_model_has_it(model: str, effort: str, sent: dict[str, Any]) -> None:
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
def test_a_budget_is_kept_within_what_the_model_takes(model: str, budget: int, sent: int) -> None:
    told = NoticeRecorder()
    found = config(model, told, thinking_budget=budget, reasoning_effort="high")
    assert found["thinkingConfig"] == {"thinkingBudget": sent, "includeThoughts": sent != 0}
    assert len(told.notices) == (sent != budget)


@pytest.mark.parametrize("model", OTHER)
def test_models_of_which_no_thinking_is_known_are_not_told_to_think(model: str) -> None:
    told = NoticeRecorder()
    assert config(model, told, reasoning_effort="high") == {}
    assert len(told.notices) == 1


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("look", {"mode": "ANY", "allowedFunctionNames": ["look"]}),
    ],
)
def test_the_choice_of_tools(choice: str, sent: dict[str, Any]) -> None:
    assert encode_body(tools=(LOOK,), tool_choice=choice)["toolConfig"] == {"functionCallingConfig": sent}
    assert "toolConfig" not in encode_body(tool_choice=choice)


def test_tools_are_told_by_their_json_schema() -> None:
    parameters = {"type": "object", "properties": {"at": {"enum": ["x"], "type": "string"}}}
    declared = {"name": "look", "description": "Looks.", "parametersJsonSchema": parameters}
    assert encode_body(tools=(LOOK,))["tools"] == [{"functionDeclarations": [declared]}]


def test_that_tools_are_called_one_by_one_cannot_be_asked() -> None:
    told, to = NoticeRecorder(), make_codec()
    for _ in range(2):
        encode_body(tools=(LOOK,), parallel_tool_calls=False, codec=to, notices=told)
    assert ["parallel_tool_calls" in each for each in told.notices] == [True, False]
    encode_body(tools=(LOOK,), parallel_tool_calls=True, notices=told)
    assert sum("parallel_tool_calls" in each for each in told.notices) == 1


def test_a_schema_goes_with_tools_only_where_the_model_takes_both() -> None:
    asked = {"response_schema": SCHEMA}
    expected = {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}
    assert encode_body(request=asked, model=TWO)["generationConfig"] == expected
    assert encode_body(request=asked, tools=(LOOK,), model=THREE)["generationConfig"] == expected
    assert "generationConfig" not in encode_body(request=asked, tools=(LOOK,), model=TWO)
    assert "generationConfig" not in encode_body(request=asked, model="gemma-3-27b-it")
    assert [make_codec(model).keeps_to_schema for model in (THREE, TWO, *OTHER)] == [
        True,
        False,
        False,
        False,
        False,
        False,
    ]


def test_tools_of_google_s_own_stand_behind_ours_and_tell_what_they_do() -> None:
    search = {"googleSearch": {}}
    sent = encode_body(tools=(LOOK,), server_tools=[search], tool_choice="auto")
    assert sent["tools"][1:] == [search]
    assert sent["toolConfig"] == {"includeServerSideToolInvocations": True}
    assert "toolConfig" not in encode_body(server_tools=[search], model=TWO)
    vertex = make_codec(THREE, replace(PRESETS["google"], name="vertex"))
    assert "toolConfig" not in encode_body(server_tools=[search], codec=vertex)


def test_tools_of_another_vendor_s_own_are_left_out() -> None:
    told = NoticeRecorder()
    assert "tools" not in encode_body(
        server_tools=[{"type": "web_search_20250305", "name": "web_search"}], notices=told
    )
    assert len(told.notices) == 1


def test_fields_given_by_hand_count_and_are_merged_into_ours() -> None:
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
def test_several_answers_are_refused_before_anything_is_sent(name: str) -> None:
    with pytest.raises(BadRequest, match=name):
        encode_body(extra_body={"generationConfig": {name: 2}})
    encode_body(extra_body={"generationConfig": {name: 1}})


def test_a_cached_content_brings_the_prompt_and_the_tools_along() -> None:
    from rxloop.protocol.messages import Message

    told = NoticeRecorder()
    request = {"system": (Message.system("be brief"),)}
    extra = {"cachedContent": "cachedContents/1"}
    sent = encode_body(tools=(LOOK,), request=request, tool_choice="auto", extra_body=extra, notices=told)
    assert sorted(sent) == ["cachedContent", "contents"]
    assert len(told.notices) == 1
    assert sorted(encode_body(extra_body=extra, notices=told)) == ["cachedContent", "contents"]
    assert len(told.notices) == 1


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
def test_the_address_of_a_model(model: str, base: str, stream: bool, url: str) -> None:
    assert make_codec(model, stream=stream).url(base) == url


async def test_the_key_is_read_from_either_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "second")
    assert PRESETS["google"].key() == "second"
    monkeypatch.setenv("GEMINI_API_KEY", "first")
    assert PRESETS["google"].key() == "first"
    model = google_gemini()
    assert model.name == "google:gemini-3.5-flash"
    assert getattr(resolve_model("google:gemini-2.5-pro"), "keeps_to_schema", None) is False
