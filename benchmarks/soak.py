"""Soak test with the runs of an hour in a few minutes: `python benchmarks/soak.py --help`.

There are three parts in separate processes, using the local server: runs with all kinds of outcomes, a run with a
million deltas, and ten thousand conversations that are kept. The growth of each metric is the median slope between all
pairs of samples, with a verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from endpoint import server
from measure import requests
from mix import Mix
from tables import table

from run import child
from rxloop import Agent, Event, Limits, MemoryEventLog, Message, ModelRequest, Result, Run, RunContext, openai_chat
from rxloop.run.attempt import Attempt
from rxloop.run.log_writer import LogWriter
from rxloop.run.ownership import RunHold
from rxloop.stream.hub import Hub
from rxloop.stream.scope import Scope
from rxloop.stream.stream import Stream

BATCHES = 24
AT_ONCE = 8
HOUR = 5_000
"""Number of runs per hour with eight concurrent runs of about six seconds."""
LIMITS = {
    "python_bytes": 25_000.0,
    "objects": 25.0,
    "files": 0.5,
    "tasks": 0.5,
    "threads": 0.5,
    "resident_bytes": 500_000.0,
}
"""Maximum growth per thousand runs, which is less than a single small object per run."""
MACHINERY = (Attempt, Hub, Run, RunHold, RunContext, Scope, Stream, ModelRequest, LogWriter)
"""Types of objects that must not remain after a conversation."""


def resident() -> int:
    """Return the memory of the process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status contains no VmRSS")


def files() -> int:
    """Return the number of open files and sockets."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def sample() -> dict[str, float]:
    """Return the current resource usage of the process."""
    gc.collect()
    return {
        "python_bytes": tracemalloc.get_traced_memory()[0],
        "objects": len(gc.get_objects()),
        "files": files(),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "resident_bytes": resident(),
    }


def types() -> Counter[str]:
    """Count objects by type."""
    return Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())


def slope(done: Sequence[float], values: Sequence[float]) -> float:
    """Return the growth per unit of work, as the median over all pairs, which is robust to outliers."""
    points = list(zip(done, values, strict=True))
    return median((after[1] - before[1]) / (after[0] - before[0]) for before, after in combinations(points, 2))


def verdict(done: Sequence[float], samples: Sequence[dict[str, float]]) -> dict[str, dict[str, Any]]:
    """Return the growth of each metric per thousand units, and whether it is negligible."""
    found: dict[str, dict[str, Any]] = {}
    for name, limit in LIMITS.items():
        grown = slope(done, [each[name] for each in samples]) * 1_000
        found[name] = {
            "first": samples[0][name],
            "last": samples[-1][name],
            "per_thousand": grown,
            "limit": limit,
            "flat": grown <= limit,
        }
    return found


async def runs(base: str, count: int) -> dict[str, Any]:
    """Measure resources after runs of every kind."""
    tracemalloc.start()
    size = max(AT_ONCE, count // BATCHES)
    async with Mix(base) as mix:
        # Warm up twice, because modules and caches loaded on first use are not growth.
        for _ in range(2):
            await mix.batch(max(size, mix.kinds), AT_ONCE)
        mix.ended.clear()
        before, done, samples = types(), [0.0], [sample()]
        start = time.perf_counter()
        while mix.ended.total() < count:
            await mix.batch(size, AT_ONCE)
            samples.append(sample())
            done.append(mix.ended.total())
        seconds = time.perf_counter() - start
        grown = types() - before
        # Initial allocations stabilise, while leaks grow until the end.
        late = len(done) // 4
        return {
            "runs": mix.ended.total(),
            "ended": dict(sorted(mix.ended.items())),
            "requests": requests(base),
            "seconds": seconds,
            "figures": verdict(done[late:], samples[late:]),
            "grown": dict(grown.most_common(8)),
            "samples": [{"runs": number, **each} for number, each in zip(done, samples, strict=True)],
        }


async def deltas(base: str, count: int) -> dict[str, Any]:
    """Measure a run with many deltas and no late subscriber."""
    model = openai_chat("bench", base_url=f"{base}/pour/{count}")
    agent = Agent(model, limits=Limits(iterations=None))
    every = max(1, count // 20)
    seen, characters, done = 0, 0, list[float]()
    memory: list[float] = []

    def see(event: Event) -> None:
        nonlocal seen, characters
        if event.kind != "content-delta":
            return
        seen += 1
        characters += len(event.delta)  # pyright: ignore[reportAttributeAccessIssue]
        if seen % every == 0:
            done.append(seen)
            memory.append(resident())

    start = time.process_time()
    run = agent.run("Tell me a story.")
    run.events.subscribe(see)
    result = await run
    cpu = time.process_time() - start
    await model.aclose()
    late = len(done) // 4
    grown = slope(done[late:], memory[late:])
    text = len(result.output) / count
    return {
        "deltas": seen,
        "cpu_us": cpu / count * 1e6,
        "text_bytes": text,
        "bytes": grown,
        "flat": seen == count and characters == len(result.output) and grown <= MOST_FOR_A_BYTE * text,
        "first": memory[0],
        "last": memory[-1],
    }


MOST_FOR_A_BYTE = 5
"""Number of copies of streamed text: for the answer, code tags and late subscribers."""


TENTHS, SOME, MOST_SLOWER = 10, 3, 2.0
"""Number of parts, of compared parts at each end, and maximum slowdown of the last ones. Timing is noisy."""


async def idle(base: str, count: int) -> dict[str, Any]:
    """Measure conversations that are kept as results and in a log."""
    return {
        "results": await _measure_conversations(base, count, _results),
        "memory log": await _measure_conversations(base, count, _contexts),
    }


async def _results(agent: Agent[None, str], number: int, kept: list[Any]) -> list[Message]:
    first = await agent.run(f"Count, {number}.")
    second = await agent.run([*first.messages, "Again."])
    kept.append(second)
    return list(second.messages)


async def _contexts(agent: Agent[None, str], number: int, kept: list[Any]) -> list[Message]:
    await agent.run(f"Count, {number}.", context_id=f"c{number}")
    result: Result[str] = await agent.run("Again.", context_id=f"c{number}")
    return list(result.messages)


async def _measure_conversations(
    base: str, count: int, talk: Callable[[Agent[None, str], int, list[Any]], Coroutine[Any, Any, list[Message]]]
) -> dict[str, Any]:
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    kept: list[Any] = []
    log = MemoryEventLog() if talk is _contexts else None
    async with aclosing(openai_chat("bench", base_url=f"{base}/tools/1")) as model:
        agent = Agent(model, tools=[add], log=log)
        await talk(agent, -1, [])
        sizes: list[int] = []
        points: list[tuple[int, int]] = []
        took: list[float] = []
        tracemalloc.start()
        started = time.process_time()
        for number in range(count):
            messages = await talk(agent, number, kept)
            if number % max(1, count // 50) == 0:
                sizes.append(sum(len(message.model_dump_json(exclude_defaults=True)) for message in messages))
            if (number + 1) % max(1, count // TENTHS) == 0:
                took.append(time.process_time() - started)
                gc.collect()
                points.append((number + 1, tracemalloc.get_traced_memory()[0]))
                started = time.process_time()
        tracemalloc.stop()
    held = Counter(map(type, gc.get_objects()))
    left = {kind.__name__: held[kind] for kind in MACHINERY if held[kind] > 8}
    each, size = slope(*zip(*points, strict=True)), median(sizes)
    slower = median(took[-SOME:]) / median(took[:SOME])
    return {
        "conversations": count,
        "bytes": each,
        "bytes_of_messages": size,
        "ratio": each / size,
        "machinery": left,
        "slower": slower,
        "flat": not left and slower < MOST_SLOWER,
    }


PARTS: dict[str, Callable[[str, int], Coroutine[Any, Any, dict[str, Any]]]] = {
    "runs": runs,
    "deltas": deltas,
    "idle": idle,
}


def show(report: dict[str, Any]) -> None:
    """Print the available parts as tables."""
    if "runs" in report:
        part = report["runs"]
        print(f"\n{part['runs']:,} runs in {part['seconds']:.0f} s, {part['requests']:,} requests in all")
        print("; ".join(f"{count:,} {kind}" for kind, count in part["ended"].items()))
        rows = [["held", "at first", "at last", "per 1,000 runs", "limit", ""]]
        for name, figure in part["figures"].items():
            numbers = [f"{figure[key]:,.0f}" for key in ("first", "last")]
            said = "flat" if figure["flat"] else "GROWS"
            rows.append(
                [name.replace("_", " "), *numbers, f"{figure['per_thousand']:+,.1f}", f"{figure['limit']:,g}", said]
            )
        print("\n" + table(rows))
        print("\nmost added:", ", ".join(f"{count:+,} {kind}" for kind, count in part["grown"].items()) or "nothing")
    if "deltas" in report:
        part = report["deltas"]
        print(
            f"\n{part['deltas']:,} deltas: {part['bytes']:.1f} bytes each, with {part['text_bytes']:.1f} bytes of text;"
            f" {part['cpu_us']:.1f} µs each; {'flat' if part['flat'] else 'GROWS'}"
        )
    for name, part in report.get("idle", {}).items():
        left = ", ".join(f"{count} {kind}" for kind, count in part["machinery"].items())
        print(
            f"\n{part['conversations']:,} conversations as {name}: {part['bytes']:,.0f} bytes each, "
            f"{part['ratio']:.1f} times the JSON of their messages; of their runs is left: {left or 'nothing'}; "
            f"the last ones took {part['slower']:.2f} times as long as the first; {'flat' if part['flat'] else 'GROWS'}"
        )


def clean(report: dict[str, Any]) -> bool:
    """True if there is no growth."""
    figures = report.get("runs", {}).get("figures", {}).values()
    others = [report["deltas"]] if "deltas" in report else []
    return all(each["flat"] for each in [*figures, *others, *report.get("idle", {}).values()])


def main() -> None:
    """Run the soak test, print tables, and optionally write the results."""
    parser = argparse.ArgumentParser(prog="benchmarks/soak.py", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--runs", type=int, default=HOUR, metavar="N", help=f"number of runs of all kinds ({HOUR:,})")
    parser.add_argument(
        "--deltas", type=int, default=1_000_000, metavar="N", help="number of deltas in a run (1,000,000)"
    )
    parser.add_argument(
        "--conversations",
        dest="idle",
        type=int,
        default=10_000,
        metavar="N",
        help="number of kept conversations (10,000)",
    )
    parser.add_argument("--transport", default="httpx", choices=("httpx", "aiohttp"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write measurements to FILE")
    parser.add_argument("--part", nargs=2, metavar=("PART", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not Path("/proc/self/status").exists():
        parser.error("the soak test requires /proc, which is only available on Linux")
    counts = {"runs": options.runs, "deltas": options.deltas, "idle": options.idle}
    if options.part is not None:
        part, base = options.part
        print(json.dumps(asyncio.run(PARTS[part](base, counts[part]))))
        return
    report: dict[str, Any] = {}
    for part, count in counts.items():
        if count:
            option = {"idle": "--conversations"}.get(part, f"--{part}")
            with server() as base:
                arguments = [__file__, option, str(count), "--part", part, base]
                report[part] = json.loads(child(sys.executable, *arguments, RXLOOP_TRANSPORT=options.transport))
            show({part: report[part]})
            if options.json is not None:
                options.json.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(not clean(report))


if __name__ == "__main__":
    main()
