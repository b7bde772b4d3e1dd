"""Runs with dropped questions, in two processes with a shared log."""

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
    """Return an answer that depends only on the messages, so that any process can resume the run."""
    last = request.messages[-1]
    if last.role == "tool":
        return "Refunded."
    return call("refund", order="A1") if "Refund" in last.text else "Fine."


def clerk() -> Agent[Any, Any]:
    """Create an agent with an approval tool."""
    return Agent(ScriptedModel(*[answer] * 100), tools=[refund], name="clerk", thoughts=False)


@contextlib.asynccontextmanager
async def shared_logs(kind: str, folder: Path, request: pytest.FixtureRequest) -> AsyncGenerator[MakeLog]:
    """Yield a factory of logs over one storage, one log per process. Memory logs are shared."""
    logs: list[EventLog] = []
    in_memory, schema = MemoryEventLog(), new_schema()

    def make() -> EventLog:
        if kind == "sqlite":
            logs.append(SqliteEventLog(folder / "runs.db"))
        elif kind == "postgres":
            logs.append(PostgresEventLog(request.getfixturevalue("postgres"), schema=schema))
        else:
            return in_memory
        return logs[-1]

    yield make
    for log in logs:
        await log.aclose()


async def wait_until_idle(runtime: Runtime, record: RunRecord) -> RunRecord:
    async for _ in runtime.log.follow(record.task_id):
        pass
    return await runtime.get_record(record.task_id)


async def start_waiting_run(runtime: Runtime, **options: Any) -> RunRecord:
    """Start a run and wait for its question."""
    record = await wait_until_idle(runtime, await runtime.start("clerk", "Refund A1", **options))
    assert record.state == "input-required"
    return record


async def drop_question(runtime: Runtime, record: RunRecord, **options: Any) -> RunRecord:
    """Start a later run in the conversation, dropping the question of `record`."""
    return await wait_until_idle(
        runtime, await runtime.start("clerk", "Never mind", context_id=record.context_id, **options)
    )
