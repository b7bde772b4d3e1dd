"""Program that holds the lease of a run and appends on request: `holder.py ADDRESS LEASE [RUN]`.

By default, it creates the run `run`. Any other run must already exist.

Prints `has` or `busy`, then `lost` if it loses the lease. For each line of input, it appends an event and prints
`written` or the type of the error.
"""

from __future__ import annotations

import asyncio
import sys

from rxloop import open_log
from rxloop.errors import EventLogError
from rxloop.protocol.events import CustomEvent, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message


def report(word: str) -> None:
    print(word, flush=True)


async def main(address: str, lease: float, run: str = "run") -> None:
    log = open_log(address, lease=lease)
    is_acquired = await log.acquire_lease("c", run, lambda: report("lost"))
    report("has" if is_acquired else "busy")
    if run == "run":
        first_event = TaskEvent(
            seq=1, attempt=1, context_id="c", messages=[Message.user("Hi")], model="m", agent_name="a"
        )
        await log.append(
            "run", [first_event, StatusUpdateEvent(seq=2, state="working")], expected_seq=0, writer="holder"
        )
    seq = 2
    while await asyncio.to_thread(sys.stdin.readline):
        try:
            await log.append("run", [CustomEvent(seq=seq + 1, name="note")], expected_seq=seq, writer="holder")
        except EventLogError as error:
            report(type(error).__name__)
        else:
            seq += 1
            report("written")
    await log.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), *sys.argv[3:]))
