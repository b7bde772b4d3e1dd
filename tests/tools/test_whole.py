"""Results that are too long for the model: cut, and kept as a whole where somebody can read it."""

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


def complete(events: list[Event]) -> ToolCompleteEvent:
    return next(event for event in events if isinstance(event, ToolCompleteEvent))


async def carried_out(**options: Any) -> tuple[Run[str], list[Event]]:
    run = Agent(ScriptedModel(call("long"), "Done."), **options).run("Go.")
    return run, [event async for event in run]


async def test_the_whole_is_an_artifact_that_the_note_names() -> None:
    run, events = await carried_out(tools=[long, *artifact_tools()])
    [record] = await run.artifacts.list()
    done = complete(events)
    assert "[... 60000 characters of this result are left out here: " in done.content
    assert f"read_artifact reads the whole in the artifact {record.artifact_id} ..." in done.content
    assert len(done.content) < 100_300
    assert done.result == LONG
    assert (await run.artifacts.read(record.artifact_id)).decode() == LONG
    # Its value is on the stream once.
    told = [event for event in events if isinstance(event, ArtifactUpdateEvent)]
    assert [event.data for event in told] == [None] * 3
    assert (told[-1].last, told[-1].offset + told[-1].size) == (True, len(LONG))


async def test_it_is_kept_in_a_store_that_was_given_though_the_model_cannot_read_it() -> None:
    run, events = await carried_out(tools=[long], artifacts=MemoryArtifacts())
    [record] = await run.artifacts.list()
    assert f"the user has the whole in the artifact {record.artifact_id}" in complete(events).content


@pytest.mark.parametrize("hidden", [False, True])
async def test_it_is_not_kept_where_nobody_would_read_it_or_nobody_may(hidden: bool) -> None:
    given: dict[str, Any] = {"tools": [long]}
    if hidden:
        given = {"tools": [tool(hidden=True)(long._function), *artifact_tools()]}  # pyright: ignore[reportPrivateUsage]
    run, events = await carried_out(**given)
    assert not await run.artifacts.list()
    assert "ask for less at once, or for a part of it" in complete(events).content


async def test_a_result_that_fits_makes_no_artifact() -> None:
    @tool(name="long", max_result=None)
    async def whole() -> str:
        return LONG

    run, events = await carried_out(tools=[whole, *artifact_tools()])
    assert complete(events).content == LONG
    assert not await run.artifacts.list()


class Full(MemoryArtifacts):
    """It takes nothing."""

    @override
    async def create(self, *arguments: Any, **fields: Any) -> Any:
        raise OSError("the disk is full")


async def test_a_store_that_fails_takes_no_result_away(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rxloop"):
        _, events = await carried_out(tools=[long], artifacts=Full())
    done = complete(events)
    assert done.success
    assert "ask for less at once" in done.content
    assert "could not be kept as an artifact: the disk is full" in caplog.text
