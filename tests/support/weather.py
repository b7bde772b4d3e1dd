"""Weather tool and question tool."""

from __future__ import annotations

from typing import Any

from rxloop import RunContext, tool


@tool
async def get_weather(city: str) -> str:
    """Current weather."""
    return f"7 C in {city}"


@tool
async def sure(ctx: RunContext[Any]) -> str:
    """Asks."""
    return "yes" if await ctx.ask("Sure?") else "no"


TOOLS = [get_weather, sure]
