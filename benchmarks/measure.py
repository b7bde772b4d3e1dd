"""One measure in a process of its own: `measure.py CLIENT WORK URL` prints what it cost, and what was done, as JSON."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import tracemalloc
from collections.abc import Coroutine
from functools import partial
from importlib import import_module
from typing import Any, cast
from urllib.request import urlopen

import orjson

WARM_UP = 3
OPEN, PIECES = 200, 50
"""Runs that are open at once, and the pieces of text that each has."""


class TaskCounter:
    """A task factory that counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> Any:
        self.count += 1
        return asyncio.Task(work, loop=loop, **options)


async def measure(client_name: str, work: str, url: str) -> dict[str, Any]:
    """Do the work a few times, so that everything is loaded and connected, and then once more by the clock."""
    async with import_module(client_name).Client(url) as client:
        for _ in range(WARM_UP):
            await getattr(client, work)()
        gc.collect()
        before = requests(url)
        cpu, wall = time.process_time(), time.perf_counter()
        counters = await getattr(client, work)()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        counters["requests"] = requests(url) - before
        # Counted by itself: a factory of one's own makes every task dearer.
        tasks = TaskCounter()
        asyncio.get_running_loop().set_task_factory(cast("Any", tasks))
        await getattr(client, work)()
        counters["tasks"] = tasks.count
    return {"cpu": cpu, "wall": wall, "counters": counters}


async def measure_memory(client_name: str, url: str) -> dict[str, Any]:
    """What a run takes whose answer goes on: allocations of Python, with and without so many of them."""
    async with import_module(client_name).Client(url) as client:
        await _held(client, WARM_UP)
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        during = await _held(client, OPEN)
    return {"cpu": (during - before) / OPEN / 1e6, "wall": 0.0, "counters": {"open": OPEN}}


async def _held(client: Any, count: int) -> int:
    """Open so many runs at once, and close them; the memory in use while all were open."""
    loop = asyncio.get_running_loop()
    there = [loop.create_future() for _ in range(count)]
    runs = [asyncio.ensure_future(client.hold(PIECES, partial(each.set_result, None))) for each in there]
    await asyncio.gather(*there)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    for run in runs:
        run.cancel()
    await asyncio.gather(*runs, return_exceptions=True)
    return used


def requests(url: str) -> int:
    """How many answers the server has given."""
    base = "/".join(url.split("/")[:3])
    with urlopen(f"{base}/requests") as response:
        return int(response.read())


if __name__ == "__main__":
    name, work, address = sys.argv[1:4]
    measured = measure_memory(name, address) if work == "hold" else measure(name, work, address)
    sys.stdout.buffer.write(orjson.dumps(asyncio.run(measured)))
