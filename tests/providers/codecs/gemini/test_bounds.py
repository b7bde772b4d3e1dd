"""An answer without an end comes to its bound, whatever it is of, and takes little memory and time until then."""

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

MOST = 50_000
"""Characters of a message here; the default is far more."""
MEMORY = 8 * MOST
WITHOUT_END: dict[str, list[dict[str, Any]]] = {
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


def fed(reader: GeminiReader, payload: bytes) -> int:
    """How many such events a reader takes."""
    for count in range(MOST):
        reader.feed([payload])
        if count % 500 == 0:
            assert tracemalloc.get_traced_memory()[1] < MEMORY
    raise AssertionError("there is no end")


def started() -> GeminiReader:
    reader = GeminiReader(
        MessageDraft(lambda _: None, "1", WHERE, bounds=Bounds(text=MOST, arguments=MOST)), "google_gemini"
    )
    reader.feed([orjson.dumps(chunk({"functionCall": {"name": "a", "willContinue": True}}))])
    return reader


@pytest.mark.parametrize("kind", WITHOUT_END)
def test_parts_without_an_end_come_to_a_bound(kind: str) -> None:
    parts = [part if "functionCall" not in part else _going_on(part) for part in WITHOUT_END[kind]]
    payload, reader = orjson.dumps(chunk(*parts)), started()
    tracemalloc.start()
    try:
        with pytest.raises(OutOfBounds):
            fed(reader, payload)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def test_sources_without_an_end_come_to_a_bound() -> None:
    found = {"groundingChunks": [{"web": {"uri": "a"}}], "groundingSupports": [{"segment": {"endIndex": 1}}]}
    payload, reader = orjson.dumps(chunk({"text": "a"}, groundingMetadata=found)), started()
    tracemalloc.start()
    try:
        with pytest.raises(OutOfBounds):
            fed(reader, payload)
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
def test_what_is_said_of_sources_takes_the_time_of_its_size(kind: str) -> None:
    first, again = PLACES[kind]
    start = chunk({"text": "a" * 2_000_000}, groundingMetadata=first)
    more = orjson.dumps(chunk(groundingMetadata=again))

    def seconds(count: int) -> float:
        reader = GeminiReader(MessageDraft(lambda _: None, "1", WHERE), "google_gemini")
        reader.feed([orjson.dumps(start), *[more] * count, orjson.dumps(chunk(finish="STOP"))])
        begun = thread_time()
        reader.complete()
        return thread_time() - begun

    assert seconds(2_000) < 1


def _going_on(part: dict[str, Any]) -> dict[str, Any]:
    call = part["functionCall"]
    return part if "name" in call else {"functionCall": {**call, "willContinue": True}}
