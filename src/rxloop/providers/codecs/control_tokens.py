"""Removal of chat-template tokens that leak into text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache

WEIGHT = 400
"""Characters that a token which is held back counts for at least: it takes time more than room."""

_ILLEGAL = re.compile("[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class _Tails:
    """What a text may end with: the same for all texts that the same tokens come off."""

    tokens: frozenset[str]
    sizes: tuple[int, ...]
    """Their lengths, the longest first."""
    halves: frozenset[str]
    """The starts of them."""
    reach: int
    """The length of the longest start."""
    longest: int
    """The length of the longest token."""
    marks: frozenset[str]
    """The characters that they begin with."""


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
    """Takes the control tokens off the very end of a text that comes in pieces.

    Only what may yet be such an end is held back: whole tokens, and the start of one more. Anything after them, even a
    line break, shows that they were part of the text.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tails = _tails(tuple(tokens))
        self._tokens: list[str] = []
        """The whole tokens that are held back, in order."""
        self._rest = ""
        """What is held back after them: the start of one more."""

    @property
    def idle(self) -> bool:
        """Whether nothing is held back."""
        return not self._tokens and not self._rest

    @property
    def size(self) -> int:
        """About how many characters are held back."""
        return len(self._tokens) * max(self._tails.longest, WEIGHT)

    @property
    def marks(self) -> frozenset[str]:
        """The characters that tokens begin with: a piece without any passes an idle stripper as it is."""
        return self._tails.marks

    def feed(self, text: str) -> str:
        """What is sure to belong to the text after this much more of it.

        A model that repeats its stop token is held back for as long as it does: of what is held, only the end is looked
        at again.
        """
        tails, held = self._tails, self._tokens
        text = self._rest + text
        taken: list[str] = []
        starts = {len(text)}
        """Where what is held begins, and its last tokens, counted from the end of the text."""

        def with_at_least(size: int) -> int:
            """Have so many characters of what was held in the text, if there are, and tell how many were added."""
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
            # Nothing but tokens since then: they stay as they are.
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
        """What is left at the end, without the tokens."""
        text, end = "".join(self._tokens) + self._rest, 0
        if self._rest:
            end = len(text)
            while token := _token_before(text, end, self._tails):
                end -= len(token)
        self._tokens, self._rest = [], ""
        return text[:end]


def _before_half(text: str, tails: _Tails) -> int:
    """Where the text ends in the start of a token; its length if it does not."""
    end = len(text)
    return next((at for at in range(max(0, end - tails.reach), end) if text[at:] in tails.halves), end)


def _token_before(text: str, end: int, tails: _Tails) -> str:
    for size in tails.sizes:
        if size <= end and (token := text[end - size : end]) in tails.tokens:
            return token
    return ""


def clean_name(name: str, known: Collection[str], tokens: Iterable[str]) -> str:
    """The name of a tool without the control tokens in it, and without an illegal tail.

    Args:
        name: What the model wrote.
        known: The tools that it was offered: the tail is cut off only where one of them is left.
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
