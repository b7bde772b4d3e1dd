"""Tool, and a function that can become a tool."""

from rxloop import (
    tool,
)


@tool
async def look(n: int = 0) -> int:
    """Looks."""
    return n


def plain(n: int) -> int:
    """Doubles."""
    return n * 2
