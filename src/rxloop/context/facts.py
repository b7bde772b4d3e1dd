"""Extraction of facts required verbatim in later steps."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final, NamedTuple, cast

import orjson

from rxloop.context.token_estimator import PerMessage, cache_short_strings
from rxloop.protocol.messages import Message

_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"

# In scripts without spaces, a count or date (5月15日) is one word, as is text between Latin letters and signs.
_RUN = re.compile(rf"(?:(?<![\w./-])|(?<=[{_CJK}]))(?:\d+[{_CJK}])+|[{_CJK}]+")

_COMPOUND = re.compile(r"[#~./-]{0,3}\w++(?:(?:[/.@+,-]|:(?://|:)?)\w++)*+%?")

_PREFIX = re.compile(r"(?:\.{0,2}/|~/|\.|#|--)?(?=\w)")

_QUOTED = re.compile(r"[`\"“„«「『]([^`\"“”„«»「」『』\n]{3,60})[`\"”“»」』]")

_NUMBER = re.compile(r"\d+(?:[.:/-]\d+|,\d{2,3}(?!\d))*%?")

_CAMEL = re.compile(r"[^\W\d_]*[^\W\d_A-Z][A-Z]\w*")

_LABEL_DISTANCE = 40

_SHORT_CHARS = 80

# Characters to read at each end of a very long text.
_FRONT, _BACK = 20_000, 8_000

_LONGEST = 200

_MAX_DEPTH = 40


class Fact(NamedTuple):
    """Value that may be relevant, with the label next to it."""

    value: str
    label: str
    weight: float
    """Estimated relevance based on format and position."""


# Weights by form. They were measured on values that agents used again, and small changes have little effect.
_WEIGHTS: Final = {
    "address": 1.2,
    "path": 1.0,
    "id": 1.2,
    "number": 0.7,
    "identifier": 0.6,
    "name": 0.5,
    "value": 0.5,
    "capitals": 0.5,
    "decimal": 0.4,
    "option": 0.35,
    "quoted": 0.35,
    "shout": 0.3,
    "alternatives": 0.3,
    "small number": 0.1,
    "plain": 0.0,
}

_USER, _ARGUMENT = 1.3, 1.5

_MIN_WEIGHT = 0.12


@cache_short_strings
def classify_word(word: str) -> str:
    """Determine the format class of a word."""
    if len(word) < 2:
        return "plain"
    digits = sum(map(str.isdigit, word))
    if "://" in word or "@" in word[1:]:
        return "address"
    if "/" in word[1:] or word[0] in "~/":
        plain = not digits and "." not in word and "_" not in word and word.count("/") < 2
        return "alternatives" if plain and word[0] not in "~/" else "path"
    if digits and any(map(str.isalpha, word)):
        return "id"
    if digits:
        return "number" if digits >= 3 else "decimal" if "%" in word or "." in word else "small number"
    inner = word.strip("_-")
    dotted = "." in inner and "-" not in inner and max(map(len, inner.split("."))) > 2
    if dotted or "_" in inner or "::" in inner or _CAMEL.fullmatch(inner):
        return "identifier"
    if inner.isupper() and inner.isascii():
        return "capitals" if len(inner) <= 5 else "shout"
    return "option" if word.startswith("--") else "plain"


@cache_short_strings
def _pieces(compound: str) -> tuple[tuple[str, float], ...]:
    """Split a compound into weighted parts, unless its separators belong to it."""
    if not compound[0].isalnum():
        # Keep leading signs that belong to the word: a path, hidden file, number or option.
        compound = next(compound[index:] for index in range(len(compound)) if _PREFIX.match(compound, index))
    pieces = [compound]
    if "," in compound and not _NUMBER.fullmatch(compound):
        pieces = compound.split(",")
    if ":" in compound and "://" not in compound and "::" not in compound:
        pieces = [part for piece in pieces for part in ([piece] if _NUMBER.fullmatch(piece) else piece.split(":"))]
    return tuple(
        (piece, _WEIGHTS[classify_word(piece)] if len(piece) <= _LONGEST else 0.0) for piece in pieces if piece
    )


class _Reader:
    """Reads text, code or logs, and labels values with nearby words."""

    def __init__(self, text: str, name: str) -> None:
        self.found: list[Fact] = []
        self._seen: set[str] = set()
        self._text = text
        self._name = name
        self._label, self._label_end = name, -_LABEL_DISTANCE
        self._capital, self._capital_end = "", -2
        self._pending: list[tuple[str, float]] = []

    def read(self) -> list[Fact]:
        """Extract all facts in text order."""
        for match in _COMPOUND.finditer(self._text):
            value = match.group()
            for piece, weight in _pieces(value):
                if not weight:
                    self._word(piece, match.start(), match.end())
                elif weight >= _MIN_WEIGHT or not _numbers_a_line(self._text, match.start(), match.end()):
                    self._value(piece, weight, match.start())
        self._label_pending(self._name)
        return self.found

    def _value(self, value: str, weight: float, start: int) -> None:
        # Weights depend on the form, so further mentions add nothing, and they are frequent in code and logs.
        if value in self._seen:
            return
        self._seen.add(value)
        if start - self._label_end < _LABEL_DISTANCE - len(self._label):
            self.found.append(Fact(value, self._label, weight))
        elif len(self._pending) < 3:
            self._pending.append((value, weight))
        else:
            self.found.append(Fact(value, self._name, weight))

    def _word(self, word: str, start: int, end: int) -> None:
        size = len(word)
        if size < 3 and word.isascii():
            return
        label = word if size <= 24 else word[-8:]
        if self._pending:
            self._label_pending(label)
        # Longer words are usually more meaningful, regardless of language.
        if start - self._label_end > 16 or len(label) >= len(self._label):
            self._label = label
        self._label_end = end
        if size <= _LABEL_DISTANCE and word[0].isupper() and word.isalpha():
            if self._capital_end + 1 == start and self._text[start - 1] == " ":
                self.found.append(Fact(f"{self._capital} {word}", self._label, _WEIGHTS["name"]))
            self._capital, self._capital_end = word, end

    def _label_pending(self, label: str) -> None:
        """Label all pending values."""
        self.found += [Fact(value, label, weight) for value, weight in self._pending]
        self._pending.clear()


def _find_in_text(text: str, name: str) -> list[Fact]:
    """Return facts from text, code or logs, with a default label."""
    if len(text) > _FRONT + _BACK:
        text = f"{text[:_FRONT]}\n{text[-_BACK:]}"
    if not text.isascii():
        text = _RUN.sub(r" \g<0> ", text)
    return _Reader(text, name).read()


def _iter_quoted(text: str) -> Iterator[Fact]:
    for match in _QUOTED.finditer(text):
        value = match.group(1).strip()
        if value and len(value.split()) <= 6:
            before = re.findall(r"\w{3,}", text[max(0, match.start() - _LABEL_DISTANCE) : match.start()])
            yield Fact(value, before[-1] if before else "", _WEIGHTS["quoted"])


def _numbers_a_line(text: str, start: int, end: int) -> bool:
    before = text[max(0, start - 8) : start].rpartition("\n")[2]
    return not before.strip() and end < len(text) and text[end] != "\n"


def _find_in_value(value: Any, key: str, depth: int = 0) -> Iterator[Fact]:
    """Return facts from a JSON value, labelled with its key."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            if len(name) <= _SHORT_CHARS and classify_word(name) in ("id", "number", "path", "address"):
                yield Fact(name, key, _WEIGHTS[classify_word(name)])
            yield from _find_in_value(inner, name[:_SHORT_CHARS], depth + 1)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _find_in_value(inner, key, depth + 1)
    elif not isinstance(value, bool) and value is not None:
        text = str(value).strip()
        words = text.split()
        if 2 <= len(text) <= _SHORT_CHARS and len(words) <= 6 and "\n" not in text:
            min_weight = _WEIGHTS["value"] if len(text) > 2 else _MIN_WEIGHT
            yield Fact(text, key, max(_WEIGHTS[classify_word(text)], min_weight))
        if len(words) > 1 or len(text) > _SHORT_CHARS:
            yield from _find_in_text(text, key)


def _content(message: Message) -> Iterable[Fact]:
    text = message.text
    start = text.lstrip()
    if start[:1] in ("{", "["):
        with contextlib.suppress(orjson.JSONDecodeError):
            return _find_in_value(orjson.loads(start), "")
    if message.role == "tool":
        return _find_in_text(text, "")
    return chain(_find_in_text(text, ""), _iter_quoted(text))


def _find_in_message(message: Message) -> tuple[Fact, ...]:
    by_value: dict[str, Fact] = {}

    def add(facts: Iterable[Fact], factor: float) -> None:
        for fact in facts:
            weight = fact.weight * factor
            old = by_value.get(fact.value)
            if weight >= _MIN_WEIGHT and (old is None or weight > old.weight):
                by_value[fact.value] = fact if factor == 1 else Fact(fact.value, fact.label, weight)

    add(_content(message), _USER if message.role == "user" else 1.0)
    for call in message.tool_calls:
        add(_find_in_value(call.arguments or call.raw, call.name), _ARGUMENT)
    return tuple(by_value.values())


extract_facts = PerMessage(_find_in_message)
"""Return unique facts from a message, in order."""
