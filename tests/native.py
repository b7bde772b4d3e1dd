"""The vendors' own APIs in the recordings: who asks for them, and what the words of their SDKs mean in ours.

A new wire adds its row to `NATIVE`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from recorded import Make
from rxloop.providers import HTTPModel, ModelOptions, google_gemini


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an answer says, according to the vendor's own SDK."""

    text: str
    reasoning: str
    calls: list[tuple[str | None, str, Any]]
    """The id, if the vendor gives one, the name, and the arguments as an object."""
    finish: str | None
    """The vendor's own word."""
    usage: tuple[int, int, int, int, int] | None
    """The tokens of the input, all of them, and of the output; cached, cache written, of reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Native:
    """One API in the recordings."""

    api: str
    """What stands in the names of its recordings: `msgs`, `gen`, `resp`."""
    make: Make
    """Makes the provider of an exchange."""
    told: Callable[[dict[str, Any]], Told]
    """Reads an exchange of the oracle."""
    differ: Mapping[str, str] = field(default_factory=dict[str, str])
    """What is meant to differ, with the reason: by the name of the recording, the number of the exchange, and what
    differs, with slashes between."""


def make_gemini(exchange: Any, address: str, options: ModelOptions) -> HTTPModel:
    """The provider of an exchange with Gemini, at Google or on Vertex."""
    path, _, _ = exchange["request"]["path"].partition("?")
    base, _, model = path.partition(":")[0].rpartition("/models/")
    return google_gemini(model, **{"base_url": address + base, **options})


def told_by_gemini(expected: dict[str, Any]) -> Told:
    """What google-genai reads."""
    usage = {name: count or 0 for name, count in (expected["usage"] or {}).items() if name.endswith("_count")}
    thoughts = usage.get("thoughts_token_count", 0)
    counted = (
        usage.get("prompt_token_count", 0) + usage.get("tool_use_prompt_token_count", 0),
        usage.get("candidates_token_count", 0) + thoughts,
        usage.get("cached_content_token_count", 0),
        0,
        thoughts,
    )
    return Told(
        text=expected["text"] or "",
        reasoning=expected["reasoning"] or "",
        calls=[(each[0], each[1], each[2] or {}) for each in expected["tool_calls"]],
        finish=expected["finish_reason"],
        usage=counted if usage else None,
    )


NATIVE: dict[str, Native] = {
    "gen": Native(
        api="gen",
        make=make_gemini,
        told=told_by_gemini,
        differ={
            "vertex-gen-j-test-google-model-armor-prompt-template-text-18c77490/0/finish": "why the prompt was blocked "
            "stands for the reason, of which there is none: no answer was begun",
            "google-gen-s-google-gemini-2-5-flash-dd0aeb2d/0/kind": "a key that is not valid is told "
            "by the details, and not by the status, which is that of a bad request",
        },
    ),
}
"""By the name of the API in the recordings."""
