"""Program that grows a tree of thoughts and kills itself: `python thought_tree.py DB CALLS`.

The process is killed during model call number `CALLS`. Prints the id of the run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from rxloop import Agent, SqliteEventLog
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import TaskEvent
from rxloop.strategies import tree_of_thoughts
from rxloop.testing import ScriptedModel

STRATEGY = tree_of_thoughts(propose=2, keep=2, depth=2)
CALLS = 1 + 2 + 2 + 4 + 1
"""Model calls: proposals, values, proposals, values, answer."""


def answer(request: ModelRequest) -> str:
    """Create an answer from the request only."""
    prompt = [*request.messages, *request.tail][-1].text
    if "Propose" in prompt:
        return "1. left\n2. right"
    return f"Score: {0.4 + 0.1 * prompt.count('left')}" if "How likely" in prompt else "Twice to the left."


async def main(db: str, number: int) -> None:
    def turn(request: ModelRequest) -> Any:
        if len(model.requests) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer(request)

    model = ScriptedModel(*[turn] * CALLS)
    run = Agent(model, strategy=STRATEGY, log=SqliteEventLog(db)).run("Where?")
    async for event in run:
        if isinstance(event, TaskEvent):
            print(event.task_id, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
