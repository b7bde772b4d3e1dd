"""Markup in streamed text: code fences, and chat-template tokens that leak into it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from io import StringIO

_ORDINARY = "x"

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
        self._line = ""
        """Current line, reduced to the part needed for fence detection."""
        self._last = ""

    def in_code(self) -> bool:
        """Return True if the text ends inside code."""
        if text := self.unread.getvalue():
            if self._line in ("", _ORDINARY) and "`" not in text and "~" not in text:
                # The text has no fence, so only check whether the unfinished line may still become one.
                end = text.rfind("\n") + 1
                if end or not self._line:
                    self._line = _ORDINARY if text[end:].strip(" \t>") else ""
            elif self._line != _ORDINARY or "\n" in text:
                self._scan(f"\n{self._line}{text}")
            self._last = text[-1]
            self.unread.seek(0)
            self.unread.truncate()
        return bool(self._fence) or self._line.startswith(("```", "~~~")) or self._last == "`"

    def _scan(self, text: str) -> None:
        at = 0
        while found := (_CLOSING if self._fence else _OPENING).search(text, at):
            at = found.end()
            run = found[1] or found[2]
            if not self._fence:
                self._fence = run
            elif run.startswith(self._fence):
                self._fence = ""
        line = text[text.rfind("\n") + 1 :]
        begin = _RUN.match(line)
        run = "" if begin is None else begin[1]
        rest = "" if begin is None else line[begin.end() :]
        if not rest:
            self._line = run
        elif len(run) < 3 or (rest.strip(" \t\r") if self._fence else run[0] == "`" and "`" in rest):
            self._line = _ORDINARY
        else:
            self._line = run + " "


WEIGHT = 400
"""Minimum size charged per held token, because repeated tokens need more time than memory."""

_ILLEGAL = re.compile("[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class _Tails:
    """Suffixes to detect for one set of control tokens; shared by all texts with the same tokens."""

    tokens: frozenset[str]
    sizes: tuple[int, ...]
    """Token lengths, longest first."""
    halves: frozenset[str]
    """Proper token prefixes."""
    reach: int
    """Length of the longest prefix."""
    longest: int
    """Length of the longest token."""
    marks: frozenset[str]
    """First token characters."""


@cache
def _tails(tokens: tuple[str, ...]) -> _Tails:
    return _Tails(
        tokens=frozenset(tokens) - {""},
        sizes=tuple(sorted({len(token) for token in tokens if token}, reverse=True)),
        halves=frozenset(token[:size] for token in tokens for size in range(1, len(token))),
        reach=max(map(len, tokens), default=1) - 1,
        longest=max(map(len, tokens), default=0),
        marks=frozenset(token[0] for token in tokens),
    )


class TailStripper:
    """Removes trailing control tokens from streamed text.

    Only a possible suffix is held back: complete tokens plus a partial token. If more text follows, even a line break,
    the tokens belong to the text.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tails = _tails(tuple(tokens))
        self._tokens: list[str] = []
        """Held-back tokens in order."""
        self._rest = ""
        """Held-back partial token."""

    @property
    def idle(self) -> bool:
        """True if nothing is held back."""
        return not self._tokens and not self._rest

    @property
    def size(self) -> int:
        """Approximate number of characters held back."""
        return len(self._tokens) * max(self._tails.longest, WEIGHT)

    @property
    def marks(self) -> frozenset[str]:
        """First token characters. If a fragment contains none of them, an idle stripper can be bypassed."""
        return self._tails.marks

    def feed(self, text: str) -> str:
        """Add a fragment and return text that can be published.

        While a model repeats its stop token, the text is held back. Only the end is scanned again.
        """
        tails, held = self._tails, self._tokens
        text = self._rest + text
        taken: list[str] = []
        starts = {len(text)}
        """Token boundaries, measured from the end."""

        def with_at_least(size: int) -> int:
            """Move held tokens into the text until `size` characters are added. Return the actual number."""
            nonlocal text
            before = len(text)
            while held and len(text) - before < size:
                taken.append(held.pop())
                text = taken[-1] + text
                starts.add(len(text))
            return len(text) - before

        with_at_least(tails.reach - len(text))
        end = _before_half(text, tails)
        self._rest = text[end:]
        found: list[str] = []
        while len(text) - end not in starts:
            end += with_at_least(tails.longest - end)
            token = _token_before(text, end, tails)
            if not token:
                break
            found.append(token)
            end -= len(token)
        else:
            # Only tokens were received, so keep them.
            while end:
                held.append(taken.pop())
                end -= len(held[-1])
        sure = ""
        if end:
            sure = "".join(held) + text[:end]
            held.clear()
        held.extend(reversed(found))
        return sure

    def finish(self) -> str:
        """Return the held text without control tokens."""
        text, end = "".join(self._tokens) + self._rest, 0
        if self._rest:
            end = len(text)
            while token := _token_before(text, end, self._tails):
                end -= len(token)
        self._tokens, self._rest = [], ""
        return text[:end]


def _before_half(text: str, tails: _Tails) -> int:
    """Return the start index of a trailing partial token, or the text length."""
    end = len(text)
    return next((at for at in range(max(0, end - tails.reach), end) if text[at:] in tails.halves), end)


def _token_before(text: str, end: int, tails: _Tails) -> str:
    for size in tails.sizes:
        if size <= end and (token := text[end - size : end]) in tails.tokens:
            return token
    return ""


def clean_name(name: str, known: Collection[str], tokens: Iterable[str]) -> str:
    """Remove control tokens and an invalid suffix from a tool name.

    Args:
        name: The name written by the model.
        known: Names of the offered tools. The suffix is removed only if the result is one of them.
        tokens: The control tokens.
    """
    if name in known:
        return name
    cut = _ILLEGAL.split(name, maxsplit=1)[0]
    if cut in known:
        return cut
    for token in tokens:
        name = name.replace(token, "")
    cut = _ILLEGAL.split(name, maxsplit=1)[0]
    return cut if cut in known else name
