"""Changes of the goals of a run by its holder and by other processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, ModelRequest, RunContext, Runtime, SqliteEventLog, op, tool
from rxloop.errors import ConfigurationError, RunOver
from rxloop.protocol.commands import CancelCommand, GoalsCommand
from rxloop.testing import ScriptedModel, call
from rxloop.tools import GoalChange, GoalsUpdatedEvent, goal_tool
from support.processes.machines import Machine, two_machines
from support.run_checks import wait_until

PLAN: list[GoalChange] = [{"id": "crate", "title": "Find it"}, {"id": "box", "title": "Open it", "parent": "crate"}]
DONE: GoalChange = {"id": "box", "status": "done"}
INVALID: list[tuple[list[GoalChange], str]] = [
    ([{"id": "box", "depends_on": ["lid"]}], "unknown goal 'lid'"),
    ([{"id": "crate", "parent": "box"}], "must not wait for themselves"),
    ([{"id": f"g{number}", "title": "G"} for number in range(99)], "at most 100 goals, got 101"),
    ([{"id": "lid"}], "'lid' is new and needs a title"),
]


class Work:
    """Tool that waits until the test has changed the goals."""

    def __init__(self) -> None:
        self.started, self.resumed = asyncio.Event(), asyncio.Event()

        @tool
        async def look() -> str:
            """Look."""
            self.started.set()
            await self.resumed.wait()
            return "Nothing."

        self.tool = look


def make_agent(log: Any, model: ScriptedModel, *tools: Any, plan: Any = PLAN) -> Agent[None, str]:
    return Agent(model, tools=[goal_tool, *tools], log=log, loop=op.standard(before_model=[op.goals(*plan)]), name="a")


def make_remote(machine: Machine) -> Agent[None, str]:
    return make_agent(machine.log, ScriptedModel())


def last_layer(model: ScriptedModel) -> str:
    return model.requests[-1].tail[-1].text


async def list_updates(log: Any, task_id: str) -> list[GoalsUpdatedEvent]:
    return [event for event in await log.read(task_id) if isinstance(event, GoalsUpdatedEvent)]


@pytest.mark.parametrize(("changes", "message"), INVALID)
async def test_other_process_changes_goals_of_an_active_run(changes: list[GoalChange], message: str) -> None:
    (a, b), work, model = two_machines(), Work(), ScriptedModel(call("look"), "Done.")
    run = make_agent(a.log, model, work.tool).run("Find the crate.").start()
    await work.started.wait()
    remote = make_remote(b).get_run(run.task_id)
    with pytest.raises(ConfigurationError, match=message):
        await remote.update_goals(*changes)
    await remote.update_goals(DONE)
    work.resumed.set()
    await run
    assert "box (done)" in last_layer(model)
    assert [update.metadata for update in await list_updates(b.log, run.task_id)] == [{}, {"command_id": 1}]
    with pytest.raises(RunOver):
        await remote.update_goals(DONE)


async def test_goals_of_a_paused_run_are_changed_once_by_its_next_attempt() -> None:
    (a, b), model = two_machines(), ScriptedModel(call("pay", amount=5), "Done.", call("pay", amount=5))
    agent = make_agent(a.log, model, *a.tools)
    paused = await agent.run("Pay.")
    remote = make_remote(b).get_run(paused.task_id)
    await remote.update_goals({"id": "lid", "title": "Find the lid"})
    await remote.update_goals({"id": "box", "depends_on": ["lid"]})
    with pytest.raises(ConfigurationError, match="unknown goal 'key'"):
        await remote.update_goals({"id": "box", "depends_on": ["key"]})
    assert len(await list_updates(a.log, paused.task_id)) == 1
    assert (await make_remote(b).get_run(paused.task_id).execute()).state == "input-required"
    await agent.resume(paused.task_id, inputs={paused.pending[0].input_id: True})
    assert "box (pending, after lid)" in last_layer(model)
    assert [update.metadata.get("command_id") for update in await list_updates(a.log, paused.task_id)] == [None, 1, 2]


async def test_goals_can_be_changed_after_a_goal_was_added_while_a_cancel_is_pending() -> None:
    (a, b), model = two_machines(), ScriptedModel(call("pay", amount=5))
    paused = await make_agent(a.log, model, *a.tools).run("Pay.")
    remote = make_remote(b).get_run(paused.task_id)
    await remote.update_goals({"id": "lid", "title": "Find the lid"})
    await b.log.send_command(paused.task_id, CancelCommand())
    await remote.update_goals({"id": "box", "depends_on": ["lid"]})
    assert len(await a.log.read_commands(paused.task_id)) == 3


async def test_goals_of_earlier_runs_can_be_changed_before_the_next_run_changes_them() -> None:
    (a, b), model = two_machines(), ScriptedModel("Done.", call("look"), "Done again.")
    work = Work()
    await make_agent(a.log, model).run("Find the crate.", context_id="c")
    run = make_agent(a.log, model, work.tool).run("And now?", context_id="c").start()
    await work.started.wait()
    await make_remote(b).get_run(run.task_id).update_goals(DONE)
    work.resumed.set()
    await run
    assert "box (done)" in last_layer(model)


async def test_change_that_the_model_has_made_invalid_is_skipped_once(caplog: pytest.LogCaptureFixture) -> None:
    (a, b), work = two_machines(), Work()
    moved = call("update_goals", goals=[{"id": "box", "parent": ""}, {"id": "crate", "parent": "box"}])
    model = ScriptedModel([moved, call("look")], "Done.")
    run = make_agent(a.log, model, work.tool).run("Find the crate.").start()
    await work.started.wait()
    await b.log.send_command(run.task_id, GoalsCommand(changes=[{"id": "box", "parent": "crate"}]))
    await wait_until(lambda: "Skipping command 1" in caplog.text)
    work.resumed.set()
    await run
    updates = await list_updates(a.log, run.task_id)
    assert [goal.parent for goal in updates[-1].goals] == ["box", None]
    assert updates[-1].metadata == {"command_id": 1}


async def test_holder_changes_goals_while_the_run_is_active() -> None:
    work, model = Work(), ScriptedModel(call("look"), "Done.")
    run = make_agent(None, model, work.tool).run("Find the crate.")
    with pytest.raises(RunOver, match=r"call `await run\.begin\(\)` first"):
        run.update_goals(DONE)
    run.start()
    await work.started.wait()
    for changes, message in INVALID:
        with pytest.raises(ConfigurationError, match=message):
            run.update_goals(*changes)
    # The second call changes nothing.
    assert [goal.status for goal in run.update_goals(DONE)] == ["pending", "done"]
    assert await asyncio.to_thread(run.update_goals, DONE) == run.update_goals()
    work.resumed.set()
    await run
    assert "box (done)" in last_layer(model)
    assert len([event async for event in run.pipe(op.of_type(GoalsUpdatedEvent))]) == 2
    with pytest.raises(RunOver):
        run.update_goals(DONE)


async def test_runtime_changes_goals(tmp_path: Any) -> None:
    log, work, model = SqliteEventLog(tmp_path / "log.db"), Work(), ScriptedModel(call("look"), "Done.")
    async with Runtime({"a": make_agent(None, model, work.tool)}, log=log) as runtime:
        record = await runtime.start("a", "Find the crate.")
        await work.started.wait()
        await runtime.update_goals(record.task_id, DONE)
        work.resumed.set()
        await runtime.drain(10)
    assert "box (done)" in last_layer(model)
    await log.aclose()


LID: GoalChange = {"id": "lid", "title": "Find the lid"}


async def test_goals_of_a_submitted_run_are_added_to_the_initial_ones() -> None:
    log, model = MemoryEventLog(), ScriptedModel("Done.", "Done again.")
    agent = make_agent(log, model)
    record = await agent.submit("Find the crate.", context_id="c")
    changes: list[GoalChange] = [LID, {"id": "box", "title": "Open both", "status": "done"}]
    for change in changes:
        await agent.get_run(record.task_id).update_goals(change)
    await agent.get_run(record.task_id).execute()
    expected = "- crate (pending): Find it\n  - box (done): Open both\n- lid (pending): Find the lid"
    assert last_layer(model).partition("\n")[2] == expected
    await agent.run("And now?", context_id="c")
    assert last_layer(model).partition("\n")[2] == expected
    assert len(await list_updates(log, record.task_id)) == 3


async def test_goals_are_added_to_the_initial_ones_when_they_are_changed_before_the_first_request() -> None:
    @op.on(ModelRequest)
    async def change(request: ModelRequest, ctx: RunContext[None]) -> AsyncIterator[ModelRequest]:
        run.update_goals(LID)
        yield request

    model = ScriptedModel("Done.")
    run = Agent(model, loop=op.standard(before_model=[change, op.goals(*PLAN)])).run("Find the crate.")
    await run
    assert [line.split()[1] for line in last_layer(model).splitlines()[1:]] == ["crate", "box", "lid"]


async def test_initial_goals_are_not_added_to_goals_that_contradict_them(caplog: pytest.LogCaptureFixture) -> None:
    log, model = MemoryEventLog(), ScriptedModel(call("update_goals", goals=[DONE]), "Done.")
    agent = make_agent(log, model)
    record = await agent.submit("Find the crate.")
    changes: list[GoalChange] = [{"id": "box", "title": "Open it"}, {**PLAN[0], "parent": "box"}]
    await agent.get_run(record.task_id).update_goals(*changes)
    await agent.get_run(record.task_id).execute()
    assert last_layer(model).partition("\n")[2] == "- box (done): Open it"
    assert caplog.text.count("must not wait for themselves") == 1
