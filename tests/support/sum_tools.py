"""Model that adds numbers in two steps, and small tools."""

from __future__ import annotations

import asyncio

from rxloop import RunContext, ToolError, tool
from rxloop.testing import ScriptedModel, call


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def progressing(ctx: RunContext, steps: int) -> str:
    """Report some progress."""
    for step in range(steps):
        ctx.progress(f"step {step}")
        await asyncio.sleep(0.01)
    return "done"


@tool
async def broken() -> str:
    """Always fail."""
    raise ToolError("it broke")


def make_two_step_model() -> ScriptedModel:
    return ScriptedModel([call("add", a=1, b=2), call("add", a=3, b=4)], "The sums are 3 and 7.")
