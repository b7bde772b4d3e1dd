"""Measurement in a separate process: `measure.py CLIENT WORK URL WARM_UP TIMES MANY` prints costs as JSON.

Other environments also run this program, so it only uses the standard library. A client is a module with a class
`Client(url)`, which is an async context manager with a method per workload.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any


async def at_once(client: Any, many: int) -> dict[str, int]:
    """Execute concurrent runs of tool calls."""
    counted = await asyncio.gather(*(client.tools() for _ in range(many)))
    return {"characters": sum(each["characters"] for each in counted)}


async def measure(client_name: str, work: str, url: str, warm_up: int, times: int, many: int) -> dict[str, Any]:
    """Measure the given number of executions, after some warm-up executions."""
    async with import_module(client_name).Client(url) as client:
        do: Callable[[], Any] = partial(at_once, client, many) if work == "many" else getattr(client, work)
        for _ in range(warm_up):
            await do()
        gc.collect()
        before = requests(url)
        counters: dict[str, int] = {}
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(times):
            counters = await do()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        counters["requests"] = (requests(url) - before) // times
    return {"cost": cpu * 1e6 / times, "wall": wall * 1e6 / times, "counters": counters}


async def measure_cold(client_name: str, url: str) -> dict[str, Any]:
    """Measure a process from its start to the end of its first run."""
    wall = time.perf_counter()
    async with import_module(client_name).Client(url) as client:
        counters = await client.tools()
        cpu, wall = time.process_time(), time.perf_counter() - wall
    return {"cost": cpu * 1e6, "wall": wall * 1e6, "counters": counters}


async def measure_memory(client_name: str, url: str, warm_up: int, many: int) -> dict[str, Any]:
    """Measure the memory of active runs, as the difference with and without them."""
    pieces = int(url.split("/")[-1])
    async with import_module(client_name).Client(url) as client:
        await _measure_held_runs(client, warm_up, pieces)
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        during = await _measure_held_runs(client, many, pieces)
    return {"cost": (during - before) / 1e3, "wall": 0.0, "counters": {"open": many}}


async def _measure_held_runs(client: Any, count: int, pieces: int) -> int:
    """Return the memory used while the given number of runs is active."""
    loop = asyncio.get_running_loop()
    there = [loop.create_future() for _ in range(count)]
    runs = [asyncio.ensure_future(client.hold(pieces, partial(each.set_result, None))) for each in there]
    # Otherwise, a failed run would block the others.
    done, _ = await asyncio.wait([*runs, asyncio.gather(*there)], return_when=asyncio.FIRST_COMPLETED)
    for each in done & {*runs}:
        each.result()
        raise RuntimeError("an active run has ended unexpectedly")
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    for run in runs:
        run.cancel()
    await asyncio.gather(*runs, return_exceptions=True)
    return used


def requests(url: str) -> int:
    """Return the number of responses of the server."""
    # Imported lazily, because it is not part of the cost of a first answer.
    from urllib.request import urlopen

    base = "/".join(url.split("/")[:3])
    with urlopen(f"{base}/requests") as response:
        return int(response.read())


def main(client: str, work: str, url: str, warm_up: str, times: str, many: str) -> dict[str, Any]:
    """Run the measurement."""
    if work == "memory":
        return asyncio.run(measure_memory(client, url, int(warm_up), int(many)))
    if work == "cold":
        return asyncio.run(measure_cold(client, url))
    return asyncio.run(measure(client, work, url, int(warm_up), int(times), int(many)))


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
