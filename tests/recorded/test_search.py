"""Text search in events."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rxloop import ContentCompleteEvent, Event, FilePart, MessageAddedEvent, ToolStartEvent
from rxloop.protocol.http_api.inspection import SearchHit
from rxloop.protocol.messages import ToolCall
from rxloop.recorded.search import make_pattern, search_events

ENVELOPE: dict[str, Any] = {"task_id": "run", "attempt": 1, "seq": 1}


def find(text: str, *events: Event, internal: bool = False, kinds: Any = None) -> list[SearchHit]:
    return [*search_events(events, make_pattern(text), "run", kinds=kinds, internal=internal)]


def start(**arguments: Any) -> ToolStartEvent:
    return ToolStartEvent(call=ToolCall(id="1", name="look", arguments=arguments), idempotency_key="run/1", **ENVELOPE)


def test_search_names_the_field_of_each_text() -> None:
    hits = find("oslo", start(city="Oslo", route=["Bergen", {"via": "to Oslo"}], number=5))
    assert [(hit.field, hit.text, hit.marks) for hit in hits] == [
        ("call.arguments.city", "Oslo", [(0, 4)]),
        ("call.arguments.route.1.via", "to Oslo", [(3, 7)]),
    ]
    assert (hits[0].seq, hits[0].kind) == (1, "tool-start")


def test_search_treats_the_text_as_characters() -> None:
    assert [hit.marks for hit in find("a.c", ContentCompleteEvent(content="abc a.c", **ENVELOPE))] == [[(4, 7)]]


def test_excerpt_contains_the_first_match_of_a_long_text() -> None:
    [hit] = find("needle", ContentCompleteEvent(content="x" * 5_000 + "Needle, needle" + "y" * 500, **ENVELOPE))
    assert len(hit.text) == 200
    assert [hit.text[begin:end] for begin, end in hit.marks] == ["Needle", "needle"]


def test_search_skips_ids_and_binary_data() -> None:
    file = FilePart(data=b"\x00\x10\x83", media_type="text/x-abcd")
    event = MessageAddedEvent(content=[file], **ENVELOPE)
    assert file.model_dump(mode="json", by_alias=True)["data"] == "ABCD"
    assert [hit.field for hit in find("abcd", event)] == ["content.0.mediaType"]
    assert find("run", start()) == []


def test_search_finds_private_data_only_on_request() -> None:
    event = ContentCompleteEvent(content="Hi", provider_state={"signature": "secret"}, **ENVELOPE)
    assert find("secret", event) == []
    assert [hit.field for hit in find("secret", event, internal=True)] == ["providerState.signature"]
    hidden = ToolStartEvent(call=ToolCall(id="1", name="secret"), hidden=True, idempotency_key="k", **ENVELOPE)
    assert find("secret", hidden) == []
    assert len(find("secret", hidden, internal=True)) == 1


def test_search_is_limited_to_kinds() -> None:
    events = [start(city="Oslo"), ContentCompleteEvent(content="Oslo", **ENVELOPE)]
    assert [hit.kind for hit in find("Oslo", *events, kinds=["content-complete"])] == ["content-complete"]


@given(before=st.text(max_size=300), text=st.text(min_size=1, max_size=5), after=st.text(max_size=300))
def test_marks_are_the_positions_of_the_text(before: str, text: str, after: str) -> None:
    event = ContentCompleteEvent(content=before + text + after, **ENVELOPE)
    hits = [hit for hit in find(text, event) if hit.field == "content"]
    assert len(hits) == 1
    assert hits[0].marks
    assert all(re.fullmatch(re.escape(text), hits[0].text[a:b], re.IGNORECASE) for a, b in hits[0].marks)
