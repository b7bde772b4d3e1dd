"""Docstring parser for parameter descriptions."""

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
"""Maximum number of lines per type annotation."""


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
    """Function parameter names."""

    shown: Collection[str] | None
    hidden: Collection[str]

    def accepts(self, names: Iterable[str]) -> bool:
        """Return True if one of the names is a parameter."""
        return self.shown is None or any(name in self.shown or name in self.hidden for name in names)

    def shows(self, name: str) -> bool:
        """Return True if the parameter is visible to the model."""
        return name not in self.hidden and (self.shown is None or name in self.shown)


class _Collector:
    """Parser state with parameter descriptions and remaining lines."""

    def __init__(self, names: _Names) -> None:
        self.names = names
        self.other: list[str] = []
        self._texts: dict[str, list[str]] = {}

    def add(self, entry: _Entry, lines: Iterable[str]) -> None:
        """Append entry text to the matching parameters, ignoring hidden ones."""
        for name in filter(self.names.shows, entry.names):
            self._texts.setdefault(name, []).extend([entry.text, *(line.strip() for line in lines)])

    def parameters(self) -> dict[str, str]:
        """Return the descriptions."""
        return {name: _flow(lines) for name, lines in self._texts.items()}


def parse(text: str | None, names: Collection[str] | None = None, hidden: Collection[str] = ()) -> Docstring:
    """Parse a function docstring.

    Sections start with an unindented header such as `Args:` and end at the next unindented line. Parameter, result and
    exception sections are removed from the description. Other sections and unmatched parameter text are preserved.

    Args:
        text: Docstring text.
        names: Visible parameter names. None accepts every entry.
        hidden: Names of hidden parameters, whose entries are removed.
    """
    collector = _Collector(_Names(names, hidden))
    lines = inspect.cleandoc((text or "").replace("\r\n", "\n").replace("\r", "\n")).splitlines()
    pos = 0
    while pos < len(lines):
        pos = _read_field(lines, pos, collector) or _read_section(lines, pos, collector) or _keep(lines, pos, collector)
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(collector.other)).strip()
    return Docstring(description, collector.parameters())


def _keep(lines: list[str], pos: int, collector: _Collector) -> int:
    collector.other.append(lines[pos])
    return pos + 1


def _read_section(lines: list[str], pos: int, collector: _Collector) -> int | None:
    """Read a section, and return the line after it. Return None if no known section starts here."""
    if pos + 1 < len(lines) and _UNDERLINE.match(lines[pos + 1]):
        return _read_underlined_section(lines, pos, collector)
    end = _block_end(lines, pos + 1)
    header, inline = _HEADER.match(lines[pos]), _INLINE.match(lines[pos])
    if header and end > pos + 1:
        title = header[1].lower()
        if title in _PARAMETERS:
            _read_block(lines[pos + 1 : end], collector, _match_entry, title=lines[pos])
            return end
        return end if title in _DROPPED else None
    if inline and inline[1].lower() in _PARAMETERS:
        entry = _match_entry(inline[2], collector.names)
        if entry is not None:
            collector.add(entry, ())
            if end > pos + 1:
                _read_block(lines[pos + 1 : end], collector, _match_entry, entry=entry)
            return max(end, pos + 1)
    return None


def _read_underlined_section(lines: list[str], pos: int, collector: _Collector) -> int | None:
    title = lines[pos].strip().lower()
    if title not in _PARAMETERS and title not in _DROPPED:
        return None
    end = pos + 2
    while end < len(lines) and not (end + 1 < len(lines) and lines[end].strip() and _UNDERLINE.match(lines[end + 1])):
        end += 1
    if title in _PARAMETERS:
        _read_block(lines[pos + 2 : end], collector, _match_underlined_entry, title=f"{lines[pos].strip()}:")
    return end


def _read_field(lines: list[str], pos: int, collector: _Collector) -> int | None:
    """Parse a Sphinx field, for example `:param city: A city.`, and return the index of the next line."""
    field = _FIELD.match(lines[pos])
    if field is None:
        return None
    kind, argument, text = field[1].lower(), field[2].strip(), field[3]
    end = max(_block_end(lines, pos + 1), pos + 1)
    if kind in _DROPPED_FIELDS:
        return end
    if kind not in _PARAMETER_FIELDS and kind != "type":
        return None
    names = [name.strip("`'\"* ") for name in argument.split(",")]
    if not all(name.isidentifier() for name in names):
        # Sphinx fields support an optional type before the name.
        names = [(argument.split() or [""])[-1].strip("`'\"*")]
    if not collector.names.accepts(names):
        return None
    if kind != "type":
        collector.add(_Entry(names, text), lines[pos + 1 : end])
    return end


Match = Callable[[str, _Names], _Entry | None]


def _read_block(
    block: list[str], collector: _Collector, match: Match, *, title: str = "", entry: _Entry | None = None
) -> None:
    """Parse section entries and add unmatched lines to the description."""
    margin = min((len(line) - len(line.lstrip()) for line in block if line.strip()), default=0)
    depth, other, pos = 0, list[str](), 0
    while pos < len(block):
        line = block[pos][margin:].rstrip()
        indent = len(line) - len(line.lstrip())
        pos += 1
        # Entries may have additional indentation below a heading.
        new_entry = match(line.strip(), collector.names) if line and (indent <= depth or entry is None) else None
        for extra in range(1, _TYPE_LINES):
            if new_entry is None and line and indent <= depth and _is_open(line) and pos + extra <= len(block):
                joined = " ".join(each.strip() for each in [line, *block[pos : pos + extra]])
                new_entry = match(joined, collector.names)
                pos += extra if new_entry is not None else 0
        if new_entry is not None:
            if (
                match is _match_underlined_entry
                and pos < len(block)
                and block[pos][margin + indent : margin + indent + 1].isspace()
            ):
                # Indented text follows, so the remainder of this line is a type.
                new_entry = new_entry._replace(text="")
            entry, depth = new_entry, indent
            collector.add(entry, ())
        elif match is _match_underlined_entry and line and indent == 0:
            entry, depth = None, 0
            other.append(line)
        elif indent <= depth and _is_unknown_entry(line, collector.names):
            entry, depth = None, indent
            other.append(line)
        elif entry is not None:
            collector.add(entry._replace(text=line.strip()), ())
        else:
            other.append(line)
    if any(other):
        is_titled = title.rstrip(":").lower() == "attributes"
        collector.other += [title, *(f"    {line}" if line else "" for line in other)] if is_titled else [*other, ""]


def _match_entry(line: str, names: _Names) -> _Entry | None:
    """Match a Google style entry, for example `city (str, optional): A city.`."""
    match = _NAMES.match(line)
    if match is None:
        return None
    entry_names = _split_names(match[1])
    remainder = _skip_type(line[match.end() :])
    separator = (_COLON if names.shown is None else _SEPARATOR).match(remainder)
    if separator is None or not names.accepts(entry_names):
        return None
    return _Entry(entry_names, remainder[separator.end() :])


def _match_underlined_entry(line: str, names: _Names) -> _Entry | None:
    """Match a NumPy style entry, for example `city : str`, with the description on subsequent lines."""
    match = _NAMES.match(line)
    if match is None:
        return None
    entry_names = _split_names(match[1])
    remainder = line[match.end() :]
    if (remainder and not remainder.startswith(":")) or not names.accepts(entry_names):
        return None
    return _Entry(entry_names, remainder[1:].strip())


def _split_names(text: str) -> list[str]:
    names = [name.strip("`'\"*") for name in re.findall(_NAME, text)]
    return [name for name in names if name != "and"] if len(names) > 1 else names


def _is_unknown_entry(line: str, names: _Names) -> bool:
    """Return True if a line resembles an entry for an unknown parameter."""
    return names.shown is not None and _match_entry(line.strip(), _Names(None, ())) is not None


def _is_open(line: str) -> bool:
    """Return True if a bracket of the line is not closed."""
    return any(line.count(opening) > line.count(closing) for opening, closing in _CLOSING.items())


def _skip_type(text: str) -> str:
    """Return the text after a type in brackets. The type may contain brackets and quotes."""
    if not text or text[0] not in _CLOSING:
        return text
    stack: list[str] = []
    quote = ""
    for pos, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _CLOSING:
            stack.append(_CLOSING[character])
        elif stack and character == stack[-1]:
            stack.pop()
            if not stack:
                return text[pos + 1 :]
    return text


def _block_end(lines: list[str], start: int) -> int:
    """Return the index after the last indented line of the block at `start`, or `start` if no line is indented."""
    end = start
    for pos in range(start, len(lines)):
        if not lines[pos].strip():
            continue
        if not lines[pos][0].isspace():
            break
        end = pos + 1
    return end


def _flow(lines: list[str]) -> str:
    """Join wrapped lines. Blank lines and list items keep their line breaks."""
    text = ""
    for line in lines:
        if not line:
            text += "\n\n" if text and not text.endswith("\n") else ""
        elif not text or text.endswith("\n"):
            text += line
        else:
            text += ("\n" if _BULLET.match(line) else " ") + line
    return text.strip()
