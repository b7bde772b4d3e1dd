"""Text search in the events of a run."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any, cast

import orjson

from rxloop.protocol.envelope import Event
from rxloop.protocol.http_api.inspection import SearchHit

MAX_EXCERPT = 200
"""Maximum number of characters in an excerpt."""

_BEFORE = 60
"""Number of characters before the first match in an excerpt."""

MAX_HITS = 100
"""Maximum number of hits in an event, because models and tools can publish lists with many values."""

MAX_STEPS = 1 << 20
"""Maximum number of comparisons without an interruption, because the other threads wait for them."""

_MAX_DEPTH = 50
"""Maximum JSON nesting depth that is searched."""

_SKIPPED_FIELDS = frozenset(
    ("version", "kind", "contextId", "taskId", "timestamp", "parentTaskId", "agentPath", "idempotencyKey", "metadata")
)
"""Fields of events that are not searched, because people do not read them."""


def make_pattern(text: str) -> re.Pattern[str]:
    """Return a pattern that finds a text, ignoring case."""
    return re.compile(re.escape(text), re.IGNORECASE)


def search_events(
    events: Iterable[Event], pattern: re.Pattern[str], task_id: str, *, kinds: Collection[str] | None, internal: bool
) -> Iterator[SearchHit]:
    """Yield a hit for each field of an event that contains a text, at most `MAX_HITS` per event.

    Args:
        events: Durable events.
        pattern: Text to find, see `make_pattern`.
        task_id: Task id of the run.
        kinds: Event kinds to search. None searches all kinds.
        internal: Whether to search data that clients must not receive.
    """
    for event in events:
        if kinds is not None and event.kind not in kinds:
            continue
        if not internal and event.to_public() is None:
            continue
        for field, text, start in islice(_find_texts(event, pattern, internal), MAX_HITS):
            excerpt, marks = _make_excerpt(text, start, pattern)
            yield SearchHit(task_id=task_id, seq=event.seq, kind=event.kind, field=field, text=excerpt, marks=marks)


def _find_texts(event: Event, pattern: re.Pattern[str], internal: bool) -> Iterator[tuple[str, str, int]]:
    """Yield the path and the text of each matching field, and the position of the first match."""
    fields: dict[str, Any] = orjson.loads(event.to_json(public=not internal))
    for name, value in fields.items():
        if name in _SKIPPED_FIELDS:
            continue
        for field, text in _list_texts(name, value, 0):
            start = _find_first(text, pattern)
            if start is not None:
                yield field, text, start


def _find_first(text: str, pattern: re.Pattern[str]) -> int | None:
    # An escaped character has at most two characters, so slices overlap by at least the length of the searched text.
    length = len(pattern.pattern)
    size = max(MAX_STEPS // length - length, 1)
    for start in range(0, max(len(text), 1), size):
        first = pattern.search(text, start, start + size + length)
        if first is not None:
            return first.start()
    return None


def _list_texts(path: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    """Yield the strings of a JSON value with their paths, without binary data."""
    if isinstance(value, str):
        yield path, value
    elif depth >= _MAX_DEPTH:
        return
    elif isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        for name, item in items.items():
            if not (name == "data" and ("mediaType" in items or "encoding" in items)):
                yield from _list_texts(f"{path}.{name}", item, depth + 1)
    elif isinstance(value, list):
        for number, item in enumerate(cast("list[Any]", value)):
            yield from _list_texts(f"{path}.{number}", item, depth + 1)


def _make_excerpt(text: str, start: int, pattern: re.Pattern[str]) -> tuple[str, list[tuple[int, int]]]:
    """Return the part of a text around a match, and the positions of all matches in this part."""
    first = max(start - _BEFORE, 0)
    excerpt = text[first : first + MAX_EXCERPT]
    return excerpt, [match.span() for match in pattern.finditer(excerpt)]
