"""Runs that are killed, for real, at random moments, and go on in another process."""

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

# More of them take minutes: RXLOOP_KILLS=200 is what a release is measured by.
KILLS = int(os.environ.get("RXLOOP_KILLS", "6"))
ANSWER = f"Let me see. The sum is {sum(n * n + (n + 100) ** 2 for n in range(6))}."


@pytest.fixture
async def processes() -> AsyncIterator[asyncio.subprocess.Process]:
    async with start_forked_runs() as process:
        yield process


async def follow(log: SqliteEventLog, task: str) -> list[Event]:
    return [event async for event in log.follow(task)]


async def finished_calls(log: SqliteEventLog, task: str) -> set[str]:
    """What must not run again: the calls that have a durable result."""
    events = await log.read(task)
    calls = [event.call for event in events if isinstance(event, ToolCompleteEvent)]
    return {f"{call.name} {next(iter(call.arguments.values()))}" for call in calls}


async def killed_until_it_ends(
    processes: asyncio.subprocess.Process, place: Path, longest: float, context: str = "sums"
) -> int:
    """Kill a run up to three times; what it has come to. Returns how often it was killed before its end."""
    nursery, log = ForkedRuns(processes, place, context), SqliteEventLog(place / "runs.db")
    follower: asyncio.Task[list[Event]] | None = None
    task, kills = None, 0
    for attempt in range(1, 100):
        done = await finished_calls(log, task) if task else set[str]()
        before = len(lines(nursery.effects))
        seen = nursery.acknowledged
        await nursery.execute(task, random.random() * longest if kills < 3 else None)
        again = {line.removesuffix(" starts") for line in lines(nursery.effects)[before:]} & done
        assert not again, f"attempt {attempt} ran again what had its result: {again}"
        if nursery.answers:
            break
        kills += 1
        if task is None:
            task = await find_run(log, context)
            if task is not None:
                follower = asyncio.create_task(follow(log, task))
        if task is not None:
            held = await log.read(task)
            assert [event.seq for event in held] == list(range(1, len(held) + 1))
            assert len(held) >= nursery.acknowledged >= seen
    assert nursery.answers == [ANSWER]
    task = task or nursery.tasks[-1]
    events = await log.read(task)
    if follower is not None:
        assert await asyncio.wait_for(follower, 10) == list(events)
    check(events, lines(nursery.effects))
    await log.aclose()
    return kills


def check(events: Sequence[Event], effects: list[str]) -> None:
    """The whole stream, over all attempts."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    final = events[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert (final.state, final.content) == ("completed", ANSWER)
    results = [(event.step, event.index) for event in events if isinstance(event, ToolCompleteEvent)]
    assert len(results) == len(set(results)) == 24
    thoughts = [event for event in events if isinstance(event, ThoughtStreamEvent)]
    assert [event.index for event in thoughts] == list(range(len(thoughts)))
    assert len({event.thought_id for event in thoughts}) == len(thoughts)
    paid = [line for line in effects if line.startswith("pay") and line.endswith("starts")]
    assert len(paid) == len(set(paid)), "a tool that is not idempotent was called twice"


@pytest.mark.timeout(1200)
async def test_a_run_that_is_killed_at_any_moment_goes_on_to_the_same_answer(
    processes: asyncio.subprocess.Process, tmp_path: Path
) -> None:
    # L87, L88, L89
    assert await killed_until_it_ends(processes, folder(tmp_path, "first"), 1e9) == 0
    # The first run of the nursery has waited for its start.
    started = time.monotonic()
    assert await killed_until_it_ends(processes, folder(tmp_path, "whole"), 1e9) == 0
    takes = time.monotonic() - started
    killed = 0
    for number in range(10 * KILLS):
        killed += await killed_until_it_ends(processes, folder(tmp_path, str(number)), takes)
        if killed >= KILLS:
            break
    assert killed >= KILLS


@pytest.mark.timeout(1200)
async def test_two_processes_that_are_killed_over_one_file_harm_neither_their_own_run_nor_the_other(
    processes: asyncio.subprocess.Process, tmp_path: Path
) -> None:
    # L87, L88, L89
    async with start_forked_runs() as others:
        started = time.monotonic()
        await killed_until_it_ends(processes, folder(tmp_path, "whole"), 1e9)
        await killed_until_it_ends(others, folder(tmp_path, "other"), 1e9)
        takes = time.monotonic() - started
        killed = 0
        for number in range(10 * KILLS):
            place = folder(tmp_path, str(number))
            killed += sum(
                await asyncio.gather(
                    killed_until_it_ends(processes, place, takes, "mine"),
                    killed_until_it_ends(others, place, takes, "theirs"),
                )
            )
            if killed >= KILLS:
                break
    assert killed >= KILLS


async def test_the_log_of_a_process_that_was_killed_at_once_holds_nothing_or_a_whole_beginning(
    processes: asyncio.subprocess.Process, tmp_path: Path
) -> None:
    nursery = ForkedRuns(processes, tmp_path, "sums")
    await nursery.execute(None, 0.0)
    log = SqliteEventLog(tmp_path / "runs.db")
    with suppress(UnknownRun):
        for record in await log.list_runs():
            assert (await log.read(record.task_id))[0].kind == "task"
    await log.aclose()
