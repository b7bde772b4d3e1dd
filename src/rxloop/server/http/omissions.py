"""Omission of the ends of long texts, lists and objects in responses."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

import orjson

OMITTED = "rxloop.omitted"
"""Key of the omitted characters and values in the metadata of an event."""

_MAX_DEPTH = 50
"""Depth of JSON values below which nothing is shortened."""

_MIN_VALUES, _MIN_FIELDS = 10, 100
"""Number of values that lists and objects keep at least. Typed objects have fewer fields, so they stay valid."""

_WHOLE_LISTS = frozenset({"messages", "calls", "pending", "toolCalls", "goals", "parts", "tools", "leftOut"})
"""Top-level lists that keep all of their values. Clients count these values or refer to them by index."""

_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")


def shorten_event(line: bytes, limit: int) -> bytes:
    """Shorten a line of JSON with an event. The metadata of the event then contains the omitted values."""
    event, omitted = _shorten(line, limit)
    if not omitted:
        return line
    return orjson.dumps({**event, "metadata": {**event.get("metadata", {}), OMITTED: omitted}}) + b"\n"


def shorten_document(body: bytes, limit: int | None) -> bytes:
    """Shorten a JSON document, unless the limit is None. The field `omitted` then contains the omitted values."""
    if limit is None or len(body) <= limit:
        return body
    document, omitted = _shorten(body, limit)
    return orjson.dumps({**document, "omitted": omitted}) if omitted else body


def _shorten(body: bytes, limit: int) -> tuple[dict[str, Any], dict[str, int]]:
    shortener = _Shortener(limit)
    short, _ = shortener.shorten(orjson.loads(body))
    return short, shortener.omitted


class _Shortener:
    """Copies of JSON values in which no text, list or object is much longer than a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.omitted: dict[str, int] = {}
        """Number of omitted characters or values by the JSON Pointer of a text, list or object."""

    def shorten(self, value: Any, pointer: str = "", depth: int = 0, *, is_data: bool = False) -> tuple[Any, int]:
        """Return the shortened value, and its approximate size in characters."""
        if isinstance(value, str):
            text = self._shorten_text(value, pointer, is_data=is_data)
            return text, len(text)
        if depth == _MAX_DEPTH or not isinstance(value, dict | list):
            return value, len(str(value))
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            kept, size = self._shorten_values(fields.items(), len(fields), _MIN_FIELDS, pointer, depth)
            return dict(kept), size
        values = cast("list[Any]", value)
        least = len(values) if depth == 1 and pointer[1:] in _WHOLE_LISTS else _MIN_VALUES
        items = ((str(index), each) for index, each in enumerate(values))
        kept, size = self._shorten_values(items, len(values), least, pointer, depth)
        return [each for _, each in kept], size

    def _shorten_values(
        self, items: Iterable[tuple[str, Any]], count: int, least: int, pointer: str, depth: int
    ) -> tuple[list[tuple[str, Any]], int]:
        kept: list[tuple[str, Any]] = []
        size = 0
        for name, each in items:
            if size > self.limit and len(kept) >= least:
                self.omitted[pointer] = count - len(kept)
                break
            path = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
            short, length = self.shorten(each, path, depth + 1, is_data=name == "data")
            kept.append((name, short))
            size += len(name) + length
        return kept, size

    def _shorten_text(self, text: str, pointer: str, *, is_data: bool) -> str:
        if len(text) <= self.limit:
            return text
        url = _DATA_URL.match(text)
        start, end, mark = url.end() if url else 0, self.limit, "\u2026"
        if url or (is_data and _BASE64.fullmatch(text)):
            # The beginning of base64 data must remain valid.
            end, mark = start + self.limit - self.limit % 4, ""
        if end >= len(text):
            return text
        self.omitted[pointer] = len(text) - end
        return text[:end] + mark
