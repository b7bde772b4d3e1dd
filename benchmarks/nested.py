"""Costs of events of nested agents: `python benchmarks/nested.py`."""

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
    """Model that calls a tool several times and then streams words in groups of twenty."""

    name = "talker"

    def __init__(self, tokens: int, calls: int) -> None:
        self.tokens, self.calls = tokens, calls

    def call(self, request: ModelRequest) -> Observable[Event]:
        """Generate the response based on the messages."""
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
        """Do nothing, because there are no resources."""


class Caller(Talker):
    """Model that calls a nested agent and answers."""

    def call(self, request: ModelRequest) -> Observable[Event]:
        """Generate the response based on the messages."""
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
    """Create a talking agent at the given nesting depth."""
    unlimited = Limits(iterations=None)
    made = Agent(Talker(tokens, calls), name="below", tools=[look], limits=unlimited, thoughts=False)
    for _ in range(depth):
        below = made.as_tool(max_result=None)
        made = Agent(Caller(0, 0), name="below", tools=[below], limits=unlimited, thoughts=False)
    return made.with_log(MemoryEventLog())


async def seconds(depth: int, tokens: int, calls: int) -> float:
    """Return the CPU time of a run with a reader."""
    run = agent(depth, tokens, calls).run("Go.")
    pieces: list[str] = []
    run.events.pipe(op.text(nested=True)).subscribe(pieces.append)
    gc.collect()
    started = time.process_time()
    await run
    return time.process_time() - started


async def each(of: Callable[[int], tuple[int, int]], sizes: tuple[int, int], depth: int) -> float:
    """Return the marginal CPU time in microseconds."""
    few, many = sizes
    took = [
        (await seconds(depth, *of(many)) - await seconds(depth, *of(few))) / (many - few) * 1e6 for _ in range(ROUNDS)
    ]
    return median(took)


async def main() -> None:
    """Print the costs of tokens and tool iterations for each depth."""
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
