"""Runs of agents with other names."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop import Agent, ConfigurationError, MemoryEventLog
from rxloop.testing import ScriptedModel, call
from support.slow_agent import pay


def agent(name: str, *turns: Any, log: MemoryEventLog) -> Agent[None, str]:
    return Agent(ScriptedModel(*turns), name=name, tools=[pay], log=log, thoughts=False)


async def ask(log: MemoryEventLog) -> tuple[str, str]:
    """Start a run of the agent `billing` that waits for an answer."""
    result = await agent("billing", call("pay", amount=5), log=log).run("Pay")
    return result.task_id, result.pending[0].input_id


REFUSAL = "belongs to agent 'billing', and agent 'support' must not continue it"


async def test_agent_does_not_resume_a_run_of_another_agent() -> None:
    log = MemoryEventLog()
    task_id, input_id = await ask(log)
    before = await log.read(task_id)
    with pytest.raises(ConfigurationError, match=REFUSAL):
        await agent("support", "Paid.", log=log).resume(task_id, inputs={input_id: True})
    assert await log.read(task_id) == before


async def test_agent_does_not_execute_a_run_of_another_agent() -> None:
    log = MemoryEventLog()
    record = await agent("billing", log=log).submit("Pay")
    with pytest.raises(ConfigurationError, match=REFUSAL):
        await agent("support", "Paid.", log=log).get_run(record.task_id).execute()
    assert (await log.get_record(record.task_id)).state == "submitted"


async def test_renamed_agent_resumes_its_run() -> None:
    log = MemoryEventLog()
    task_id, input_id = await ask(log)
    renamed = agent("support", "Paid.", log=log).with_name("billing")
    assert (await renamed.resume(task_id, inputs={input_id: True})).output == "Paid."


async def test_agent_cancels_a_run_of_another_agent() -> None:
    log = MemoryEventLog()
    task_id, _ = await ask(log)
    await agent("support", log=log).get_run(task_id).cancel()
    assert (await log.get_record(task_id)).state == "canceled"


async def test_agent_drops_the_question_of_another_agent_in_its_conversation() -> None:
    log = MemoryEventLog()
    billing = await agent("billing", call("pay", amount=5), log=log).run("Pay", context_id="c")
    assert (await agent("support", "Hello.", log=log).run("Hi", context_id="c")).output == "Hello."
    assert (await log.get_record(billing.task_id)).state == "canceled"


async def test_agent_forks_a_run_of_another_agent() -> None:
    log = MemoryEventLog()
    result = await agent("billing", "Paid.", log=log).run("Pay")
    assert (await agent("support", "No.", log=log).fork(result.task_id, at=1)).output == "No."
