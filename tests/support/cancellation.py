"""Runs that go on until somebody cancels them, and how they have to end then."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rxloop import Agent, tool
from rxloop.errors import RunCancelled
from rxloop.protocol.events import Event
from rxloop.testing import ScriptedModel, frames
from support.run_checks import Recorder, assert_ended, assert_numbered, finals, nothing_left, until


@tool
async def waits() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"


@tool
async def quick() -> str:
    """Be quick."""
    return "quick"


def endless() -> ScriptedModel:
    return ScriptedModel(frames("-a-", frame=0.001))


async def cancelled(run: Any, recorder: Recorder) -> None:
    """The run ends as cancelled, in good order."""
    with pytest.raises(RunCancelled) as caught:
        await run
    assert caught.value.code == "canceled"
    assert_ended(recorder.events, "canceled", "canceled")
    assert_numbered(recorder.events)
    assert recorder.completed
    assert_answered(caught.value.result.messages)
    await nothing_left()


def assert_answered(messages: Sequence[Any]) -> None:
    """Every call of a history has its answer."""
    calls = [call.id for message in messages for call in message.tool_calls]
    assert calls == [message.tool_call_id for message in messages if message.role == "tool"]


def watched(agent: Agent[Any, Any]) -> tuple[Any, list[Event]]:
    """A run, and its events by a door that does not hold it."""
    run = agent.run("Go.")
    seen: list[Event] = []
    run._attempt.recorder.hub.events.subscribe(seen.append)
    return run, seen


async def first_of(run: Any, kind: str) -> None:
    """Read up to an event of a kind."""
    async for event in run:
        if event.kind == kind:
            return


async def ended(seen: list[Event]) -> Event:
    await until(lambda: finals(seen))
    await nothing_left()
    return assert_ended(seen, "canceled", "canceled")
