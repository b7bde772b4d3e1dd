"""One measure in a process of its own: `measure.py CLIENT WORK URL` prints what it cost, and what was done, as JSON."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Coroutine
from importlib import import_module
from typing import Any, cast
from urllib.request import urlopen

import orjson

WARM_UP = 3


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


def requests(url: str) -> int:
    """How many answers the server has given."""
    base = "/".join(url.split("/")[:3])
    with urlopen(f"{base}/requests") as response:
        return int(response.read())


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(asyncio.run(measure(*sys.argv[1:4]))))
