"""Agent for `scripts/cluster`, with a slow model, an idempotent tool, and a tool that must not be repeated."""

from __future__ import annotations

import asyncio

from rxloop import Agent, RunContext, tool
from rxloop.testing import demo_model


@tool(idempotent=True)
async def get_weather(city: str) -> dict[str, object]:
    """Current weather in a city.

    Args:
        city: Name of the city.
    """
    await asyncio.sleep(1)
    return {"temperature": 18.0 if city == "Oslo" else 13.0, "unit": "C", "sky": "rain"}


@tool
async def calculate(ctx: RunContext[None], expression: str) -> float:
    """Subtract two numbers.

    Args:
        expression: Expression such as `18 - 13`.
    """
    await asyncio.sleep(0.5)
    left, _, right = expression.partition("-")
    return float(left) - float(right or 0)


def agent() -> Agent[None, str]:
    """Create the agent."""
    return Agent(demo_model(delay=0.05), tools=[get_weather, calculate], name="weather")
