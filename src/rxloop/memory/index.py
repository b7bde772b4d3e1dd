"""Full-text index of notes."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest

from rxloop.memory.words import find_words

_SATURATION, _LENGTH = 1.2, 0.6
"""Parameters k1 and b of BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009)."""

_NEIGHBOURS = (0.45, 0.35, 0.2, 0.1)
"""Fractions of a score that are added to neighbours in the conversation, at distances 1 to 4."""

_COVERAGE = 0.8
"""Maximum increase of the score of a note that contains all words of the question."""

_CONVERSATION = 0.5
"""Maximum increase of the score of notes in the conversation with the best notes."""

_BEST_NOTES = 3
"""Number of notes whose scores are added to the score of their conversation."""

_AUTHOR = 2.0
"""Increase of the score of notes whose author is named in the question."""

_QUESTION = 0.3
"""Decrease of the score of notes that are questions, because the next note is the answer."""

_FEEDBACK_NOTES, _FEEDBACK_WORDS, _FEEDBACK = 15, 15, 0.3
"""Number of the best notes whose words are added to the question, number of these words, and their maximum weight.

This is pseudo-relevance feedback (Lavrenko and Croft, "Relevance-based Language Models", 2001).
"""

_MAX_POSTINGS, _MAX_FEEDBACK_POSTINGS = 2_000, 1_000
"""Number of occurrences of words that are searched for notes: of words of the question, and of added words.

The rarest words come first. Notes that contain only other words are too low in the order to matter.
"""

_MAX_MATCHES = 200
"""Number of the best matching notes that are examined further."""

_MAX_WORDS = 50
"""Maximum number of words of a question, for which the rarest are used. Users may paste long documents."""


@dataclass(slots=True)
class _Postings:
    notes: array[int] = field(default_factory=lambda: array("I"))
    """Numbers of the notes with the word, in ascending order."""
    counts: bytearray = field(default_factory=bytearray)

    def find(self, number: int) -> int | None:
        """Return the index of a note, or None if it does not contain the word."""
        place = bisect_left(self.notes, number)
        return place if place < len(self.notes) and self.notes[place] == number else None


@dataclass(slots=True)
class _Entry:
    words: tuple[str, ...]
    author: str
    conversation: str
    is_question: bool


class NoteIndex:
    """Full-text index for the notes of an owner. Add notes of a conversation in order.

    The score of a note is its BM25 score for the words of the question and for words that the best notes have in
    common, increased by the scores of its neighbours in the conversation. Answers often do not repeat the words of a
    question, but follow it. The weights were chosen on five conversations of LoCoMo (`benchmarks/locomo.py`).
    """

    def __init__(self) -> None:
        self._entries: list[_Entry | None] = []
        self._postings: dict[str, _Postings] = {}
        self._conversations: dict[str, array[int]] = {}
        """Sorted note numbers by conversation."""
        self._authors: dict[str, int] = {}
        """Number of notes by author."""
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
        number, words = len(self._entries), tuple(find_words(text))
        name = " ".join(find_words(author))
        is_question = text.rstrip().endswith(("?", "\uff1f"))
        self._entries.append(_Entry(words, name, conversation, is_question))
        self._conversations.setdefault(conversation, array("I")).append(number)
        self._authors[name] = self._authors.get(name, 0) + 1
        for word in dict.fromkeys(words):
            postings = self._postings.setdefault(word, _Postings())
            postings.notes.append(number)
            postings.counts.append(min(words.count(word), 255))
        self._count += 1
        self._total_length += len(words)
        return number

    def remove(self, number: int) -> None:
        """Remove a note. Its number is not used again."""
        entry = self._entries[number]
        if entry is None:
            return
        self._entries[number] = None
        self._count -= 1
        self._total_length -= len(entry.words)
        self._authors[entry.author] -= 1
        if not self._authors[entry.author]:
            del self._authors[entry.author]
        members = self._conversations[entry.conversation]
        del members[bisect_left(members, number)]
        if not members:
            del self._conversations[entry.conversation]
        for word in set(entry.words):
            postings = self._postings[word]
            place = bisect_left(postings.notes, number)
            del postings.notes[place], postings.counts[place]
            if not postings.notes:
                del self._postings[word]

    def search(self, question: str) -> list[tuple[int, float]]:
        """Return the numbers and scores of matching notes and of their neighbours, best first."""
        asked = find_words(question)
        authors = self._find_authors(asked)
        named = {word for author in authors for word in author.split()}
        words = dict.fromkeys(word for word in asked if word not in named) or dict.fromkeys(asked)
        weights = {word: self._weigh(word) for word in words if word in self._postings}
        if len(weights) > _MAX_WORDS:
            weights = {word: weights[word] for word in nlargest(_MAX_WORDS, weights, key=weights.__getitem__)}
        scores = _choose_best(self._match(weights))
        self._add_feedback(scores, weights)
        scores = _choose_best(scores)
        for number in scores:
            if self._get(number).is_question:
                scores[number] *= 1 - _QUESTION
        spread = self._spread(scores)
        best = self._rate_conversations(scores)
        for number in spread:
            entry = self._get(number)
            spread[number] *= 1 + _CONVERSATION * best.get(entry.conversation, 0.0)
            if entry.author in authors:
                spread[number] *= 1 + _AUTHOR
        return sorted(spread.items(), key=lambda item: (-item[1], -item[0]))

    def _get(self, number: int) -> _Entry:
        entry = self._entries[number]
        assert entry is not None
        return entry

    def _find_authors(self, words: Iterable[str]) -> set[str]:
        """Return the authors named in a question, unless it names all of them."""
        present = set(words)
        found = {author for author in self._authors if author and present.issuperset(author.split())}
        return found if len(found) < len(self._authors) else set()

    def _weigh(self, word: str) -> float:
        """Return the inverse document frequency of a word."""
        count = self._count_notes(word)
        return math.log(1 + (self._count - count + 0.5) / (count + 0.5))

    def _match(self, weights: Mapping[str, float]) -> dict[int, float]:
        """Return the BM25 scores of notes, increased by the fraction of the words that a note contains."""
        scores: dict[int, float] = {}
        found: dict[int, float] = {}
        remaining = _MAX_POSTINGS
        for word in sorted(weights, key=self._count_notes):
            remaining -= self._count_notes(word)
            if remaining < 0 and len(scores) > 2 * _MAX_MATCHES:
                scores = _choose_best(scores, 2 * _MAX_MATCHES)
            self._add_word(scores, word, weights[word], found, extend=remaining >= 0 or not scores)
        total = sum(weights.values())
        for number in scores:
            scores[number] *= 1 + _COVERAGE * found[number] / total
        return scores

    def _count_notes(self, word: str) -> int:
        return len(self._postings[word].notes)

    def _add_word(
        self, scores: dict[int, float], word: str, weight: float, found: dict[int, float], *, extend: bool
    ) -> None:
        """Add the scores for a word, to notes that have none only if `extend` is True."""
        postings, average = self._postings[word], self._total_length / self._count
        entries = self._entries
        pairs: Iterable[tuple[int, int]]
        if extend:
            # Newer notes have higher numbers, so keep the end.
            pairs = zip(postings.notes[-_MAX_POSTINGS:], postings.counts[-_MAX_POSTINGS:], strict=True)
        else:
            places = [(each, postings.find(each)) for each in scores]
            pairs = [(each, postings.counts[place]) for each, place in places if place is not None]
        scale = weight * (_SATURATION + 1)
        short, long = _SATURATION * (1 - _LENGTH), _SATURATION * _LENGTH / average
        for number, count in pairs:
            length = len(entries[number].words)  # pyright: ignore[reportOptionalMemberAccess]
            scores[number] = scores.get(number, 0.0) + scale * count / (count + short + long * length)
            found[number] = found.get(number, 0.0) + weight

    def _add_feedback(self, scores: dict[int, float], weights: Mapping[str, float]) -> None:
        """Add the scores for words that the best notes have in common."""
        values: dict[str, float] = {}
        for number in nlargest(_FEEDBACK_NOTES, scores, key=lambda number: (scores[number], number)):
            words = self._get(number).words
            for word in dict.fromkeys(words):
                if word not in weights and word not in self._authors:
                    values[word] = values.get(word, 0.0) + scores[number] * self._weigh(word) / (len(words) + 5)
        chosen = nlargest(_FEEDBACK_WORDS, values, key=values.__getitem__)
        remaining = _MAX_FEEDBACK_POSTINGS
        for word in sorted(chosen, key=self._count_notes):
            remaining -= self._count_notes(word)
            weight = _FEEDBACK * values[word] / values[chosen[0]]
            self._add_word(scores, word, weight * self._weigh(word), {}, extend=remaining >= 0)

    def _spread(self, scores: dict[int, float]) -> dict[int, float]:
        """Return the scores including those of neighbours."""
        result = dict(scores)
        for number, score in scores.items():
            entry = self._get(number)
            members = self._conversations[entry.conversation]
            place = bisect_left(members, number)
            for distance, weight in enumerate(_NEIGHBOURS, 1):
                for neighbour in (place - distance, place + distance):
                    if 0 <= neighbour < len(members):
                        result[members[neighbour]] = result.get(members[neighbour], 0.0) + weight * score
        return result

    def _rate_conversations(self, scores: dict[int, float]) -> dict[str, float]:
        """Return the scores of conversations relative to the best one."""
        by_conversation: dict[str, list[float]] = {}
        for number, score in scores.items():
            by_conversation.setdefault(self._get(number).conversation, []).append(score)
        sums = {group: sum(nlargest(_BEST_NOTES, each)) for group, each in by_conversation.items()}
        best = max(sums.values(), default=0.0) or 1.0
        return {group: each / best for group, each in sums.items()}


def _choose_best(scores: dict[int, float], limit: int = _MAX_MATCHES) -> dict[int, float]:
    if len(scores) <= limit:
        return scores
    # The newest of equal notes are chosen.
    best = nlargest(limit, scores, key=lambda number: (scores[number], number))
    return {number: scores[number] for number in best}
