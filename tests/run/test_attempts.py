"""Attempt limit for runs that kill their workers."""

from __future__ import annotations

import pytest

from rxloop import Agent, LimitReached, Limits, MemoryEventLog, RunContext, RunError, ToolCompleteEvent, tool
from rxloop.errors import Overloaded
from rxloop.testing import ScriptedModel, call
from support.bank import Bank
from support.runs import copy_first_events, outcome


async def crash_attempt(log: MemoryEventLog, task_id: str, limits: Limits, model: ScriptedModel) -> MemoryEventLog:
    """Simulate a crash during the first model call and return the resulting log."""
    before = len(await log.read(task_id))
    result = await outcome(Agent(model, log=log, limits=limits).resume(task_id))
    if result.reason == "attempts":
        return log
    return await copy_first_events(log, task_id, before + 2)


@pytest.fixture
async def interrupted_run() -> tuple[MemoryEventLog, str]:
    log = MemoryEventLog()
    result = await Agent(ScriptedModel("Hi"), log=log).run("Hello")
    return await copy_first_events(log, result.task_id, 3), result.task_id


async def test_attempt_above_the_limit_ends_the_run_without_a_model_call(
    interrupted_run: tuple[MemoryEventLog, str],
) -> None:
    log, task_id = interrupted_run
    model, limits = ScriptedModel(*["Hi"] * 9), Limits(attempts=3)
    for _ in range(5):
        log = await crash_attempt(log, task_id, limits, model)

    assert len(model.requests) == 2
    with pytest.raises(LimitReached, match="3 attempts in a row") as caught:
        await Agent(model, log=log).resume(task_id)
    assert (caught.value.code, caught.value.result.state) == ("attempts", "failed")
    assert [event.attempt for event in await log.read(task_id)][-1] == 4
    assert (await log.list_runs())[0].finished


async def test_run_resumes_any_number_of_times_when_attempts_limit_is_none(
    interrupted_run: tuple[MemoryEventLog, str],
) -> None:
    log, task_id = interrupted_run
    model, limits = ScriptedModel(*["Hi"] * 30), Limits(attempts=None)
    for _ in range(25):
        log = await crash_attempt(log, task_id, limits, model)

    assert (await Agent(ScriptedModel("Hi"), log=log, limits=limits).resume(task_id)).output == "Hi"


async def test_retryable_failure_counts_as_an_attempt() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(*[Overloaded("503")] * 9), log=log, limits=Limits(attempts=2))
    run = agent.run("Hello")
    with pytest.raises(RunError):
        await run
    with pytest.raises(RunError):
        await agent.resume(run.task_id)

    with pytest.raises(LimitReached, match="2 attempts"):
        await agent.resume(run.task_id)


async def test_pause_does_not_count_as_an_attempt() -> None:
    bank = Bank()
    limits = Limits(attempts=1)
    paused = await bank.request_payment(limits=limits)

    result = await bank.agent("Paid.").resume(paused.task_id, inputs={"1.0.1": True})

    assert result.output == "Paid."


async def test_open_calls_are_closed_when_the_attempts_limit_ends_a_run() -> None:
    @tool
    async def die() -> str:
        """Kill the worker."""
        return "never"

    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("die"), "Hi"), tools=[die], log=log)
    result = await agent.run("Go")
    events = await log.read(result.task_id)
    start = next(event.seq for event in events if event.kind == "tool-start")
    truncated_log = await copy_first_events(log, result.task_id, start)

    result = await outcome(
        Agent(ScriptedModel(), tools=[die], log=truncated_log).resume(result.task_id, limits=Limits(attempts=1))
    )
    [answer] = [event for event in await truncated_log.read(result.task_id) if isinstance(event, ToolCompleteEvent)]
    assert (answer.error, result.reason) == ("canceled", "attempts")


async def test_idempotency_key_of_a_call_is_the_same_in_every_attempt() -> None:
    keys: list[str] = []

    @tool(idempotent=True)
    async def pay(ctx: RunContext[None]) -> str:
        """Pay."""
        keys.append(ctx.idempotency_key)
        return "paid"

    log = MemoryEventLog()
    agent = Agent(ScriptedModel([call("pay"), call("pay")], "Hi"), tools=[pay], log=log)
    result = await agent.run("Go")
    start = [event.seq for event in await log.read(result.task_id) if event.kind == "tool-start"]
    truncated_log = await copy_first_events(log, result.task_id, start[-1])
    await Agent(ScriptedModel("Hi"), tools=[pay], log=truncated_log).resume(result.task_id)

    assert len(keys) > 2
    assert {*keys} == {f"{result.task_id}:1:0", f"{result.task_id}:1:1"}
