"""Program that thinks in a session: `thinker.py KIND ADDRESS NAME COUNT [crash]`.

With `crash`, it kills itself during the last write.
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


def crash_during_next_write(kind: str) -> None:
    """Kill this process before it completes the transaction or journal line of a thought."""
    if kind == "sqlite":
        row = sqlite_artifacts._read_row  # pyright: ignore[reportPrivateUsage]
        count = 0

        def kill_after_row(connection: sqlite3.Connection, number: int) -> object:
            nonlocal count
            count += 1
            # The second call happens after all statements of an append.
            return os.kill(os.getpid(), signal.SIGKILL) if count == 2 else row(connection, number)

        setattr(sqlite_artifacts, "_read_row", kill_after_row)  # noqa: B010
    else:

        def kill_before_line(*arguments: object, **line: object) -> NoReturn:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

        setattr(folder_artifacts.Journal, "write", kill_before_line)  # noqa: B010


async def main(kind: str, address: str, name: str, count: int, crash: bool) -> None:
    """Append thoughts to the session `shared`."""
    sessions = ThinkingSessions(MAKERS[kind](address), max_thoughts=10_000)
    for number in range(1, count + 1):
        if crash and number == count:
            crash_during_next_write(kind)
        thought = {"thought": f"{name}{number}", "thoughtNumber": number, "totalThoughts": count}
        result = await sessions.think({**thought, "nextThoughtNeeded": True}, session_id="shared")
        print(result.placed.place, flush=True)
    await sessions.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), "crash" in sys.argv[5:]))
