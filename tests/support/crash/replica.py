"""Program of several processes that share one log. Tests kill and freeze them.

Reads orders as lines of JSON, `{"id": 1, "do": "execute", "task": ...}`, and executes them concurrently. Prints `{"id":
1, "ok": result}` or `{"id": 1, "error": type}` for each order, and `{"task": ..., "attempt": ..., "durable": seq}` for
each checkpoint. On SIGUSR1, it prints the stacks of all threads and tasks to stderr.
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
    """Stateless model. Its answers depend only on the messages."""

    name = "planner"

    def call(self, request: ModelRequest) -> Observable[Event]:
        async def work(push: Push[Event]) -> None:
            await asyncio.sleep(random.random() * 0.04)
            push(message(request.messages))

        return from_task(work, request.ctx, shielded=True)

    async def aclose(self) -> None:
        """Do nothing."""


def message(messages: Sequence[Message]) -> ContentCompleteEvent:
    prompt_index = max(
        place for place, each in enumerate(messages) if each.role == "user" and each.text.startswith("Go")
    )
    number = sum(each.role == "assistant" and bool(each.tool_calls) for each in messages[prompt_index:])
    if number == ROUNDS:
        return ContentCompleteEvent(content="Done.", finish_reason="stop")
    calls = [ToolCall(id=f"p{number}", name="pay", arguments={"number": number})]
    if number % 2:
        calls = [ToolCall(id=f"a{number}", name="approved", arguments={"number": number})]
    calls.append(ToolCall(id=f"l{number}", name="look", arguments={}))
    return ContentCompleteEvent(content="", tool_calls=calls, finish_reason="tool_calls")


class Replica:
    """Agent of a single process."""

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
            """Pay a bill after approval."""
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
        # A short append is atomic.
        with self._effects.open("ab", buffering=0) as file:
            file.write(f"{ctx.idempotency_key}\n".encode())
        await asyncio.sleep(random.random() * 0.06)

    async def execute(self, order: dict[str, Any]) -> Any:
        """Execute an order and return a JSON value."""
        agent, task, do = self._agent, order.get("task", ""), order["do"]
        if do == "submit":
            return (await agent.submit("Go", task_id=task, context_id=order["context"])).state
        if do == "execute":
            return (await agent.get_run(task).execute()).state
        if do == "cancel":
            return await agent.get_run(task).cancel()
        if do == "answer":
            return await agent.get_run(task).answer(order["inputs"])
        if do == "send":
            return await agent.get_run(task).send(order["text"])
        if do == "release":
            hold = None if agent.log is None else find_owned(agent.log, task)
            return None if hold is None else await hold.release(order["grace"])
        if do == "start":
            run = agent.run("Go", task_id=task, context_id=order["context"])
        else:
            run = agent.resume(task)
        run.events.subscribe(report_event, lambda error: None)
        try:
            return (await run).state
        except AttemptError as error:
            return error.code


def report_event(event: Event) -> None:
    if isinstance(event, CheckpointEvent) and event.durable_seq is not None:
        print_line({"task": event.task_id, "attempt": event.attempt, "durable": event.durable_seq})


def print_line(line: dict[str, Any]) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def print_tasks() -> None:
    for task in asyncio.all_tasks():
        print(f"\n{task.get_name()}", file=sys.stderr)
        inner: Any = task.get_coro()
        while inner is not None:
            # Coroutine, async generator or generator.
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
    loop.add_signal_handler(signal.SIGUSR1, print_tasks)
    # Print the threads first, in case the event loop is blocked.
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=True)
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    pending: set[asyncio.Task[None]] = set()

    async def execute_order(order: dict[str, Any]) -> None:
        try:
            print_line({"id": order["id"], "ok": await replica.execute(order)})
        except Exception as error:
            print_line({"id": order["id"], "error": type(error).__name__, "why": str(error)})

    print_line({"ready": os.getpid()})
    while line := await orders.readline():
        order = json.loads(line)
        task = loop.create_task(execute_order(order), name=f"{order['do']} {order.get('task', '')}")
        pending.add(task)
        task.add_done_callback(pending.discard)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
