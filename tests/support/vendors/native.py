"""Recorded native vendor APIs, and how the terms of each SDK map to rxloop.

A new codec adds an entry to `NATIVE`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from rxloop.providers import HTTPModel, ModelOptions, anthropic_messages, google_gemini, openai_responses
from support.vendors.recordings import Make


@dataclass(frozen=True, slots=True, kw_only=True)
class SdkAnswer:
    """Response as read by the vendor's SDK."""

    text: str
    reasoning: str
    calls: list[tuple[str | None, str, Any]]
    """Id, if the vendor has ids, name, and arguments as an object."""
    finish: str | None
    """Finish reason in the vendor's terms."""
    usage: tuple[int, int, int, int, int] | None
    """Tokens: total input, output, cached, written to the cache, reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeApi:
    """API of the recordings."""

    api: str
    """Part of the recording names: `msgs`, `gen`, `resp`."""
    make: Make
    """Factory of the provider for an exchange."""
    read: Callable[[dict[str, Any]], SdkAnswer]
    """Parser of recorded exchanges."""
    expected_differences: Mapping[str, str] = field(default_factory=dict[str, str])
    """Reasons for intended differences, by recording, number of the exchange and field, separated by slashes."""


def make_gemini(exchange: Any, address: str, options: ModelOptions) -> HTTPModel:
    """Return the provider of an exchange with Gemini at Google or Vertex."""
    path, _, _ = exchange["request"]["path"].partition("?")
    base, _, model = path.partition(":")[0].rpartition("/models/")
    return google_gemini(model, **{"base_url": address + base, **options})


def read_gemini(expected: dict[str, Any]) -> SdkAnswer:
    """Return the response as read by google-genai."""
    usage = {name: count or 0 for name, count in (expected["usage"] or {}).items() if name.endswith("_count")}
    thoughts = usage.get("thoughts_token_count", 0)
    counted = (
        usage.get("prompt_token_count", 0) + usage.get("tool_use_prompt_token_count", 0),
        usage.get("candidates_token_count", 0) + thoughts,
        usage.get("cached_content_token_count", 0),
        0,
        thoughts,
    )
    return SdkAnswer(
        text=expected["text"] or "",
        reasoning=expected["reasoning"] or "",
        calls=[(each[0], each[1], each[2] or {}) for each in expected["tool_calls"]],
        finish=expected["finish_reason"],
        usage=counted if usage else None,
    )


def make_messages(exchange: Any, address: str, options: ModelOptions) -> HTTPModel:
    """Return the provider of an exchange with Claude at Anthropic or Vertex."""
    path = exchange["request"]["path"].partition("?")[0]
    base, models, model = path.partition(":")[0].rpartition("/models/")
    if models:
        options = {"base_url": address + base, "api_key": "a-token", **options}
        return anthropic_messages(model, preset="vertex_anthropic", **options)
    return anthropic_messages("claude-sonnet-4-5", **{"base_url": address, **options})


def read_messages(expected: dict[str, Any]) -> SdkAnswer:
    """Return the response as read by Anthropic's SDK."""
    usage = expected.get("usage") or {}
    cached, written = usage.get("cache_read_input_tokens") or 0, usage.get("cache_creation_input_tokens") or 0
    thought = (usage.get("output_tokens_details") or {}).get("thinking_tokens") or 0
    fresh, output = usage.get("input_tokens") or 0, usage.get("output_tokens") or 0
    return SdkAnswer(
        text=expected["text"] or "",
        reasoning=expected["reasoning"] or "",
        calls=[(call_id, name, arguments) for call_id, name, arguments in expected["tool_calls"]],
        finish=expected["finish_reason"],
        usage=(fresh + cached + written, output, cached, written, thought) if usage else None,
    )


def make_responses(exchange: Any, address: str, options: ModelOptions) -> HTTPModel:
    """Return the provider of an exchange over OpenAI Responses."""
    path = exchange["request"]["path"].partition("?")[0].removesuffix("/responses")
    model = exchange["request"]["body"]["model"]
    return openai_responses(model, preset="openai_responses", **{"base_url": address + path, **options})


def read_responses(expected: dict[str, Any]) -> SdkAnswer:
    """Return the response as read by the openai SDK."""
    usage = expected.get("usage") or {}
    read, written = usage.get("input_tokens_details") or {}, usage.get("output_tokens_details") or {}
    incomplete = expected.get("incomplete") or {}
    return SdkAnswer(
        # The provider converts a refusal to text.
        text=expected["text"] or expected["refusal"] or "",
        reasoning=expected["reasoning"] or "",
        calls=[(call_id, name, orjson.loads(arguments)) for call_id, name, arguments in expected["tool_calls"]],
        finish=incomplete.get("reason") or expected["finish_reason"],
        usage=(
            usage["input_tokens"],
            usage["output_tokens"],
            read.get("cached_tokens") or 0,
            read.get("cache_write_tokens") or 0,
            written.get("reasoning_tokens") or 0,
        )
        if usage
        else None,
    )


_QUEUED = "an answer that was only queued is an error, which says to stream it"
_UNKNOWN = "a model that the vendor does not know is named as such, though the status is 400"

NATIVE: dict[str, NativeApi] = {
    "gen": NativeApi(
        api="gen",
        make=make_gemini,
        read=read_gemini,
        expected_differences={
            "vertex-gen-j-test-google-model-armor-prompt-template-text-18c77490/0/finish": "why the prompt was blocked "
            "stands for the reason, of which there is none: no answer was begun",
            "google-gen-s-google-gemini-2-5-flash-dd0aeb2d/0/kind": "a key that is not valid is told "
            "by the details, and not by the status, which is that of a bad request",
        },
    ),
    "resp": NativeApi(
        api="resp",
        make=make_responses,
        read=read_responses,
        expected_differences={
            "openai-resp-j-test-background-mode-with-tool-vcr-429acb84/0/error": _QUEUED,
            "openai-resp-j-test-background-mode-with-tool-vcr-429acb84/1/error": _QUEUED,
            "openai-resp-s-openai-gpt-4o-responses-80810123/0/kind": _UNKNOWN,
            "openai-resp-s-openai-gpt-4o-responses-80810123/1/kind": _UNKNOWN,
        },
    ),
    "msgs": NativeApi(api="msgs", make=make_messages, read=read_messages),
}
"""Native APIs by recording name."""
