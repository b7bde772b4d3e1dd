"""Answers that no message can store become vendor errors."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rxloop.errors import ProviderError, ProviderProtocolError
from rxloop.protocol.events import ContentCompleteEvent, Event
from rxloop.providers.bounds import OutOfBounds
from rxloop.providers.codecs import ResponseReader
from rxloop.providers.codecs.draft import MessageDraft
from support.vendors import claude, gemini, responses

WIDE = [[[] for _ in range(200)] for _ in range(200)]
"""40,000 values. An event may have more, but a message cannot store thirty of these."""


def deep(levels: int) -> Any:
    """Return nested lists."""
    made: Any = []
    for _ in range(levels):
        made = [made]
    return made


def make_server_call(number: int, **fields: Any) -> list[dict[str, Any]]:
    return claude.block(number, {"type": "server_tool_use", "id": f"s{number}", "name": "look", **fields})


def make_item(number: int, **fields: Any) -> dict[str, Any]:
    return responses.item_done({"type": "compaction", "id": f"i{number}", **fields}, number)


ANSWERS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "Claude, wide": ("claude", [event for n in range(30) for event in make_server_call(n, x=WIDE)] + claude.end()),
    "Claude, deep": ("claude", [*make_server_call(0, x=deep(97)), *claude.end()]),
    "Claude, deep in a text": (
        "claude",
        [
            *claude.block(
                0,
                {"type": "server_tool_use", "id": "s", "name": "look"},
                {"type": "input_json_delta", "partial_json": orjson.dumps({"a": deep(150)}).decode()},
            ),
            *claude.end(),
        ],
    ),
    "Gemini, wide": ("gemini", [*[gemini.chunk({"x": WIDE})] * 30, gemini.chunk(finish="STOP")]),
    "Responses, wide": ("responses", [*(make_item(n, x=WIDE) for n in range(30)), responses.completed_event()]),
    "Responses, deep": ("responses", [make_item(0, x=deep(96)), responses.completed_event()]),
}


def make_reader(vendor: str, pushed: list[Event]) -> ResponseReader:
    draft = MessageDraft(pushed.append, "1", gemini.WHERE)
    makers: dict[str, Any] = {
        "claude": claude.make_codec,
        "gemini": gemini.make_codec,
        "responses": responses.make_codec,
    }
    return makers[vendor]().make_reader(draft)


def find_failure(vendor: str, events: list[dict[str, Any]]) -> Exception | None:
    reader = make_reader(vendor, [])
    try:
        reader.feed([orjson.dumps(event) for event in events])
        reader.complete()
    except (ProviderError, OutOfBounds) as error:
        return error
    return None


@pytest.mark.parametrize("name", ANSWERS)
def test_answer_that_cannot_be_stored_is_a_vendor_error(name: str) -> None:
    error = find_failure(*ANSWERS[name])
    assert isinstance(error, ProviderProtocolError | OutOfBounds)
    assert "deep" in str(error) or "more than" in str(error)


@pytest.mark.parametrize("place", [2**64 - 1, -1, 1.5, "0", True])
def test_citation_with_an_invalid_position_has_no_position(place: Any) -> None:
    annotation = {"type": "url_citation", "url": "https://e.org", "start_index": place, "end_index": place}
    said = responses.text("hello")
    said["content"][0]["annotations"] = [annotation]
    pushed = responses.read_events(
        [
            responses.item_done(responses.text("hi"), 0),
            responses.item_done(said | {"id": "m2"}, 1),
            responses.completed_event(),
        ]
    )
    complete = pushed[-1]
    assert isinstance(complete, ContentCompleteEvent)
    assert [(each.url, each.start, each.end) for each in complete.citations] == [("https://e.org", None, None)]
