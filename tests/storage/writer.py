"""Program that writes to an event log: `writer.py append|limited|nobody|agent FILE`."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys

from rxloop import Agent, RunError, SqliteEventLog
from rxloop.errors import EventLogError
from rxloop.pipeline import log_retry
from rxloop.protocol.events import CustomEvent, Event, TaskEvent
from rxloop.protocol.messages import Message
from rxloop.testing import ScriptedModel, call

LIMIT = 300_000


def limit() -> None:
    """Limit the size of files."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


async def append(path: str) -> None:
    """Append and print the last event number of each batch, until an error occurs."""
    log = SqliteEventLog(path)
    seq = 0
    try:
        for record in await log.list_runs():
            seq = record.seq
        while True:
            batch: list[Event] = [CustomEvent(seq=seq + at, attempt=1, name="note", data="x" * 100) for at in (1, 2, 3)]
            if not seq:
                batch[0] = TaskEvent(seq=1, attempt=1, messages=[Message.user("Hi")], model="m", agent_name="a")
            await log.append("run", batch, expected_seq=seq)
            seq = batch[-1].seq
            print("written", seq, flush=True)
    except EventLogError as error:
        print("failed", error)
    await log.aclose()


async def agent(path: str) -> None:
    """Run an agent whose tool results fill the disk."""

    async def much() -> str:
        return "x" * (LIMIT // 4)

    # The disk stays full, so do not wait.
    log_retry.RETRY_SECONDS = 0
    log = SqliteEventLog(path)
    run = Agent(ScriptedModel(*[call("much")] * 20, "Done."), tools=[much], log=log).run("Go.")
    finals: list[str] = []
    run.events.subscribe(lambda event: finals.append(event.kind) if getattr(event, "final", False) else None)
    try:
        await run
    except RunError as error:
        print("failed", error.code, error)
    assert finals == ["status-update"]
    await log.aclose()


if __name__ == "__main__":
    if sys.argv[1] in ("limited", "agent"):
        limit()
    if sys.argv[1] == "nobody" and os.getuid() == 0:
        # Permissions do not restrict the superuser.
        os.setuid(65534)
    asyncio.run(agent(sys.argv[2]) if sys.argv[1] == "agent" else append(sys.argv[2]))
