"""Agent of rxloop with a SQLite log.

Modes: `` (tools with effects) and `idempotent` (tools that pass their idempotency key to the bank). Resumed as in
docs/durability.md#resume.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker import PROMPT, Job, call_bank

from rxloop import Agent, RunContext, SqliteEventLog, openai_chat, tool
from rxloop.errors import UnknownRun


async def run(job: Job, ready: Callable[[], None]) -> str:
    idempotent = job.mode == "idempotent"

    @tool(read_only=True)
    async def lookup_order(order: str) -> str:
        """Look up an order."""
        return await call_bank(job, "lookup_order")

    @tool(idempotent=idempotent)
    async def refund(order: str, amount: int, ctx: RunContext[Any]) -> str:
        """Refund an order."""
        return await call_bank(job, "refund", ctx.idempotency_key if idempotent else None)

    @tool(idempotent=idempotent)
    async def write_note(order: str, text: str, ctx: RunContext[Any]) -> str:
        """Write a note about an order."""
        return await call_bank(job, "write_note", ctx.idempotency_key if idempotent else None)

    log = SqliteEventLog(Path(job.folder) / "runs.db")
    model = openai_chat("bench", base_url=job.url, api_key="none")
    agent = Agent(model, name="clerk", tools=[lookup_order, refund, write_note], log=log, thoughts=False)
    try:
        recorded = job.resume and await is_recorded(log, job.run)
        ready()
        result = await (agent.resume(job.run) if recorded else agent.run(PROMPT, task_id=job.run))
        return result.output
    finally:
        await agent.aclose()
        await log.aclose()


async def is_recorded(log: SqliteEventLog, run: str) -> bool:
    """Return False if the process was killed before the run was stored."""
    try:
        await log.get_record(run)
    except UnknownRun:
        return False
    return True
