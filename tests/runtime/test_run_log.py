"""Log records of ended attempts."""

from __future__ import annotations

import logging

import pytest

from rxloop import Agent, MemoryEventLog, Runtime, StatusUpdateEvent, ToolCompleteEvent, tool
from rxloop.testing import ScriptedModel, call


async def execute(model: ScriptedModel) -> None:
    async with Runtime({"guide": Agent(model)}, log=MemoryEventLog()) as runtime:
        record = await runtime.start("guide", "PIN 47-11", context_id="c1")
        await runtime.follow(record.task_id)


def select_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.name == "rxloop.runs"]


async def test_completed_run_is_logged_with_its_figures_but_without_content(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rxloop")
    await execute(ScriptedModel("Secret answer"))
    [record] = select_records(caplog)
    assert record.levelno == logging.INFO
    fields = vars(record)
    assert [fields[name] for name in ("context", "agent", "state", "reason", "code", "model_calls")] == [
        *("c1", "guide", "completed", None, None, 1),
    ]
    assert fields["seconds"] >= 0
    assert record.getMessage().startswith(f"Run {fields['task']} of guide ended: completed, ")
    assert "47-11" not in str(fields)
    assert "Secret" not in str(fields)


async def test_failed_run_is_a_warning_with_its_error_code(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rxloop")
    await execute(ScriptedModel(ValueError("PIN 47-11")))
    [record] = select_records(caplog)
    assert (record.levelno, vars(record)["state"]) == (logging.WARNING, "failed")
    assert vars(record)["code"]
    assert f"failed ({vars(record)['code']})" in record.getMessage()
    assert "47-11" not in str(vars(record))


async def test_figures_of_a_fork_exclude_copied_attempts(caplog: pytest.LogCaptureFixture) -> None:
    @tool(approve=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("pay"), "Done.", "Done again."), tools=[pay], log=log)
    paused = await agent.run("Pay.")
    await agent.resume(paused.task_id, inputs={paused.pending[0].input_id: True})
    [last_call] = [event for event in await log.read(paused.task_id) if isinstance(event, ToolCompleteEvent)]
    caplog.set_level(logging.INFO, "rxloop")
    async with Runtime({"agent": agent}, log=log) as runtime:
        fork = await runtime.fork(paused.task_id, last_call.seq)
        await runtime.follow(fork.task_id)
    [record] = select_records(caplog)
    assert [vars(record)[name] for name in ("task", "state", "model_calls")] == [fork.task_id, "completed", 1]


async def test_failure_of_a_tool_is_logged_with_the_ids_of_its_run(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def look() -> None:
        """Look."""
        raise ValueError("broken")

    agent = Agent(ScriptedModel(call("look"), "Done."), tools=[look])
    result = await agent.run("Go.")
    [record] = caplog.records
    assert record.getMessage() == "Tool look failed"
    assert (vars(record)["task"], vars(record)["context"]) == (result.task_id, result.context_id)


async def test_runs_are_not_logged_below_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "rxloop")
    await execute(ScriptedModel(ValueError("failed")))
    assert not select_records(caplog)


async def test_logged_runs_use_the_overrides_of_their_agent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rxloop")
    async with Runtime({"guide": Agent(ScriptedModel("From the agent"))}, log=MemoryEventLog()) as runtime:
        with runtime.agents["guide"].override(model=ScriptedModel("From the override")):
            record = await runtime.start("guide", "Hello")
            last = await runtime.follow(record.task_id)
    assert isinstance(last, StatusUpdateEvent)
    assert last.content == "From the override"
    assert len(select_records(caplog)) == 1
