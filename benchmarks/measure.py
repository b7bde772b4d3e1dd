"""One measure in a process of its own: `measure.py CLIENT WORK URL WARM_UP TIMES MANY` prints what it cost as JSON.

It is also run by Pythons of other environments, so that it needs nothing but the standard library. A client is a
module with a class `Client(url)`, an async context manager with a method for each work.
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
    """Many runs of tool calls at the same time."""
    counted = await asyncio.gather(*(client.tools() for _ in range(many)))
    return {"characters": sum(each["characters"] for each in counted)}


async def measure(client_name: str, work: str, url: str, warm_up: int, times: int, many: int) -> dict[str, Any]:
    """Do the work a few times, so that everything is loaded and connected, and then so many times by the clock."""
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
    """All that a process takes from its start to the end of its first run."""
    wall = time.perf_counter()
    async with import_module(client_name).Client(url) as client:
        counters = await client.tools()
        cpu, wall = time.process_time(), time.perf_counter() - wall
    return {"cost": cpu * 1e6, "wall": wall * 1e6, "counters": counters}


async def measure_memory(client_name: str, url: str, warm_up: int, many: int) -> dict[str, Any]:
    """What a run takes whose answer goes on: allocations of Python, with and without so many of them."""
    pieces = int(url.split("/")[-1])
    async with import_module(client_name).Client(url) as client:
        await _held(client, warm_up, pieces)
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        during = await _held(client, many, pieces)
    return {"cost": (during - before) / 1e3, "wall": 0.0, "counters": {"open": many}}


async def _held(client: Any, count: int, pieces: int) -> int:
    """Open so many runs at once, and close them; the memory in use while all were open."""
    loop = asyncio.get_running_loop()
    there = [loop.create_future() for _ in range(count)]
    runs = [asyncio.ensure_future(client.hold(pieces, partial(each.set_result, None))) for each in there]
    # A run that fails would leave the others waiting.
    done, _ = await asyncio.wait([*runs, asyncio.gather(*there)], return_when=asyncio.FIRST_COMPLETED)
    for each in done & {*runs}:
        each.result()
        raise RuntimeError("an open run ended by itself")
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    for run in runs:
        run.cancel()
    await asyncio.gather(*runs, return_exceptions=True)
    return used


def requests(url: str) -> int:
    """How many answers the server has given."""
    # Imported late: it is not part of what a first answer costs.
    from urllib.request import urlopen

    base = "/".join(url.split("/")[:3])
    with urlopen(f"{base}/requests") as response:
        return int(response.read())


def main(client: str, work: str, url: str, warm_up: str, times: str, many: str) -> dict[str, Any]:
    """Take the measure."""
    if work == "memory":
        return asyncio.run(measure_memory(client, url, int(warm_up), int(many)))
    if work == "cold":
        return asyncio.run(measure_cold(client, url))
    return asyncio.run(measure(client, work, url, int(warm_up), int(times), int(many)))


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
