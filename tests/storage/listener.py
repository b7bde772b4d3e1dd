"""Program that follows the run `run` in Postgres and can be frozen: `listener.py ADDRESS`.

Prints `ready` after event 3, and finally all event numbers.
"""

from __future__ import annotations

import asyncio
import sys

from rxloop import open_log


async def main(address: str) -> None:
    log, seen = open_log(address), list[int]()
    async for event in log.follow("run"):
        seen.append(event.seq)
        if event.seq == 3:
            print("ready", flush=True)
    print(*seen, flush=True)
    await log.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
