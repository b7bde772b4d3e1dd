"""Checks how deep and how large a document is, aliases expanded, before anything is built from it."""

from __future__ import annotations

import re
from typing import Any, cast

MOST_CHARACTERS = 256 * 1024
"""Of a document; the nine strategies that are there have 40,000 in all."""
DEEPEST = 50
MOST_VALUES = 50_000
"""Of a document whose aliases are written out."""

# A text that does not end reaches to the end: nothing is looked at twice.
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\Z)|[\[\]{}]', re.DOTALL)


class TooMuch(ValueError):
    """A document is too large or too deep; the message says where."""


def check_json(text: str) -> None:
    """Check that a JSON document is not too deep.

    Raises:
        TooMuch: It is.
    """
    depth = 0
    for token in _JSON_TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
        if depth > DEEPEST:
            line = text.count("\n", 0, token.start()) + 1
            column = token.start() - text.rfind("\n", 0, token.start())
            raise TooMuch(f"goes deeper than {DEEPEST} levels (line {line}, column {column})")


def check_yaml(text: str) -> None:
    """Check that a YAML document is neither too deep nor, with its aliases expanded, too large.

    Raises:
        TooMuch: It is, or an alias stands inside what it names.
        yaml.YAMLError: The text is not YAML.
    """
    import yaml

    sizes: dict[str, int] = {}
    open_ones: list[tuple[str | None, int]] = []  # The anchor of each collection that is open, and its size so far.
    total = 0
    events: Any = cast("Any", yaml).parse(text, Loader=yaml.SafeLoader)
    for event in events:
        size = 0
        if isinstance(event, yaml.CollectionStartEvent):
            open_ones.append((event.anchor, 1))
            if len(open_ones) > DEEPEST:
                raise TooMuch(f"goes deeper than {DEEPEST} levels{_at(event)}")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_ones.pop()
            if anchor is not None:
                sizes[anchor] = size
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_ones):
                raise TooMuch(f"the alias *{event.anchor} stands inside what it names{_at(event)}")
            size = sizes.get(event.anchor, 0)
        if open_ones:
            anchor, before = open_ones[-1]
            open_ones[-1] = (anchor, before + size)
            total = before + size
        if total > MOST_VALUES:
            raise TooMuch(f"has more than {MOST_VALUES} values, its aliases written out{_at(event)}")


def _at(event: Any) -> str:
    return f" (line {event.start_mark.line + 1}, column {event.start_mark.column + 1})"
