"""Truncation of long tool results, with the full result stored as an artifact."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from typing_extensions import override

from rxloop import Agent, ArtifactUpdateEvent, Event, Run, ToolCompleteEvent, artifact_tools, tool
from rxloop.storage import MemoryArtifacts
from rxloop.testing import ScriptedModel, call

LONG = "".join(f"{n:07}\n" for n in range(20_000))


@tool
async def long() -> str:
    """Give a long text."""
    return LONG


def find_result(events: list[Event]) -> ToolCompleteEvent:
    return next(event for event in events if isinstance(event, ToolCompleteEvent))


async def run_long_tool(**options: Any) -> tuple[Run[str], list[Event]]:
    run = Agent(ScriptedModel(call("long"), "Done."), **options).run("Go.")
    return run, [event async for event in run]


async def test_truncated_result_is_stored_as_an_artifact_that_the_note_names() -> None:
    run, events = await run_long_tool(tools=[long, *artifact_tools()])
    [record] = await run.artifacts.list()
    done = find_result(events)
    assert "[... 60000 characters of this result are left out here: " in done.content
    assert f"read_artifact reads the whole in the artifact {record.artifact_id} ..." in done.content
    assert len(done.content) < 100_300
    assert done.result == LONG
    assert (await run.artifacts.read(record.artifact_id)).decode() == LONG
    # Artifact events do not repeat the value.
    artifact_events = [event for event in events if isinstance(event, ArtifactUpdateEvent)]
    assert [event.data for event in artifact_events] == [None] * 3
    assert artifact_events[-1].last is True
    assert artifact_events[-1].offset + artifact_events[-1].size == len(LONG)


async def test_result_is_stored_in_a_given_store_when_the_model_has_no_artifact_tools() -> None:
    run, events = await run_long_tool(tools=[long], artifacts=MemoryArtifacts())
    [record] = await run.artifacts.list()
    assert f"the user has the whole in the artifact {record.artifact_id}" in find_result(events).content


@pytest.mark.parametrize("hidden", [False, True])
async def test_result_is_not_stored_when_it_is_hidden_or_no_reader_exists(hidden: bool) -> None:
    options: dict[str, Any] = {"tools": [long]}
    if hidden:
        options = {"tools": [tool(hidden=True)(long._function), *artifact_tools()]}  # pyright: ignore[reportPrivateUsage]
    run, events = await run_long_tool(**options)
    assert not await run.artifacts.list()
    assert "ask for less at once, or for a part of it" in find_result(events).content


async def test_result_that_fits_creates_no_artifact() -> None:
    @tool(name="long", max_result=None)
    async def return_long() -> str:
        return LONG

    run, events = await run_long_tool(tools=[return_long, *artifact_tools()])
    assert find_result(events).content == LONG
    assert not await run.artifacts.list()


class FullStore(MemoryArtifacts):
    @override
    async def create(self, *arguments: Any, **fields: Any) -> Any:
        raise OSError("the disk is full")


async def test_failing_store_does_not_lose_the_result(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rxloop"):
        _, events = await run_long_tool(tools=[long], artifacts=FullStore())
    done = find_result(events)
    assert done.success
    assert "ask for less at once" in done.content
    assert "Cannot store the full result of long as an artifact: the disk is full" in caplog.text
