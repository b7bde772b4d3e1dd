"""Benefit of starting read-only tools early: `python benchmarks/early.py [--runs 5]`.

A model with 50 tokens per second calls four tools in a message, one of which is slow, and then answers. The benchmark
measures the wall time with a real connection, with `op.standard()` and `op.standard(early=True)`.
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
    """Return the median wall times of a run in seconds, with and without early starts."""

    @tool(read_only=True)
    async def search(topic: str) -> str:
        """Look something up."""
        await asyncio.sleep(seconds if topic.startswith(f"number {slowest} ") else seconds / 10)
        return topic

    model = openai_chat("bench", base_url=url)
    found: dict[str, float] = {}
    for name, early in (("usual", False), ("early", True)):
        agent = Agent(model, tools=[search], loop=op.standard(early=early))
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
    parser.add_argument("--tokens", type=int, default=25, help="tokens per call argument")
    parser.add_argument("--apart", type=int, default=20, help="interval of tokens in milliseconds")
    parser.add_argument("--tool", type=float, default=2.0, help="duration of the slow tool in seconds (others: 10 %%)")
    options = parser.parse_args()
    with server() as base:
        url = f"{base}/write/{CALLS}/{options.tokens}/{options.apart}"
        for slowest in range(CALLS):
            found = await measure(url, slowest, options.tool, options.runs)
            print(json.dumps({"slow call": slowest + 1, **found}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
