"""Runs with nested agents, killed by SIGKILL at random moments and resumed in another process."""

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
PROGRAM = TESTS / "support/crash/nested_runs.py"
# Releases are tested with RXLOOP_KILLS=200, which takes minutes.
KILLS = int(os.environ.get("RXLOOP_KILLS", "6"))


async def execute_with_kills(process: asyncio.subprocess.Process, directory: Path, max_delay: float) -> int:
    """Kill a run up to four times, check its events, and return the number of kills before its end."""
    runs, log = ForkedRuns(process, directory, "nested"), SqliteEventLog(directory / "runs.db")
    task, kills = None, 0
    for _ in range(100):
        await runs.execute(task, random.random() * max_delay if kills < 4 else None)
        if runs.answers:
            break
        task = task or await find_run(log, "nested")
        events = await log.read(task) if task is not None else ()
        kills += not (events and isinstance(events[-1], StatusUpdateEvent) and events[-1].final)
    assert runs.answers == [str(SUM)]
    events = await log.read(task or runs.tasks[0])
    check_events(events, lines(runs.effects))
    await log.aclose()
    return kills


def check_events(events: Sequence[Event], effects: list[str]) -> None:
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
    completed: set[tuple[str, str | None]] = set()
    for event in events:
        if isinstance(event, LLMCallEvent):
            assert (event.task_id, event.step) not in completed, "a completed step was requested again"
        elif isinstance(event, ContentCompleteEvent):
            completed.add((event.task_id, event.step))


@pytest.mark.timeout(1200)
async def test_killed_run_with_nested_agents_has_the_same_answer(tmp_path: Path) -> None:
    # L89, L117
    pipe = asyncio.subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), stdin=pipe, stdout=pipe, env=environment
    )
    # The first run also waits for the program to start, so the second one is timed.
    assert await execute_with_kills(process, folder(tmp_path, "first"), 1e9) == 0
    start = time.monotonic()
    assert await execute_with_kills(process, folder(tmp_path, "uninterrupted"), 1e9) == 0
    duration = (time.monotonic() - start) / 2
    kills = 0
    for number in range(10 * KILLS):
        kills += await execute_with_kills(process, folder(tmp_path, str(number)), duration)
        if kills >= KILLS:
            break
    assert kills >= KILLS
    assert process.stdin is not None
    process.stdin.close()
    assert await process.wait() == 0
