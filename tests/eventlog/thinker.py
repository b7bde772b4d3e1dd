"""Thinks in a session in a process of its own: `thinker.py FILE NAME COUNT [crash]`; `crash` ends it in a commit."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys

from rxloop import SessionChange, SqliteSessionStore, ThinkingSessions
from rxloop.eventlog import sqlite_sessions as module


def die_in_the_next_commit() -> None:
    """Kill this process when a change is made and its transaction has not ended."""
    make = module._make  # pyright: ignore[reportPrivateUsage]

    def killed(connection: sqlite3.Connection, change: SessionChange) -> None:
        make(connection, change)
        os.kill(os.getpid(), signal.SIGKILL)

    module._make = killed  # pyright: ignore[reportPrivateUsage]


async def main(path: str, name: str, count: int, crash: bool) -> None:
    """Put so many thoughts into the session `shared`."""
    sessions = ThinkingSessions(SqliteSessionStore(path), max_thoughts=10_000)
    for number in range(1, count + 1):
        if crash and number == count:
            die_in_the_next_commit()
        thought = {"thought": f"{name}{number}", "thoughtNumber": number, "totalThoughts": count}
        result = await sessions.think({**thought, "nextThoughtNeeded": True}, session_id="shared")
        print(result.placed.place, flush=True)
    await sessions.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), "crash" in sys.argv[4:]))
