"""Full-text index of notes."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nlargest

from rxloop.memory.words import find_words

_SATURATION, _LENGTH = 1.2, 0.6
"""Parameters k1 and b of BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009)."""

_NEIGHBOURS = (0.45, 0.35, 0.2, 0.1)
"""Fractions of a score that are added to neighbours in the conversation, at distances 1 to 4."""

_COVERAGE = 1.3
"""Maximum increase of the score of a note that contains all words of the question."""

_AUTHOR = 2.0
"""Maximum increase of the score of notes whose author is named in the question."""

_FEEDBACK_NOTES, _FEEDBACK_WORDS, _FEEDBACK = 15, 20, 0.4
"""Number of the best notes whose words are added to the question, number of these words, and their maximum weight.

This is pseudo-relevance feedback (Lavrenko and Croft, "Relevance-based Language Models", 2001).
"""

_MAX_POSTINGS = 2_000
"""Number of occurrences of words that are searched for notes.

The rarest words come first. Notes that contain only other words are too low in the order to matter.
"""

_MAX_MATCHES = 200
"""Number of the best matching notes that are examined further."""

_MAX_WORDS = 50
"""Maximum number of words of a question, for which the rarest are used. Users may paste long documents."""


@dataclass(frozen=True, slots=True)
class _Entry:
    words: tuple[str, ...]
    """Different words of the note."""
    author: frozenset[str]
    """Words of the author's name."""
    conversation: str

    def list_keys(self) -> Iterator[tuple[str, str]]:
        yield "conversation", self.conversation
        for word in self.author:
            yield "author", word
        for word in self.words:
            yield "word", word


class NoteIndex:
    """Full-text index for the notes of an owner. Add notes of a conversation in order.

    The score of a note is its BM25 score for the words of the question and for words that the best notes have in
    common, increased by the scores of its neighbours in the conversation. Answers often do not repeat the words of a
    question, but follow it. The weights were chosen on five conversations of LoCoMo (`benchmarks/locomo.py`).
    """

    def __init__(self) -> None:
        self._entries: list[_Entry | None] = []
        self._postings: dict[tuple[str, str], array[int]] = {}
        """Sorted numbers of the notes with a word, an author or a conversation."""
        self._count = self._total_length = 0

    def __len__(self) -> int:
        return self._count

    def add(self, text: str, *, conversation: str = "", author: str = "") -> int:
        """Add a note and return its number.

        Args:
            text: Text of the note.
            conversation: Key of the conversation that contains the note.
            author: Name of the person who wrote the note, if questions may contain this name.
        """
        number = len(self._entries)
        entry = _Entry(tuple(dict.fromkeys(find_words(text))), frozenset(find_words(author)), conversation)
        self._entries.append(entry)
        for key in entry.list_keys():
            self._postings.setdefault(key, array("I")).append(number)
        self._count += 1
        self._total_length += len(entry.words)
        return number

    def remove(self, number: int) -> None:
        """Remove a note. Its number is not used again."""
        entry = self._entries[number]
        if entry is None:
            return
        self._entries[number] = None
        self._count -= 1
        self._total_length -= len(entry.words)
        for key in entry.list_keys():
            postings = self._postings[key]
            del postings[bisect_left(postings, number)]
            if not postings:
                del self._postings[key]

    def search(self, question: str) -> list[tuple[int, float]]:
        """Return the numbers and scores of matching notes and of their neighbours, best first."""
        asked = dict.fromkeys(find_words(question))
        words = [word for word in asked if not self._is_name(word, asked)] or [*asked]
        found = sorted((word for word in words if ("word", word) in self._postings), key=self._count_notes)
        weights = {word: self._weigh(word) for word in found[:_MAX_WORDS]}
        scores = self._match(weights, {})
        for number in scores:
            covered = sum(weights.get(word, 0.0) for word in self._get(number).words)
            scores[number] *= 1 + _COVERAGE * covered / sum(weights.values())
        scores = self._spread(self._match(self._find_feedback(scores, weights), scores))
        for number in scores:
            author = self._get(number).author
            scores[number] *= 1 + _AUTHOR * len(author & asked.keys()) / max(len(author), 1)
        return sorted(scores.items(), key=lambda item: (-item[1], -item[0]))

    def _get(self, number: int) -> _Entry:
        entry = self._entries[number]
        assert entry is not None
        return entry

    def _is_name(self, word: str, asked: Mapping[str, None]) -> bool:
        """Return True if the question contains the name of an author with this word."""
        notes = self._postings.get(("author", word))
        return notes is not None and self._get(notes[-1]).author <= asked.keys()

    def _count_notes(self, word: str) -> int:
        return len(self._postings["word", word])

    def _weigh(self, word: str) -> float:
        """Return the inverse document frequency of a word."""
        count = self._count_notes(word)
        return math.log(1 + (self._count - count + 0.5) / (count + 0.5))

    def _match(self, weights: Mapping[str, float], scores: dict[int, float]) -> dict[int, float]:
        """Return the best scores after adding the BM25 scores for words with these weights."""
        remaining = _MAX_POSTINGS
        short, long = 1 + _SATURATION * (1 - _LENGTH), _SATURATION * _LENGTH * self._count / (self._total_length or 1)
        for word in sorted(weights, key=self._count_notes):
            # Newer notes have higher numbers, so keep the end.
            numbers: Sequence[int] = self._postings["word", word][-_MAX_POSTINGS:]
            remaining -= len(numbers)
            if remaining < 0 and scores:
                scores = _choose_best(scores)
                find = partial(bisect_left, numbers, hi=len(numbers) - 1)
                numbers = [number for number in scores if numbers[find(number)] == number]
            for number in numbers:
                length = short + long * len(self._get(number).words)
                scores[number] = scores.get(number, 0.0) + weights[word] * (_SATURATION + 1) / length
        return _choose_best(scores)

    def _find_feedback(self, scores: Mapping[int, float], known: Mapping[str, float]) -> dict[str, float]:
        """Return the weights of the words that the best notes have in common."""
        values: dict[str, float] = {}
        for number in nlargest(_FEEDBACK_NOTES, scores, key=lambda number: (scores[number], number)):
            words = self._get(number).words
            for word in words:
                if word not in known and ("author", word) not in self._postings:
                    values[word] = values.get(word, 0.0) + scores[number] * self._weigh(word) / (len(words) + 2)
        best = nlargest(_FEEDBACK_WORDS, values, key=values.__getitem__)
        return {word: _FEEDBACK * values[word] / values[best[0]] * self._weigh(word) for word in best}

    def _spread(self, scores: Mapping[int, float]) -> dict[int, float]:
        """Return the scores including those of neighbours."""
        result = dict(scores)
        for number, score in scores.items():
            members = self._postings["conversation", self._get(number).conversation]
            place = bisect_left(members, number)
            for distance, weight in enumerate(_NEIGHBOURS, 1):
                for neighbour in (place - distance, place + distance):
                    if 0 <= neighbour < len(members):
                        result[members[neighbour]] = result.get(members[neighbour], 0.0) + weight * score
        return result


def _choose_best(scores: dict[int, float]) -> dict[int, float]:
    if len(scores) <= _MAX_MATCHES:
        return scores
    # The newest of equal notes are chosen.
    best = nlargest(_MAX_MATCHES, scores, key=lambda number: (scores[number], number))
    return {number: scores[number] for number in best}
