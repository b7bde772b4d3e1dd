"""Endless runs, and assertions about their cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rxloop import Agent, tool
from rxloop.errors import RunCancelled
from rxloop.protocol.events import Event
from rxloop.testing import ScriptedModel, frames
from support.run_checks import Recorder, assert_ended, assert_no_tasks, assert_numbered, final_events, wait_until


@tool
async def waits() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"


@tool
async def quick() -> str:
    """Be quick."""
    return "quick"


def make_endless_model() -> ScriptedModel:
    return ScriptedModel(frames("-a-", frame=0.001))


async def assert_canceled(run: Any, recorder: Recorder) -> None:
    """Assert that a canceled run has a complete stream."""
    with pytest.raises(RunCancelled) as caught:
        await run
    assert caught.value.code == "canceled"
    assert_ended(recorder.events, "canceled", "canceled")
    assert_numbered(recorder.events)
    assert recorder.completed
    assert_answered(caught.value.result.messages)
    await assert_no_tasks()


def assert_answered(messages: Sequence[Any]) -> None:
    """Assert that all tool calls in a history have results."""
    calls = [call.id for message in messages for call in message.tool_calls]
    assert calls == [message.tool_call_id for message in messages if message.role == "tool"]


def start_observed_run(agent: Agent[Any, Any]) -> tuple[Any, list[Event]]:
    """Start a run and record its events without keeping the run alive."""
    run = agent.run("Go.")
    events: list[Event] = []
    run._attempt.recorder.hub.events.subscribe(events.append)
    return run, events


async def read_until(run: Any, kind: str) -> None:
    """Read events until the first of a kind."""
    async for event in run:
        if event.kind == kind:
            return


async def wait_until_canceled(events: list[Event]) -> Event:
    await wait_until(lambda: final_events(events))
    await assert_no_tasks()
    return assert_ended(events, "canceled", "canceled")
