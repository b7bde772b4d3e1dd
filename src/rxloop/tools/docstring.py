"""Descriptions of parameters in the docstring of a function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

_PARAMETERS = {
    *("args", "arguments", "parameters", "params", "attributes"),
    *(f"{kind} {name}" for kind in ("keyword", "other") for name in ("args", "arguments", "parameters", "params")),
}

_DROPPED = {"returns", "return", "yields", "yield", "raises", "raise"}

_HEADER = re.compile(r"^([A-Za-z][A-Za-z ]*):\s*$")

_INLINE = re.compile(r"^([A-Za-z][A-Za-z ]*):\s+(\S.*)$")

_UNDERLINE = re.compile(r"^(-{3,}|={3,})\s*$")

_FIELD = re.compile(r"^[:@](\w+)\s*([^:]*):\s*(.*)$")

_PARAMETER_FIELDS = {"param", "parameter", "arg", "argument", "key", "keyword", "kwarg"}

_DROPPED_FIELDS = {*_DROPPED, "rtype", "except", "exception"}

_NAME = r"[`'\"*]*[A-Za-z_]\w*[`'\"*]*"

_NAMES = re.compile(rf"^(?:[-*+•]\s+|\d+[.)]\s+)?({_NAME}(?:\s*(?:,|/|\band\b)\s*{_NAME})*)\s*")

_BULLET = re.compile(r"^([-*+]|\d+[.)])\s")

_COLON = re.compile(r"\s*(?:,\s*\w+\s*)?:\s*")

_SEPARATOR = re.compile(r"\s*(?:,\s*\w+\s*)?(?::|(?:--?|\u2013|\u2014)\s)\s*")

_CLOSING = {"(": ")", "[": "]", "{": "}"}

_TYPE_LINES = 5
"""Maximum number of lines for the type of an entry."""


class Docstring(NamedTuple):
    """A parsed docstring."""

    description: str
    """All text except entries of parameters and sections on results and exceptions."""
    parameters: dict[str, str]
    """Descriptions of the parameters."""


class _Entry(NamedTuple):
    names: list[str]
    text: str


class _Names(NamedTuple):
    """Names of the parameters of a function."""

    shown: Collection[str] | None
    hidden: Collection[str]

    def accepts(self, names: Iterable[str]) -> bool:
        """True if one of the names is a parameter."""
        return self.shown is None or any(name in self.shown or name in self.hidden for name in names)

    def shows(self, name: str) -> bool:
        """True if the model sees a parameter of that name."""
        return name not in self.hidden and (self.shown is None or name in self.shown)


class _Collector:
    """Texts of parameters, and the remaining lines."""

    def __init__(self, names: _Names) -> None:
        self.names = names
        self.kept: list[str] = []
        self._texts: dict[str, list[str]] = {}

    def add(self, entry: _Entry, lines: Iterable[str]) -> None:
        """Add the text of an entry to its parameters. Entries of hidden parameters are dropped."""
        for name in filter(self.names.shows, entry.names):
            self._texts.setdefault(name, []).extend([entry.text, *(line.strip() for line in lines)])

    def parameters(self) -> dict[str, str]:
        """Return the descriptions."""
        return {name: _flow(lines) for name, lines in self._texts.items()}


def parse(text: str | None, names: Collection[str] | None = None, hidden: Collection[str] = ()) -> Docstring:
    """Parse a docstring.

    A section starts with a line such as `Args:` that is not indented and ends before the next line that is not.
    Sections other than those on parameters, results and exceptions (examples, notes) stay in the description, and so
    does all text on parameters that matches no parameter.

    Args:
        text: The docstring.
        names: The parameters that the model sees. None takes every entry for a parameter.
        hidden: The parameters that the model does not see. Their entries are dropped.
    """
    collector = _Collector(_Names(names, hidden))
    lines = inspect.cleandoc((text or "").replace("\r\n", "\n").replace("\r", "\n")).splitlines()
    at = 0
    while at < len(lines):
        at = _read_field(lines, at, collector) or _read_section(lines, at, collector) or _keep(lines, at, collector)
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(collector.kept)).strip()
    return Docstring(description, collector.parameters())


def _keep(lines: list[str], at: int, collector: _Collector) -> int:
    collector.kept.append(lines[at])
    return at + 1


def _read_section(lines: list[str], at: int, collector: _Collector) -> int | None:
    """Read a section, and return the line after it. Return None if no known section starts here."""
    if at + 1 < len(lines) and _UNDERLINE.match(lines[at + 1]):
        return _read_underlined_section(lines, at, collector)
    end = _block_end(lines, at + 1)
    header, inline = _HEADER.match(lines[at]), _INLINE.match(lines[at])
    if header and end > at + 1:
        title = header[1].lower()
        if title in _PARAMETERS:
            _read_block(lines[at + 1 : end], collector, _match_entry, title=lines[at])
            return end
        return end if title in _DROPPED else None
    if inline and inline[1].lower() in _PARAMETERS:
        entry = _match_entry(inline[2], collector.names)
        if entry is not None:
            collector.add(entry, ())
            if end > at + 1:
                _read_block(lines[at + 1 : end], collector, _match_entry, entry=entry)
            return max(end, at + 1)
    return None


def _read_underlined_section(lines: list[str], at: int, collector: _Collector) -> int | None:
    title = lines[at].strip().lower()
    if title not in _PARAMETERS and title not in _DROPPED:
        return None
    end = at + 2
    while end < len(lines) and not (end + 1 < len(lines) and lines[end].strip() and _UNDERLINE.match(lines[end + 1])):
        end += 1
    if title in _PARAMETERS:
        _read_block(lines[at + 2 : end], collector, _match_underlined_entry, title=f"{lines[at].strip()}:")
    return end


def _read_field(lines: list[str], at: int, collector: _Collector) -> int | None:
    """Read a Sphinx field such as `:param city: A city.`, and return the line after it."""
    field = _FIELD.match(lines[at])
    if field is None:
        return None
    kind, argument, text = field[1].lower(), field[2].strip(), field[3]
    end = max(_block_end(lines, at + 1), at + 1)
    if kind in _DROPPED_FIELDS:
        return end
    if kind not in _PARAMETER_FIELDS and kind != "type":
        return None
    names = [name.strip("`'\"* ") for name in argument.split(",")]
    if not all(name.isidentifier() for name in names):
        # A type may precede the name.
        names = [(argument.split() or [""])[-1].strip("`'\"*")]
    if not collector.names.accepts(names):
        return None
    if kind != "type":
        collector.add(_Entry(names, text), lines[at + 1 : end])
    return end


Match = Callable[[str, _Names], _Entry | None]


def _read_block(
    block: list[str], collector: _Collector, match: Match, *, title: str = "", entry: _Entry | None = None
) -> None:
    """Read the entries of a section, and add all other lines to the description."""
    margin = min((len(line) - len(line.lstrip()) for line in block if line.strip()), default=0)
    depth, kept, at = 0, list[str](), 0
    while at < len(block):
        line = block[at][margin:].rstrip()
        here = len(line) - len(line.lstrip())
        at += 1
        # Entries may be indented under a heading.
        found = match(line.strip(), collector.names) if line and (here <= depth or entry is None) else None
        for more in range(1, _TYPE_LINES):
            if found is None and line and here <= depth and _is_open(line) and at + more <= len(block):
                joined = " ".join(each.strip() for each in [line, *block[at : at + more]])
                found = match(joined, collector.names)
                at += more if found is not None else 0
        if found is not None:
            if (
                match is _match_underlined_entry
                and at < len(block)
                and block[at][margin + here : margin + here + 1].isspace()
            ):
                # The text after the name is a type, because a description follows.
                found = found._replace(text="")
            entry, depth = found, here
            collector.add(entry, ())
        elif match is _match_underlined_entry and line and here == 0:
            entry, depth = None, 0
            kept.append(line)
        elif here <= depth and _is_unknown_entry(line, collector.names):
            entry, depth = None, here
            kept.append(line)
        elif entry is not None:
            collector.add(entry._replace(text=line.strip()), ())
        else:
            kept.append(line)
    if any(kept):
        is_titled = title.rstrip(":").lower() == "attributes"
        collector.kept += [title, *(f"    {line}" if line else "" for line in kept)] if is_titled else [*kept, ""]


def _match_entry(line: str, names: _Names) -> _Entry | None:
    """Match an entry such as `city (str, optional): A city.`."""
    found = _NAMES.match(line)
    if found is None:
        return None
    own = _split_names(found[1])
    rest = _skip_type(line[found.end() :])
    separator = (_COLON if names.shown is None else _SEPARATOR).match(rest)
    if separator is None or not names.accepts(own):
        return None
    return _Entry(own, rest[separator.end() :])


def _match_underlined_entry(line: str, names: _Names) -> _Entry | None:
    """Match an entry of the numpy style: `city : str`, with the text on the lines below."""
    found = _NAMES.match(line)
    if found is None:
        return None
    own = _split_names(found[1])
    rest = line[found.end() :]
    if (rest and not rest.startswith(":")) or not names.accepts(own):
        return None
    return _Entry(own, rest[1:].strip())


def _split_names(text: str) -> list[str]:
    names = [name.strip("`'\"*") for name in re.findall(_NAME, text)]
    return [name for name in names if name != "and"] if len(names) > 1 else names


def _is_unknown_entry(line: str, names: _Names) -> bool:
    """True if a line looks like the entry of a parameter that does not exist."""
    return names.shown is not None and _match_entry(line.strip(), _Names(None, ())) is not None


def _is_open(line: str) -> bool:
    """True if a bracket of the line is not closed."""
    return any(line.count(opening) > line.count(closing) for opening, closing in _CLOSING.items())


def _skip_type(text: str) -> str:
    """Return the text after a type in brackets. The type may contain brackets and quotes."""
    if not text or text[0] not in _CLOSING:
        return text
    stack: list[str] = []
    quote = ""
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _CLOSING:
            stack.append(_CLOSING[character])
        elif stack and character == stack[-1]:
            stack.pop()
            if not stack:
                return text[at + 1 :]
    return text


def _block_end(lines: list[str], start: int) -> int:
    """The first line from `start` on that is neither blank nor indented; `start` itself if no line is indented."""
    end = start
    for at in range(start, len(lines)):
        if not lines[at].strip():
            continue
        if not lines[at][0].isspace():
            break
        end = at + 1
    return end


def _flow(lines: list[str]) -> str:
    """Join lines that were wrapped; blank lines and list items stay where they are."""
    text = ""
    for line in lines:
        if not line:
            text += "\n\n" if text and not text.endswith("\n") else ""
        elif not text or text.endswith("\n"):
            text += line
        else:
            text += ("\n" if _BULLET.match(line) else " ") + line
    return text.strip()
