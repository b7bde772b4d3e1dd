"""Conversion of grounding metadata to citations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from rxloop.protocol.json_data import replace_surrogates
from rxloop.protocol.messages import Citation
from rxloop.providers.codecs.fields import object_of, objects

_Source = tuple[str | None, str | None, str | None, int | None, int | None]
"""Source URL, title, text, start and end."""

_LOOKED_FOR = 200
"""Maximum number of segments that are searched for in the text if their offsets are wrong. Each search scans the text.
"""


class Places:
    """Converts byte offsets, as used by Gemini.

    Args:
        text: Message text.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends = None if text.isascii() else list(accumulate(map(_width, text)))
        self._looked = 0

    def __call__(self, start: Any, end: Any, words: Any = None) -> tuple[int, int] | tuple[None, None]:
        """Return the segment's character range, or None values if not found.

        Args:
            start: Start in bytes, defaulting to 0.
            end: End in bytes.
            words: Segment text, used to validate the offsets.
        """
        start = 0 if start is None else start
        if start.__class__ is int and end.__class__ is int and 0 <= start < end:
            found = self._characters(start), self._characters(end)
            if found[1] <= len(self._text) and (not isinstance(words, str) or self._has(words, *found)):
                return found
        if isinstance(words, str) and words and self._looked < _LOOKED_FOR:
            self._looked += 1
            place = self._text.find(words)
            if place >= 0:
                return place, place + len(words)
        return None, None

    def _has(self, words: str, start: int, end: int) -> bool:
        # Avoid large slices by comparing the length first.
        return end - start == len(words) and self._text[start:end] == words

    def _characters(self, count: int) -> int:
        return count if self._ends is None else bisect_left(self._ends, count) + 1 if count else 0


def citations(candidates: list[dict[str, Any]], text: str) -> Iterator[Citation]:
    """Yield unique citations.

    Args:
        candidates: Candidates with `groundingMetadata`, `citationMetadata` or `urlContextMetadata`.
        text: Message text.
    """
    places, seen = Places(text), set[_Source]()
    sources: list[list[_Source]] = []
    for candidate in candidates:
        grounding = object_of(candidate.get("groundingMetadata"))
        chunks = objects(grounding.get("groundingChunks"))
        # Later chunks may only contain offsets for existing sources.
        if chunks:
            sources = [list(_source(chunk)) for chunk in chunks]
        for source in _all(candidate, grounding, sources, places, new=bool(chunks)):
            if source not in seen:
                seen.add(source)
                url, title, words, start, end = source
                yield Citation(url=url, title=title, text=words, start=start, end=end)


def _all(
    candidate: dict[str, Any], grounding: dict[str, Any], sources: list[list[_Source]], places: Places, *, new: bool
) -> Iterator[_Source]:
    used = set[int]()
    for support in objects(grounding.get("groundingSupports")):
        segment = object_of(support.get("segment"))
        place = places(segment.get("startIndex"), segment.get("endIndex"), segment.get("text"))
        indices: Any = support.get("groundingChunkIndices")
        index: Any
        for index in indices if indices.__class__ is list else ():
            if isinstance(index, int) and 0 <= index < len(sources):
                used.add(index)
                for url, title, text, _, _ in sources[index]:
                    yield url, title, text, place[0], place[1]
    if new:
        for index, found in enumerate(sources):
            if index not in used:
                yield from found
    told = object_of(candidate.get("citationMetadata"))
    for source in objects(told.get("citations") or told.get("citationSources")):
        place = places(source.get("startIndex"), source.get("endIndex"))
        yield from _cited(source.get("uri"), source.get("title"), None, *place)
    for page in objects(object_of(candidate.get("urlContextMetadata")).get("urlMetadata")):
        if page.get("urlRetrievalStatus") == "URL_RETRIEVAL_STATUS_SUCCESS":
            yield from _cited(page.get("retrievedUrl"), None, None)


def _source(chunk: dict[str, Any]) -> Iterator[_Source]:
    for kind in ("web", "retrievedContext", "maps", "image"):
        if source := object_of(chunk.get(kind)):
            url = source.get("uri") or source.get("sourceUri")
            title = source.get("title") or source.get("documentName") or source.get("fileSearchStore")
            yield from _cited(url, title, source.get("text"))


def _cited(url: Any, title: Any, text: Any, start: int | None = None, end: int | None = None) -> Iterator[_Source]:
    url, title, text = (
        replace_surrogates(value) if isinstance(value, str) and value else None for value in (url, title, text)
    )
    if url or title or text:
        yield url, title, text, start, end


def _width(character: str) -> int:
    code = ord(character)
    return 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


def searches(candidates: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield searches reported only in metadata: tool, arguments and result."""
    asked = set[str]()
    for candidate in candidates:
        grounding = object_of(candidate.get("groundingMetadata"))
        for name, tool in (("webSearchQueries", "google_search"), ("retrievalQueries", "retrieval")):
            queries: Any = grounding.get(name)
            if queries.__class__ is list and queries and (key := f"{name} {queries}") not in asked:
                asked.add(key)
                yield tool, {"queries": queries}, None
        pages = objects(object_of(candidate.get("urlContextMetadata")).get("urlMetadata"))
        if pages and (key := f"pages {pages}") not in asked:
            asked.add(key)
            yield "url_context", {"urls": [page.get("retrievedUrl") for page in pages]}, pages
