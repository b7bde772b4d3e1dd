"""Runs in processes that the test kills. `forked_runs.py` is the program."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from rxloop import SqliteEventLog

PROGRAM = Path(__file__).with_name("forked_runs.py")


class ForkedRuns:
    """Client of the program, using one conversation."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path, context: str) -> None:
        self._process = process
        self._folder = folder
        self.context = context
        self.effects = folder / f"effects-{context}"
        self.tasks: list[str] = []
        self.acknowledged = 0
        self.answers: list[str] = []

    async def execute(self, task: str | None, kill_after: float | None) -> None:
        """Start or resume a run in a process, killing the process after a number of seconds."""
        assert self._process.stdin is not None
        order = {
            "db": str(self._folder / "runs.db"),
            "effects": str(self.effects),
            "context": self.context,
            "task": task,
        }
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        pid = int((await self._line()).removeprefix("process "))
        killing = asyncio.get_running_loop().call_later(kill_after, kill, pid) if kill_after is not None else None
        while (line := await self._line()) != "over":
            word, _, rest = line.partition(" ")
            if word == "task":
                self.tasks.append(rest)
            elif word == "checkpoint":
                self.acknowledged = int(rest)
            elif word == "answer":
                self.answers.append(rest)
        if killing is not None:
            killing.cancel()

    async def _line(self) -> str:
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode()
        assert line.endswith("\n"), line
        return line.strip()


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def start_forked_runs() -> AsyncGenerator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, str(PROGRAM), stdin=pipe, stdout=pipe)
    yield process
    assert process.stdin is not None
    process.stdin.close()
    assert await process.wait() == 0


def folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


async def find_run(log: SqliteEventLog, context: str) -> str | None:
    """Return the latest run in a conversation, even if it ended before the kill."""
    records = await log.list_runs(context_id=context)
    return records[0].task_id if records else None
