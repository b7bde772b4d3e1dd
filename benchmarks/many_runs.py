"""Costs of open runs and followers: `python benchmarks/many_runs.py [--runs 1000] [--log sqlite]`.

All runs call a tool that waits. Then followers are added, all runs stay idle for some time, and finally they end.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rxloop import Agent, EventLog, MemoryEventLog, Runtime, SqliteEventLog, tool
from rxloop.testing import ScriptedModel, call, frames

IDLE = 5.0
"""Idle time in seconds."""
TEXT = frames("-".join(["", *("word ",) * 20]) + "|")


def memory() -> float:
    """Return the traced memory in kB, or 0 if tracing is disabled."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0] / 1e3


async def measure(runs: int, log: EventLog) -> dict[str, float]:
    """Return costs by name, in kB, microseconds of CPU time, and milliseconds."""
    go, waiting = asyncio.Event(), 0

    @tool
    async def wait() -> str:
        """Waits."""
        nonlocal waiting
        waiting += 1
        await go.wait()
        return "waited"

    async def until(there: Callable[[], bool]) -> None:
        while not there():  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.01)

    agent = Agent(ScriptedModel(*[call("wait")] * runs, *[TEXT] * runs), tools=[wait], thoughts=False)
    found: dict[str, float] = {}
    async with Runtime({"agent": agent}, log=log) as runtime:
        cpu, before = time.process_time(), memory()
        records = [await runtime.start("agent", "Hi") for _ in range(runs)]
        await until(lambda: waiting == runs)
        found["CPU to open a run, us"] = (time.process_time() - cpu) * 1e6 / runs
        opened = memory()
        found["memory of an open run, kB"] = (opened - before) / runs
        cpu, seen = time.process_time(), 0

        async def follow(task_id: str) -> int:
            nonlocal seen
            events = 0
            async for _ in runtime.follow(task_id):
                seen += not events
                events += 1
            return events

        following = [asyncio.create_task(follow(record.task_id)) for record in records]
        await until(lambda: seen == runs)
        found["CPU to begin to follow, us"] = (time.process_time() - cpu) * 1e6 / runs
        found["memory of a follower, kB"] = (memory() - opened) / runs
        cpu = time.process_time()
        await asyncio.sleep(IDLE)
        found["idle CPU, of one core, %"] = (time.process_time() - cpu) / IDLE * 100
        cpu = time.process_time()
        go.set()
        events = sum(await asyncio.gather(*following))
        found["events to a follower"] = events / runs
        found["CPU of the rest, with its follower, us"] = (time.process_time() - cpu) * 1e6 / runs
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--log", choices=["memory", "sqlite"], default="memory")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        log: Any = MemoryEventLog() if options.log == "memory" else SqliteEventLog(Path(folder) / "runs.db")
        found = asyncio.run(measure(options.runs, log))
        # Measure memory separately, because tracing is slow.
        tracemalloc.start()
        again = asyncio.run(measure(options.runs, log))
        for name, value in found.items():
            print(f"{name:<42}{again[name] if 'memory' in name else value:10.1f}")


if __name__ == "__main__":
    main()
