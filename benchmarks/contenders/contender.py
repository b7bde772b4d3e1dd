"""Workloads of other frameworks, equivalent to those of `ours.Client`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self


class Contender:
    """Agent with one tool."""

    async def run(self, prompt: str, see: Callable[[str], None]) -> dict[str, int]:
        """Run the agent and process streamed text."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close the resources of the agent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def stream(self) -> dict[str, int]:
        """Stream an answer and process its text."""
        return await self.run("Tell me a story.", lambda text: None)

    async def tools(self) -> dict[str, int]:
        """Execute tool calls until there is a text."""
        return await self.run("Count.", lambda text: None)

    async def hold(self, count: int, reached: Callable[[], None]) -> None:
        """Read an endless answer, and signal when the given number of chunks has arrived."""
        seen = 0

        def see(text: str) -> None:
            nonlocal seen
            seen += 1
            if seen == count:
                reached()

        await self.run("Tell me a story.", see)
