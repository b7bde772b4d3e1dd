"""Incremental division of streamed Markdown into finished blocks and an unfinished tail."""

from __future__ import annotations

import re
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token


class Block(NamedTuple):
    """Top-level Markdown block or list item."""

    source: str
    is_separate: bool = True
    """True if an empty line precedes the block. False for the items of a list without empty lines."""


class CodeStart(NamedTuple):
    """First line of a fenced code block."""

    language: str


class CodeLine(NamedTuple):
    """Line of a fenced code block."""

    source: str


class CodeEnd(NamedTuple):
    """Last line of a fenced code block."""


Part = Block | CodeStart | CodeLine | CodeEnd


def make_parser() -> MarkdownIt:
    """Return a parser that keeps all text, including HTML, images and link definitions."""
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    return parser.disable(["reference", "image", "html_block", "html_inline"])


_ITEM = re.compile(r" {0,3}(?:[-+*]|\d{1,9}[.)])(?:\s|$)")
"""List item prefix."""


class _Fence(NamedTuple):
    indent: int
    end: re.Pattern[str]

    @classmethod
    def from_token(cls, token: Token, first_line: str) -> _Fence:
        indent = len(first_line) - len(first_line.lstrip(" "))
        mark, count = re.escape(token.markup[0]), len(token.markup)
        return cls(indent, re.compile(rf" {{0,3}}{mark}{{{count},}}[ \t]*"))

    def strip_indent(self, line: str) -> str:
        return line[min(self.indent, len(line) - len(line.lstrip(" "))) :]


class BlockParser:
    """Incremental parser for streamed messages.

    A block is finished when the next block begins. Code lines and list items are returned individually, because code
    blocks and lists can be long.
    """

    def __init__(self) -> None:
        # Styles within lines do not affect the division.
        self._parser = make_parser().disable("inline")
        self._pending = ""
        self._next_size = 0
        """Minimum pending characters before parsing again."""
        self._fence: _Fence | None = None
        self._is_after_item = False
        """True if the previous block was a list item and its list may continue."""
        self._has_gap = False
        """True if an empty line precedes the pending text."""

    @property
    def tail(self) -> Block | CodeLine | None:
        """Unfinished part of the message."""
        if self._fence is not None:
            return CodeLine(self._fence.strip_indent(self._pending)) if self._pending else None
        if not self._pending.strip():
            return None
        return self._make_block(self._pending)

    def feed(self, text: str) -> list[Part]:
        """Add text and return the parts that are now finished."""
        # Blocks always begin at the start of a line, so skip parsing otherwise.
        may_begin_block = "\n" in text or self._pending.endswith("\n")
        self._pending += text
        parts: list[Part] = []
        if not may_begin_block or (self._fence is None and len(self._pending) < self._next_size):
            return parts
        while may_begin_block:
            before = self._pending
            parts += self._take_code_lines() if self._fence is not None else self._take_blocks()
            may_begin_block = self._pending != before
        # Parsing long blocks for each of their lines would take quadratic time.
        self._next_size = len(self._pending) + len(self._pending) // 16
        return parts

    def finish(self) -> list[Part]:
        """Return the rest of the message."""
        self._next_size = 0
        parts = self.feed("\n") if self._pending else []
        if self._fence is not None:
            parts.append(CodeEnd())
        elif self._pending.strip():
            parts.append(self._make_block(self._pending))
        self._pending, self._next_size = "", 0
        self._fence, self._is_after_item, self._has_gap = None, False, False
        return parts

    def _take_code_lines(self) -> list[Part]:
        parts: list[Part] = []
        while self._fence is not None:
            line, newline, rest = self._pending.partition("\n")
            if not newline:
                break
            self._pending = rest
            if self._fence.end.fullmatch(line):
                self._fence = None
                parts.append(CodeEnd())
            else:
                parts.append(CodeLine(self._fence.strip_indent(line)))
        return parts

    def _take_blocks(self) -> list[Part]:
        """Return finished blocks, up to the first line of a code block."""
        lines = self._pending.split("\n")
        tokens = [token for token in self._parser.parse(self._pending) if _begins_part(token)]
        parts: list[Part] = []
        for index, token in enumerate(tokens):
            following = tokens[index + 1] if index + 1 < len(tokens) else None
            start = _get_line(token)
            if token.type == "fence":
                if start + 1 < len(lines):
                    parts.append(CodeStart(token.info.strip().partition(" ")[0]))
                    self._fence, self._is_after_item = _Fence.from_token(token, lines[start]), False
                    start += 1
                self._pending = "\n".join(lines[start:])
                break
            if following is None:
                self._pending = "\n".join(lines[start:])
                break
            end = _get_line(following)
            parts.append(self._make_block("\n".join(lines[start:end])))
            self._is_after_item = token.type == following.type == "list_item_open"
            self._has_gap = not lines[end - 1].strip()
        return parts

    def _make_block(self, source: str) -> Block:
        is_next_item = self._is_after_item and _ITEM.match(source) is not None
        return Block(source.strip("\n"), self._has_gap or not is_next_item)


def _begins_part(token: Token) -> bool:
    """Return True if a token begins a top-level block, or an item of a top-level list."""
    if token.level == 0:
        return token.nesting >= 0 and token.type not in ("bullet_list_open", "ordered_list_open")
    return token.level == 1 and token.type == "list_item_open"


def _get_line(token: Token) -> int:
    """Return the index of the token's first line."""
    return token.map[0] if token.map else 0
