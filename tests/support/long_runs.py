"""Runs with growing histories."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from rxloop import Agent, ContextCompressedEvent, Event, Limits, Message, ModelRequest, op, tool
from rxloop.testing import ScriptedModel, call

UNLIMITED = Limits(iterations=None)
REPORT = "At {place} stands a crate with the number CR-{number}-X. " * 12


@tool
def look(place: int) -> str:
    """Look somewhere."""
    return REPORT.format(place=place, number=1000 + place)


def look_calls(count: int, first: int = 0) -> list[Any]:
    return [call("look", place=place) for place in range(first, first + count)]


async def collect_run(
    model: ScriptedModel, *operators: Any, prompt: Any = "Find the crate.", **options: Any
) -> list[Event]:
    agent = Agent(model, tools=[look], loop=op.standard(before_model=operators), limits=UNLIMITED, **options)
    return [event async for event in agent.run(prompt)]


def request_messages(request: ModelRequest) -> list[Message]:
    """Return a request's messages in order."""
    return [*request.system, *request.messages, *request.tail]


def compressions(events: Sequence[Event]) -> list[ContextCompressedEvent]:
    return [event for event in events if isinstance(event, ContextCompressedEvent)]


class Turns:
    """Turns of the event loop in which items were processed."""

    def __init__(self) -> None:
        self.current = 0
        self.items = Counter[int]()
        """Number of items by turn."""
        self.items_in_threads = 0
        """Number of items that other threads processed, which does not block the event loop."""
        self._thread = threading.get_ident()

    def count_item(self, count: int = 1) -> None:
        if threading.get_ident() == self._thread:
            self.items[self.current] += count
        else:
            self.items_in_threads += count

    def watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that counts each call as an item."""

        def watched(*args: Any, **options: Any) -> Any:
            self.count_item()
            return function(*args, **options)

        return watched


@asynccontextmanager
async def count_turns() -> AsyncGenerator[Turns]:
    """Count the turns of the event loop during the block."""
    turns = Turns()

    async def count() -> None:
        while True:
            turns.current += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count())
    try:
        yield turns
    finally:
        counter.cancel()
