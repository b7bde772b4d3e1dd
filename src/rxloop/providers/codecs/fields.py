"""Typed access to untrusted JSON, and JSON of values that orjson refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, cast

import orjson

from rxloop.protocol.json_data import replace_surrogates

LENIENT = 2**18
"""Bytes of the largest document that is read a second time if it is not JSON: the lenient parser is slow."""

MOST_TOKENS = 2**53


def object_of(value: Any) -> dict[str, Any]:
    """The object that a value is; an empty one if it is something else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; none if the value is something else."""
    if not isinstance(value, list):
        return []
    return [cast("dict[str, Any]", item) for item in cast("list[Any]", value) if isinstance(item, dict)]


_CLAUDES = re.compile(r".*_20\d{6}|mcp_toolset")
"""The types of Anthropic's tools: all but one have a date."""

_OPENAIS = re.compile(
    r"(web_search|file_search|code_interpreter|computer|computer_use|image_generation|mcp|local_shell|shell|apply_patch"
    r"|tool_search)(_preview)?(_20\d\d_\d\d_\d\d)?"
)


def own_tools(
    server_tools: Sequence[dict[str, Any]], vendor: Literal["anthropic", "openai"]
) -> tuple[list[dict[str, Any]], list[str]]:
    """The tools that may be the vendor's, and words for those that are another one's.

    Google's have neither type nor name. What nobody is known for may be new, and is the vendor's.
    """
    theirs = _OPENAIS if vendor == "anthropic" else _CLAUDES
    own: list[dict[str, Any]] = []
    others: list[str] = []
    for tool in server_tools:
        kind = text_of(tool.get("type"))
        if theirs.fullmatch(kind):
            others.append(repr(kind[:100]))
        elif "type" in tool or "name" in tool:
            own.append(tool)
        else:
            others.append(", ".join(map(repr, tool))[:100] or "{}")
    return own, [f"the tool {name} of another vendor" for name in others]


def text_of(value: Any) -> str:
    """The text that a value is; an empty one if it is something else."""
    return value if isinstance(value, str) else ""


def tokens(value: Any) -> int:
    """A number of tokens; anything that cannot be one counts as 0, so that no answer is lost for it."""
    if value.__class__ is int and 0 <= value < MOST_TOKENS:
        return value
    if isinstance(value, str):
        value = _number(value)
    if not isinstance(value, int | float) or not 0 <= value < MOST_TOKENS:
        return 0
    return int(value)


def _number(text: str) -> float:
    try:
        return float(text) if len(text) < 30 else 0
    except ValueError:
        return 0


def unwrapped(value: Any) -> Any:
    """A value without the list around it: Google's endpoint puts an error into a list of one object."""
    if isinstance(value, list) and len(items := cast("list[Any]", value)) == 1:
        return items[0]
    return cast("Any", value)


def lenient_json(data: bytes) -> Any:
    """What JSON holds that orjson refuses because of half a character in a text; None if it is not JSON either."""
    if len(data) > LENIENT:
        return None
    try:
        return json.loads(data, parse_constant=lambda _: None, object_hook=_whole_characters)
    except (ValueError, RecursionError):
        return None


_STREAMED = frozenset(
    ["content", "refusal", "reasoning_content", "reasoning", "text", "summary", "thinking", "arguments"]
)
"""Texts that come in pieces; the halves of a character are joined where the pieces are."""


def _whole_characters(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: replace_surrogates(value) if isinstance(value, str) and name not in _STREAMED else value
        for name, value in fields.items()
    }


def drop_encrypted(value: Any) -> Any:
    """A value without fields such as `encrypted_content`: the vendor gets them back beside the message."""
    if isinstance(value, list):
        return [drop_encrypted(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {name: drop_encrypted(each) for name, each in fields.items() if not name.startswith("encrypted_")}


def dumps(value: Any) -> bytes:
    """JSON; also of what orjson refuses: half a surrogate pair in a text, or an integer beyond 64 bits."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()
