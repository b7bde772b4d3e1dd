"""Hidden tools with marked data, and scripted runs."""

from __future__ import annotations

from typing import Any

from rxloop import RunContext, ToolError, tool
from rxloop.errors import ServerError
from rxloop.testing import call

MARK = "PLANTED"


@tool(name=f"peek_{MARK}", hidden=True)
async def peek(ctx: RunContext[Any], at: str = "") -> str:
    """Look at hidden data."""
    ctx.progress(f"{MARK} half")
    return f"{MARK} result"


@tool(name=f"ask_{MARK}", hidden=True)
async def ask(ctx: RunContext[Any]) -> str:
    """Ask in secret."""
    return await ctx.ask(f"{MARK}?", str, options=[MARK, "no"])


@tool
async def fail() -> str:
    """Fail."""
    raise ToolError("It is closed.")


RUNS: dict[str, tuple[Any, ...]] = {
    "a hidden call": ([call(f"peek_{MARK}", _id=f"x-{MARK}", at=MARK), call("fail")], "Done."),
    "a hidden question": (call(f"ask_{MARK}", _id=f"x-{MARK}"), "Done."),
    "a vendor's words": (ServerError(f"{MARK}: http://10.0.0.1/key=sk-123"),),
}
