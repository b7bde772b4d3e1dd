"""Citations, and searches without vendor events."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rxloop.protocol.events import ServerToolEvent
from rxloop.protocol.messages import Citation
from rxloop.providers.codecs.gemini.citations import Offsets, iter_citations
from support.vendors.gemini import chunk, read_events, read_message

WEB = {"web": {"uri": "https://e.org", "title": "E"}}
TEXT = "Ärzte sagen: Tee ist gut."


def grounding_fields(*segments: dict[str, Any], chunks: Any = (WEB,), **more: Any) -> dict[str, Any]:
    supports = [{"segment": segment, "groundingChunkIndices": [0]} for segment in segments]
    return {"groundingMetadata": {"groundingChunks": list(chunks), "groundingSupports": supports, **more}}


def read_server_events(*chunks: Any) -> list[ServerToolEvent]:
    return [event for event in read_events(*chunks) if isinstance(event, ServerToolEvent)]


def test_byte_positions_become_character_positions() -> None:
    segment = {"startIndex": 14, "endIndex": 26, "text": "Tee ist gut."}
    complete = read_message(chunk({"text": TEXT}, finish="STOP", **grounding_fields(segment)))
    assert complete.citations == [Citation(url="https://e.org", title="E", start=13, end=25)]
    assert TEXT[13:25] == "Tee ist gut."


def test_invalid_position_is_searched_or_omitted() -> None:
    wrong, unknown = {"startIndex": 3, "endIndex": 9, "text": "Tee"}, {"endIndex": 3, "text": "Kaffee"}
    complete = read_message(chunk({"text": TEXT}, finish="STOP", **grounding_fields(wrong, unknown)))
    assert [(each.start, each.end) for each in complete.citations] == [(13, 16), (None, None)]


def test_sources_without_a_position_are_listed_once() -> None:
    other = {"retrievedContext": {"title": "doc", "text": "words"}}
    fields = grounding_fields({"endIndex": 6, "text": "Ärzte"}, chunks=(WEB, other))
    complete = read_message(chunk({"text": TEXT}, **fields), chunk(finish="STOP", **fields))
    assert complete.citations == [
        Citation(url="https://e.org", title="E", start=0, end=5),
        Citation(title="doc", text="words"),
    ]


def test_recited_texts_and_fetched_pages_are_citations() -> None:
    recited = {"citationMetadata": {"citations": [{"startIndex": 0, "endIndex": 6, "uri": "https://a.org"}]}}
    pages = [
        {"retrievedUrl": "https://b.org", "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_SUCCESS"},
        {"retrievedUrl": "https://c.org", "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_ERROR"},
    ]
    read = {"urlContextMetadata": {"urlMetadata": pages}}
    answer = chunk({"text": TEXT}, finish="STOP", **recited, **read)
    assert [(each.url, each.start, each.end) for each in read_message(answer).citations] == [
        ("https://a.org", 0, 5),
        ("https://b.org", None, None),
    ]
    server_events = read_server_events(answer)
    assert [(event.name, event.phase) for event in server_events] == [
        ("url_context", "start"),
        ("url_context", "complete"),
    ]


def test_search_is_published_unless_the_vendor_reported_it() -> None:
    fields = grounding_fields(webSearchQueries=["tea"])
    call = {"toolCall": {"id": "a", "toolType": "GOOGLE_SEARCH_WEB", "args": {}}}
    silent = [
        event
        for event in read_events(chunk({"text": TEXT}, finish="STOP", **fields))
        if isinstance(event, ServerToolEvent)
    ]
    assert [(event.name, event.phase, event.arguments) for event in silent] == [
        ("google_search", "start", {"queries": ["tea"]}),
        ("google_search", "complete", None),
    ]
    loud = read_server_events(chunk(call), chunk({"text": TEXT}, finish="STOP", **fields))
    assert [event.name for event in loud] == ["google_search_web"]


@given(st.text("aé漢🎉", max_size=12), st.data())
def test_any_byte_position_is_converted(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    place = len(text[:start].encode()), len(text[:end].encode())
    expected = (start, end) if start < end else (None, None)
    assert Offsets(text)(*place) == expected
    assert Offsets(text)(*place, text[start:end]) == expected


def test_many_sources_of_a_long_text_are_read_quickly() -> None:
    segments = [{"startIndex": 1, "endIndex": 2, "text": "nowhere"}] * 20_000
    assert len(list(iter_citations([grounding_fields(*segments)], "é" * 500_000))) == 1
