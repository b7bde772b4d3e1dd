"""What an event of a nested agent costs beside one of the outermost: `python benchmarks/nested.py`."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from reactivex import Observable

from rxloop import Agent, ContentCompleteEvent, ContentDeltaEvent, Event, Limits, MemoryEventLog, op, tool
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import ToolCall
from rxloop.providers.codecs.text import make_text_delta
from rxloop.stream.sources import Push, from_task

ROUNDS, TOKENS, CALLS = 9, (2_000, 12_000), (20, 120)


class Talker:
    """Calls a tool some times, and then says so many words, twenty at a time."""

    name = "talker"

    def __init__(self, tokens: int, calls: int) -> None:
        self.tokens, self.calls = tokens, calls

    def call(self, request: ModelRequest) -> Observable[Event]:
        """Answer by what has been said."""
        said = sum(message.role == "assistant" for message in request.messages)

        async def work(push: Push[Event]) -> None:
            if said < self.calls:
                call = ToolCall(id=f"c{said}", name="look", arguments={})
                push(ContentCompleteEvent(content="", tool_calls=[call], finish_reason="tool_calls"))
                return
            for index in range(self.tokens):
                if index % 20 == 0:
                    await asyncio.sleep(0)
                push(make_text_delta(ContentDeltaEvent, "word ", index, request.step))
            push(ContentCompleteEvent(content="word " * self.tokens, finish_reason="stop"))

        return from_task(work, request.ctx)

    async def aclose(self) -> None:
        """Nothing is open."""


class Caller(Talker):
    """Calls the agent that is nested, and answers."""

    def call(self, request: ModelRequest) -> Observable[Event]:
        """Answer by what has been said."""
        first = all(message.role != "assistant" for message in request.messages)

        async def work(push: Push[Event]) -> None:
            calls = [ToolCall(id="c", name="below", arguments={"prompt": "Go."})] if first else []
            push(ContentCompleteEvent(content="", tool_calls=calls, finish_reason="tool_calls" if first else "stop"))

        return from_task(work, request.ctx)


@tool(idempotent=True)
async def look() -> str:
    """Looks."""
    return "seen"


def agent(depth: int, tokens: int, calls: int) -> Agent:
    """An agent that talks, nested so deep."""
    unlimited = Limits(iterations=None)
    made = Agent(Talker(tokens, calls), name="below", tools=[look], limits=unlimited, thoughts=False)
    for _ in range(depth):
        below = made.as_tool(max_result=None)
        made = Agent(Caller(0, 0), name="below", tools=[below], limits=unlimited, thoughts=False)
    return made.with_log(MemoryEventLog())


async def seconds(depth: int, tokens: int, calls: int) -> float:
    """CPU time of a run that somebody reads."""
    run = agent(depth, tokens, calls).run("Go.")
    pieces: list[str] = []
    run.events.pipe(op.text(nested=True)).subscribe(pieces.append)
    gc.collect()
    begun = time.process_time()
    await run
    return time.process_time() - begun


async def each(of: Callable[[int], tuple[int, int]], sizes: tuple[int, int], depth: int) -> float:
    """CPU time of one more, in microseconds."""
    few, many = sizes
    took = [
        (await seconds(depth, *of(many)) - await seconds(depth, *of(few))) / (many - few) * 1e6 for _ in range(ROUNDS)
    ]
    return median(took)


async def main() -> None:
    """Print what a token and a tool iteration cost, at each depth."""
    cases: list[tuple[str, Callable[[int], tuple[int, int]], Any]] = [
        ("token", lambda number: (number, 0), TOKENS),
        ("tool iteration", lambda number: (1, number), CALLS),
    ]
    for name, of, sizes in cases:
        own = await each(of, sizes, 0)
        print(f"{name:>15}: outermost {own:7.2f} us", end="")
        for depth in (1, 2, 3):
            below = await each(of, sizes, depth)
            print(f"; nested {depth} deep {below:7.2f} us ({below / own:.2f} times)", end="")
        print()


if __name__ == "__main__":
    asyncio.run(main())
