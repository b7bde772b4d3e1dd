"""Two processes on one log, and a run whose questions a later run of its conversation drops."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, EventLog, MemoryEventLog, ModelRequest, PostgresEventLog, RunRecord, Runtime, SqliteEventLog
from rxloop import tool as as_tool
from rxloop.providers.script import Turn
from rxloop.testing import ScriptedModel, call
from support.postgres.server import new_schema

LOGS = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.service("postgres"))]
MakeLog = Callable[[], EventLog]


@as_tool(approve=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


def answer(request: ModelRequest) -> Turn:
    """What the model says follows from the messages alone, so that any process may go on."""
    last = request.messages[-1]
    if last.role == "tool":
        return "Refunded."
    return call("refund", order="A1") if "Refund" in last.text else "Fine."


def clerk() -> Agent[Any, Any]:
    """An agent that asks before it refunds."""
    return Agent(ScriptedModel(*[answer] * 100), tools=[refund], name="clerk", thoughts=False)


@contextlib.asynccontextmanager
async def logs(kind: str, folder: Path, request: pytest.FixtureRequest) -> AsyncGenerator[MakeLog]:
    """Make logs of one kind over one storage: each is the log of another process, but for those in memory."""
    made: list[EventLog] = []
    in_memory, schema = MemoryEventLog(), new_schema()

    def make() -> EventLog:
        if kind == "sqlite":
            made.append(SqliteEventLog(folder / "runs.db"))
        elif kind == "postgres":
            made.append(PostgresEventLog(request.getfixturevalue("postgres"), schema=schema))
        else:
            return in_memory
        return made[-1]

    yield make
    for log in made:
        await log.aclose()


async def settled(runtime: Runtime, record: RunRecord) -> RunRecord:
    """Wait until a run comes to rest."""
    async for _ in runtime.log.follow(record.task_id):
        pass
    return await runtime.get_record(record.task_id)


async def asks(runtime: Runtime, **options: Any) -> RunRecord:
    """Start a run that waits for an approval."""
    record = await settled(runtime, await runtime.start("clerk", "Refund A1", **options))
    assert record.state == "input-required"
    return record


async def drop(runtime: Runtime, record: RunRecord, **options: Any) -> RunRecord:
    """Start a later run, which drops the question of this one."""
    return await settled(runtime, await runtime.start("clerk", "Never mind", context_id=record.context_id, **options))
