"""Semantic search with embedding vectors."""

from __future__ import annotations

import asyncio
import logging
import math
from array import array
from collections.abc import Sequence
from heapq import nlargest, nsmallest
from operator import mul
from typing import TYPE_CHECKING

from rxloop.memory.notes import Note
from rxloop.support.threads import call_user_function

if TYPE_CHECKING:
    from rxloop.context.compressors import Embedder

log = logging.getLogger("rxloop")

_MAX_NEW, _BATCH = 1_000, 100
"""Maximum numbers of notes that are embedded per search, and per call of the function."""

_TIMEOUT = 30.0
"""Time limit of a call of the function in seconds."""

_CANDIDATES, _MATCHES = 500, 100
"""Number of notes that are compared exactly, and maximum number of results."""

_RANK = 60
"""Constant of reciprocal rank fusion (Cormack, Clarke and Buettcher, 2009)."""


class NoteVectors:
    """Vectors of the notes of an owner.

    Notes are first compared by the signs of their components, and the best of them by cosine similarity. Without numpy,
    comparing all vectors exactly would take seconds (binary quantization with rescoring; signs are compared as proposed
    by Charikar, "Similarity Estimation Techniques from Rounding Algorithms", 2002).
    """

    def __init__(self, embed: Embedder) -> None:
        """Create an empty index.

        Args:
            embed: Async function that returns vectors of the same length for a list of texts.
        """
        self._embed = embed
        self._vectors: dict[str, tuple[int, array[float]]] = {}
        """Signs and normalised components by note id."""

    def discard(self, note_id: str) -> None:
        """Remove a note."""
        self._vectors.pop(note_id, None)

    async def search(self, question: str, notes: dict[str, Note]) -> list[Note]:
        """Return semantically similar notes, best first.

        New notes are embedded first. If the function fails, a warning is logged and the result is empty.

        Args:
            question: Question or topic.
            notes: All notes of the owner by id, oldest first.
        """
        # Prefer new notes if one search cannot embed all of them.
        new = [note for note in reversed(notes.values()) if note.note_id not in self._vectors][:_MAX_NEW]
        try:
            signs, vector = (await self._encode([question]))[0]
            for start in range(0, len(new), _BATCH):
                batch = new[start : start + _BATCH]
                encoded = await self._encode([note.text for note in batch])
                # Skip notes that were removed during the call.
                self._vectors.update(
                    (note.note_id, each) for note, each in zip(batch, encoded, strict=True) if note.note_id in notes
                )
        except Exception as error:
            log.warning("Embedding failed, searching notes only by words: %r", error)
            return []
        vectors = self._vectors
        nearest = nsmallest(_CANDIDATES, vectors, key=lambda note_id: (vectors[note_id][0] ^ signs).bit_count())
        scores = {note_id: sum(map(mul, vectors[note_id][1], vector)) for note_id in nearest}
        best = nlargest(_MATCHES, scores, key=lambda note_id: scores[note_id])
        return [notes[note_id] for note_id in best if scores[note_id] > 0]

    async def _encode(self, texts: Sequence[str]) -> list[tuple[int, array[float]]]:
        async with asyncio.timeout(_TIMEOUT):
            vectors = await call_user_function(self._embed, texts)
        known = next((len(vector) for _, vector in self._vectors.values()), None)
        return [_encode(vector, known or len(vectors[0])) for _, vector in zip(texts, vectors, strict=True)]


def _encode(vector: Sequence[float], length: int) -> tuple[int, array[float]]:
    size = math.hypot(*vector)
    if len(vector) != length or not 0 < size < math.inf:
        raise ValueError(f"a vector must have {length} finite components that are not all 0, got {len(vector)}")
    signs = int("".join("1" if each > 0 else "0" for each in vector), 2)
    return signs, array("f", (each / size for each in vector))


def fuse(by_words: Sequence[Note], by_meaning: Sequence[Note]) -> list[Note]:
    """Combine two rankings. A note that both contain comes before notes with the same rank in one of them."""
    scores: dict[str, float] = {}
    for ranking in (by_words, by_meaning):
        for rank, note in enumerate(ranking):
            scores[note.note_id] = scores.get(note.note_id, 0.0) + 1 / (_RANK + rank)
    found = {note.note_id: note for note in (*by_words, *by_meaning)}
    return sorted(found.values(), key=lambda note: -scores[note.note_id])
