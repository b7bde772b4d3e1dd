"""Calls with too many argument values are refused, with an error for the model that names the limit."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import Any

import pytest

from rxloop import Agent, tool
from rxloop.operators import standard
from rxloop.protocol.events import ToolCompleteEvent, ToolStartEvent
from rxloop.protocol.messages import MAX_ARGUMENT_VALUES, ToolCall
from rxloop.providers.bounds import Bounds
from support.http_server import Reply, Server, chat_model, delta, sse, text_reply

HALF = MAX_ARGUMENT_VALUES // 2
MANY: dict[str, list[Any]] = {
    "objects in one call": [{"rows": [{}] * MAX_ARGUMENT_VALUES}],
    "small objects in one call": [{"rows": [{"a": 1}] * MAX_ARGUMENT_VALUES}],
    "texts in one call": [{"rows": ["a"] * (MAX_ARGUMENT_VALUES + 1)}],
    "keys in one call": [{"rows": {str(n): n for n in range(MAX_ARGUMENT_VALUES + 1)}}],
    "several calls": [{"rows": [1] * (HALF - 10)}] * 3,
    "arguments that are encoded twice": [json.dumps({"rows": [1] * (HALF + 10)})] * 2,
}


@tool(read_only=True)
async def count(rows: Any) -> int:
    """Count rows."""
    return len(rows)


@pytest.fixture
async def model(server: Server) -> AsyncGenerator[Any]:
    model = chat_model(server)
    yield model
    await model.aclose()


def calls_reply(arguments: list[Any]) -> Any:
    calls = [
        {"index": n, "id": f"c{n}", "function": {"name": "count", "arguments": json.dumps(each)}}
        for n, each in enumerate(arguments)
    ]
    return Reply(sse(delta(tool_calls=calls), delta("tool_calls")))


@contextmanager
def count_function_calls() -> Generator[list[int]]:
    """Count calls of the functions that convert arguments."""
    names = ("convert_any", "thaw", "deepcopy", "_deepcopy_dict", "_translate")
    calls = [0]

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name in names:
            calls[0] += 1

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("early", [False, True], ids=["", "early"])
@pytest.mark.parametrize("arguments", MANY.values(), ids=MANY)
async def test_calls_with_too_many_values_fail_without_converting_them(
    server: Server, model: Any, arguments: list[Any], early: bool
) -> None:
    server.answer(calls_reply(arguments), text_reply("Too many."))
    with count_function_calls() as conversions:
        run = Agent(model, tools=[count], loop=standard(early=early)).run("Count.")
        events = [event async for event in run]
    assert (await run).output == "Too many."
    failures = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert len(failures) == len(arguments)
    assert not [event for event in events if isinstance(event, ToolStartEvent)]
    for event in failures:
        assert event.code == "invalid_arguments"
        assert "20,000 argument values; write fewer at once" in event.content
    # With `early`, the limit applies to each call until the message is complete.
    assert conversions[0] < (5 * MAX_ARGUMENT_VALUES if early else 1_000)


async def test_values_of_an_allowed_call_are_converted_three_times(server: Server, model: Any) -> None:
    rows = [{"a": 1}] * (HALF - 10)
    server.answer(calls_reply([{"rows": rows}]), text_reply("Done."))
    with count_function_calls() as conversions:
        events = [event async for event in Agent(model, tools=[count]).run("Count.")]
    assert [event.result for event in events if isinstance(event, ToolCompleteEvent)] == [len(rows)]
    # Each row is a dict with one value: frozen for the stream, copied for any tool, and copied by the function tool.
    assert conversions[0] < 3 * 2 * len(rows) + 1_000


def test_error_of_a_call_with_too_many_values_keeps_the_written_text() -> None:
    text = json.dumps({"rows": [1] * 11})
    call = ToolCall.parse("c0", "count", text, limit=10)
    assert (call.arguments, call.raw) == ({}, text)
    assert call.error is not None
    assert "must not have more than 10 values" in call.error
    assert ToolCall.parse("c0", "count", text, limit=12).error is None


async def test_limit_of_argument_values_can_be_changed(server: Server) -> None:
    model = chat_model(server, bounds=Bounds(argument_values=100_000))
    server.answer(calls_reply([{"rows": [1] * 30_000}]), text_reply("Done."))
    events = [event async for event in Agent(model, tools=[count]).run("Count.")]
    assert [event.result for event in events if isinstance(event, ToolCompleteEvent)] == [30_000]
    await model.aclose()
