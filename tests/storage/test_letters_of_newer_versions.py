"""Letters of a newer version, in a rolling deploy: they keep no run from hearing what this version knows."""

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
        found: Log = SqliteEventLog(tmp_path / "runs.db")
    else:
        found = PostgresEventLog(request.getfixturevalue("postgres"), schema=new_schema())
    yield found
    await found.aclose()


class DanceMail(_Command):
    """A letter that this version does not know."""

    kind: Literal["dance"] = "dance"
    steps: int = 3


class LoudMail(MessageCommand):
    """One that it knows, and that says more."""

    louder: bool = True


DANCE = cast("Command", DanceMail())


@tool(approve=True)
async def pay() -> str:
    """Pays."""
    return "paid"


def paying(log: Log) -> Agent[Any, Any]:
    return Agent(ScriptedModel(call("pay"), "Paid.", call("pay"), "Paid."), tools=[pay], thoughts=False).with_log(log)


async def test_a_run_that_goes_on_is_cancelled_behind_a_letter_of_an_unknown_kind(log: Log) -> None:
    begun = asyncio.Event()

    @tool
    async def work() -> str:
        """Takes for ever."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent(ScriptedModel(call("work")), tools=[work], thoughts=False).with_log(log)
    run = await agent.run("Go").begin()
    await begun.wait()
    await log.send_command(run.task_id, DANCE)
    # Not by its handle, as in the process that has it.
    await log.send_command(run.task_id, CancelCommand())
    with pytest.raises(RunCancelled):
        await run


async def test_a_run_that_waits_goes_on_by_the_answer_behind_a_letter_of_an_unknown_kind(log: Log) -> None:
    agent = paying(log)
    waits = await agent.run("Pay")
    await log.send_command(waits.task_id, DANCE)
    assert (await agent.get_run(waits.task_id).execute()).state == "input-required"
    assert await log.read_commands(waits.task_id) == []

    await log.send_command(waits.task_id, LoudMail(messages=[]))
    number = await log.send_command(waits.task_id, AnswerCommand(inputs={waits.pending[0].input_id: True}))
    assert (await agent.get_run(waits.task_id).execute()).state == "completed"
    assert await log.read_commands(waits.task_id, after=number) == []


async def test_a_letter_of_an_unknown_kind_stays_for_who_knows_it(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = paying(log)
    waits = await agent.run("Pay")
    number = await log.send_command(waits.task_id, DANCE)
    assert (await agent.get_run(waits.task_id).execute()).state == "input-required"

    def newer(data: bytes) -> DanceMail:
        return DanceMail.model_validate_json(data)

    # The process is replaced by one of the newer version.
    monkeypatch.setattr("rxloop.storage.sql_rows.read_command", newer)
    assert await log.read_commands(waits.task_id) == [(number, DanceMail())]
