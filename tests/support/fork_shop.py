"""Finished run for fork tests."""

from typing import Any

from rxloop import (
    Agent,
    MemoryEventLog,
    Usage,
    tool,
)
from rxloop.testing import ScriptedModel, call, turn
from support.runs import shape


class Shop:
    """Tools with recorded effects, and a finished run."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.log = MemoryEventLog()

        @tool
        async def pay(amount: int) -> str:
            """Pays; not idempotent."""
            self.effects.append(f"pay {amount}")
            return f"paid {amount}"

        @tool
        async def look(n: int) -> int:
            """Looks."""
            self.effects.append(f"look {n}")
            return n

        self.tools = [pay, look]

    def agent(self, *turns: Any, **fields: Any) -> Agent:
        self.model = ScriptedModel(*turns)
        options: dict[str, Any] = {"tools": self.tools, "log": self.log, **fields}
        return Agent(self.model, **options)

    def request_shape(self, number: int = 0) -> list[str]:
        return shape(self.model.requests[number].messages)

    async def buy(self, **options: Any) -> str:
        """Execute a run with parallel calls, returning its id."""
        thought = call("think_aloud", "t", thought="First I look.", thought_type="planning", thought_id="plan")
        used = Usage(input_tokens=10, output_tokens=1)
        first = turn("I begin.", calls=[thought, call("pay", "p", amount=5), call("look", "l", n=1)], usage=used)
        result = await self.agent(first, turn("Bought.", usage=used)).run("Buy it", **options)
        self.effects.clear()
        return result.task_id


async def find_seq(log: MemoryEventLog, task_id: str, kind: str, number: int = 0) -> int:
    return [event.seq for event in await log.read(task_id) if event.kind == kind][number]
