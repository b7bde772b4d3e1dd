"""Recorded streams with random losses, repetitions and changes."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from rxloop.errors import ProviderError
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent
from rxloop.protocol.messages import Message
from rxloop.providers.bounds import OutOfBounds
from support.vendors.recordings import body, needs_recordings, oracle, recording, recording_names
from support.vendors.responses import encode, last_message, make_codec, read_events

pytestmark = needs_recordings
STRANGE: list[Any] = [
    None,
    0,
    -1,
    2**70,
    1.5,
    True,
    "",
    "x",
    "\ud800",
    [],
    [None],
    {},
    {"type": "message"},
    {"a": [{}]},
]


def streams() -> list[tuple[str, int, list[dict[str, Any]]]]:
    found: list[tuple[str, int, list[dict[str, Any]]]] = []
    for name in recording_names(api="resp"):
        for number, exchange in enumerate(recording(name)["exchanges"]):
            if exchange["stream"] and exchange["response"]["status"] == 200:
                lines = [line[5:].strip() for line in body(exchange).splitlines() if line.startswith(b"data:")]
                found.append((name, number, [orjson.loads(line) for line in lines if line != b"[DONE]"]))
    return found


STREAMS = streams() or [("none", 0, [])]
by_stream = pytest.mark.parametrize(
    ("name", "number", "events"), STREAMS, ids=[f"{each[0]}-{each[1]}" for each in STREAMS]
)


@by_stream
def test_missing_deltas_are_read_from_later_events(name: str, number: int, events: list[dict[str, Any]]) -> None:
    expected = oracle(name)[number]
    rng = random.Random(f"{name}{number}")
    for kinds in (("delta",), ("done",), ("added",), ("delta", "added"), ("delta", "done", "added", "part")):
        left = [event for event in events if not any(kind in event["type"] for kind in kinds) or _is_last(event)]
        _assert_reads_as(read_events(left), expected)
    for _ in range(10):
        # All deltas after a random position are lost.
        at = rng.randrange(len(events))
        _assert_reads_as(
            read_events([*events[:at], *(event for event in events[at:] if "delta" not in event["type"])]), expected
        )
    for _ in range(10):
        # Drop some done events.
        _assert_reads_as(
            read_events([event for event in events if not event["type"].endswith("done") or rng.random() < 0.5]),
            expected,
        )


@by_stream
def test_repeated_done_events_are_read_once(name: str, number: int, events: list[dict[str, Any]]) -> None:
    repeated_events = [
        again for event in events for again in ([event, event] if event["type"].endswith("done") else [event])
    ]
    _assert_reads_as(read_events(repeated_events), oracle(name)[number])


@by_stream
def test_reader_handles_changed_events(name: str, number: int, events: list[dict[str, Any]]) -> None:
    rng = random.Random(f"{name}/{number}")
    for _ in range(60):
        changed_events = orjson.loads(orjson.dumps(events[:40] + events[-6:]))
        for _ in range(rng.randrange(1, 4)):
            _change(changed_events, rng)
        if rng.random() < 0.3:
            rng.shuffle(changed_events)
        try:
            found = read_events(changed_events)
        except (ProviderError, OutOfBounds):
            continue
        message = last_message(found)
        results = [Message.tool(call.id, "x") for call in message.tool_calls]
        encode([message, *results])
        encode([message, *results], make_codec("gpt-4o", "http://localhost/v1"))


def _is_last(event: dict[str, Any]) -> bool:
    return event["type"] == "response.completed"


def _assert_reads_as(found: list[Any], expected: dict[str, Any]) -> None:
    message = found[-1]
    assert isinstance(message, ContentCompleteEvent)
    assert message.content == (expected["text"] or "")
    assert "".join(event.delta for event in found if isinstance(event, ContentDeltaEvent)) == message.content
    assert (message.reasoning or "") == (expected["reasoning"] or "")
    assert [[call.id, call.name, call.raw] for call in message.tool_calls] == expected["tool_calls"]


def _change(value: Any, rng: random.Random) -> None:
    """Change one random value."""
    while True:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = rng.choice(keys)
        inner = value[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.8:
            value = inner
            continue
        if rng.random() < 0.3:
            del value[key]
        else:
            value[key] = rng.choice(STRANGE)
        return
