"""Time for learning from 10,000 runs: the first read of the log, an update after one more run, and `rxloop stats`.

python benchmarks/learned.py [--runs 10000] [--db FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rxloop import Agent, EventLog, SqliteEventLog, tool
from rxloop.errors import ToolError
from rxloop.memory import Experience, Memory, RunCalls
from rxloop.testing import ScriptedModel, call

CITIES = ["Oslo", "Bergen", "Trondheim", "Stavanger", "Narvik", "Molde", "Hamar", "Voss", "Alta", "Moss"]


@tool(read_only=True)
def get_weather(city: str) -> str:
    """Return the weather in a city."""
    if "," not in city:
        raise ToolError(f"unknown city {city!r}: add the country")
    return f"18 C in {city}."


async def add_run(log: EventLog, number: int) -> None:
    """Run an agent that corrects a failed call in every fourth run."""
    city = CITIES[number % len(CITIES)]
    good, bad = call("get_weather", city=f"{city}, Norway"), call("get_weather", city=city)
    calls = [bad, good] if number % 4 == 0 else [good]
    agent = Agent(ScriptedModel(*calls, f"It is 18 C in {city}."), log=log, tools=[get_weather], name="weather")
    await agent.run(f"What is the weather in {city} on day {number}?", owner="ann")


async def measure(name: str, work: Callable[[], Any]) -> None:
    """Print the duration and the processor time of an awaitable, which differ on a busy machine."""
    start, used = time.perf_counter(), time.process_time()
    await work()
    print(f"{name:30} {time.perf_counter() - start:8.3f} s {time.process_time() - used:8.3f} s CPU")


async def main(runs: int, path: Path) -> None:
    log = SqliteEventLog(path)
    made = len(await log.list_runs())
    for number in range(made, runs):
        await add_run(log, number)
    experience = Experience(Memory(log))
    task = "What is the weather in Oslo today?"

    async def recall() -> None:
        await experience.recall("ann", task, tokens=300, exclude_context="")

    print(f"{runs:,} runs")
    await measure("first recall (reads the log)", recall)
    await measure("recall without new runs", recall)
    await add_run(log, runs)
    await measure("recall after one more run", recall)
    events = [await log.read(record.task_id) for record in await log.list_runs()]

    async def fold() -> None:
        for each in events:
            RunCalls().add(each)

    await measure("fold of the tool calls alone", fold)
    print(*(lesson.text for lesson in await experience.lessons("ann", task)), sep="\n")
    await log.aclose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--db", type=Path, help="folder that keeps the runs for another measurement")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = (arguments.db or Path(folder)) / "learned.db"
        asyncio.run(main(arguments.runs, path))
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "rxloop", "stats", "--db", str(path)], check=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"{'rxloop stats':30} {time.perf_counter() - start:8.3f} s {used.ru_utime + used.ru_stime:8.3f} s CPU")
