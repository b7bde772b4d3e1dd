"""Thoughts that a model writes into its text, between tags such as `<think>` and `</think>`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_args

from rxloop.errors import ConfigurationError
from rxloop.events import THOUGHT_TYPES, Verbosity

THOUGHT_TAGS = ("think", "thinking", "thought", "thoughts", "reasoning", "reflection")
"""The names that models give to such tags."""

LONGEST_TAG = 4096
"""Characters of the longest tag, attributes and all; what is longer is text."""


@dataclass(frozen=True, slots=True)
class ThoughtText:
    """A piece of the thought that is open."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """A thought that is over."""

    name: str
    """The name of the tag, in lower case."""
    content: str
    """What stood between the tags; for a tag without a body, what its attribute says."""
    attributes: dict[str, str] = field(default_factory=dict[str, str])
    """What the tag says, by the names that it uses."""
    opening: str = ""
    """The tag as it was written."""
    closing: str = ""
    """The closing tag; empty where there is none."""
    incomplete: bool = False
    """The text ended inside the thought."""

    @property
    def raw(self) -> str:
        """The thought as it was written, tags and all."""
        alone = not self.closing and not self.incomplete
        return self.opening if alone else self.opening + self.content + self.closing


Piece = str | ThoughtText | Thought
"""A piece of text; a piece of a thought, as it comes; a thought, when it is over."""


class TagSplitter:
    """Parts a text from the thoughts in it, whatever the pieces in which both come.

    A thought begins with a tag of one of the names, upper or lower case, whose attributes, if any, all have values:
    `<think>`, `<Thought type="planning" confidence=0.8>`. It ends with the closing tag of the same name; tags of that
    name inside it are counted and belong to it. `<thought content="..."/>` is a whole thought. All else is text to the
    letter: other tags, names that go on (`<thinker>`), words after a name (`<think about it>`), and closing tags
    where nothing is open. So is a tag that stands inside a fenced code block, or right behind a backtick, where people
    write about such tags. Inside a thought only its own tags mean anything.

    At most the start of a tag is held back: no more characters than the longest name has and two, unless attributes
    follow, and then `LONGEST_TAG` at most.
    """

    def __init__(self, names: Iterable[str] = THOUGHT_TAGS) -> None:
        self._tags = _patterns(tuple(names))
        self._fences = _Fences()
        self._held = ""
        self._open: re.Match[str] | None = None
        self._depth = 0
        self._body: list[str] = []

    @property
    def idle(self) -> bool:
        """Whether nothing is held back and no thought is open: text without a `<` would pass as it is."""
        return self._open is None and not self._held

    def passed(self, text: str) -> None:
        """Take note of a piece without a `<` that went past an idle splitter; cheaper than `feed`, and the same."""
        self._fences.unread.append(text)

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are sure after this much more text."""
        return self._read(self._held + text, end=False)

    def finish(self) -> list[Piece]:
        """The pieces that are left at the end of the text."""
        pieces = self._read(self._held, end=True)
        if self._open is not None:
            pieces.append(self._thought(self._open, "", incomplete=True))
            self._open = None
        return pieces

    def _read(self, text: str, *, end: bool) -> list[Piece]:
        self._held = ""
        pieces: list[Piece] = []
        at = 0
        while at < len(text):
            at = (self._read_text if self._open is None else self._read_thought)(text, at, end, pieces)
        return pieces

    def _read_text(self, text: str, start: int, end: bool, pieces: list[Piece]) -> int:
        """Read up to the next thought; where reading goes on, at the end of the text if there is none."""
        tags, fences = self._tags, self._fences
        noted = at = start
        stop: int | None = None
        while found := tags.start.search(text, at):
            at = found.start()
            tag = tags.opening.match(text, at, at + LONGEST_TAG)
            if tag is not None or (not end and _may_become(tags.half_opening, text, at)):
                fences.unread.append(text[noted:at])
                noted = at
                if not fences.in_code():
                    stop = at
                    break
            at += 1
        else:
            tag = None
        if stop is None:
            stop = len(text) if end else _half_name(text, at, tags.names, tags.reach)
        if noted < stop:
            fences.unread.append(text[noted:stop])
        if start < stop:
            pieces.append(text[start:stop])
        if tag is None:
            self._held = text[stop:]
            return len(text)
        if tag["alone"]:
            pieces.append(self._thought(tag, ""))
        else:
            self._open, self._depth = tag, 1
        return tag.end()

    def _read_thought(self, text: str, start: int, end: bool, pieces: list[Piece]) -> int:
        """Read up to the end of the open thought."""
        assert self._open is not None
        own = _own_tags(self._open["name"].lower())
        at = start
        tag: re.Match[str] | None = None
        stop: int | None = None
        while found := own.start.search(text, at):
            at = found.start()
            pattern, half = (own.closing, own.half_closing) if found[1] else (own.opening, own.half_opening)
            tag = pattern.match(text, at, at + LONGEST_TAG)
            if tag is None:
                if not end and _may_become(half, text, at):
                    stop = at
                    break
                at += 1
                continue
            self._depth += -1 if found[1] else not tag["alone"]
            if not self._depth:
                stop = at
                break
            at = tag.end()
            tag = None
        if stop is None:
            stop = len(text) if end else _half_name(text, at, own.names, own.reach)
        if start < stop:
            self._body.append(text[start:stop])
            pieces.append(ThoughtText(text[start:stop]))
        if tag is None:
            self._held = text[stop:]
            return len(text)
        pieces.append(self._thought(self._open, tag[0]))
        self._open = None
        return tag.end()

    def _thought(self, tag: re.Match[str], closing: str, *, incomplete: bool = False) -> Thought:
        attributes: dict[str, str] = {}
        for name, *values in _ATTRIBUTE.findall(tag["attributes"]):
            attributes.setdefault(name, html.unescape("".join(values)))
        content = "".join(self._body)
        self._body = []
        if tag["alone"]:
            known = {_plain(name): value for name, value in attributes.items()}
            content = next((known[name] for name in _TEXT if name in known), "")
        return Thought(tag["name"].lower(), content, attributes, tag[0], closing, incomplete)


class _Fences:
    """Knows whether the text so far ends inside a fenced code block.

    It reads only when it is asked, since most texts have no tag at all. A fence is a run of three or more backticks or
    tildes that begins a line, behind blanks and the marks of a quotation; it is closed by a run as long, with nothing
    behind it on its line. Backticks that come again on the line were code inside a line.
    """

    def __init__(self) -> None:
        self.unread: list[str] = []
        self._last = ""
        self._fence = ""
        """What opened the block that is open."""
        self._run = ""
        """The run at the start of this line, as far as it has come."""
        self._line = "start"
        """What of this line has been read: its `start`, the `run`, what is `behind` a run that counts, or `other`."""

    def in_code(self) -> bool:
        """Whether a tag that came now would be in code."""
        if self.unread:
            text = "".join(self.unread)
            self.unread = []
            if text:
                self._last = text[-1]
                self._scan(text)
        opening = self._line == "behind" or (self._line == "run" and len(self._run) > 2)
        return bool(self._fence) or opening or self._last == "`"

    def _scan(self, text: str) -> None:
        at = 0
        while at < len(text):
            if self._line == "start":
                at = _MARGIN.match(text, at).end()  # pyright: ignore[reportOptionalMemberAccess]
                if at < len(text):
                    self._line, self._run = ("run", "") if text[at] in "`~" else ("other", "")
            elif self._line == "run":
                at = self._scan_run(text, at)
            elif self._line == "behind":
                at = self._scan_behind(text, at)
            else:
                at = self._next_line(text, at)

    def _scan_run(self, text: str, at: int) -> int:
        mark = self._run[:1] or text[at]
        end = at
        while end < len(text) and text[end] == mark:
            end += 1
        self._run += text[at:end]
        if end < len(text):
            counts = self._run.startswith(self._fence) if self._fence else len(self._run) > 2
            self._line = "behind" if counts else "other"
        return end

    def _scan_behind(self, text: str, at: int) -> int:
        """Read on to the end of the line: there it is known whether the run opened or closed a block."""
        end = text.find("\n", at)
        rest = text[at:] if end < 0 else text[at:end]
        if (rest.strip() if self._fence else self._run[0] == "`" and "`" in rest):
            self._line = "other"
            return at
        if end < 0:
            return len(text)
        self._fence = "" if self._fence else self._run
        self._line = "start"
        return end + 1

    def _next_line(self, text: str, at: int) -> int:
        """Skip to the next line that could begin with a run."""
        found = _LINE.search(text, at)
        if found is None:
            return len(text)
        self._line = "start"
        return found.start() + 1


_MARGIN = re.compile(r"[ \t>]*")
_LINE = re.compile(r"\n(?=[ \t>]*+(?:[`~]|\Z))")


@dataclass(frozen=True, slots=True)
class _Patterns:
    """What tells tags of some names."""

    start: re.Pattern[str]
    opening: re.Pattern[str]
    half_opening: re.Pattern[str]
    """What an opening tag looks like when the text ends inside it, from its name on."""
    closing: re.Pattern[str]
    half_closing: re.Pattern[str]
    names: tuple[str, ...]
    """What tags begin with."""
    reach: int
    """The length of the longest of these."""


_VALUE = r"""(?:"[^"]*+"|'[^']*+'|(?:[^\s"'=<>`/]|/(?!>))++)"""
_HALF_VALUE = r"""(?:"[^"]*+|'[^']*+)?"""
_KEY = r"[A-Za-z_][\w.:-]{0,39}+"
_ATTRIBUTES = rf"(?P<attributes>(?:\s++{_KEY}\s*+=\s*+{_VALUE})*+)"
_ATTRIBUTE = re.compile(
    rf"""\s({_KEY})\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|((?:[^\s"'=<>`/]|/(?!>))++))""", re.ASCII
)
_FLAGS = re.IGNORECASE | re.ASCII


def _made(names: tuple[str, ...], start: str, begins: tuple[str, ...]) -> _Patterns:
    either = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    name = f"(?P<name>{either})"
    return _Patterns(
        start=re.compile(f"<{start}(?:{either})(?=[\\s/>])", _FLAGS),
        opening=re.compile(rf"<{name}{_ATTRIBUTES}\s*+(?P<alone>/?)>", _FLAGS),
        half_opening=re.compile(
            rf"<{name}{_ATTRIBUTES}(?:\s*+/?|\s++{_KEY}\s*+(?:=\s*+{_HALF_VALUE})?)\Z", _FLAGS
        ),
        closing=re.compile(rf"</{name}\s*+>", _FLAGS),
        half_closing=re.compile(rf"</{name}\s*+\Z", _FLAGS),
        names=begins,
        reach=max(map(len, begins)),
    )


@cache
def _patterns(names: tuple[str, ...]) -> _Patterns:
    """The tags that open a thought."""
    wrong = [name for name in names if not re.fullmatch("[A-Za-z][A-Za-z0-9_-]*", name)]
    if wrong or not names:
        raise ConfigurationError(f"{', '.join(map(repr, wrong)) or 'nothing'} is no name of a tag: use letters")
    return _made(names, "", tuple(f"<{name.lower()}" for name in names))


@cache
def _own_tags(name: str) -> _Patterns:
    """The tags that count inside a thought."""
    return _made((name,), "(/?)", (f"<{name}", f"</{name}"))


def _may_become(half: re.Pattern[str], text: str, at: int) -> bool:
    return len(text) - at < LONGEST_TAG and half.match(text, at) is not None


def _half_name(text: str, start: int, begins: tuple[str, ...], reach: int) -> int:
    """Where the text ends in what may be the start of a tag; its length if it does not."""
    at = text.rfind("<", max(start, len(text) - reach))
    if at < 0:
        return len(text)
    tail = text[at:].lower()
    return at if any(begin.startswith(tail) for begin in begins) else len(text)


_TEXT = ("content", "text", "thought")
_FIELDS = {
    "id": "thought_id",
    "thoughtid": "thought_id",
    "type": "thought_type",
    "thoughttype": "thought_type",
    "verbosity": "verbosity",
    "confidence": "confidence",
    "relatedto": "related_to",
}


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def thought_fields(thought: Thought) -> dict[str, Any]:
    """The fields of a `ThoughtStreamEvent` that a tag fills; what does not fit is kept in `metadata`.

    Names count in any spelling: `related_to`, `related-to`, `relatedTo`. A type that is not said is that of the name
    of the tag, where it is one.
    """
    fields: dict[str, Any] = {"thought_type": thought.name} if thought.name in THOUGHT_TYPES else {}
    metadata: dict[str, Any] = {}
    given: set[str] = set()
    for name, value in thought.attributes.items():
        target = _FIELDS.get(_plain(name))
        checked = None if target is None or target in given else _checked(target, value)
        if target is not None and checked is not None:
            fields[target] = checked
            given.add(target)
        elif thought.closing or thought.incomplete or _plain(name) not in _TEXT:
            metadata[name] = value
    return {**fields, "metadata": metadata}


def _checked(target: str, value: str) -> Any:
    """The value as the field takes it; None where it does not."""
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
    return value or None
