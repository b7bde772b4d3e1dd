"""Two processes answer one question at the same moment; and one is killed between its question and its pause."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rxloop import SqliteEventLog, StatusUpdateEvent, ToolStartEvent

ANSWERERS = Path(__file__).parents[1] / "support/crash/concurrent_answers.py"
TRIALS = int(os.environ.get("RXLOOP_PAIRS", "4"))


class Pairs:
    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process = process
        self._order = {"db": str(folder / "runs.db"), "effects": str(folder / "effects")}
        self.folder = folder

    async def order(self, **fields: object) -> list[str]:
        """What the processes print until they are over."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**self._order, **fields}).encode() + b"\n")
        said: list[str] = []
        while (line := (await self._process.stdout.readline()).decode().strip()) != "over":
            assert line, said
            said.append(line)
        return said

    @property
    def effects(self) -> list[str]:
        file = self.folder / "effects"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
async def pairs(tmp_path: Path) -> AsyncIterator[Pairs]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, str(ANSWERERS), stdin=pipe, stdout=pipe)
    yield Pairs(process, tmp_path)
    assert process.stdin is not None
    process.stdin.close()
    assert await process.wait() == 0


@pytest.mark.timeout(60 + TRIALS)
@pytest.mark.parametrize("killed", [False, True])
async def test_of_two_processes_that_answer_at_the_same_moment_one_goes_on(pairs: Pairs, killed: bool) -> None:
    log = SqliteEventLog(pairs.folder / "runs.db")
    for trial in range(1, TRIALS + 1):
        [said] = await pairs.order(ask=True, kill=killed)
        task = said.removeprefix("task ")
        before = await log.read(task)
        # A kill may also come when some of the pause is written already, or all of it.
        paused = before[-1].kind == "status-update"
        assert paused or (killed and before[-1].kind in ("input-required", "checkpoint"))

        ends = sorted(await pairs.order(task=task))

        assert len(pairs.effects) == trial, ends
        # The other one was told that the run goes on elsewhere, or came when it was over.
        assert ends in (
            ["ended ContextBusy", "ended done"],
            ["ended ConflictError", "ended done"],
            ["ended done", "ended done"],
            ["ended conflict", "ended done"],
        )
        events = await log.read(task)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert len([event for event in events if isinstance(event, ToolStartEvent)]) == 1
        ended = [event.state for event in events if isinstance(event, StatusUpdateEvent) and event.final]
        assert ended == (["input-required", "completed"] if paused else ["completed"])
    await log.aclose()
