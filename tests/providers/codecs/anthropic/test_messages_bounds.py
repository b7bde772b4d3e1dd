"""Tests that endless Anthropic responses reach a limit before they use much memory."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import orjson
import pytest

from rxloop.errors import ProviderProtocolError
from rxloop.providers.bounds import Bounds, OutOfBounds
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.failures import Endpoint
from support.vendors.claude import Json, block, make_codec, start

BOUNDS = Bounds(text=100_000, arguments=20_000)
MAX_MEMORY = 8_000_000
"""Limit in bytes."""
SERVER = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}


def deltas(content: Json, delta: Json) -> Iterator[Json]:
    yield block(0, content)[0]
    while True:
        yield {"type": "content_block_delta", "index": 0, "delta": delta}


def blocks(content: Callable[[int], Json], *, stop: bool) -> Iterator[Json]:
    for number in count():
        yield from block(number, content(number), stop=stop)


def interleave_deltas(content: Json, delta: Json) -> Iterator[Json]:
    yield from (block(number, content)[0] for number in range(2))
    for number in count():
        yield {"type": "content_block_delta", "index": number % 2, "delta": delta}


ENDLESS: dict[str, Callable[[], Iterator[Json]]] = {
    "texts that take turns": lambda: interleave_deltas({"type": "text"}, {"type": "text_delta", "text": "x"}),
    "deep compaction": lambda: deltas({"type": "compaction"}, {"type": "compaction_delta", "new": [["x"] * 100]}),
    "calls with arguments": lambda: blocks(
        lambda n: {"type": "tool_use", "id": f"{n}", "name": "b", "input": {"a": ["x"] * 100}}, stop=False
    ),
    "text": lambda: deltas({"type": "text", "text": ""}, {"type": "text_delta", "text": "x" * 50}),
    "thinking": lambda: deltas({"type": "thinking"}, {"type": "thinking_delta", "thinking": "x" * 50}),
    "arguments": lambda: deltas(
        {"type": "tool_use", "id": "a", "name": "b"}, {"type": "input_json_delta", "partial_json": "xx"}
    ),
    "arguments of a tool of the vendor": lambda: deltas(SERVER, {"type": "input_json_delta", "partial_json": "xx"}),
    "sources": lambda: deltas(
        {"type": "text"}, {"type": "citations_delta", "citation": {"type": "x", "deep": {"cited": ["y"]}}}
    ),
    "compaction": lambda: deltas({"type": "compaction"}, {"type": "compaction_delta", "content": "x" * 50}),
    "empty texts": lambda: blocks(lambda _: {"type": "text", "text": ""}, stop=True),
    "open texts": lambda: blocks(lambda _: {"type": "text", "text": ""}, stop=False),
    "open blocks": lambda: blocks(lambda _: {"type": "x", "data": "y" * 1000}, stop=False),
    "redacted thinking": lambda: blocks(lambda _: {"type": "redacted_thinking", "data": "y" * 1000}, stop=True),
    "calls": lambda: blocks(lambda n: {"type": "tool_use", "id": f"{n}", "name": "b"}, stop=True),
    "calls of tools of the vendor": lambda: blocks(lambda n: {**SERVER, "id": f"{n}"}, stop=True),
}
IGNORED: dict[str, Callable[[], Iterator[Json]]] = {
    "signatures": lambda: deltas({"type": "thinking"}, {"type": "signature_delta", "signature": "x" * 1000}),
    "unknown events": lambda: ({"type": f"new{n}"} for n in count()),
    "usage": lambda: ({"type": "message_delta", "delta": {}, "usage": {f"new{n}": 1}} for n in count()),
    "pings": lambda: ({"type": "ping"} for _ in count()),
    "pieces of no block": lambda: ({"type": "content_block_delta", "index": n, "delta": {}} for n in count()),
    "fields of open texts": lambda: blocks(lambda _: {"type": "text", "new": ["x"] * 1000}, stop=False),
    "one block again": lambda: ({**block(0, {"type": "text", "text": ""})[0], "x": n} for n in count()),
}


def feed_until_error(events: Iterator[Json], count: int) -> Exception | None:
    """Read events until one is rejected. Discard the published events."""
    draft = MessageDraft(lambda event: None, "1", Endpoint("claude", "http://x"), bounds=BOUNDS)
    reader = make_codec().make_reader(draft)
    reader.feed([orjson.dumps(start())])
    for _ in range(count):
        try:
            reader.feed([orjson.dumps(next(events))])
        except (OutOfBounds, ProviderProtocolError) as error:
            return error
    return None


def measure_memory(events: Iterator[Json], count: int) -> tuple[Exception | None, int]:
    gc.collect()
    tracemalloc.start()
    try:
        return feed_until_error(events, count), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ENDLESS)
def test_reader_limits_the_memory_of_stored_content(name: str) -> None:
    error, memory = measure_memory(ENDLESS[name](), 20_000)
    assert isinstance(error, OutOfBounds)
    assert memory < MAX_MEMORY


@pytest.mark.parametrize("name", IGNORED)
def test_reader_uses_no_memory_for_ignored_content(name: str) -> None:
    error: Any
    error, memory = measure_memory(IGNORED[name](), 4_000)
    assert error is None or isinstance(error, OutOfBounds)
    assert memory < 1_000_000
