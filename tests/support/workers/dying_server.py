"""Server that is killed after writing to the log and before enqueueing the job.

`python -m support.workers.dying_server DSN start|answer ...`
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from rxloop import PostgresEventLog, Runtime
from rxloop.runtime import PostgresQueue
from support.workers import scripted_agents


class DyingQueue(PostgresQueue):
    """Queue that kills the process on `enqueue`."""

    async def enqueue(self, task_id: str, **options: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


async def main(dsn: str, verb: str, *arguments: str) -> None:
    async with Runtime({"a": scripted_agents.agent()}, log=PostgresEventLog(dsn), queue=DyingQueue(dsn)) as web:
        if verb == "start":
            prompt, key = arguments
            await web.start("a", prompt, key=key)
        else:
            task_id, question, stars = arguments
            await web.answer(task_id, {question: int(stars)})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
