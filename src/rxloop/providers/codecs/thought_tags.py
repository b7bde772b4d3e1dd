"""Thoughts in tags such as `<think>`."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_args

from rxloop.errors import ConfigurationError
from rxloop.protocol.events import THOUGHT_TYPES, Verbosity
from rxloop.providers.codecs.markup import Fences
from rxloop.providers.vendors import THOUGHT_TAGS

MAX_TAG_LENGTH = 4096
"""Maximum tag length, including attributes. Longer tags are plain text."""

MAX_ID_LENGTH = 200
"""Maximum thought id length."""


# Not frozen, because creating a frozen object per fragment would take three times as long.
@dataclass(slots=True)
class ThoughtText:
    """Open thought fragment."""

    text: str


@dataclass(slots=True)
class Thought:
    """Complete thought."""

    name: str
    """Lower-case tag name."""
    content: str
    """Tag content. For self-closing tags, the text attribute."""
    attributes: dict[str, str] = field(default_factory=dict[str, str])
    """Tag attributes as written."""
    opening: str = ""
    """Opening tag as written."""
    closing: str = ""
    """Closing tag, possibly empty."""
    incomplete: bool = False
    """True if the text ended inside the thought."""

    @property
    def raw(self) -> str:
        """Original text including tags."""
        alone = not self.closing and not self.incomplete
        return self.opening if alone else self.opening + self.content + self.closing


Piece = str | ThoughtText | Thought
"""Plain text, thought fragment, or complete thought."""


class TagSplitter:
    """Incremental parser for thought tags.

    Thoughts begin with a tag using one of the given names, ignoring case. All attributes must have values: `<think>`,
    `<Thought type="planning" confidence=0.8>`. The matching closing tag ends the thought, counting nested tags.
    `<thought content="..."/>` is a complete thought. Everything else is plain text: other tags, longer names
    (`<thinker>`), words after a name (`<think about it>`), and unmatched closing tags. Tags inside fenced code blocks
    or directly following a backtick are text as well, because they are usually examples. Inside a thought, other tags
    are ignored.

    At most a tag prefix is held back: two characters more than the longest name, or `MAX_TAG_LENGTH` characters with
    attributes.

    Some servers include the opening tag in the prompt. With `thinks_first`, the text begins inside a thought, unless an
    opening tag is received anyway.
    """

    def __init__(self, names: Iterable[str] = THOUGHT_TAGS, *, thinks_first: bool = False) -> None:
        names = tuple(names)
        self._tags = _patterns(names)
        self._first = names[0] if thinks_first else ""
        """Initial thought name; empty after the start."""
        self._fences = Fences()
        self.record: Callable[[str], object] = self._fences.unread.write
        """Records a fragment without `<` that bypassed an idle splitter. Equivalent to `feed`, but cheaper."""
        self._held = ""
        self._open: Thought | None = None
        self._own = self._tags
        """Tags that are recognised inside the open thought."""
        self._depth = 0
        self._body: list[str] = []

    @property
    def idle(self) -> bool:
        """True if nothing is held back and no thought is open, so that text without `<` would pass unchanged."""
        return self._open is None and not self._held and not self._first

    def skip_leading_thought(self) -> None:
        """Disable `thinks_first`, because reasoning arrives separately."""
        self._first = ""

    def feed(self, text: str) -> list[Piece]:
        """Add a fragment and return completed pieces."""
        if self._first:
            return self._read_beginning(text, end=False)
        if self._held:
            text = self._held + text
        elif "<" not in text:
            if self._open is None:
                self.record(text)
            return [self._piece(text)] if text else []
        return self._read(text, end=False)

    def finish(self) -> list[Piece]:
        """Return the remaining pieces at the end of the text."""
        pieces = self._read_beginning("", end=True) if self._first else self._read(self._held, end=True)
        if self._open is not None:
            pieces.append(self._close(self._open, ""))
        return pieces

    def _read_beginning(self, text: str, *, end: bool) -> list[Piece]:
        """Return the pieces at the beginning of the answer. Up to `MAX_TAG_LENGTH` blanks are held back."""
        text = self._held + text
        written = text.lstrip()
        at = len(text) - len(written)
        tag = self._tags.opening.match(text, at)
        undecided = not written or written.lower() in self._tags.prefixes or self._may_open(text, at)
        if tag is None and undecided and not end and len(text) < MAX_TAG_LENGTH:
            self._held = text
            return []
        if tag is None and (written or not end):
            self._open, self._own, self._depth = Thought(self._first.lower(), ""), _own_tags(self._first.lower()), 1
        self._first = ""
        return self._read(text, end=end)

    def _may_open(self, text: str, at: int) -> bool:
        return _is_partial_match(self._tags.half_opening, text, at)

    def _read(self, text: str, *, end: bool) -> list[Piece]:
        self._held = ""
        pieces: list[Piece] = []
        at, length = 0, len(text)
        while at < length:
            opened = self._open
            stop, tag = (self._find_opening if opened is None else self._find_closing)(text, at, end)
            if at < stop:
                pieces.append(self._piece(text[at:stop]))
            if tag is None:
                self._held = text[stop:]
                break
            at = tag.end()
            if opened is not None:
                pieces.append(self._close(opened, tag[0]))
            elif tag[3]:
                pieces.append(_parse_empty_tag(tag))
            else:
                self._open = opened = _parse_opening_tag(tag)
                self._own, self._depth = _own_tags(opened.name), 1
        return pieces

    def _find_opening(self, text: str, start: int, end: bool) -> tuple[int, re.Match[str] | None]:
        """Return the plain text's end index and the complete opening tag, if any."""
        tags, fences = self._tags, self._fences
        noted = at = start
        while candidate := tags.start.search(text, at):
            at = candidate.start()
            tag = tags.opening.match(text, at, at + MAX_TAG_LENGTH)
            if tag is not None or (not end and self._may_open(text, at)):
                fences.unread.write(text[noted:at])
                noted = at
                if not fences.in_code():
                    return at, tag
            at += 1
        stop = len(text) if end else _find_partial_tag(text, at, tags)
        fences.unread.write(text[noted:stop])
        return stop, None

    def _find_closing(self, text: str, start: int, end: bool) -> tuple[int, re.Match[str] | None]:
        """Return the thought text's end index and the complete closing tag, if any."""
        tags, at = self._own, start
        while candidate := tags.start.search(text, at):
            at = candidate.start()
            pattern, half = (tags.closing, tags.half_closing) if candidate[1] else (tags.opening, tags.half_opening)
            tag = pattern.match(text, at, at + MAX_TAG_LENGTH)
            if tag is not None:
                self._depth += -1 if candidate[1] else not tag[3]
                if not self._depth:
                    return at, tag
                at = tag.end()
            elif not end and _is_partial_match(half, text, at):
                return at, None
            else:
                at += 1
        return len(text) if end else _find_partial_tag(text, at, tags), None

    def _piece(self, text: str) -> Piece:
        if self._open is None:
            return text
        self._body.append(text)
        return ThoughtText(text)

    def _close(self, thought: Thought, closing: str) -> Thought:
        """Complete the open thought."""
        thought.content = "".join(self._body)
        thought.closing = closing
        thought.incomplete = not closing
        self._body.clear()
        self._open = None
        return thought


def _parse_opening_tag(tag: re.Match[str]) -> Thought:
    attributes: dict[str, str] = {}
    if tag[2]:
        for name, *values in _ATTRIBUTE.findall(tag[2]):
            attributes.setdefault(name, html.unescape("".join(values)))
    return Thought(tag[1].lower(), "", attributes, tag[0])


def _parse_empty_tag(tag: re.Match[str]) -> Thought:
    """Parse a self-closing tag as a thought."""
    thought = _parse_opening_tag(tag)
    attributes = {_normalise_name(name): value for name, value in thought.attributes.items()}
    thought.content = next((attributes[name] for name in _TEXT_ATTRIBUTES if name in attributes), "")
    return thought


@dataclass(frozen=True, slots=True)
class _Patterns:
    """Patterns that match tags of certain names."""

    start: re.Pattern[str]
    opening: re.Pattern[str]
    half_opening: re.Pattern[str]
    """Matches an incomplete opening tag with a complete name."""
    closing: re.Pattern[str]
    half_closing: re.Pattern[str]
    prefixes: frozenset[str]
    """Possible tag prefixes."""
    longest_prefix: int
    """Length of the longest prefix."""


_VALUE = r"""(?:"[^"]*+"|'[^']*+'|(?:[^\s"'=<>`/]|/(?!>))++)"""

_HALF_VALUE = r"""(?:"[^"]*+|'[^']*+)?"""

_KEY = r"[A-Za-z_][\w.:-]{0,39}+"

_ATTRIBUTES = rf"((?:\s++{_KEY}\s*+=\s*+{_VALUE})*+)"

_ATTRIBUTE = re.compile(rf"""\s({_KEY})\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|((?:[^\s"'=<>`/]|/(?!>))++))""", re.ASCII)

_FLAGS = re.IGNORECASE | re.ASCII


def _compile_patterns(names: tuple[str, ...], start: str, begins: tuple[str, ...]) -> _Patterns:
    either = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    name = f"({either})"
    return _Patterns(
        start=re.compile(f"<{start}(?:{either})(?=[\\s/>])", _FLAGS),
        opening=re.compile(rf"<{name}{_ATTRIBUTES}\s*+(/?)>", _FLAGS),
        half_opening=re.compile(rf"<{name}{_ATTRIBUTES}(?:\s*+/?|\s++{_KEY}\s*+(?:=\s*+{_HALF_VALUE})?)\Z", _FLAGS),
        closing=re.compile(rf"</{name}\s*+>", _FLAGS),
        half_closing=re.compile(rf"</{name}\s*+\Z", _FLAGS),
        prefixes=frozenset(name[:length] for name in begins for length in range(1, len(name) + 1)),
        longest_prefix=max(map(len, begins)),
    )


@cache
def _patterns(names: tuple[str, ...]) -> _Patterns:
    """Return patterns for opening tags."""
    wrong = [name for name in names if not re.fullmatch("[A-Za-z][A-Za-z0-9_-]*", name)]
    if wrong or not names:
        raise ConfigurationError(
            f"a tag name must match [A-Za-z][A-Za-z0-9_-]*, got {', '.join(map(repr, wrong)) or 'no name'}"
        )
    return _compile_patterns(names, "", tuple(f"<{name.lower()}" for name in names))


@cache
def _own_tags(name: str) -> _Patterns:
    """Return patterns for tags inside a thought."""
    return _compile_patterns((name,), "(/?)", (f"<{name}", f"</{name}"))


def _is_partial_match(half: re.Pattern[str], text: str, at: int) -> bool:
    return len(text) - at < MAX_TAG_LENGTH and half.match(text, at) is not None


def _find_partial_tag(text: str, start: int, tags: _Patterns) -> int:
    """Return the start index of a trailing tag prefix, or the text length."""
    at = text.rfind("<", max(start, len(text) - tags.longest_prefix))
    return at if at >= 0 and text[at:].lower() in tags.prefixes else len(text)


_TEXT_ATTRIBUTES = ("content", "text", "thought")

_EVENT_FIELDS = {
    "id": "thought_id",
    "thoughtid": "thought_id",
    "type": "thought_type",
    "thoughttype": "thought_type",
    "verbosity": "verbosity",
    "confidence": "confidence",
    "relatedto": "related_to",
}


def _normalise_name(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def make_event_fields(thought: Thought) -> dict[str, Any]:
    """Return the `ThoughtStreamEvent` fields from the attributes of a tag. Invalid attributes are put into `metadata`.

    Any spelling of a name is accepted: `related_to`, `related-to`, `relatedTo`. Without a type attribute, the name of
    the tag is the type if it is a valid type.
    """
    fields: dict[str, Any] = {"thought_type": thought.name} if thought.name in THOUGHT_TYPES else {}
    metadata: dict[str, Any] = {}
    assigned: set[str] = set()
    for name, value in thought.attributes.items():
        target = _EVENT_FIELDS.get(_normalise_name(name))
        converted = None if target is None or target in assigned else _convert_value(target, value)
        if target is not None and converted is not None:
            fields[target] = converted
            assigned.add(target)
        elif thought.closing or thought.incomplete or _normalise_name(name) not in _TEXT_ATTRIBUTES:
            metadata[name] = value
    return {**fields, "metadata": metadata}


def _convert_value(target: str, value: str) -> Any:
    """Return the value converted for the field, or None if it is invalid."""
    value = value.strip()
    if target == "thought_type":
        return value.lower() if value.lower() in THOUGHT_TYPES else None
    if target == "verbosity":
        return value.lower() if value.lower() in get_args(Verbosity) else None
    if target == "confidence":
        try:
            number = float(value)
        except ValueError:
            return None
        return number if 0 <= number <= 1 else None
    return value if 0 < len(value) <= MAX_ID_LENGTH else None
