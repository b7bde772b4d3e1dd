"""A shop with a finished run in its log, for forks."""

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
    """Tools whose effects can be counted, and a log with a finished run of them in it."""

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

    def sent(self, number: int = 0) -> list[str]:
        return shape(self.model.requests[number].messages)

    async def bought(self, **options: Any) -> str:
        """A run with a thought, two calls beside each other, and an answer."""
        thought = call("think_aloud", "t", thought="First I look.", thought_type="planning", thought_id="plan")
        used = Usage(input_tokens=10, output_tokens=1)
        first = turn("I begin.", calls=[thought, call("pay", "p", amount=5), call("look", "l", n=1)], usage=used)
        result = await self.agent(first, turn("Bought.", usage=used)).run("Buy it", **options)
        self.effects.clear()
        return result.task_id


async def seq_of(log: MemoryEventLog, task_id: str, kind: str, number: int = 0) -> int:
    return [event.seq for event in await log.read(task_id) if event.kind == kind][number]
