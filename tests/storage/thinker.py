"""Thinks in a session in a process of its own: `thinker.py KIND PLACE NAME COUNT [crash]`.

With `crash`, the process kills itself while the last thought is written.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from typing import NoReturn

from rxloop.storage import FolderArtifacts, PostgresArtifacts, SqliteArtifacts, folder_artifacts, sqlite_artifacts
from rxloop.thinking import ThinkingSessions

MAKERS = {"folder": FolderArtifacts, "sqlite": SqliteArtifacts, "postgres": PostgresArtifacts}


def die_in_the_next_write(kind: str) -> None:
    """Kill this process when a thought is written and its transaction, or its line in the journal, is missing."""
    if kind == "sqlite":
        row = sqlite_artifacts._row  # pyright: ignore[reportPrivateUsage]
        count = 0

        def killed(connection: sqlite3.Connection, number: int) -> object:
            nonlocal count
            count += 1
            # The second read of an append follows its statements.
            return os.kill(os.getpid(), signal.SIGKILL) if count == 2 else row(connection, number)

        setattr(sqlite_artifacts, "_row", killed)  # noqa: B010
    else:

        def no_line(*given: object, **line: object) -> NoReturn:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

        setattr(folder_artifacts.Journal, "write", no_line)  # noqa: B010


async def main(kind: str, place: str, name: str, count: int, crash: bool) -> None:
    """Put so many thoughts into the session `shared`."""
    sessions = ThinkingSessions(MAKERS[kind](place), max_thoughts=10_000)
    for number in range(1, count + 1):
        if crash and number == count:
            die_in_the_next_write(kind)
        thought = {"thought": f"{name}{number}", "thoughtNumber": number, "totalThoughts": count}
        result = await sessions.think({**thought, "nextThoughtNeeded": True}, session_id="shared")
        print(result.placed.place, flush=True)
    await sessions.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), "crash" in sys.argv[5:]))
