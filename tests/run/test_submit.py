"""Runs that are submitted: in the log, and begun by whoever settles them."""

from __future__ import annotations

from typing import Any

import pytest
import reactivex

from rxloop import Agent
from rxloop.agents import derive_id
from rxloop.errors import ConfigurationError, RunExists
from rxloop.testing import ScriptedModel
from support.processes.machines import Machines
from support.run_checks import kinds, nothing_left


async def test_a_submitted_run_is_in_the_log_and_nothing_of_it_begins(machines: Machines) -> None:
    a, _ = machines
    record = await a.agent().submit("Go", context_id="c", metadata={"order": 7}, owner="ann")

    assert (record.state, record.attempt, record.seq, record.context_id) == ("submitted", 1, 1, "c")
    [task] = await a.log.read(record.task_id)
    assert (task.kind, task.metadata, getattr(task, "owner", None)) == ("task", {"order": 7}, "ann")
    assert a.log.shared.turns == {}
    await nothing_left()


async def test_the_first_attempt_belongs_to_whoever_begins_it(machines: Machines) -> None:
    a, b = machines
    record = await a.agent().submit("Go")

    record = await b.agent("done").get_run(record.task_id).execute()

    assert (record.state, record.attempt) == ("completed", 1)
    assert kinds(await a.log.read(record.task_id))[:3] == ["task", "status-update", "llm-call"]


async def test_a_run_is_submitted_once(machines: Machines) -> None:
    a, b = machines
    key = derive_id("order", "7")
    await a.agent().submit("Go", task_id=key)
    with pytest.raises(RunExists, match=key):
        await b.agent().submit("Go", task_id=key)
    assert [record.task_id for record in await a.log.list_runs()] == [key]


@pytest.mark.parametrize("option", [{"on_input": print}, {"when_busy": "wait"}, {"steering": reactivex.never()}])
async def test_what_is_for_whoever_carries_a_run_out_is_not_submitted(machines: Machines, option: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"pass it to .*resume\(\)"):
        await machines[0].agent().submit("Go", **option)


@pytest.mark.parametrize("way", ["submit", "execute", "answer", "send"])
async def test_without_a_log_there_is_nothing_to_submit_to(way: str) -> None:
    agent = Agent(ScriptedModel("done"))
    run = agent.get_run("run")
    calls = {
        "submit": lambda: agent.submit("run"),
        "execute": run.execute,
        "answer": lambda: run.answer({}),
        "send": lambda: run.send("hi"),
    }
    with pytest.raises(ConfigurationError, match="needs a log"):
        await calls[way]()
