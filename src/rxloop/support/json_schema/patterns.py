"""Regular expressions of JSON Schemas, matched by an automaton in linear time.

Python's `re` backtracks, so that a short pattern can block all threads of the process for hours. `regex` of Rust is
linear, but a single call can still take seconds, because its time is the product of the lengths of the text and of the
expanded pattern. This automaton counts its steps, and other threads can run between them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from rxloop.support.json_schema.pattern_syntax import MAX_LENGTH, CharacterSet, Node, is_word, parse_pattern

MAX_STATES = 10_000
"""Maximum number of states after repetitions are expanded."""

_SHORT = 256
"""Maximum length of texts whose transitions are cached for later texts."""

_CACHE_SIZE = 5_000
"""Maximum number of cached transitions and positions per pattern."""

_CHARACTERS_PER_STEP = 16
"""Number of characters that take as long as one step if their transitions are known."""

Spend = Callable[[int], None]
"""Function that counts steps, and raises an exception if there are too many."""

_Kind = int
"""Kind of the character before or after a position, for assertions."""

_EDGE, _WORD, _OTHER = 0, 1, 2


_TOO_LARGE = f"it has more than {MAX_STATES:,} states when its repetitions are expanded"


class PatternTooLarge(ValueError):
    """Raised for a pattern with too many states."""


class _Configuration:
    """State of the deterministic automaton."""

    __slots__ = ("kind", "positions", "transitions")

    def __init__(self, positions: frozenset[int], kind: _Kind) -> None:
        self.positions = positions
        self.kind = kind
        self.transitions: dict[str, tuple[_Configuration | None, int]] = {}
        """Next configuration and number of steps by character. None for a match."""


_Cache = dict[tuple[frozenset[int], _Kind], _Configuration]


def _configure(cache: _Cache, positions: frozenset[int], kind: _Kind) -> _Configuration:
    key = positions, kind
    configuration = cache.get(key)
    if configuration is None:
        configuration = cache[key] = _Configuration(positions, kind)
    return configuration


class Pattern:
    """Compiled regular expression, searched anywhere in a text.

    Args:
        text: Regular expression.

    Raises:
        ValueError: The pattern is invalid, or uses an unsupported feature.
        PatternTooLarge: The pattern has too many states.
    """

    def __init__(self, text: str) -> None:
        parsed = parse_pattern(text)
        if parsed.unsupported is not None:
            raise ValueError(f"{parsed.unsupported} is not supported")
        if _count_states(parsed.root) > MAX_STATES:
            raise PatternTooLarge(_TOO_LARGE)
        self._states: list[tuple[Any, ...]] = [("match",)]
        self._start = self._build(parsed.root, 0)
        self._has_words = any(state[0] in ("word", "not_word") for state in self._states)
        self._is_anchored = all(
            not sets and not matches
            for kind in (_WORD, _OTHER)
            for following in (_EDGE, _WORD, _OTHER)
            for sets, matches, _ in [self._close(frozenset((self._start,)), kind, following)]
        )
        self._cache: _Cache = {}
        self._cached = 0
        self.cost = 2 * len(text) + len(self._states) // 2
        """Number of steps that compiling takes."""

    def search(self, text: str, spend: Spend) -> bool:
        """Return True if the pattern matches a part of the text.

        The number of steps only depends on the pattern and the text.
        """
        spend(len(text) // _CHARACTERS_PER_STEP)
        if self._cached > _CACHE_SIZE:
            self._cache, self._cached = {}, 0
        # The transitions of long texts are not shared, so that only their first use counts.
        return self._search(text, self._cache, spend) if len(text) <= _SHORT else self._search_long(text, spend)

    def _search(self, text: str, cache: _Cache, spend: Spend) -> bool:
        steps = 0
        configuration = _configure(cache, frozenset(), _EDGE)
        for character in text:
            known = configuration.transitions.get(character)
            if known is None:
                known = configuration.transitions[character] = self._move(cache, configuration, character)
                self._cached += 1 + len(configuration.positions)
                spend(steps)
                steps = 0
            steps += known[1]
            if known[0] is None:
                spend(steps)
                return True
            configuration = known[0]
            if self._is_anchored and not configuration.positions:
                spend(steps)
                return False
        return self._ends_with_match(configuration, steps, spend)

    def _search_long(self, text: str, spend: Spend) -> bool:
        cache: _Cache = {}
        size = 0
        configuration = _configure(cache, frozenset(), _EDGE)
        for character in text:
            known = configuration.transitions.get(character)
            if known is None:
                size += 1 + len(configuration.positions)
                if size > 10 * _CACHE_SIZE:
                    cache, size = {}, 0
                    configuration = _configure(cache, configuration.positions, configuration.kind)
                known = configuration.transitions[character] = self._move(cache, configuration, character)
                spend(known[1])
            if known[0] is None:
                return True
            configuration = known[0]
            if self._is_anchored and not configuration.positions:
                return False
        return self._ends_with_match(configuration, 0, spend)

    def _ends_with_match(self, configuration: _Configuration, steps: int, spend: Spend) -> bool:
        _, matches, closing = self._close(configuration.positions | {self._start}, configuration.kind, _EDGE)
        spend(steps + closing)
        return matches

    def _move(self, cache: _Cache, configuration: _Configuration, character: str) -> tuple[_Configuration | None, int]:
        kind = _WORD if self._has_words and is_word(character) else _OTHER
        sets, matches, steps = self._close(configuration.positions | {self._start}, configuration.kind, kind)
        if matches:
            return None, steps
        results: dict[int, bool] = {}
        targets: set[int] = set()
        for characters, following in sets:
            key = id(characters)
            contains = results.get(key)
            if contains is None:
                contains = results[key] = characters.contains(character)
            if contains:
                targets.add(following)
        return _configure(cache, frozenset(targets), kind), steps + len(results)

    def _close(
        self, positions: frozenset[int], before: _Kind, after: _Kind
    ) -> tuple[list[tuple[CharacterSet, int]], bool, int]:
        """Follow all transitions without a character.

        Returns:
            The sets of accepted characters with the following states, whether the pattern matches, and the number of
            steps.
        """
        states = self._states
        pending = list(positions)
        visited = set(pending)
        sets: list[tuple[CharacterSet, int]] = []
        matches = False
        while pending:
            state = states[pending.pop()]
            kind = state[0]
            if kind == "set":
                sets.append((state[1], state[2]))
                continue
            if kind == "match":
                matches = True
                continue
            if kind == "split":
                following = state[1:]
            elif _holds(kind, before, after):
                following = (state[1],)
            else:
                continue
            for each in following:
                if each not in visited:
                    visited.add(each)
                    pending.append(each)
        return sets, matches, 1 + len(visited) // 2

    def _build(self, node: Node, following: int) -> int:
        """Add the states of a node, and return its first state."""
        match node:
            case CharacterSet():
                return self._add("set", node, following)
            case ("repeat", inner, low, high):
                return self._build_repetition(inner, low, high, following)
            case ("sequence", parts):
                for part in reversed(parts):
                    following = self._build(part, following)
                return following
            case ("alternatives", options):
                first = self._build(options[-1], following)
                for option in reversed(options[:-1]):
                    first = self._add("split", self._build(option, following), first)
                return first
            case _:
                return self._add(node[0], following)

    def _build_repetition(self, inner: Node, low: int, high: int | None, following: int) -> int:
        start = following
        if high is None:
            loop = self._add("split", 0, following)
            first = self._build(inner, loop)
            self._states[loop] = ("split", first, following)
            # The loop executes the last of the required repetitions.
            start, low = (loop, 0) if low == 0 else (first, low - 1)
        else:
            for _ in range(high - low):
                start = self._add("split", self._build(inner, start), following)
        for _ in range(low):
            start = self._build(inner, start)
        return start

    def _add(self, *state: Any) -> int:
        self._states.append(state)
        return len(self._states) - 1


def _holds(assertion: str, before: _Kind, after: _Kind) -> bool:
    if assertion == "start":
        return before == _EDGE
    if assertion == "end":
        return after == _EDGE
    is_boundary = (before == _WORD) != (after == _WORD)
    return is_boundary == (assertion == "word")


def _count_states(node: Node) -> int:
    """Count the states after repetitions are expanded. An empty node counts as one."""
    match node:
        case ("repeat", inner, low, high):
            return (_count_states(inner) + 1) * max(low, 1 if high is None else high, 1)
        case ("sequence", parts):
            return sum(map(_count_states, parts)) or 1
        case ("alternatives", options):
            return sum(map(_count_states, options)) + len(options)
        case _:
            return 1


@lru_cache(maxsize=64)
def compile_pattern(text: str) -> Pattern | None:
    """Compile a pattern. Return None for an invalid or unsupported one.

    Raises:
        PatternTooLarge: The pattern has too many states.
    """
    try:
        return Pattern(text)
    except PatternTooLarge:
        raise
    except ValueError:
        return None


@lru_cache(maxsize=256)
def find_pattern_error(text: str) -> str | None:
    """Return the reason why a pattern must not be used, or None. Invalid and unsupported patterns can be ignored."""
    if len(text) > MAX_LENGTH:
        return f"it is longer than {MAX_LENGTH:,} characters"
    try:
        parsed = parse_pattern(text)
    except ValueError:
        return None
    if parsed.unsupported is None and _count_states(parsed.root) > MAX_STATES:
        return _TOO_LARGE
    return None


def is_valid_pattern(text: str) -> bool:
    """Return True if a pattern has the syntax that is common to most programs."""
    try:
        parsed = parse_pattern(text)
    except ValueError:
        return False
    return parsed.is_common
