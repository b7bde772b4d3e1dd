"""What it gains to start read-only tools while the model still writes: `python benchmarks/early.py [--runs 5]`.

A model that writes 50 tokens a second calls four tools in one message, of which one is slow, and then answers. Wall
time of such a run, over a real connection, with `op.standard()` and with `op.standard(early=True)`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from statistics import median

from endpoint import server

from rxloop import Agent, op, openai_chat, tool

CALLS = 4


async def measure(url: str, slowest: int, seconds: float, runs: int) -> dict[str, float]:
    """The wall time of a run in seconds, without and with an early start."""

    @tool(read_only=True)
    async def look_up(topic: str) -> str:
        """Look something up."""
        await asyncio.sleep(seconds if topic.startswith(f"number {slowest} ") else seconds / 10)
        return topic

    model = openai_chat("bench", base_url=url)
    found: dict[str, float] = {}
    for name, early in (("usual", False), ("early", True)):
        agent = Agent(model, tools=[look_up], loop=op.standard(early=early))
        await agent.run("Look it up.")
        took: list[float] = []
        for _ in range(runs):
            begin = time.perf_counter()
            await agent.run("Look it up.")
            took.append(time.perf_counter() - begin)
        found[name] = round(median(took), 3)
    await model.aclose()
    return found


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=25, help="those of the arguments of each call")
    parser.add_argument("--apart", type=int, default=20, help="milliseconds from one token to the next")
    parser.add_argument("--tool", type=float, default=2.0, help="seconds that the slow tool takes; the others a tenth")
    options = parser.parse_args()
    with server() as base:
        url = f"{base}/write/{CALLS}/{options.tokens}/{options.apart}"
        for slowest in range(CALLS):
            found = await measure(url, slowest, options.tool, options.runs)
            print(json.dumps({"slow call": slowest + 1, **found}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
