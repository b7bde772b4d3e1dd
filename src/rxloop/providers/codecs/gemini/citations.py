"""Conversion of grounding metadata to citations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from rxloop.protocol.json_data import replace_surrogates
from rxloop.protocol.messages import Citation
from rxloop.providers.codecs.fields import as_object, list_objects

_Source = tuple[str | None, str | None, str | None, int | None, int | None]
"""Source URL, title, text, start and end."""

_MAX_SEARCHES = 200
"""Maximum number of segments that are searched for in the text if their offsets are wrong. Each search scans the text.
"""


class Offsets:
    """Converts byte offsets, as used by Gemini.

    Args:
        text: Message text.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends = None if text.isascii() else list(accumulate(map(_byte_width, text)))
        self._searches = 0

    def __call__(self, start: Any, end: Any, segment: Any = None) -> tuple[int, int] | tuple[None, None]:
        """Return the segment's character range, or None values if not found.

        Args:
            start: Start in bytes, defaulting to 0.
            end: End in bytes.
            segment: Segment text, used to validate the offsets.
        """
        start = 0 if start is None else start
        if start.__class__ is int and end.__class__ is int and 0 <= start < end:
            offsets = self._to_characters(start), self._to_characters(end)
            if offsets[1] <= len(self._text) and (not isinstance(segment, str) or self._matches(segment, *offsets)):
                return offsets
        if isinstance(segment, str) and segment and self._searches < _MAX_SEARCHES:
            self._searches += 1
            position = self._text.find(segment)
            if position >= 0:
                return position, position + len(segment)
        return None, None

    def _matches(self, segment: str, start: int, end: int) -> bool:
        # Avoid large slices by comparing the length first.
        return end - start == len(segment) and self._text[start:end] == segment

    def _to_characters(self, count: int) -> int:
        return count if self._ends is None else bisect_left(self._ends, count) + 1 if count else 0


def iter_citations(candidates: list[dict[str, Any]], text: str) -> Iterator[Citation]:
    """Yield unique citations.

    Args:
        candidates: Candidates with `groundingMetadata`, `citationMetadata` or `urlContextMetadata`.
        text: Message text.
    """
    converter, seen = Offsets(text), set[_Source]()
    sources: list[list[_Source]] = []
    for candidate in candidates:
        grounding = as_object(candidate.get("groundingMetadata"))
        chunks = list_objects(grounding.get("groundingChunks"))
        # Later chunks may only contain offsets for existing sources.
        if chunks:
            sources = [list(_read_source(chunk)) for chunk in chunks]
        for source in _iter_sources(candidate, grounding, sources, converter, new=bool(chunks)):
            if source not in seen:
                seen.add(source)
                url, title, cited_text, start, end = source
                yield Citation(url=url, title=title, text=cited_text, start=start, end=end)


def _iter_sources(
    candidate: dict[str, Any], grounding: dict[str, Any], sources: list[list[_Source]], spans: Offsets, *, new: bool
) -> Iterator[_Source]:
    used = set[int]()
    for support in list_objects(grounding.get("groundingSupports")):
        segment = as_object(support.get("segment"))
        offsets = spans(segment.get("startIndex"), segment.get("endIndex"), segment.get("text"))
        indices: Any = support.get("groundingChunkIndices")
        index: Any
        for index in indices if indices.__class__ is list else ():
            if isinstance(index, int) and 0 <= index < len(sources):
                used.add(index)
                for url, title, text, _, _ in sources[index]:
                    yield url, title, text, offsets[0], offsets[1]
    if new:
        for index, chunk_sources in enumerate(sources):
            if index not in used:
                yield from chunk_sources
    metadata = as_object(candidate.get("citationMetadata"))
    for source in list_objects(metadata.get("citations") or metadata.get("citationSources")):
        offsets = spans(source.get("startIndex"), source.get("endIndex"))
        yield from _make_source(source.get("uri"), source.get("title"), None, *offsets)
    for page in list_objects(as_object(candidate.get("urlContextMetadata")).get("urlMetadata")):
        if page.get("urlRetrievalStatus") == "URL_RETRIEVAL_STATUS_SUCCESS":
            yield from _make_source(page.get("retrievedUrl"), None, None)


def _read_source(chunk: dict[str, Any]) -> Iterator[_Source]:
    for kind in ("web", "retrievedContext", "maps", "image"):
        if source := as_object(chunk.get(kind)):
            url = source.get("uri") or source.get("sourceUri")
            title = source.get("title") or source.get("documentName") or source.get("fileSearchStore")
            yield from _make_source(url, title, source.get("text"))


def _make_source(
    url: Any, title: Any, text: Any, start: int | None = None, end: int | None = None
) -> Iterator[_Source]:
    url, title, text = (
        replace_surrogates(value) if isinstance(value, str) and value else None for value in (url, title, text)
    )
    if url or title or text:
        yield url, title, text, start, end


def _byte_width(character: str) -> int:
    code = ord(character)
    return 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


def iter_searches(candidates: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield searches reported only in metadata: tool, arguments and result."""
    seen = set[str]()
    for candidate in candidates:
        grounding = as_object(candidate.get("groundingMetadata"))
        for name, tool in (("webSearchQueries", "google_search"), ("retrievalQueries", "retrieval")):
            queries: Any = grounding.get(name)
            if queries.__class__ is list and queries and (key := f"{name} {queries}") not in seen:
                seen.add(key)
                yield tool, {"queries": queries}, None
        pages = list_objects(as_object(candidate.get("urlContextMetadata")).get("urlMetadata"))
        if pages and (key := f"pages {pages}") not in seen:
            seen.add(key)
            yield "url_context", {"urls": [page.get("retrievedUrl") for page in pages]}, pages
