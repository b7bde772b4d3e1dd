"""Runs with nested agents that are killed, for real, at random moments, and go on in another process."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from rxloop import (
    ContentCompleteEvent,
    Event,
    InputReceivedEvent,
    LLMCallEvent,
    SqliteEventLog,
    StatusUpdateEvent,
    ToolCompleteEvent,
)
from support.crash.killed_runs import ForkedRuns, find_run, folder, lines
from support.crash.nested_runs import SUM
from support.nested_agents import check_attempts, total_usage

TESTS = Path(__file__).parents[1]
FAMILY = TESTS / "support/crash/nested_runs.py"
# More of them take minutes: RXLOOP_KILLS=200 is what a release is measured by.
KILLS = int(os.environ.get("RXLOOP_KILLS", "6"))


async def killed_until_it_ends(process: asyncio.subprocess.Process, place: Path, longest: float) -> int:
    """Kill a run up to four times, and see what it comes to. Returns how often it was killed before its end."""
    nursery, log = ForkedRuns(process, place, "family"), SqliteEventLog(place / "runs.db")
    task, kills = None, 0
    for _ in range(100):
        await nursery.execute(task, random.random() * longest if kills < 4 else None)
        if nursery.answers:
            break
        task = task or await find_run(log, "family")
        events = await log.read(task) if task is not None else ()
        kills += not (events and isinstance(events[-1], StatusUpdateEvent) and events[-1].final)
    assert nursery.answers == [str(SUM)]
    events = await log.read(task or nursery.tasks[0])
    check(events, lines(nursery.effects))
    await log.aclose()
    return kills


def check(events: Sequence[Event], effects: list[str]) -> None:
    """The whole stream, over all attempts."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    check_attempts(events)
    final = events[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert (final.state, final.content, final.usage) == ("completed", str(SUM), total_usage(events))
    assert max(Counter(effects).values()) == 1, "a tool that is not idempotent was called twice"
    messages = [event for event in events if isinstance(event, ContentCompleteEvent)]
    assert max(Counter((event.task_id, event.step) for event in messages).values()) == 1
    results = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert max(Counter((event.task_id, event.step, event.index) for event in results).values()) == 1
    interrupted = sum("interrupted" in event.content for event in results)
    assert len(effects) + interrupted >= 6
    assert sum(isinstance(event, InputReceivedEvent) for event in events) <= 1
    told: set[tuple[str, str | None]] = set()
    for event in events:
        if isinstance(event, LLMCallEvent):
            assert (event.task_id, event.step) not in told, "the model was asked for what it had answered"
        elif isinstance(event, ContentCompleteEvent):
            told.add((event.task_id, event.step))


@pytest.mark.timeout(1200)
async def test_a_run_with_nested_agents_goes_on_to_the_same_answer(tmp_path: Path) -> None:
    # L89, L117
    pipe = asyncio.subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(FAMILY), stdin=pipe, stdout=pipe, env=environment
    )
    # The first run of the process has waited for its start.
    assert await killed_until_it_ends(process, folder(tmp_path, "first"), 1e9) == 0
    started = time.monotonic()
    assert await killed_until_it_ends(process, folder(tmp_path, "whole"), 1e9) == 0
    takes = (time.monotonic() - started) / 2
    killed = 0
    for number in range(10 * KILLS):
        killed += await killed_until_it_ends(process, folder(tmp_path, str(number)), takes)
        if killed >= KILLS:
            break
    assert killed >= KILLS
    assert process.stdin is not None
    process.stdin.close()
    assert await process.wait() == 0
