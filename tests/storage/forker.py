"""Fork while an event log is open: `forker.py FILE`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import NoReturn

from rxloop import SqliteEventLog
from rxloop.protocol.events import CustomEvent, Event, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message


def task(task_id: str) -> Event:
    return TaskEvent(seq=1, attempt=1, task_id=task_id, messages=[Message.user("Hi")], model="m", agent_name="a")


def notes(first: int, last: int) -> list[Event]:
    return [CustomEvent(seq=seq, attempt=1, name="note", data="x" * 100) for seq in range(first, last + 1)]


async def write_run(log: SqliteEventLog, task_id: str, batches: int) -> None:
    """Write a run with the thread and synchronously."""
    await log.append(task_id, [task(task_id)], expected_seq=0)
    for seq in range(2, 2 + 40 * batches, 40):
        await log.append(task_id, notes(seq, seq + 39), expected_seq=seq - 1)


async def write_in_child(log: SqliteEventLog) -> None:
    assert len(await log.read("before")) >= 1
    await write_run(log, "child", 20)
    await log.aclose()


def run_child(log: SqliteEventLog) -> NoReturn:
    asyncio.run(asyncio.wait_for(write_in_child(log), 20))
    os._exit(0)


async def run_parent(log: SqliteEventLog, iterations: int) -> int:
    """Fork while the thread writes and a follower reads."""

    async def follow() -> list[int]:
        return [event.seq async for event in log.follow("before")]

    follower = asyncio.create_task(follow())
    writing = asyncio.create_task(log.append("before", notes(2, 501), expected_seq=1))
    for _ in range(iterations):
        await asyncio.sleep(0)
    pid = os.fork()
    if pid == 0:
        run_child(log)
    await writing
    await write_run(log, "parent", 20)
    await log.append("before", [StatusUpdateEvent(seq=502, state="completed", final=True)], expected_seq=501)
    assert await asyncio.wait_for(follower, 10) == list(range(1, 503))
    # Close the file while the child still writes.
    await log.aclose()
    return pid


async def main(path: str) -> None:
    for iterations in range(6):
        log = SqliteEventLog(f"{path}-{iterations}")
        await log.append("before", [task("before")], expected_seq=0)
        pid = await run_parent(log, iterations)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        log_contents = {record.task_id: len(await log.read(record.task_id)) for record in await log.list_runs()}
        print(json.dumps([os.waitstatus_to_exitcode(status), log_contents]), flush=True)
        await log.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
