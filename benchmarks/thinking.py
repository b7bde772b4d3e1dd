"""Costs of sequential thinking: `python benchmarks/thinking.py`."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from rxloop import Agent, Limits, RunContext, sequential_thinking, strategic_thinking
from rxloop.pipeline import ArtifactStore
from rxloop.storage import MemoryArtifacts, SqliteArtifacts
from rxloop.testing import ScriptedModel, call
from rxloop.thinking import Stage, StageManager, StrategyDefinition, ThinkingSessions

ROUNDS, THOUGHTS, LENGTHS = 5, 500, (0, 1_000, 5_000)
TEXT = "The queue holds what the writers add while the copy is made. " * 6


def thought(number: int) -> dict[str, Any]:
    """Return a thought with about 400 characters."""
    return {"thought": f"{number}: {TEXT}", "thoughtNumber": number, "totalThoughts": 10**6, "nextThoughtNeeded": True}


async def cost(make: Callable[[], ArtifactStore]) -> None:
    """Print the CPU and wall time of a thought for different session lengths."""
    for length in LENGTHS:
        walls: list[float] = []
        cpus: list[float] = []
        for _ in range(ROUNDS):
            sessions = ThinkingSessions(make(), max_thoughts=10**6)
            for number in range(1, length + 1):
                await sessions.think(thought(number), session_id="s", call_id=f"c{number}")
            gc.collect()
            wall, cpu = time.perf_counter(), time.process_time()
            for number in range(length + 1, length + THOUGHTS + 1):
                await sessions.think(thought(number), session_id="s", call_id=f"c{number}")
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
            await sessions.aclose()
        each = [median(times) / THOUGHTS * 1e6 for times in (cpus, walls)]
        name = type(make()).__name__
        print(f"{name:>20}, session of {length:>6}: {each[0]:6.0f} us CPU, {each[1]:6.0f} us wall")


async def cost_of_a_stage() -> None:
    """Print the CPU time of a strategy thought with a stage transition, and of the transition alone."""
    loop = ("check", "draft")
    definition = StrategyDefinition(
        name="loop",
        stages=[Stage(name="draft", next="check"), Stage(name="check", next=["draft", "end"]), Stage(name="end")],
    )
    for length in LENGTHS:
        sessions = ThinkingSessions(MemoryArtifacts(), max_thoughts=10**6)
        tool = strategic_thinking(definition, session_id="s", sessions=sessions, loop_cap=10**6)
        await tool.call(thought(1), RunContext())
        for number in range(length):
            await tool.call({**thought(number + 2), "stage": loop[number % 2]}, RunContext())
        gc.collect()
        start = time.process_time()
        for number in range(length, length + THOUGHTS):
            given = {**thought(number + 2), "stage": loop[number % 2]}
            await tool._think(given, "", None)  # pyright: ignore[reportPrivateUsage]
        each = (time.process_time() - start) / THOUGHTS * 1e6
        print(f"a thought of a strategy, session of {length:>6}: {each:6.0f} us CPU")
    manager = StageManager(definition, loop_cap=10**6)
    start = time.process_time()
    for _ in range(THOUGHTS * 10):
        for stage in loop:
            manager.enter(stage)
    print(f"a transition: {(time.process_time() - start) / (THOUGHTS * 20) * 1e6:.1f} us CPU")


async def text_for_the_model() -> None:
    """Compare the length of 50 tool results with that of full echoes."""
    tool = sequential_thinking("s")
    model = ScriptedModel(*(call("sequentialthinking", **thought(number)) for number in range(1, 51)), "Done.")
    result = await Agent(model, tools=[tool], thoughts=False, limits=Limits(iterations=None)).run("Think.")
    bounded = sum(len(message.text) for message in result.messages if message.role == "tool")
    history = (await tool.session()).thoughts
    sizes = [len(each.thought) + 80 for each in history]
    echoed = sum(sum(sizes[:number]) for number in range(1, len(sizes) + 1))
    print(
        f"50 thoughts in the conversation: {bounded:,} characters, {echoed / bounded:.1f} times that with a full echo"
    )


async def main() -> None:
    """Print all results."""
    await cost(MemoryArtifacts)
    with tempfile.TemporaryDirectory() as folder:
        files = iter(Path(folder) / f"{number}.db" for number in range(1_000))
        await cost(lambda: SqliteArtifacts(next(files)))
    await cost_of_a_stage()
    await text_for_the_model()


if __name__ == "__main__":
    asyncio.run(main())
