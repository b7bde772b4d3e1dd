"""CPU time of a turn in a long conversation: `python benchmarks/conversation.py [--turns 3000] [--log URL]`.

Prints a Markdown row: medians of 20 turns, and the first turn of a new process, which reads the conversation.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rxloop import Agent, EventLog, MemoryEventLog, open_log
from rxloop.testing import ScriptedModel

LENGTHS = (10, 100, 1_000, 3_000)
MEDIAN_OF = 20


async def measure(log: EventLog, turns: int) -> list[float]:
    """Return the CPU time of each turn in milliseconds."""
    agent = Agent(ScriptedModel(*(f"This is the answer to question {number}." for number in range(turns))), log=log)
    times: list[float] = []
    for number in range(turns):
        start = time.process_time()
        await agent.run(f"This is question {number}.", context_id="conversation")
        times.append(1_000 * (time.process_time() - start))
    await agent.aclose()
    await log.aclose()
    return times


def measure_first_turn(url: str) -> float:
    """Return the CPU time of the first turn of a new process in milliseconds, without imports."""
    command = [sys.executable, __file__, "--log", url, "--turns", "1", "--first"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=max(LENGTHS))
    parser.add_argument("--log", default="sqlite", help="memory, sqlite, or the URL of an empty event log")
    parser.add_argument("--first", action="store_true", help="print only the time of the first turn")
    options = parser.parse_args()
    with ExitStack() as stack:
        url = options.log
        if url == "sqlite":
            url = str(Path(stack.enter_context(TemporaryDirectory())) / "conversation.db")
        if options.first:
            # Load the modules first.
            asyncio.run(measure(MemoryEventLog(), 2))
        times = asyncio.run(measure(MemoryEventLog() if url == "memory" else open_log(url), options.turns))
        if options.first:
            print(times[0])
            return
        cells = [
            f"{median(times[max(length - MEDIAN_OF, 1) : length]):.1f}" for length in LENGTHS if length <= len(times)
        ]
        cells.append("-" if url == "memory" else f"{measure_first_turn(url):.0f}")
    print(f"| {options.log.partition('://')[0]} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
