"""Runs killed by SIGKILL at random moments and resumed in another process."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from rxloop import Event, SqliteEventLog, StatusUpdateEvent, ToolCompleteEvent
from rxloop.errors import UnknownRun
from rxloop.protocol.events import ThoughtStreamEvent
from support.crash.killed_runs import ForkedRuns, find_run, folder, lines, start_forked_runs

# Releases are tested with RXLOOP_KILLS=200, which takes minutes.
KILLS = int(os.environ.get("RXLOOP_KILLS", "6"))
ANSWER = f"Let me see. The sum is {sum(n * n + (n + 100) ** 2 for n in range(6))}."


@pytest.fixture
async def process() -> AsyncIterator[asyncio.subprocess.Process]:
    async with start_forked_runs() as process:
        yield process


async def follow(log: SqliteEventLog, task: str) -> list[Event]:
    return [event async for event in log.follow(task)]


async def list_finished_calls(log: SqliteEventLog, task: str) -> set[str]:
    """Return calls that have a durable result and must not be repeated."""
    events = await log.read(task)
    calls = [event.call for event in events if isinstance(event, ToolCompleteEvent)]
    return {f"{call.name} {next(iter(call.arguments.values()))}" for call in calls}


async def execute_with_kills(
    process: asyncio.subprocess.Process, directory: Path, max_delay: float, context: str = "sums"
) -> int:
    """Kill a run up to three times, check its events, and return the number of kills before its end."""
    runs, log = ForkedRuns(process, directory, context), SqliteEventLog(directory / "runs.db")
    follower: asyncio.Task[list[Event]] | None = None
    task, kills = None, 0
    for attempt in range(1, 100):
        finished = await list_finished_calls(log, task) if task else set[str]()
        effect_count = len(lines(runs.effects))
        acknowledged = runs.acknowledged
        await runs.execute(task, random.random() * max_delay if kills < 3 else None)
        repeated = {line.removesuffix(" starts") for line in lines(runs.effects)[effect_count:]} & finished
        assert not repeated, f"attempt {attempt} repeated finished calls: {repeated}"
        if runs.answers:
            break
        kills += 1
        if task is None:
            task = await find_run(log, context)
            if task is not None:
                follower = asyncio.create_task(follow(log, task))
        if task is not None:
            stored = await log.read(task)
            assert [event.seq for event in stored] == list(range(1, len(stored) + 1))
            assert len(stored) >= runs.acknowledged >= acknowledged
    assert runs.answers == [ANSWER]
    task = task or runs.tasks[-1]
    events = await log.read(task)
    if follower is not None:
        assert await asyncio.wait_for(follower, 10) == list(events)
    check_events(events, lines(runs.effects))
    await log.aclose()
    return kills


def check_events(events: Sequence[Event], effects: list[str]) -> None:
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    final = events[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert (final.state, final.content) == ("completed", ANSWER)
    results = [(event.step, event.index) for event in events if isinstance(event, ToolCompleteEvent)]
    assert len(results) == len(set(results)) == 24
    thoughts = [event for event in events if isinstance(event, ThoughtStreamEvent)]
    assert [event.index for event in thoughts] == list(range(len(thoughts)))
    assert len({event.thought_id for event in thoughts}) == len(thoughts)
    payments = [line for line in effects if line.startswith("pay") and line.endswith("starts")]
    assert len(payments) == len(set(payments)), "a tool that is not idempotent was called twice"


@pytest.mark.timeout(1200)
async def test_run_killed_at_random_moments_has_the_same_answer(
    process: asyncio.subprocess.Process, tmp_path: Path
) -> None:
    # L87, L88, L89
    assert await execute_with_kills(process, folder(tmp_path, "first"), 1e9) == 0
    # The first run also waits for the program to start, so the second one is timed.
    start = time.monotonic()
    assert await execute_with_kills(process, folder(tmp_path, "uninterrupted"), 1e9) == 0
    duration = time.monotonic() - start
    kills = 0
    for number in range(10 * KILLS):
        kills += await execute_with_kills(process, folder(tmp_path, str(number)), duration)
        if kills >= KILLS:
            break
    assert kills >= KILLS


@pytest.mark.timeout(1200)
async def test_killed_processes_that_share_a_file_do_not_affect_each_other(
    process: asyncio.subprocess.Process, tmp_path: Path
) -> None:
    # L87, L88, L89
    async with start_forked_runs() as other_process:
        start = time.monotonic()
        await execute_with_kills(process, folder(tmp_path, "uninterrupted"), 1e9)
        await execute_with_kills(other_process, folder(tmp_path, "other"), 1e9)
        duration = time.monotonic() - start
        kills = 0
        for number in range(10 * KILLS):
            directory = folder(tmp_path, str(number))
            kills += sum(
                await asyncio.gather(
                    execute_with_kills(process, directory, duration, "mine"),
                    execute_with_kills(other_process, directory, duration, "theirs"),
                )
            )
            if kills >= KILLS:
                break
    assert kills >= KILLS


async def test_log_of_a_process_killed_at_its_start_is_empty_or_starts_with_a_task(
    process: asyncio.subprocess.Process, tmp_path: Path
) -> None:
    runs = ForkedRuns(process, tmp_path, "sums")
    await runs.execute(None, 0.0)
    log = SqliteEventLog(tmp_path / "runs.db")
    with suppress(UnknownRun):
        for record in await log.list_runs():
            assert (await log.read(record.task_id))[0].kind == "task"
    await log.aclose()
