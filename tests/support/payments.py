"""Payment tools with approval."""

from typing import Any

from rxloop import (
    Agent,
    MemoryEventLog,
    RunContext,
    tool,
)
from rxloop.testing import ScriptedModel


class Payments:
    """Payment tools with recorded payments."""

    def __init__(self) -> None:
        self.paid: list[Any] = []

        @tool
        async def pay(ctx: RunContext[Any], amount: int) -> str:
            """Pays."""
            agreed = await ctx.ask(f"Pay {amount}?")
            self.paid.append((amount, agreed))
            return f"{agreed}"

        @tool(idempotent=True)
        async def step(n: int = 0) -> int:
            """One step."""
            self.paid.append(n)
            return n

        self.tools = [pay, step]
        self.log = MemoryEventLog()

    def agent(self, *turns: Any, **fields: Any) -> Agent:
        options: dict[str, Any] = {"tools": self.tools, "log": self.log, **fields}
        return Agent(ScriptedModel(*turns), **options)
