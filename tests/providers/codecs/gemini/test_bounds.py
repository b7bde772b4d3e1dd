"""Tests that endless Gemini responses reach a limit in little memory and time."""

from __future__ import annotations

import tracemalloc
from time import thread_time
from typing import Any

import orjson
import pytest

from rxloop.providers.bounds import Bounds, OutOfBounds
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.gemini.response import GeminiReader
from support.vendors.gemini import WHERE, chunk

MAX_TEXT = 50_000
"""Maximum number of characters, far below the default."""
MEMORY = 8 * MAX_TEXT
ENDLESS: dict[str, list[dict[str, Any]]] = {
    "signed parts": [{"text": "", "thoughtSignature": "a"}],
    "signed thoughts": [{"text": "", "thought": True, "thoughtSignature": "a"}],
    "thoughts between texts": [{"text": "a", "thought": True}, {"text": "b"}],
    "thoughts": [{"text": "a", "thought": True}],
    "code": [{"executableCode": {"code": "a"}}, {"codeExecutionResult": {"output": "b"}}],
    "searches": [{"toolCall": {"id": "a"}}, {"toolResponse": {"id": "a"}}],
    "files": [{"inlineData": {"mimeType": "a/b", "data": "AAAA"}}],
    "images by address": [{"fileData": {"mimeType": "image/png", "fileUri": "a"}}],
    "parts of no kind": [{"a": "b"}],
    "calls": [{"functionCall": {"name": "a"}}],
    "arguments": [{"functionCall": {"partialArgs": [{"jsonPath": "$.a", "stringValue": "b", "willContinue": True}]}}],
}


def feed_until_error(reader: GeminiReader, payload: bytes) -> int:
    """Read the same payload until the reader rejects it."""
    for count in range(MAX_TEXT):
        reader.feed([payload])
        if count % 500 == 0:
            assert tracemalloc.get_traced_memory()[1] < MEMORY
    raise AssertionError("there is no end")


def make_reader() -> GeminiReader:
    reader = GeminiReader(
        MessageDraft(lambda _: None, "1", WHERE, bounds=Bounds(text=MAX_TEXT, arguments=MAX_TEXT)), "google_gemini"
    )
    reader.feed([orjson.dumps(chunk({"functionCall": {"name": "a", "willContinue": True}}))])
    return reader


@pytest.mark.parametrize("kind", ENDLESS)
def test_endless_parts_reach_a_limit(kind: str) -> None:
    parts = [part if "functionCall" not in part else _continue_call(part) for part in ENDLESS[kind]]
    payload, reader = orjson.dumps(chunk(*parts)), make_reader()
    tracemalloc.start()
    try:
        with pytest.raises(OutOfBounds):
            feed_until_error(reader, payload)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def test_endless_sources_reach_a_limit() -> None:
    metadata = {"groundingChunks": [{"web": {"uri": "a"}}], "groundingSupports": [{"segment": {"endIndex": 1}}]}
    payload, reader = orjson.dumps(chunk({"text": "a"}, groundingMetadata=metadata)), make_reader()
    tracemalloc.start()
    try:
        with pytest.raises(OutOfBounds):
            feed_until_error(reader, payload)
    finally:
        tracemalloc.stop()


SOURCE = {"web": {"uri": "é" * 50_000, "title": "t"}}
PLACES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one source named again": (
        {"groundingChunks": [SOURCE]},
        {"groundingSupports": [{"segment": {"endIndex": 1}, "groundingChunkIndices": [0] * 100}]},
    ),
    "long places": ({}, {"groundingSupports": [{"segment": {"endIndex": 2_000_000, "text": "b"}}]}),
    "sources that nobody names": ({"groundingChunks": [{"web": {"uri": "a"}}] * 9_000}, {"groundingChunks": []}),
}


@pytest.mark.parametrize("kind", PLACES)
def test_reading_sources_takes_linear_time(kind: str) -> None:
    first, again = PLACES[kind]
    start = chunk({"text": "a" * 2_000_000}, groundingMetadata=first)
    more = orjson.dumps(chunk(groundingMetadata=again))

    def seconds(count: int) -> float:
        reader = GeminiReader(MessageDraft(lambda _: None, "1", WHERE), "google_gemini")
        reader.feed([orjson.dumps(start), *[more] * count, orjson.dumps(chunk(finish="STOP"))])
        start_time = thread_time()
        reader.complete()
        return thread_time() - start_time

    assert seconds(2_000) < 1


def _continue_call(part: dict[str, Any]) -> dict[str, Any]:
    call = part["functionCall"]
    return part if "name" in call else {"functionCall": {**call, "willContinue": True}}
