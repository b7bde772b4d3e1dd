"""Submitted runs are recorded and later executed by any process."""

from __future__ import annotations

from typing import Any

import pytest
import reactivex

from rxloop import Agent
from rxloop.agents import derive_id
from rxloop.errors import ConfigurationError, RunExists
from rxloop.testing import ScriptedModel
from support.processes.machines import Machines
from support.run_checks import assert_no_tasks, kinds


async def test_submit_records_the_run_without_starting_it(machines: Machines) -> None:
    a, _ = machines
    record = await a.agent().submit("Go", context_id="c", metadata={"order": 7}, owner="ann")

    assert (record.state, record.context_id) == ("submitted", "c")
    assert (record.attempt, record.seq) == (1, 1)
    [task] = await a.log.read(record.task_id)
    assert (task.kind, task.metadata) == ("task", {"order": 7})
    assert getattr(task, "owner", None) == "ann"
    assert a.log.shared.leases == {}
    await assert_no_tasks()


async def test_execute_is_the_first_attempt_of_a_submitted_run(machines: Machines) -> None:
    a, b = machines
    record = await a.agent().submit("Go")

    record = await b.agent("done").get_run(record.task_id).execute()

    assert (record.state, record.attempt) == ("completed", 1)
    assert kinds(await a.log.read(record.task_id))[:3] == ["task", "status-update", "llm-call"]


async def test_second_submit_with_the_same_id_raises(machines: Machines) -> None:
    a, b = machines
    key = derive_id("order", "7")
    await a.agent().submit("Go", task_id=key)
    with pytest.raises(RunExists, match=key):
        await b.agent().submit("Go", task_id=key)
    assert [record.task_id for record in await a.log.list_runs()] == [key]


@pytest.mark.parametrize("option", [{"on_input": print}, {"when_busy": "wait"}, {"steering": reactivex.never()}])
async def test_submit_rejects_options_for_execution(machines: Machines, option: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"pass it to .*resume\(\)"):
        await machines[0].agent().submit("Go", **option)


@pytest.mark.parametrize("method", ["submit", "execute", "answer", "send"])
async def test_methods_of_submitted_runs_raise_without_a_log(method: str) -> None:
    agent = Agent(ScriptedModel("done"))
    run = agent.get_run("run")
    calls = {
        "submit": lambda: agent.submit("run"),
        "execute": run.execute,
        "answer": lambda: run.answer({}),
        "send": lambda: run.send("hi"),
    }
    with pytest.raises(ConfigurationError, match="without an event log"):
        await calls[method]()
