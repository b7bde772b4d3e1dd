"""Successful and failing tools, and thoughts."""

from __future__ import annotations

from typing import Any

from rxloop import ToolError, tool
from rxloop.providers.script import ScriptedCall
from rxloop.testing import call


@tool(idempotent=True)
async def step(n: int = 0) -> int:
    """One step."""
    return n


@tool
async def fails() -> None:
    """Fails."""
    raise ToolError("It does not work.")


def think(thought: str = "hm", **fields: Any) -> ScriptedCall:
    return call("think_aloud", thought=thought, **{"thought_type": "planning", **fields})
