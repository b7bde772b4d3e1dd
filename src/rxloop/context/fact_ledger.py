"""Facts kept from removed messages."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import nlargest
from typing import NamedTuple
from weakref import ref

from rxloop.context.facts import extract_facts
from rxloop.context.token_estimator import text_tokens
from rxloop.protocol.messages import Message

# The score of an entry decays with its age, but only slightly, because an agent may need values from long ago.
_OLD, _FADES = 0.8, 20.0

# Summaries never require more entries. Excess entries are removed once the ledger exceeds twice this limit.
_MAX_ENTRIES = 4_000


class Entry(NamedTuple):
    """Value in the ledger."""

    value: str
    label: str
    """Label preceding the value in its most recent mention."""
    weight: float
    mentions: int
    """Number of messages that mention the value."""
    place: int
    """Message number of the most recent mention."""
    order: int
    """Number of the newest mention."""

    @property
    def cost(self) -> float:
        """Approximate number of tokens in its line."""
        return text_tokens(self.value) + text_tokens(self.label) + 1.0

    def worth(self, now: int) -> float:
        """Return the entry's value per token."""
        age = _OLD + (1 - _OLD) * math.exp((self.place - now) / _FADES)
        return self.weight * (1 + 0.5 * math.log2(self.mentions)) * age / math.sqrt(self.cost)


class FactLedger:
    """Deduplicated facts from messages, oldest first.

    The result is deterministic across processes for identical messages.
    """

    __slots__ = ("_entries", "_order", "_place")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._entries: dict[str, Entry] = {}
        self._place = self._order = 0
        self.add(messages)

    def add(self, messages: Iterable[Message]) -> None:
        """Add facts from messages that follow the earlier ones."""
        entries = self._entries
        for message in messages:
            self._place += 1
            for value, label, weight in extract_facts(message):
                self._order += 1
                old = entries.get(value)
                if old is None:
                    entries[value] = Entry(value, label, weight, 1, self._place, self._order)
                else:
                    label, weight = label or old.label, max(old.weight, weight)
                    entries[value] = Entry(value, label, weight, old.mentions + 1, self._place, self._order)
            if len(entries) > 2 * _MAX_ENTRIES:
                best = nlargest(_MAX_ENTRIES, entries.values(), key=lambda entry: entry.worth(self._place))
                self._entries = entries = {entry.value: entry for entry in best}

    def copy(self) -> FactLedger:
        """Return an independent copy."""
        other = FactLedger()
        other._entries, other._place, other._order = self._entries.copy(), self._place, self._order
        return other

    def text(self, tokens: float, *, visible: Collection[str] = (), size: Callable[[str], float] = text_tokens) -> str:
        """Return the most useful entries as lines of text, within a token limit.

        Args:
            tokens: Maximum number of tokens.
            visible: Values to omit, because they are visible elsewhere.
            size: Counts the tokens of a string.
        """
        ranked = sorted(
            (entry for entry in self._entries.values() if entry.value not in visible),
            key=lambda entry: entry.worth(self._place),
            reverse=True,
        )
        estimate = tokens
        while estimate >= 2:
            text = _lines(_choose_entries(ranked, estimate))
            over = size(text) - tokens
            if over <= 0:
                return text
            estimate = min(estimate - over, estimate * 0.95)
        return ""

    @property
    def tokens(self) -> float:
        """Approximate number of tokens in the whole ledger."""
        return sum(entry.cost for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, value: object) -> bool:
        return value in self._entries

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FactLedger):
            return False
        same = (self._place, self._order) == (other._place, other._order)
        return same and [*self._entries.values()] == [*other._entries.values()]

    __hash__ = None  # pyright: ignore[reportAssignmentType]


_NOTHING_READ: tuple[list[ref[Message]], FactLedger] = [], FactLedger()

_read: dict[int, tuple[list[ref[Message]], FactLedger]] = {}
"""Cached facts with source messages, keyed by the id of the newest message.

Entries are removed along with the newest message, which belongs to a single conversation. The first message is
unsuitable, because system messages may be shared and long-lived.
"""


def load_ledger(history: Sequence[Message]) -> FactLedger:
    """Return facts for a history, processing only messages added since the previous call."""
    known, ledger = _take_known_beginning(history)
    new = history[len(known) :]
    ledger.add(new)
    if history:
        key = id(history[-1])
        known = [*known, *map(ref, new)]
        known[-1] = ref(history[-1], lambda gone: _read.pop(key, None))
        _read[key] = known, ledger
    return ledger.copy()


def _take_known_beginning(history: Sequence[Message]) -> tuple[list[ref[Message]], FactLedger]:
    """Remove and return the longest cached prefix of a history."""
    for length in range(len(history), 0, -1):
        key = id(history[length - 1])
        known, ledger = _read.get(key, _NOTHING_READ)
        same = len(known) == length and all(one() is message for one, message in zip(known, history, strict=False))
        if same and _read.pop(key, None) is not None:
            return known, ledger
    return [], FactLedger()


def _choose_entries(ranked: Iterable[Entry], tokens: float) -> list[Entry]:
    """Select the highest-ranked entries within the token limit, excluding values contained in other entries."""
    chosen: list[Entry] = []
    text = "\n"
    for entry in ranked:
        if entry.cost > tokens:
            if tokens < 2:
                break
            continue
        if _occurs_as_word(entry.value, text):
            continue
        tokens -= entry.cost
        chosen.append(entry)
        text += f"{entry.value}\n"
    return [
        entry
        for entry in chosen
        if text.count(entry.value) == 1 or not _occurs_as_word(entry.value, _remove_value(entry, text))
    ]


def _remove_value(entry: Entry, text: str) -> str:
    return text.replace(f"\n{entry.value}\n", "\n", 1)


def _occurs_as_word(value: str, text: str) -> bool:
    return value in text and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


def _lines(entries: list[Entry]) -> str:
    """Format entries as one line per message, with labels and values in original order."""
    parts: list[str] = []
    place, label = -1, ""
    for entry in sorted(entries, key=lambda entry: entry.order):
        if entry.place != place:
            parts.append("\n" if parts else "")
            place, label = entry.place, ""
        elif parts:
            parts.append(" " if entry.label == label else ", ")
        named = entry.label and entry.label != label
        parts.append(f"{entry.label} {entry.value}" if named else entry.value)
        label = entry.label
    return "".join(parts)
