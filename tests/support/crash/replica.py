"""One of several processes that work on one log; there to be killed and frozen.

Reads orders as lines of JSON, `{"id": 1, "do": "settle", "task": ...}`, carries them out side by side, and prints for
each, when it is over, `{"id": 1, "ok": what came of it}` or `{"id": 1, "error": its kind}`. What a checkpoint has
promised is printed as well, as `{"task": ..., "attempt": ..., "durable": seq}`. SIGUSR1 makes it tell on stderr where
all of its threads and tasks are.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reactivex import Observable

from rxloop import Agent, ContentCompleteEvent, Event, Limits, Message, Run, RunContext, SqliteEventLog, tool
from rxloop.errors import AttemptError
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import CheckpointEvent
from rxloop.protocol.messages import ToolCall
from rxloop.run.ownership import find_owned
from rxloop.stream.sources import Push, from_task

LEASE = 1.0
ROUNDS = 4


class Planner:
    """A model without a memory: what it says follows from the messages alone."""

    name = "planner"

    def call(self, request: ModelRequest) -> Observable[Event]:
        async def work(push: Push[Event]) -> None:
            await asyncio.sleep(random.random() * 0.04)
            push(message(request.messages))

        return from_task(work, request.ctx, shielded=True)

    async def aclose(self) -> None:
        """Nothing is open."""


def message(messages: Sequence[Message]) -> ContentCompleteEvent:
    begun = max(place for place, each in enumerate(messages) if each.role == "user" and each.text.startswith("Go"))
    number = sum(each.role == "assistant" and bool(each.tool_calls) for each in messages[begun:])
    if number == ROUNDS:
        return ContentCompleteEvent(content="Done.", finish_reason="stop")
    calls = [ToolCall(id=f"p{number}", name="pay", arguments={"number": number})]
    if number % 2:
        calls = [ToolCall(id=f"a{number}", name="approved", arguments={"number": number})]
    calls.append(ToolCall(id=f"l{number}", name="look", arguments={}))
    return ContentCompleteEvent(content="", tool_calls=calls, finish_reason="tool_calls")


class Replica:
    """The agent of one process, and its orders."""

    def __init__(self, db: str, effects: str) -> None:
        self._effects = Path(effects)
        self._log = SqliteEventLog(db, lease=LEASE)
        self._runs: dict[str, Run[str]] = {}

        @tool
        async def pay(number: int, ctx: RunContext[Any]) -> str:
            """Pay a bill."""
            await self._effect(ctx)
            return f"paid {number}"

        @tool(approve=True)
        async def approved(number: int, ctx: RunContext[Any]) -> str:
            """Pay a bill that somebody approves."""
            await self._effect(ctx)
            return f"paid {number}"

        @tool(idempotent=True)
        async def look() -> str:
            """Look."""
            await asyncio.sleep(random.random() * 0.05)
            return "seen"

        tools = [pay, approved, look]
        self._agent = Agent(Planner(), tools=tools, log=self._log, limits=Limits(iterations=30, attempts=None))

    async def _effect(self, ctx: RunContext[Any]) -> None:
        # One write of a few bytes at the end of the file: there in whole, or not at all.
        with self._effects.open("ab", buffering=0) as file:
            file.write(f"{ctx.idempotency_key}\n".encode())
        await asyncio.sleep(random.random() * 0.06)

    async def carry_out(self, order: dict[str, Any]) -> Any:
        """Do what is ordered; what comes of it can be written as JSON."""
        agent, task, do = self._agent, order.get("task", ""), order["do"]
        if do == "submit":
            return (await agent.submit("Go", task_id=task, context_id=order["context"])).state
        if do == "settle":
            return (await agent.get_run(task).execute()).state
        if do == "cancel":
            return await agent.get_run(task).cancel()
        if do == "answer":
            return await agent.get_run(task).answer(order["inputs"])
        if do == "say":
            return await agent.get_run(task).send(order["text"])
        if do == "release":
            hold = None if agent.log is None else find_owned(agent.log, task)
            return None if hold is None else await hold.release(order["grace"])
        if do == "start":
            run = agent.run("Go", task_id=task, context_id=order["context"])
        else:
            run = agent.resume(task)
        run.events.subscribe(told, lambda error: None)
        try:
            return (await run).state
        except AttemptError as error:
            return error.code


def told(event: Event) -> None:
    if isinstance(event, CheckpointEvent) and event.durable_seq is not None:
        say({"task": event.task_id, "attempt": event.attempt, "durable": event.durable_seq})


def say(line: dict[str, Any]) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def tell_tasks() -> None:
    for task in asyncio.all_tasks():
        print(f"\n{task.get_name()}", file=sys.stderr)
        inner: Any = task.get_coro()
        while inner is not None:
            # That of a coroutine, of an async generator or of a plain one.
            frame, inner = next(
                (
                    (getattr(inner, f"{kind}_frame"), getattr(inner, awaits))
                    for kind, awaits in (("cr", "cr_await"), ("ag", "ag_await"), ("gi", "gi_yieldfrom"))
                    if hasattr(inner, awaits)
                ),
                (None, None),
            )
            if frame is not None:
                print(f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}", file=sys.stderr)
    sys.stderr.flush()


async def main() -> None:
    gc.freeze()
    replica = Replica(*sys.argv[1:3])
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, tell_tasks)
    # The threads first, which says enough where the event loop itself hangs.
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=True)
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    under_way: set[asyncio.Task[None]] = set()

    async def obey(order: dict[str, Any]) -> None:
        try:
            say({"id": order["id"], "ok": await replica.carry_out(order)})
        except Exception as error:
            say({"id": order["id"], "error": type(error).__name__, "why": str(error)})

    say({"ready": os.getpid()})
    while line := await orders.readline():
        order = json.loads(line)
        task = loop.create_task(obey(order), name=f"{order['do']} {order.get('task', '')}")
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
