"""Where the time goes: `python benchmarks/where.py` profiles one long answer and one long run of tool calls.

The profiler makes short functions look dearer than they are: the shares tell which layer to look at, and no more.
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
    """Whose code a function is: a package, or a module of the library."""
    if isinstance(code, str):
        return next((name for part, name in LAYERS.items() if f"{part}." in code), "Python")
    parts = Path(code.co_filename).with_suffix("").parts
    if "rxloop" in parts:
        place = len(parts) - 1 - parts[::-1].index("rxloop")
        return ".".join(parts[place:])
    return next((LAYERS[part] for part in reversed(parts) if part in LAYERS), "Python")


async def profiled(client_of: Any, work: str, url: str) -> cProfile.Profile:
    """The profile of one work, when everything is loaded and connected."""
    async with client_of(url) as client:
        await getattr(client, work)()
        # By the time of the processor: while it waits, others work.
        profile = cProfile.Profile(time.process_time)
        profile.enable()
        await getattr(client, work)()
        profile.disable()
    return profile


def shares(profile: cProfile.Profile) -> Counter[str]:
    """The own time of each layer; what is built in counts for the one who calls it."""
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
    """The functions with the most time of their own."""
    entries = sorted(cast("list[Any]", profile.getstats()), key=lambda entry: -entry.inlinetime)
    total = sum(entry.inlinetime for entry in entries)
    rows = [["function", "calls", "share"]]
    for entry in entries[:count]:
        name = entry.code.strip("<>") if isinstance(entry.code, str) else entry.code.co_qualname
        rows.append([f"`{layer(entry.code)}: {name}`", f"{entry.callcount:,}", f"{entry.inlinetime / total:.1%}"])
    return rows


def main() -> None:
    """Profile both and print the shares."""
    parser = argparse.ArgumentParser(prog="benchmarks/where.py", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--client", default="ours", choices=("ours", "bare"))
    parser.add_argument("--transport", default="httpx", choices=("httpx", "aiohttp"))
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="show the dearest functions, too")
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
