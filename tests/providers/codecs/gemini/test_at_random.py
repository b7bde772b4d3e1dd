"""Property tests of the Gemini codec with random responses and provider states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop.errors import RxloopError
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import ContentDeltaEvent, LLMNoticeEvent, ThoughtDeltaEvent
from rxloop.protocol.messages import FilePart, ImagePart, Message, ToolCall
from rxloop.providers.bounds import OutOfBounds
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.gemini.response import GeminiReader
from support.vendors.codecs import ignore_notice
from support.vendors.gemini import TWO, WHERE, Body, chunk, make_codec

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=5), st.floats(allow_nan=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=5), inner, max_size=2)),
    max_leaves=4,
)
SOURCES = {
    "groundingChunks": [{"web": {"uri": "https://e.org", "title": "E"}}],
    "groundingSupports": [{"segment": {"startIndex": 0, "endIndex": 2, "text": "é"}, "groundingChunkIndices": [0]}],
    "webSearchQueries": ["é"],
}
ARGUMENT = {"jsonPath": "$.at[0].name", "stringValue": "O", "willContinue": True}
CHUNKS: list[Any] = [
    chunk({"text": "hm", "thought": True}),
    chunk({"text": "é"}, {"text": "b", "thoughtSignature": "c2ln"}),
    chunk({"functionCall": {"name": "look", "args": {"a": 1}, "id": "v1"}, "thoughtSignature": "c2ln"}),
    chunk({"functionCall": {"name": "look", "partialArgs": [ARGUMENT], "willContinue": True}}),
    chunk({"functionCall": {}}),
    chunk({"executableCode": {"language": "PYTHON", "code": "1"}}, {"codeExecutionResult": {"outcome": "OUTCOME_OK"}}),
    chunk({"toolCall": {"id": "a", "toolType": "URL_CONTEXT"}}, {"toolResponse": {"id": "a", "response": {}}}),
    chunk({"inlineData": {"mimeType": "image/png", "data": "AAAA"}}, {"fileData": {"fileUri": "https://e.org/a"}}),
    chunk({"text": ""}, finish="STOP", groundingMetadata=SOURCES),
    {"promptFeedback": {"blockReason": "BLOCKED_REASON_UNSPECIFIED"}},
    {"usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 2, "totalTokenCount": 11}},
]
PLACES = st.integers(0, len(CHUNKS) - 1)


def mutate(event: Any, path: list[int], value: Any) -> Any:
    if not path or not isinstance(event, dict | list) or not event:
        return value
    if isinstance(event, list):
        place = path[0] % len(event)
        return [mutate(each, path[1:], value) if n == place else each for n, each in enumerate(event)]
    key = sorted(event)[path[0] % len(event)]
    return {name: mutate(each, path[1:], value) if name == key else each for name, each in event.items()}


def read(payloads: list[bytes], *, whole: bool = False) -> list[Any] | None:
    """Read a response. Returns None after an rxloop error."""
    pushed: list[Any] = []
    reader = GeminiReader(MessageDraft(pushed.append, "1", WHERE), "google_gemini")
    try:
        if whole:
            reader.read_body(b"".join(payloads))
        else:
            reader.feed(payloads)
        reader.complete()
    except (RxloopError, OutOfBounds):
        return None
    return pushed


def check(chunks: list[Any]) -> None:
    """Check for lost or repeated text."""
    pushed = read(list(map(orjson.dumps, chunks)))
    if pushed is None:
        return
    complete = pushed[-1]
    assert complete.content == "".join(each.delta for each in pushed if isinstance(each, ContentDeltaEvent))
    thought = "".join(each.delta for each in pushed if isinstance(each, ThoughtDeltaEvent))
    assert (complete.reasoning or "") == thought
    assert len([each for each in pushed if isinstance(each, LLMNoticeEvent)]) <= 25


def paths(event: Any) -> Iterator[list[int]]:
    yield []
    inner = [event[key] for key in sorted(event)] if isinstance(event, dict) else event
    for place, value in enumerate(inner if isinstance(inner, list) else ()):
        for rest in paths(value):
            yield [place, *rest]


@pytest.mark.parametrize("odd", [None, True, 7, -1, 1.5, "", "x", [], [[7]], {}, {"a": 1}, [{"a": {"b": 1}}]])
def test_reader_accepts_or_rejects_every_replaced_value(odd: Any) -> None:
    for place, event in enumerate(CHUNKS):
        for path in paths(event):
            check([mutate(each, path, odd) if n == place else each for n, each in enumerate(CHUNKS)])


@given(
    changes=st.lists(st.tuples(PLACES, st.lists(st.integers(0, 9), max_size=7), VALUES), max_size=3),
    order=st.lists(st.tuples(PLACES, PLACES), max_size=2),
)
@settings(max_examples=200, deadline=None)
def test_reader_returns_an_answer_or_an_rxloop_error_for_any_chunks(
    changes: list[tuple[int, list[int], Any]], order: list[tuple[int, int]]
) -> None:
    chunks = list(CHUNKS)
    for place, path, value in changes:
        chunks[place] = mutate(chunks[place], path, value)
    for one, other in order:
        chunks[one], chunks[other] = chunks[other], chunks[one]
    check(chunks)


@given(st.binary(max_size=60), st.booleans())
@settings(max_examples=200, deadline=None)
def test_reader_returns_an_answer_or_an_rxloop_error_for_any_bytes(data: bytes, whole: bool) -> None:
    read([data], whole=whole)


PIECES = st.lists(
    st.one_of(
        st.builds(lambda value: {"raw": value}, st.dictionaries(st.just("text"), st.just("x"), min_size=1)),
        st.builds(lambda size, extra: {"text": size, "extra": extra}, st.integers(0, 3), st.just({"id": 1})),
        st.builds(lambda extra: {"reasoning": 2, "extra": extra}, st.just({"thoughtSignature": 7})),
        st.builds(lambda place: {"call": place, "extra": {"id": None}}, st.integers(0, 2)),
        st.builds(lambda place: {"file": place}, st.integers(0, 2)),
        st.none(),
    ),
    max_size=4,
)
URLS = st.sampled_from(["http://[", "data:", "data:image/png;base64,AA==", "https://e.org/a.pdf?x#y", "x", "gs://"])
NAMES = st.sampled_from(["look", "3d", "é", "", "a/b", "x" * 300])


@given(PIECES, st.lists(NAMES, max_size=2), st.lists(URLS, max_size=2))
@settings(max_examples=200, deadline=None)
def test_request_is_valid_for_any_provider_state_name_and_url(
    pieces: list[Any], names: list[str], urls: list[str]
) -> None:
    files = [FilePart(url=url) for url in urls]
    calls = tuple(ToolCall(id=name, name=name) for name in names)
    state = {"google_gemini": pieces}
    answer = Message(role="assistant", content=list(files), reasoning="hm", tool_calls=calls, provider_state=state)
    results = [Message.tool(name, [ImagePart(url=url) for url in urls]) for name in names]
    history = [Message.user([*files, *(ImagePart(url=url) for url in urls)]), answer, *results]
    Body.model_validate_json(make_codec(TWO).encode(ModelRequest(messages=history), ignore_notice))
    sent = orjson.loads(make_codec().encode(ModelRequest(messages=history), ignore_notice))
    for turn in sent["contents"]:
        for part in turn["parts"]:
            name = (part.get("functionCall") or part.get("functionResponse") or {"name": "ok"})["name"]
            assert name
            assert name.isascii()
            assert len(name) <= 128
