"""Agent with a slow tool and an approval tool."""

from __future__ import annotations

import asyncio
from typing import Any

from rxloop import Agent, RunContext, tool
from rxloop.testing import ScriptedModel


def agent(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), thoughts=False, **options)


@tool
async def pay(ctx: RunContext[None], amount: int) -> str:
    """Pay an amount, if confirmed."""
    return "paid" if await ctx.ask(f"Pay {amount}?") else "not paid"


@tool
async def work() -> str:
    """Takes a minute."""
    await asyncio.sleep(60)
    return "done"
