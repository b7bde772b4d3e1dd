"""Program whose forked processes answer one question at the same time.

Reads lines of JSON. `{"db": ..., "effects": ..., "ask": true}` creates a run that waits for an approval, and prints
`task ID`. With `"task": ID`, two processes answer it. Each prints `ended RESULT`, followed by `over`. With `"kill":
true`, the asking process is killed between its question and its pause.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rxloop import Agent, Event, SqliteEventLog, tool
from rxloop.errors import AttemptError, RxloopError
from rxloop.protocol.events import InputRequiredEvent
from rxloop.support import tasks as clock
from rxloop.testing import ScriptedModel, call


class CoarseClock(clock.SystemClock):
    """Clock with a resolution of 16 ms, as on some systems. Two processes may then write identical bytes."""

    def now(self) -> int:
        return super().now() // 16 * 16


def print_line(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def note(file: str, text: str) -> None:
    with Path(file).open("ab", buffering=0) as effects:
        effects.write(f"{text}\n".encode())


def agent(order: dict[str, Any], *turns: Any) -> Agent[None, str]:
    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pay a bill."""
        note(order["effects"], f"pay {amount}")
        await asyncio.sleep(0.005)
        return "paid"

    return Agent(ScriptedModel(*turns), tools=[pay], log=SqliteEventLog(order["db"]))


async def ask(order: dict[str, Any]) -> None:
    async with agent(order, call("pay", amount=5)) as asking:
        run = asking.run("Pay")
        dying: list[asyncio.Future[None]] = []

        def kill(event: Event) -> None:
            if order.get("kill") and isinstance(event, InputRequiredEvent):
                dying.append(asyncio.ensure_future(kill_after_question(asking, run.task_id)))

        print_line(f"task {run.task_id}")
        run.events.subscribe(kill)
        await run


async def kill_after_question(asking: Agent[None, str], task_id: str) -> None:
    """Kill the process between storing the question and storing the end of the attempt."""
    attempt = next(hold._attempt for hold in asking.definition.resources.runs)
    attempt.lifetime.finish = lambda end: None  # type: ignore[method-assign]  (the attempt does not come to its end)
    await attempt.durable()
    os.kill(os.getpid(), signal.SIGKILL)


async def answer(order: dict[str, Any]) -> None:
    async with agent(order, "done") as answering:
        # Both processes wait for the same time.
        time.sleep(max(0, order["at"] - time.monotonic()))  # noqa: ASYNC251
        try:
            result = await answering.resume(order["task"], inputs={"1.0.1": True})
            print_line(f"ended {result.output}")
        except AttemptError as error:
            print_line(f"ended {error.code}")
        except RxloopError as error:
            print_line(f"ended {type(error).__name__}")


def child(work: Any, order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        clock.CLOCK.set(CoarseClock())
        asyncio.run(work(order))
        os._exit(0)
    return pid


def main() -> None:
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        if order.get("task"):
            order["at"] = time.monotonic() + 0.02
            pids = [child(answer, order), child(answer, order)]
        else:
            pids = [child(ask, order)]
        for pid in pids:
            os.waitpid(pid, 0)
        print_line("over")


if __name__ == "__main__":
    main()
