"""Finish reasons, token counts and origins of answers in the formats of all vendors."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple, cast

from rxloop.protocol.finish import COMPLETE, UNKNOWN
from rxloop.protocol.json_data import replace_surrogates
from rxloop.protocol.messages import ResponseInfo
from rxloop.protocol.model import make_unchecked
from rxloop.providers.codecs.fields import TOKEN_LIMIT, as_text, parse_token_count
from rxloop.providers.failures import Endpoint, find_server

MALFORMED_CALL = "malformed_call"
"""The vendor could not parse the model's tool call."""

FAILED = "failed"
"""The vendor reported a failure."""

_BY_REASON = {
    **dict.fromkeys(
        (
            *("stop", "stop_sequence", "stop_token", "eos", "eos_token", "end", "end_turn", "end_of_turn", "endoftext"),
            *("complete", "completed", "done", "finish", "finished", "success"),
        ),
        "stop",
    ),
    **dict.fromkeys(("tool_call", "tool_calls", "tool_use", "function_call", "function_calls"), "tool_calls"),
    **dict.fromkeys(("pause_turn", "compaction"), "pause"),
    **dict.fromkeys(("length", "continuation", "too_many_tool_calls", "error_limit", "time_limit"), "length"),
    **dict.fromkeys(
        (
            *("language", "blocklist", "spii", "model_armor", "jailbreak", "escalation", "pup_limited_disabled"),
            *("image_safety", "image_prohibited_content", "image_recitation", "error_toxic"),
        ),
        "content_filter",
    ),
    **dict.fromkeys(("malformed_response", "missing_thought_signature"), FAILED),
}

_PREFIXES = (
    (
        (
            *("content_filter", "content_policy", "safety", "sensitive", "prohibited", "recitation", "refus"),
            *("guardrail", "moderat", "blocked", "policy_violation"),
        ),
        "content_filter",
    ),
    (
        (
            *("max_", "length", "model_length", "model_context", "context_length", "context_window"),
            *("token_limit", "output_limit"),
        ),
        "length",
    ),
    (("function_call_filter", "malformed", "unexpected_tool", "invalid_tool", "invalid_function"), MALFORMED_CALL),
    (("error", "network", "insufficient_system", "abort", "cancel", "fail", "internal", "timeout"), FAILED),
)

_SEPARATORS = re.compile(r"[^a-z0-9]+")

_ENUM = re.compile(r"^(finish_?reason|stop_?reason)_")


def normalise_finish_reason(raw: str) -> str:
    """Return the normalised form of a vendor's finish reason.

    Returns:
        `stop`, `tool_calls`, `length`, `content_filter`, `pause`, `MALFORMED_CALL`, `FAILED`, or `UNKNOWN`.
    """
    normalised = _BY_REASON.get(raw)
    if normalised is not None:
        return normalised
    word = _ENUM.sub("", _SEPARATORS.sub("_", raw.lower()).strip("_"))
    normalised = _BY_REASON.get(word)
    if normalised is not None:
        return normalised
    return next((reason for starts, reason in _PREFIXES if word.startswith(starts)), UNKNOWN)


def normalise_incomplete(reason: str) -> str:
    """Return the normalised reason of an incomplete answer; never a reason for success."""
    normal = normalise_finish_reason(reason) if reason else "length"
    return UNKNOWN if normal in COMPLETE else normal


Kind = Literal[
    "input", "tool_use", "output", "total", "cached", "cache_write", "cache_write_short", "cache_write_long",
    "reasoning", "thoughts",
]  # fmt: skip

_INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details")

_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details")

# Fields per count, as paths. The first nonzero field is used.
_FIELDS: dict[Kind, tuple[tuple[str, ...], ...]] = {
    "input": (("prompt_tokens",), ("input_tokens",), ("promptTokenCount",)),
    "tool_use": (("toolUsePromptTokenCount",),),
    "output": (("completion_tokens",), ("output_tokens",), ("candidatesTokenCount",)),
    "total": (("total_tokens",), ("totalTokenCount",)),
    "cached": (
        *((details, "cached_tokens") for details in _INPUT_DETAILS),
        *((details, "cache_read_tokens") for details in _INPUT_DETAILS),
        ("cache_read_input_tokens",),
        ("cached_tokens",),
        ("prompt_cache_hit_tokens",),
        ("cachedContentTokenCount",),
    ),
    "cache_write": (
        *((details, "cache_write_tokens") for details in _INPUT_DETAILS),
        *((details, "cache_creation_tokens") for details in _INPUT_DETAILS),
        *((details, "cached_creation_tokens") for details in _INPUT_DETAILS),
        *((details, "cache_creation_input_tokens") for details in _INPUT_DETAILS),
        ("cache_creation_input_tokens",),
        ("cache_creation_tokens",),
        ("cache_write_tokens",),
    ),
    "cache_write_short": (
        ("cache_creation", "ephemeral_5m_input_tokens"),
        *((details, "cache_creation_token_details", "ephemeral_5m_input_tokens") for details in _INPUT_DETAILS),
    ),
    "cache_write_long": (
        ("cache_creation", "ephemeral_1h_input_tokens"),
        *((details, "cache_creation_token_details", "ephemeral_1h_input_tokens") for details in _INPUT_DETAILS),
        ("input_tokens_details", "cache_write_tokens_details", "ttl_12h_tokens"),
    ),
    "reasoning": (
        *((details, "reasoning_tokens") for details in _OUTPUT_DETAILS),
        *((details, "thinking_tokens") for details in _OUTPUT_DETAILS),
        ("reasoning_tokens",),
    ),
    "thoughts": (("thoughtsTokenCount",),),
}

_SOURCES: dict[str, tuple[Kind, int]] = {
    ".".join(path): (kind, rank) for kind, fields in _FIELDS.items() for rank, path in enumerate(fields)
}
"""Maps full field names to the count and the rank within that count."""

_OBJECTS = frozenset(name.rpartition(".")[0] for name in _SOURCES if "." in name)
"""Full names of objects with counts."""

_COUNT_FIELDS = tuple(path[0] for kind in ("input", "output") for path in _FIELDS[kind])


class TokenCounts(NamedTuple):
    """Token counts for one response."""

    input: int
    """All input tokens, including cached tokens."""
    output: int
    """All output tokens, including reasoning tokens."""
    cached: int
    """Input tokens that were read from the cache."""
    cache_write: int
    """Input tokens that were written to the cache."""
    cache_write_long: int
    """Long-lived part of `cache_write`, which is more expensive."""
    reasoning: int
    """Output tokens that were used for reasoning."""


class UsageReports:
    """Merged usage reports of one answer.

    Reports are cumulative, so a later report replaces an earlier one. A zero does not replace a count, because gateways
    send zeros for unknown counts.
    """

    __slots__ = ("_excludes_cache", "_merged")

    def __init__(self) -> None:
        self._excludes_cache = False
        self._merged: dict[str, int] = {}
        """Counts by full field name."""

    def add(self, report: Any, cache_apart: bool = False) -> None:
        """Merge a report. Values that are not objects are ignored.

        Args:
            report: The vendor's usage report.
            cache_apart: True if the input count excludes tokens that were read from the cache or written to it.
        """
        if not isinstance(report, dict):
            return
        report = cast("dict[str, Any]", report)
        self._excludes_cache = cache_apart
        if any(map(report.get, _COUNT_FIELDS)) and not (report.get("total_tokens") or report.get("totalTokenCount")):
            # The old total does not include these counts.
            self._merged.pop("total_tokens", None)
            self._merged.pop("totalTokenCount", None)
        _merge(report, self._merged, "")

    def counts(self) -> TokenCounts | None:
        """Return the merged counts, or None if the vendor has not reported any."""
        counts = self._select_counts()
        if not counts:
            return None
        get = counts.get
        cached, long, reasoning = get("cached", 0), get("cache_write_long", 0), get("reasoning", 0)
        written = get("cache_write", 0) or get("cache_write_short", 0) + long
        fresh, output, total = get("input", 0) + get("tool_use", 0), get("output", 0), get("total", 0)
        if self._excludes_cache or cached + written > fresh:
            fresh += cached + written
        gap, thoughts = total - fresh - output, get("thoughts", 0)
        if thoughts and (not total or gap > 0 or thoughts > output):
            output += thoughts
        elif reasoning and (reasoning > output or gap >= reasoning):
            output += reasoning
        fresh, output = _fill(total, fresh, output, (cached, written, cached + written))
        fresh, output = min(fresh, TOKEN_LIMIT - 1), min(output, TOKEN_LIMIT - 1)
        return TokenCounts(fresh, output, cached, written, long, reasoning or thoughts)

    def _select_counts(self) -> dict[Kind, int]:
        """Return each count from its first nonzero field, or zero if all fields are zero."""
        counts: dict[Kind, int] = {}
        ranks: dict[Kind, int] = {}
        for name, count in self._merged.items():
            kind, rank = _SOURCES[name]
            if kind not in counts or (count and (not counts[kind] or rank < ranks[kind])):
                counts[kind], ranks[kind] = count, rank
        return counts


def _merge(report: dict[str, Any], merged: dict[str, int], prefix: str) -> None:
    for name, value in report.items():
        name = prefix + name
        if name in _SOURCES:
            if value is not None and ((count := parse_token_count(value)) or name not in merged):
                merged[name] = count
        elif value.__class__ is dict and name in _OBJECTS:
            _merge(value, merged, f"{name}.")


def _fill(total: int, fresh: int, output: int, cache: tuple[int, ...]) -> tuple[int, int]:
    """Add tokens that only the total includes to the input or the output."""
    gap = total - fresh - output
    if gap <= 0:
        return fresh, output
    # Unexplained tokens are output, because some servers do not report reasoning.
    return (fresh + gap, output) if not fresh or gap in cache else (fresh, output + gap)


_MAX_NAME = 200
"""Maximum number of characters of the id and the model of an answer."""

_response = make_unchecked(ResponseInfo)


class ResponseOrigin:
    """Server, model and id of an answer."""

    __slots__ = ("_endpoint", "_id", "_model", "is_streamed")

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._id = self._model = ""
        self.is_streamed = False

    def identify(self, id: Any, model: Any) -> None:
        """Set the vendor's id and model of the answer. The first texts win."""
        self._id = self._id or as_text(id)[:_MAX_NAME]
        self._model = self._model or as_text(model)[:_MAX_NAME]

    def describe(self) -> ResponseInfo:
        """Return the origin of the message."""
        address, port = find_server(self._endpoint.url)
        return _response(
            id=replace_surrogates(self._id) or None,
            model=replace_surrogates(self._model) or None,
            server_address=address,
            server_port=port,
            streamed=self.is_streamed,
        )
