"""Program that appends the same events as a concurrent process: `racer.py FILE RUNS`."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time

from rxloop import SqliteEventLog
from rxloop.errors import ConflictError
from rxloop.protocol.events import TaskEvent
from rxloop.protocol.messages import Message


async def main(path: str, count: int) -> None:
    log, won = SqliteEventLog(path), list[str]()
    await log.list_runs()
    print("ready", flush=True)
    begin = float(sys.stdin.readline())
    for number in range(count):
        name = f"run-{number}"
        # Both processes append every 5 ms at the same time.
        while time.time() < begin + number * 0.005:
            pass
        event = TaskEvent(
            seq=1, attempt=1, task_id=name, timestamp=1, messages=[Message.user("Pay")], model="m", agent_name="a"
        )
        try:
            await log.append(name, [event], expected_seq=0, writer=secrets.token_hex(8))
            won.append(name)
        except ConflictError:
            pass
    print(" ".join(won), flush=True)
    await log.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
