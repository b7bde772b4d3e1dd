"""Concurrent answers of two processes to one question, also after a kill between the question and the pause."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rxloop import SqliteEventLog, StatusUpdateEvent, ToolStartEvent

PROGRAM = Path(__file__).parents[1] / "support/crash/concurrent_answers.py"
PAIRS = int(os.environ.get("RXLOOP_PAIRS", "4"))


class AnswerProgram:
    """Client of `concurrent_answers.py`."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process = process
        self._order = {"db": str(folder / "runs.db"), "effects": str(folder / "effects")}
        self.folder = folder

    async def order(self, **fields: object) -> list[str]:
        """Execute an order and return the printed lines."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**self._order, **fields}).encode() + b"\n")
        lines: list[str] = []
        while (line := (await self._process.stdout.readline()).decode().strip()) != "over":
            assert line, lines
            lines.append(line)
        return lines

    @property
    def effects(self) -> list[str]:
        file = self.folder / "effects"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
async def program(tmp_path: Path) -> AsyncIterator[AnswerProgram]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, str(PROGRAM), stdin=pipe, stdout=pipe)
    yield AnswerProgram(process, tmp_path)
    assert process.stdin is not None
    process.stdin.close()
    assert await process.wait() == 0


@pytest.mark.timeout(60 + PAIRS)
@pytest.mark.parametrize("killed", [False, True])
async def test_exactly_one_of_two_concurrent_answers_continues_the_run(program: AnswerProgram, killed: bool) -> None:
    log = SqliteEventLog(program.folder / "runs.db")
    for number in range(1, PAIRS + 1):
        [lines] = await program.order(ask=True, kill=killed)
        task = lines.removeprefix("task ")
        before = await log.read(task)
        # The kill may come too late, when the pause is already partly or completely written.
        paused = before[-1].kind == "status-update"
        assert paused or (killed and before[-1].kind in ("input-required", "checkpoint"))

        outcomes = sorted(await program.order(task=task))

        assert len(program.effects) == number, outcomes
        # If the run is already finished, the second answer has no effect.
        assert outcomes in (
            ["ended ContextBusy", "ended done"],
            ["ended ConflictError", "ended done"],
            ["ended done", "ended done"],
            ["ended conflict", "ended done"],
        )
        events = await log.read(task)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert len([event for event in events if isinstance(event, ToolStartEvent)]) == 1
        final_states = [event.state for event in events if isinstance(event, StatusUpdateEvent) and event.final]
        assert final_states == (["input-required", "completed"] if paused else ["completed"])
    await log.aclose()
