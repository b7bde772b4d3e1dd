"""The same work with the library, as its README would have it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from bare import MANY

from rxloop import Agent, Event, Limits, Run, SqliteEventLog, openai_chat


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Client:
    """An agent with one tool."""

    def __init__(self, url: str) -> None:
        self._model = openai_chat("bench", base_url=url)
        self._agent = Agent(self._model, tools=[add], limits=Limits(iterations=None))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._agent.aclose()
        await self._model.aclose()

    async def stream(self) -> dict[str, int]:
        """One answer, with a subscriber that sees every event."""
        return await _counted(self._agent.run("Tell me a story."))

    async def text(self) -> dict[str, int]:
        """One answer, its text read with `async for`."""
        characters = 0
        async for text in self._agent.run("Tell me a story.").text():
            characters += len(text)
        return {"characters": characters}

    async def three(self) -> dict[str, int]:
        """One answer, with three subscribers that see every event."""
        return await _counted(self._agent.run("Tell me a story."), 3)

    async def tools(self) -> dict[str, int]:
        """A run of tool calls, until there is a text."""
        return await _counted(self._agent.run("Count."))

    async def logged(self) -> dict[str, int]:
        """The same with its events in a SQLite file."""
        with TemporaryDirectory() as folder:
            log = SqliteEventLog(Path(folder) / "runs.db")
            agent = Agent(self._model, tools=[add], limits=Limits(iterations=None), log=log)
            counted = await _counted(agent.run("Count."))
            await log.aclose()
        return counted

    async def many(self) -> dict[str, int]:
        """Many runs of tool calls at once."""
        results = await asyncio.gather(*(self._agent.run("Count.").result() for _ in range(MANY)))
        return {"characters": sum(len(result.output) for result in results)}

    async def hold(self, count: int, reached: Callable[[], None]) -> None:
        """A run whose answer has no end; tells when that many deltas are there."""
        seen = 0

        def see(event: Event) -> None:
            nonlocal seen
            if event.kind == "content-delta":
                seen += 1
                if seen == count:
                    reached()

        run = self._agent.run("Tell me a story.")
        run.events.subscribe(see)
        await run


async def _counted(run: Run[str], subscribers: int = 1) -> dict[str, int]:
    kinds: Counter[str] = Counter()

    def see(event: Event) -> None:
        kinds[event.kind] += 1

    run.events.subscribe(see)
    for _ in range(subscribers - 1):
        run.events.subscribe(lambda event: None)
    result = await run
    return {"characters": len(result.output), **kinds}
