"""Typed access to untrusted JSON, and JSON values that orjson rejects."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, cast

import orjson

from rxloop.protocol.json_data import replace_surrogates

MAX_LENIENT_BYTES = 2**18
"""Maximum document size for the lenient parser, which is slow."""

TOKEN_LIMIT = 2**53


def as_object(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, otherwise an empty object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def list_objects(value: Any) -> list[dict[str, Any]]:
    """Return objects from a list, ignoring everything else."""
    if not isinstance(value, list):
        return []
    return [cast("dict[str, Any]", item) for item in cast("list[Any]", value) if isinstance(item, dict)]


_MESSAGES = (b',"messages":[', b',"contents":[', b',"input":[')
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_GEMINI_LIMIT = "maxOutputTokens"


def find_output_limit(body: bytes) -> int | None:
    """Return the output limit of a request body, or None.

    Codecs write this field before the messages, so parsing a long conversation is unnecessary.
    """
    ends = (body.find(mark) for mark in _MESSAGES)
    heads = [body[:end] + b"}" for end in ends if end >= 0]
    for part in (*heads, body):
        if not any(f'"{name}":'.encode() in part for name in (*_LIMITS, _GEMINI_LIMIT)):
            continue
        try:
            fields = as_object(orjson.loads(part))
        except orjson.JSONDecodeError:
            continue
        limits = [*map(fields.get, _LIMITS), as_object(fields.get("generationConfig")).get(_GEMINI_LIMIT)]
        limit = next((limit for limit in limits if type(limit) is int), None)
        if limit is not None:
            return limit
    return None


_ANTHROPIC_TYPES = re.compile(r".*_20\d{6}|mcp_toolset")
"""Anthropic tool types. All except one end with a date."""

_OPENAI_TYPES = re.compile(
    r"(web_search|file_search|code_interpreter|computer|computer_use|image_generation|mcp|local_shell|shell|apply_patch"
    r"|tool_search)(_preview)?(_20\d\d_\d\d_\d\d)?"
)


def split_tools(
    server_tools: Sequence[dict[str, Any]], vendor: Literal["anthropic", "openai"]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Separate the vendor's server tools from foreign ones.

    Unlike other tools, Google's have neither type nor name. Unknown types could be new, so they are accepted.

    Returns:
        The accepted tools, and descriptions for the rejected ones.
    """
    foreign_types = _OPENAI_TYPES if vendor == "anthropic" else _ANTHROPIC_TYPES
    own: list[dict[str, Any]] = []
    foreign: list[str] = []
    for tool in server_tools:
        kind = as_text(tool.get("type"))
        if foreign_types.fullmatch(kind):
            foreign.append(repr(kind[:100]))
        elif "type" in tool or "name" in tool:
            own.append(tool)
        else:
            foreign.append(", ".join(map(repr, tool))[:100] or "{}")
    return own, [f"the tool {name} of another vendor" for name in foreign]


def as_text(value: Any) -> str:
    """Return the value if it is a string, otherwise an empty string."""
    return value if isinstance(value, str) else ""


def parse_token_count(value: Any) -> int:
    """Return a token count as an integer. Invalid values count as 0, so that they do not fail the answer."""
    if value.__class__ is int and 0 <= value < TOKEN_LIMIT:
        return value
    if isinstance(value, str):
        value = _parse_number(value)
    if not isinstance(value, int | float) or not 0 <= value < TOKEN_LIMIT:
        return 0
    return int(value)


def _parse_number(text: str) -> float:
    try:
        return float(text) if len(text) < 30 else 0
    except ValueError:
        return 0


def unwrap_list(value: Any) -> Any:
    """Unwrap a single-item list. Google's endpoint wraps errors this way."""
    if isinstance(value, list) and len(items := cast("list[Any]", value)) == 1:
        return items[0]
    return cast("Any", value)


def parse_lenient_json(data: bytes) -> Any:
    """Parse JSON with unpaired surrogates, which orjson rejects. Return None if it is invalid or too long."""
    if len(data) > MAX_LENIENT_BYTES:
        return None
    try:
        return json.loads(data, parse_constant=lambda _: None, object_hook=_replace_surrogates)
    except (ValueError, RecursionError):
        return None


_STREAMED_FIELDS = frozenset(
    ["content", "refusal", "reasoning_content", "reasoning", "text", "summary", "thinking", "arguments"]
)
"""Fields that are streamed in fragments. Surrogate pairs are joined after the fragments."""


def _replace_surrogates(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: replace_surrogates(value) if isinstance(value, str) and name not in _STREAMED_FIELDS else value
        for name, value in fields.items()
    }


def drop_encrypted(value: Any) -> Any:
    """Remove encrypted fields, which are only sent back to the vendor."""
    if isinstance(value, list):
        return [drop_encrypted(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {name: drop_encrypted(each) for name, each in fields.items() if not name.startswith("encrypted_")}


def dumps(value: Any) -> bytes:
    """Encode JSON, including values that orjson rejects: unpaired surrogates and integers beyond 64 bits."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()
