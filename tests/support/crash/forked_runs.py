"""Program that executes runs in forked processes, so that tests can kill them.

Reads lines of JSON: `{"db": ..., "effects": ..., "context": ..., "task": null or the run to resume}`. Each fork prints
the lines `process PID`, `task ID`, `checkpoint SEQ` and `answer TEXT`. The parent prints `over` after each fork.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from reactivex import Observable

from rxloop import Agent, ContentCompleteEvent, Event, Limits, Message, SqliteEventLog, tool
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import CheckpointEvent, ContentDeltaEvent, TaskEvent
from rxloop.protocol.messages import ToolCall
from rxloop.providers.codecs.text import make_text_delta
from rxloop.stream.sources import Push, from_task

ROUNDS = 6


class Planner:
    """Stateless model. Its answers depend only on the messages."""

    name = "planner"

    def call(self, request: ModelRequest) -> Observable[Event]:
        async def work(push: Push[Event]) -> None:
            for index, word in enumerate(("Let ", "me ", "see. ")):
                push(make_text_delta(ContentDeltaEvent, word, index, request.step))
                await asyncio.sleep(0)
            push(message(request.messages))

        return from_task(work, request.ctx, shielded=True)

    async def aclose(self) -> None:
        """Do nothing."""


def message(messages: Sequence[Message]) -> ContentCompleteEvent:
    number = sum(each.role == "assistant" for each in messages)
    if number == ROUNDS:
        squares = [int(each.text) for each in messages if each.role == "tool" and each.text.isdigit()]
        return ContentCompleteEvent(content=f"Let me see. The sum is {sum(squares)}.", finish_reason="stop")
    thought = {"thought": f"Round {number}", "thought_type": "planning"}
    calls = [
        ToolCall(id=f"s{number}", name="square", arguments={"n": number}),
        ToolCall(id=f"p{number}", name="pay", arguments={"number": number}),
        ToolCall(id=f"t{number}", name="think_aloud", arguments=thought),
        ToolCall(id=f"q{number}", name="square", arguments={"n": number + 100}),
    ]
    return ContentCompleteEvent(content="Let me see. ", tool_calls=calls, finish_reason="tool_calls")


def agent(db: str, effects: str) -> Agent[None, str]:
    def note(text: str) -> None:
        # A short append is atomic.
        with Path(effects).open("ab", buffering=0) as file:
            file.write(f"{text}\n".encode())

    @tool(idempotent=True)
    async def square(n: int) -> int:
        """Square a number."""
        note(f"square {n} starts")
        await asyncio.sleep(random.random() * 0.004)
        note(f"square {n} ends")
        return n * n

    @tool
    async def pay(number: int) -> str:
        """Pay a bill."""
        note(f"pay {number} starts")
        await asyncio.sleep(random.random() * 0.004)
        note(f"pay {number} ends")
        return f"paid {number:03d}."

    return Agent(Planner(), tools=[square, pay], log=SqliteEventLog(db), limits=Limits(iterations=50))


def print_line(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def report_event(event: Event) -> None:
    if isinstance(event, TaskEvent):
        print_line(f"task {event.task_id}")
    elif isinstance(event, CheckpointEvent):
        print_line(f"checkpoint {event.durable_seq}")


async def execute(order: dict[str, Any]) -> None:
    async with agent(order["db"], order["effects"]) as worker:
        run = worker.resume(order["task"]) if order["task"] else worker.run("Add up.", context_id=order["context"])
        run.events.subscribe(report_event)
        result = await run
        print_line(f"answer {result.output}")


def fork_for_each_order(execute: Callable[[dict[str, Any]], Coroutine[Any, Any, None]]) -> None:
    """Execute each order read from stdin in a forked process."""
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            random.seed()
            print_line(f"process {os.getpid()}")
            asyncio.run(execute(json.loads(line)))
            os._exit(0)
        os.waitpid(pid, 0)
        print_line("over")


if __name__ == "__main__":
    fork_for_each_order(execute)
