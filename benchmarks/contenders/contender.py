"""What every other framework is measured by: the works of `ours.Client`, made of one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self


class Contender:
    """An agent with one tool."""

    async def run(self, prompt: str, see: Callable[[str], None]) -> dict[str, int]:
        """Run the agent, and show each piece of text as it comes."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close what the agent holds open."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def stream(self) -> dict[str, int]:
        """One answer, its text seen as it comes."""
        return await self.run("Tell me a story.", lambda text: None)

    async def tools(self) -> dict[str, int]:
        """A run of tool calls, until there is a text."""
        return await self.run("Count.", lambda text: None)

    async def hold(self, count: int, reached: Callable[[], None]) -> None:
        """An answer without an end; tells when that many pieces are there."""
        seen = 0

        def see(text: str) -> None:
            nonlocal seen
            seen += 1
            if seen == count:
                reached()

        await self.run("Tell me a story.", see)
