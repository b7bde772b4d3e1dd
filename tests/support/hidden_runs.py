"""Agent with hidden tools, and scripted turns."""

from __future__ import annotations

from typing import Any

from rxloop import Agent, RunContext, tool
from rxloop.errors import ServerError
from rxloop.testing import ScriptedModel, call
from support.hidden_tools import MARK, ask, fail, peek


@tool
async def confirm(ctx: RunContext[Any]) -> str:
    """Ask in a nested run. The hidden call also hides this question."""
    return await ctx.ask(f"{MARK} below?", str, options=[MARK, "no"])


def agent(*turns: Any) -> Agent[Any, Any]:
    model = ScriptedModel(call("confirm"), f"{MARK} below.")
    below: Agent[Any, Any] = Agent(model, tools=[confirm], name=f"below_{MARK}")
    tools = [peek, ask, fail, below.as_tool(f"consult_{MARK}", description="Consult in secret.", hidden=True)]
    return Agent(ScriptedModel(*turns), tools=tools, instructions=f"{MARK}: be brief.", name="clerk")


RUNS: dict[str, tuple[Any, ...]] = {
    "a hidden call": ([call(f"peek_{MARK}", _id=f"x-{MARK}", at=MARK), call("fail")], "Done."),
    "a hidden question": (call(f"ask_{MARK}", _id=f"x-{MARK}"), "Done."),
    "a question below a hidden call": (call(f"consult_{MARK}", prompt=f"{MARK}?"), "Done."),
    "a vendor's words": (ServerError(f"{MARK}: http://10.0.0.1/key=sk-123"),),
}
