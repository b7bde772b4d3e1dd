"""Test tool and test function."""

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
