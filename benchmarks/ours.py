"""The same work with the library, as its README would have it."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import Self

from rxloop import Agent, Event, Limits, Run, openai_chat


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

    async def tools(self) -> dict[str, int]:
        """A run of tool calls, until there is a text."""
        return await _counted(self._agent.run("Count."))


async def _counted(run: Run[str]) -> dict[str, int]:
    kinds: Counter[str] = Counter()

    def see(event: Event) -> None:
        kinds[event.kind] += 1

    run.events.subscribe(see)
    result = await run
    return {"characters": len(result.output), **kinds}
