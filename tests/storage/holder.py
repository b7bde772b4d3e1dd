"""Holds the turn of a run, and writes the run when it is told to: `holder.py ADDRESS LEASE [RUN]`.

The run is `run`, which it begins; another one is there already, and left as it is.

It says `has` or `busy`, then `lost` when the turn is; to each line that it reads it answers with the error of an
append, or `written`.
"""

from __future__ import annotations

import asyncio
import sys

from rxloop import open_log
from rxloop.errors import EventLogError
from rxloop.protocol.events import CustomEvent, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message


def say(word: str) -> None:
    print(word, flush=True)


async def main(address: str, lease: float, run: str = "run") -> None:
    log = open_log(address, lease=lease)
    taken = await log.acquire_lease("c", run, lambda: say("lost"))
    say("has" if taken else "busy")
    if run == "run":
        begun = TaskEvent(seq=1, attempt=1, context_id="c", messages=[Message.user("Hi")], model="m", agent_name="a")
        await log.append("run", [begun, StatusUpdateEvent(seq=2, state="working")], expected_seq=0, writer="holder")
    seq = 2
    while await asyncio.to_thread(sys.stdin.readline):
        try:
            await log.append("run", [CustomEvent(seq=seq + 1, name="note")], expected_seq=seq, writer="holder")
        except EventLogError as error:
            say(type(error).__name__)
        else:
            seq += 1
            say("written")
    await log.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), *sys.argv[3:]))
