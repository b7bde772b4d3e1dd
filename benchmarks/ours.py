"""Workloads with rxloop, using different features."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import reactivex.operators as rx
from pydantic import BaseModel

from rxloop import (
    Agent,
    Event,
    Limits,
    MemoryEventLog,
    Operator,
    Run,
    RunContext,
    Signal,
    SlidingWindowCompressor,
    SqliteEventLog,
    ToolRequest,
    op,
    openai_chat,
)

UNLIMITED = Limits(iterations=None)
STORY, COUNT = "Tell me a story.", "Count."


class Total(BaseModel):
    """Typed answer."""

    total: int


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@op.on(ToolRequest)
async def guard(request: ToolRequest, ctx: RunContext[None]) -> AsyncIterator[Signal]:
    """Allow all calls."""
    yield request


class Client:
    """Agent with one tool."""

    def __init__(self, url: str) -> None:
        self._model = openai_chat("bench", base_url=url)
        self._prompt = STORY if url.split("/")[3] in ("stream", "drip", "held", "pour") else COUNT
        self._agents: dict[str, Agent[None, Any]] = {}
        self._logs: dict[bool, SqliteEventLog] = {}
        self._folder = TemporaryDirectory()
        self._agent = self._get_agent("plain")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for log in self._logs.values():
            await log.aclose()
        await self._model.aclose()
        self._folder.cleanup()

    def _get_agent(self, name: str, **options: Any) -> Agent[None, Any]:
        """Return a cached agent, because its creation is not part of a run."""
        agent = self._agents.get(name)
        if agent is None:
            agent = self._agents[name] = Agent(self._model, tools=[add], limits=UNLIMITED, **options)
        return agent

    def _sqlite(self, keep_deltas: bool) -> SqliteEventLog:
        if keep_deltas not in self._logs:
            path = Path(self._folder.name) / f"{keep_deltas}.db"
            self._logs[keep_deltas] = SqliteEventLog(path, keep_deltas=keep_deltas)
        return self._logs[keep_deltas]

    async def stream(self) -> dict[str, int]:
        """Execute a run with a subscriber for all events."""
        return await count_events(self._agent.run(self._prompt))

    tools = stream

    async def silent(self) -> dict[str, int]:
        """Await a run without reading events."""
        return {"characters": len((await self._agent.run(self._prompt)).output)}

    async def three(self) -> dict[str, int]:
        """Execute a run with three subscribers for all events."""
        return await count_events(self._agent.run(self._prompt), 3)

    async def piped(self) -> dict[str, int]:
        """Execute a run with a view."""
        lengths: list[int] = []
        run = self._agent.run(self._prompt)
        run.pipe(op.text(), rx.map(len), rx.filter(lambda length: length > 0)).subscribe(lengths.append)
        await run
        return {"characters": sum(lengths)}

    async def text(self) -> dict[str, int]:
        """Read the text of a run with `async for`."""
        characters = 0
        async for text in self._agent.run(self._prompt).text():
            characters += len(text)
        return {"characters": characters}

    async def events(self) -> dict[str, int]:
        """Read the events of a run with `async for`."""
        run = self._agent.run(self._prompt)
        kinds = Counter([event.kind async for event in run])
        return {"characters": len((await run).output), **kinds}

    async def sse(self, readers: int = 1) -> dict[str, int]:
        """Read a run as server-sent events."""
        run = self._agent.run(self._prompt)
        sizes = await asyncio.gather(*(_read(run) for _ in range(readers)))
        return {"characters": len((await run).output), "bytes": sum(sizes)}

    async def sse_three(self) -> dict[str, int]:
        """Read server-sent events with three readers."""
        return await self.sse(3)

    async def logged(self) -> dict[str, int]:
        """Execute a run with a SQLite log."""
        return await count_events(self._get_agent("logged", log=self._sqlite(False)).run(self._prompt))

    async def logged_deltas(self) -> dict[str, int]:
        """Execute a run with a SQLite log that includes deltas."""
        return await count_events(self._get_agent("logged deltas", log=self._sqlite(True)).run(self._prompt))

    async def memory_log(self) -> dict[str, int]:
        """Execute a run with a memory log."""
        return await count_events(self._get_agent("memory log", log=MemoryEventLog()).run(self._prompt))

    async def thoughtless(self) -> dict[str, int]:
        """Execute a run without thinking aloud."""
        return await count_events(self._get_agent("thoughtless", thoughts=False).run(self._prompt))

    async def guarded(self) -> dict[str, int]:
        """Execute a run with a guard."""
        agent = self._get_agent("guarded", loop=op.standard(before_tools=[guard]))
        return await count_events(agent.run(self._prompt))

    async def compressed(self) -> dict[str, int]:
        """Execute a run with a compressor that is never triggered."""
        return await self._before_model("compressed", op.compress(SlidingWindowCompressor(max_tokens=100_000)))

    async def squeezed(self) -> dict[str, int]:
        """Execute a run with a compressor that is triggered early."""
        return await self._before_model("squeezed", op.compress(SlidingWindowCompressor(max_tokens=800)))

    async def thinking(self) -> dict[str, int]:
        """Execute a run with the thinking phase, which adds a note to each request."""
        return await self._before_model("thinking", op.thinking_phase(SlidingWindowCompressor(max_tokens=100_000)))

    async def typed(self) -> dict[str, int]:
        """Execute a run with a typed answer."""
        run = self._get_agent("typed", output_type=Total).run(self._prompt)
        kinds = await count_events(run)
        assert (await run).output == Total(total=42)
        return kinds

    async def hold(self, count: int, reached: Callable[[], None]) -> None:
        """Execute an endless run, and signal when the given number of deltas has arrived."""
        seen = 0

        def see(event: Event) -> None:
            nonlocal seen
            if event.kind == "content-delta":
                seen += 1
                if seen == count:
                    reached()

        run = self._agent.run(self._prompt)
        run.events.subscribe(see)
        await run

    async def _before_model(self, name: str, operator: Operator) -> dict[str, int]:
        return await count_events(self._get_agent(name, loop=op.standard(before_model=[operator])).run(self._prompt))


async def count_events(run: Run[Any], subscribers: int = 1) -> dict[str, int]:
    """Return the event counts of a run and the length of its answer."""
    kinds: Counter[str] = Counter()

    def see(event: Event) -> None:
        kinds[event.kind] += 1

    run.events.subscribe(see)
    for _ in range(subscribers - 1):
        run.events.subscribe(lambda event: None)
    result = await run
    return {"characters": len(result.content), **kinds}


async def _read(run: Run[str]) -> int:
    return sum([len(frame) async for frame in run.sse()])
