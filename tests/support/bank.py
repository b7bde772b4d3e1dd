"""Agent that asks before paying, and its log after a crash."""

from __future__ import annotations

from typing import Any

from rxloop import (
    Agent,
    Event,
    MemoryEventLog,
    Result,
    RunContext,
    StatusUpdateEvent,
    tool,
)
from rxloop.testing import ScriptedModel, call
from support.runs import copy_first_events


class Bank:
    """Bank with an approval tool. Records the payments."""

    def __init__(self, log: MemoryEventLog | None = None) -> None:
        self.log = log or MemoryEventLog()
        self.paid: list[str] = []

        @tool(approve=True)
        async def pay(amount: int, ctx: RunContext[Any]) -> str:
            """Pays."""
            self.paid.append(ctx.idempotency_key)
            return f"paid {amount}"

        self.pay = pay

    def agent(self, *turns: Any, **fields: Any) -> Agent:
        options: dict[str, Any] = {"tools": [self.pay], "log": self.log, **fields}
        return Agent(ScriptedModel(*turns), **options)

    async def request_payment(self, **options: Any) -> Result[str]:
        return await self.agent(call("pay", "p", amount=5)).run("Pay", **options)

    async def last_event(self, task_id: str) -> StatusUpdateEvent:
        event = (await self.log.read(task_id))[-1]
        assert isinstance(event, StatusUpdateEvent)
        return event


async def log_after_crash(log: MemoryEventLog, task_id: str, kind: type[Event]) -> MemoryEventLog:
    """Return a copy of a log, truncated after the first event of a kind."""
    events = await log.read(task_id)
    return await copy_first_events(log, task_id, next(event.seq for event in events if isinstance(event, kind)))
