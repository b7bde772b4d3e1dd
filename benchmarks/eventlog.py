"""Costs of a durable log: `python benchmarks/eventlog.py`, using the server and tool of the other benchmarks.

`python benchmarks/eventlog.py postgresql://...` also measures the throughput of a Postgres log for several processes,
and its latency for many readers.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import postgres_log
from endpoint import server
from ours import add

from rxloop import (
    Agent,
    ContentCompleteEvent,
    CustomEvent,
    Event,
    Limits,
    Message,
    MessageAddedEvent,
    SqliteEventLog,
    TaskEvent,
    openai_chat,
)
from rxloop.state.fold import fold_all

CALLS, ROUNDS, EVENTS, BATCH, MESSAGES = 50, 25, 20_000, 200, 10_000


def make_first_events(task_id: str) -> list[Event]:
    """Return the first event of a run."""
    return [TaskEvent(seq=1, attempt=1, task_id=task_id, messages=[Message.user("Hi")], model="m", agent_name="a")]


def conversation() -> list[Event]:
    """Return the events of a long conversation."""
    events = make_first_events("talk")
    while len(events) < MESSAGES:
        seq = len(events) + 1
        events.append(MessageAddedEvent(seq=seq, attempt=1, content="What about this? " * 8, cause="steering"))
        events.append(
            ContentCompleteEvent(seq=seq + 1, attempt=1, step=str(seq), content="It is so. " * 20, finish_reason="stop")
        )
    return events


async def cpu(work: Callable[[], Awaitable[object]]) -> float:
    """Return the CPU time of the process in seconds, including the log thread."""
    gc.collect()
    start = time.process_time()
    await work()
    return time.process_time() - start


async def measure_tool_calls(log: SqliteEventLog) -> None:
    """Measure tool calls with and without a log, alternating."""
    with server() as base:
        model = openai_chat("bench", base_url=f"{base}/tools/{CALLS}")
        limits = Limits(iterations=None)
        plain = Agent(model, tools=[add], limits=limits)
        logged = Agent(model, tools=[add], limits=limits, log=log)
        ratios: list[float] = []
        for _ in range(ROUNDS):
            without = await cpu(lambda: plain.run("Count."))
            ratios.append(await cpu(lambda: logged.run("Count.")) / without)
        await model.aclose()
    print(f"a run of {CALLS} tool calls: {(median(ratios[1:]) - 1) * 100:+.0f} % CPU, median of {ROUNDS - 1} pairs")


async def measure_appends(log: SqliteEventLog) -> None:
    """Measure appends of event batches."""
    events = make_first_events("many") + [
        CustomEvent(seq=seq, attempt=1, name="n", data=seq) for seq in range(2, EVENTS + 1)
    ]
    start = time.perf_counter()
    for at in range(0, EVENTS, BATCH):
        await log.append("many", events[at : at + BATCH], expected_seq=at)
    print(f"{EVENTS / (time.perf_counter() - start):,.0f} events a second in batches of {BATCH}")


async def measure_folds(log: SqliteEventLog) -> None:
    """Measure reading and folding a long conversation."""
    await log.append("talk", conversation(), expected_seq=0)
    times: list[tuple[float, float]] = []
    for _ in range(9):
        start = time.perf_counter()
        events = await log.read("talk")
        read = time.perf_counter()
        fold_all(events)
        times.append((read - start, time.perf_counter() - read))
    reads, fold = zip(*times, strict=True)
    print(f"{MESSAGES:,} messages: read in {median(reads):.3f} s, folded in {median(fold):.3f} s")


async def main() -> None:
    """Run all measurements."""
    with tempfile.TemporaryDirectory() as folder:
        log = SqliteEventLog(Path(folder) / "runs.db")
        await measure_tool_calls(log)
        await measure_appends(log)
        await measure_folds(log)
        await log.aclose()


if __name__ == "__main__":
    asyncio.run(main())
    for address in sys.argv[1:]:
        postgres_log.main(address)
