"""Commands of a newer version during a rolling deployment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from rxloop import Agent, PostgresEventLog, RunCancelled, SqliteEventLog, tool
from rxloop.protocol.commands import AnswerCommand, CancelCommand, Command, MessageCommand, _Command
from rxloop.testing import ScriptedModel, call
from support.postgres.server import new_schema

Log = PostgresEventLog | SqliteEventLog


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service("postgres"))])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Log]:
    if request.param == "sqlite":
        log: Log = SqliteEventLog(tmp_path / "runs.db")
    else:
        log = PostgresEventLog(request.getfixturevalue("postgres"), schema=new_schema())
    yield log
    await log.aclose()


class DanceCommand(_Command):
    """Command of an unknown kind."""

    kind: Literal["dance"] = "dance"
    steps: int = 3


class LoudCommand(MessageCommand):
    """Known command with an additional field."""

    louder: bool = True


DANCE = cast("Command", DanceCommand())


@tool(approve=True)
async def pay() -> str:
    """Pay."""
    return "paid"


def make_agent(log: Log) -> Agent[Any, Any]:
    return Agent(ScriptedModel(call("pay"), "Paid.", call("pay"), "Paid."), tools=[pay], thoughts=False).with_log(log)


async def test_run_is_cancelled_by_a_command_after_an_unknown_one(log: Log) -> None:
    started = asyncio.Event()

    @tool
    async def work() -> str:
        """Block."""
        started.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent(ScriptedModel(call("work")), tools=[work], thoughts=False).with_log(log)
    run = await agent.run("Go").begin()
    await started.wait()
    await log.send_command(run.task_id, DANCE)
    await log.send_command(run.task_id, CancelCommand())
    with pytest.raises(RunCancelled):
        await run


async def test_waiting_run_is_resumed_by_an_answer_after_an_unknown_command(log: Log) -> None:
    agent = make_agent(log)
    waiting = await agent.run("Pay")
    await log.send_command(waiting.task_id, DANCE)
    assert (await agent.get_run(waiting.task_id).execute()).state == "input-required"
    assert await log.read_commands(waiting.task_id) == []

    await log.send_command(waiting.task_id, LoudCommand(messages=[]))
    number = await log.send_command(waiting.task_id, AnswerCommand(inputs={waiting.pending[0].input_id: True}))
    assert (await agent.get_run(waiting.task_id).execute()).state == "completed"
    assert await log.read_commands(waiting.task_id, after=number) == []


async def test_unknown_command_stays_for_a_newer_version(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent(log)
    waiting = await agent.run("Pay")
    number = await log.send_command(waiting.task_id, DANCE)
    assert (await agent.get_run(waiting.task_id).execute()).state == "input-required"

    def read_new_command(data: bytes) -> DanceCommand:
        return DanceCommand.model_validate_json(data)

    # Simulate the restart with a newer version.
    monkeypatch.setattr("rxloop.storage.sql_rows.read_command", read_new_command)
    assert await log.read_commands(waiting.task_id) == [(number, DanceCommand())]
