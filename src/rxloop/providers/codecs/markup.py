"""Markup in streamed text: code fences, and chat-template tokens that leak into it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from io import StringIO

_TEXT_LINE = "x"

_OPENING = re.compile(r"\n[ \t>]*+(?:(`{3,}+)[^`\n]*+|(~{3,}+)[^\n]*+)(?=\n)")

_CLOSING = re.compile(r"\n[ \t>]*+(`{3,}+|~{3,}+)()[ \t\r]*+(?=\n)")

_RUN = re.compile(r"[ \t>]*+(`++|~*+)")


class Fences:
    """Incremental code detection.

    Most responses contain no tag, so scanning only happens in `in_code`. A fence is a line starting with three or more
    backticks or tildes, optionally indented or quoted (`>`). A fence with at least the same length and no other text
    closes the block. Repeated backticks on the same line are inline code.
    """

    def __init__(self) -> None:
        self.unread = StringIO()
        self._fence = ""
        """Run that opened the current block."""
        self._partial_line = ""
        """Current line, reduced to the part needed for fence detection."""
        self._last = ""

    def in_code(self) -> bool:
        """Return True if the text ends inside code."""
        if text := self.unread.getvalue():
            if self._partial_line in ("", _TEXT_LINE) and "`" not in text and "~" not in text:
                # The text has no fence, so only check whether the unfinished line may still become one.
                end = text.rfind("\n") + 1
                if end or not self._partial_line:
                    self._partial_line = _TEXT_LINE if text[end:].strip(" \t>") else ""
            elif self._partial_line != _TEXT_LINE or "\n" in text:
                self._scan(f"\n{self._partial_line}{text}")
            self._last = text[-1]
            self.unread.seek(0)
            self.unread.truncate()
        return bool(self._fence) or self._partial_line.startswith(("```", "~~~")) or self._last == "`"

    def _scan(self, text: str) -> None:
        at = 0
        while match := (_CLOSING if self._fence else _OPENING).search(text, at):
            at = match.end()
            run = match[1] or match[2]
            if not self._fence:
                self._fence = run
            elif run.startswith(self._fence):
                self._fence = ""
        line = text[text.rfind("\n") + 1 :]
        begin = _RUN.match(line)
        run = "" if begin is None else begin[1]
        tail = "" if begin is None else line[begin.end() :]
        if not tail:
            self._partial_line = run
        elif len(run) < 3 or (tail.strip(" \t\r") if self._fence else run[0] == "`" and "`" in tail):
            self._partial_line = _TEXT_LINE
        else:
            self._partial_line = run + " "


MIN_TOKEN_WEIGHT = 400
"""Minimum size charged per held token, because repeated tokens need more time than memory."""

_ILLEGAL = re.compile("[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class _Tails:
    """Suffixes to detect for one set of control tokens; shared by all answers with the same tokens."""

    tokens: frozenset[str]
    lengths: tuple[int, ...]
    """Token lengths, longest first."""
    prefixes: frozenset[str]
    """Proper token prefixes."""
    longest_prefix: int
    """Length of the longest prefix."""
    longest: int
    """Length of the longest token."""
    first_characters: frozenset[str]
    """First token characters."""


@cache
def _make_tails(tokens: tuple[str, ...]) -> _Tails:
    return _Tails(
        tokens=frozenset(tokens) - {""},
        lengths=tuple(sorted({len(token) for token in tokens if token}, reverse=True)),
        prefixes=frozenset(token[:size] for token in tokens for size in range(1, len(token))),
        longest_prefix=max(map(len, tokens), default=1) - 1,
        longest=max(map(len, tokens), default=0),
        first_characters=frozenset(token[0] for token in tokens),
    )


class TailStripper:
    """Removes trailing control tokens from streamed text.

    Only a possible suffix is held back: complete tokens plus a partial token. If more text follows, even a line break,
    the tokens belong to the text.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tails = _make_tails(tuple(tokens))
        self._tokens: list[str] = []
        """Held-back tokens in order."""
        self._partial = ""
        """Held-back partial token."""

    @property
    def idle(self) -> bool:
        """True if nothing is held back."""
        return not self._tokens and not self._partial

    @property
    def size(self) -> int:
        """Approximate number of characters held back."""
        return len(self._tokens) * max(self._tails.longest, MIN_TOKEN_WEIGHT)

    @property
    def first_characters(self) -> frozenset[str]:
        """First token characters. If a fragment contains none of them, an idle stripper can be bypassed."""
        return self._tails.first_characters

    def feed(self, text: str) -> str:
        """Add a fragment and return text that can be published.

        While a model repeats its stop token, the text is held back. Only the end is scanned again.
        """
        tails, held = self._tails, self._tokens
        text = self._partial + text
        popped: list[str] = []
        boundaries = {len(text)}
        """Token boundaries, measured from the end."""

        def pop_held(size: int) -> int:
            """Move held tokens into the text until `size` characters are added. Return the actual number."""
            nonlocal text
            before = len(text)
            while held and len(text) - before < size:
                popped.append(held.pop())
                text = popped[-1] + text
                boundaries.add(len(text))
            return len(text) - before

        pop_held(tails.longest_prefix - len(text))
        end = _find_partial_token(text, tails)
        self._partial = text[end:]
        trailing: list[str] = []
        while len(text) - end not in boundaries:
            end += pop_held(tails.longest - end)
            token = _match_token(text, end, tails)
            if not token:
                break
            trailing.append(token)
            end -= len(token)
        else:
            # Only tokens were received, so keep them.
            while end:
                held.append(popped.pop())
                end -= len(held[-1])
        released = ""
        if end:
            released = "".join(held) + text[:end]
            held.clear()
        held.extend(reversed(trailing))
        return released

    def finish(self) -> str:
        """Return the held text without control tokens."""
        text, end = "".join(self._tokens) + self._partial, 0
        if self._partial:
            end = len(text)
            while token := _match_token(text, end, self._tails):
                end -= len(token)
        self._tokens, self._partial = [], ""
        return text[:end]


def _find_partial_token(text: str, tails: _Tails) -> int:
    """Return the start index of a trailing partial token, or the text length."""
    end = len(text)
    return next((at for at in range(max(0, end - tails.longest_prefix), end) if text[at:] in tails.prefixes), end)


def _match_token(text: str, end: int, tails: _Tails) -> str:
    for size in tails.lengths:
        if size <= end and (token := text[end - size : end]) in tails.tokens:
            return token
    return ""


def clean_name(name: str, tool_names: Collection[str], tokens: Iterable[str]) -> str:
    """Remove control tokens and an invalid suffix from a tool name.

    Args:
        name: The name written by the model.
        tool_names: Names of the offered tools. The suffix is removed only if the result is one of them.
        tokens: The control tokens.
    """
    if name in tool_names:
        return name
    prefix = _ILLEGAL.split(name, maxsplit=1)[0]
    if prefix in tool_names:
        return prefix
    for token in tokens:
        name = name.replace(token, "")
    prefix = _ILLEGAL.split(name, maxsplit=1)[0]
    return prefix if prefix in tool_names else name
