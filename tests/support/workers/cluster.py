"""Worker processes on a real Postgres, for fault tests.

`RXLOOP_CHAOS_KILLS=1 pytest tests/runtime` includes the slow tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rxloop import Event, PostgresEventLog, RunRecord
from rxloop.protocol.events import StatusUpdateEvent
from rxloop.testing.chaos import Chaos
from rxloop.testing.chaos.checker import Checker
from rxloop.testing.chaos.processes import Worker
from rxloop.testing.chaos.report import Witness, summarize

LEASE = 2.0
SLOW_CHAOS = pytest.mark.skipif("RXLOOP_CHAOS_KILLS" not in os.environ, reason="takes long: set RXLOOP_CHAOS_KILLS")


@asynccontextmanager
async def start_cluster(dsn: str, workers: int = 2, *, agent: str = "agent", **options: Any) -> AsyncGenerator[Cluster]:
    """Start workers with an agent of `scripted_agents`. The options are passed to `Chaos`."""
    settings: dict[str, Any] = {"lease": LEASE, "grace": 1, **options}
    async with Chaos(f"support.workers.scripted_agents:{agent}", dsn, workers=workers, **settings) as chaos:
        yield Cluster(chaos)


class Cluster:
    """Workers and a server that starts runs."""

    def __init__(self, chaos: Chaos) -> None:
        self.chaos, self.web = chaos, chaos.runtime
        self.log: PostgresEventLog = chaos._log
        assert self.web.queue is not None
        self.queue = self.web.queue
        self.folder = Path(chaos._folder.name)

    async def start(self, prompt: str, **options: Any) -> RunRecord:
        return await self.web.start("a", prompt, **options)

    async def start_all(self, prompt: str, count: int) -> list[RunRecord]:
        return list(await asyncio.gather(*(self.start(prompt) for _ in range(count))))

    async def wait_for_event(self, task_id: str, kind: str, attempt: int = 1) -> Event:
        """Wait for an event of a kind."""
        async for event in self.log.follow(task_id, until="end"):
            if event.kind == kind and event.attempt >= attempt:
                return event
        raise AssertionError(f"{task_id} ended without {kind}")

    async def owner(self, task_id: str) -> Worker:
        """Wait for a worker to execute the run, returning the latest one."""
        while True:
            pids = [line["pid"] for line in read_notes(self.folder / "attempts") if line["task"] == task_id]
            if pids:
                return next(worker for worker in self.chaos.workers if worker.pid == pids[-1])
            await asyncio.sleep(0.02)

    async def wait_for_end(self, record: RunRecord) -> RunRecord:
        await self.web.follow(record.task_id)
        return await self.web.get_record(record.task_id)

    async def wait_for_all(self, records: Iterable[RunRecord]) -> list[RunRecord]:
        return list(await asyncio.gather(*map(self.wait_for_end, records)))

    async def wait_for_state(self, record: RunRecord, *states: str) -> RunRecord:
        """Wait for a run to reach a state."""
        while (now := await self.web.get_record(record.task_id)).state not in states:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return now

    async def check(self, records: Iterable[RunRecord]) -> None:
        """Check runs for lost events and repeated effects."""
        checker = Checker(self.folder, {})
        await checker.check(self.log, [await self._witness(record) for record in records])
        checker.report.check()

    async def _witness(self, record: RunRecord) -> Witness:
        """Observe a finished run."""
        events = [event async for event in self.web.follow(record.task_id) if event.durable]
        return Witness(
            record.task_id, record.context_id, received=[summarize(event) for event in events], reached_end=True
        )

    def effects(self, task_id: str) -> list[str]:
        """Return executed tools that are not idempotent, in order."""
        return [line["tool"] for line in read_notes(self.folder / "effects") if line["key"].startswith(task_id)]


def read_notes(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the notes of worker processes from a file."""
    if file.exists():
        yield from map(json.loads, file.read_text(encoding="utf-8").splitlines())


def seconds_between(before: Event, after: Event) -> float:
    return (after.timestamp - before.timestamp) / 1000


def final_states(events: Iterable[Event]) -> list[str]:
    return [event.state for event in events if isinstance(event, StatusUpdateEvent) and event.final]


async def run_module(module: str, *arguments: str) -> int:
    """Run a test module in another process and return its exit code."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *arguments, env=environment)
    return await process.wait()
