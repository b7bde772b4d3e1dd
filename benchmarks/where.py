"""Profiles of a long answer and a long run of tool calls: `python benchmarks/where.py`.

The profiler overestimates short functions, so the shares only indicate which layer to optimise.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import importlib
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

from endpoint import server
from tables import table

PACKAGES = "h11 httpcore httpx aiohttp anyio asyncio pydantic pydantic_core reactivex orjson"
LAYERS = {name: name.removesuffix("_core") for name in PACKAGES.split()}
WORKS = {"stream": ("stream", "stream/20000/1"), "tools": ("tools", "tools/200")}


def layer(code: Any) -> str:
    """Return the package or rxloop module of a function."""
    if isinstance(code, str):
        return next((name for part, name in LAYERS.items() if f"{part}." in code), "Python")
    parts = Path(code.co_filename).with_suffix("").parts
    if "rxloop" in parts:
        place = len(parts) - 1 - parts[::-1].index("rxloop")
        return ".".join(parts[place:])
    return next((LAYERS[part] for part in reversed(parts) if part in LAYERS), "Python")


async def profiled(client_of: Any, work: str, url: str) -> cProfile.Profile:
    """Profile a workload after a warm-up."""
    async with client_of(url) as client:
        await getattr(client, work)()
        # Use CPU time, because other processes run while this one waits.
        profile = cProfile.Profile(time.process_time)
        profile.enable()
        await getattr(client, work)()
        profile.disable()
    return profile


def shares(profile: cProfile.Profile) -> Counter[str]:
    """Return the time of each layer. Built-in functions are attributed to their callers."""
    seconds: Counter[str] = Counter()
    for entry in cast("list[Any]", profile.getstats()):
        name = layer(entry.code)
        seconds[name] += entry.inlinetime
        for call in entry.calls or ():
            if isinstance(call.code, str) and layer(call.code) == "Python":
                seconds[name] += call.inlinetime
                seconds["Python"] -= call.inlinetime
    return seconds


def functions(profile: cProfile.Profile, count: int) -> list[list[str]]:
    """Return the functions with the highest own time."""
    entries = sorted(cast("list[Any]", profile.getstats()), key=lambda entry: -entry.inlinetime)
    total = sum(entry.inlinetime for entry in entries)
    rows = [["function", "calls", "share"]]
    for entry in entries[:count]:
        name = entry.code.strip("<>") if isinstance(entry.code, str) else entry.code.co_qualname
        rows.append([f"`{layer(entry.code)}: {name}`", f"{entry.callcount:,}", f"{entry.inlinetime / total:.1%}"])
    return rows


def main() -> None:
    """Profile both workloads and print the shares."""
    parser = argparse.ArgumentParser(prog="benchmarks/where.py", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--client", default="ours", choices=("ours", "bare"))
    parser.add_argument("--transport", default="httpx", choices=("httpx", "aiohttp"))
    parser.add_argument(
        "--functions", type=int, default=0, metavar="N", help="also show the N most expensive functions"
    )
    options = parser.parse_args()
    os.environ["RXLOOP_TRANSPORT"] = options.transport
    client_of = importlib.import_module(options.client).Client
    with server() as base:
        for name, (work, path) in WORKS.items():
            profile = asyncio.run(profiled(client_of, work, f"{base}/{path}"))
            seconds = shares(profile)
            rows = [[f"{name}: layer", "share"]]
            rows += [[each, f"{value / seconds.total():.1%}"] for each, value in seconds.most_common(16)]
            print("\n" + table(rows))
            if options.functions:
                print("\n" + table(functions(profile, options.functions)))


if __name__ == "__main__":
    main()
