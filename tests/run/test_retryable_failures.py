"""Resumption of runs that failed with a retryable error."""

from __future__ import annotations

import asyncio

import pytest

from rxloop import (
    Agent,
    RunError,
    tool,
)
from rxloop.errors import (
    ContextBusy,
    Overloaded,
    ProviderConnectionError,
    RateLimited,
)
from rxloop.pipeline.requests import ModelRequest
from rxloop.state.history import NEVER_BEGAN
from rxloop.testing import ScriptedModel, call, virtual_time
from support.bank import Bank
from support.run_checks import final_events
from support.runs import collect, outcome


@pytest.mark.parametrize("error", [Overloaded("503"), RateLimited("429"), ProviderConnectionError("broken")])
async def test_run_that_failed_with_a_retryable_error_can_be_resumed(error: Exception) -> None:
    bank = Bank()
    steps: list[int] = []

    @tool
    async def step() -> str:
        """A step."""
        steps.append(1)
        return "ok"

    run = bank.agent(call("step"), call("step"), error, tools=[step]).run("Go", context_id="c")
    with pytest.raises(RunError) as caught:
        await run
    assert caught.value.result.error is not None
    assert caught.value.result.error.retryable
    # Workers do not resume failed runs automatically.
    assert await bank.log.list_runs(unfinished=True) == []

    resumed = bank.agent("done", tools=[step]).resume(run.task_id)
    events = await collect(resumed)

    assert (await resumed).output == "done"
    assert len(steps) == 2
    assert {event.attempt for event in events} == {2}
    recorded = await bank.log.read(run.task_id)
    assert [event.state for event in final_events(recorded)] == ["failed", "completed"]


@pytest.mark.parametrize("error", [RuntimeError("a mistake"), ValueError("bad")])
async def test_resume_of_permanently_failed_run_returns_its_result_again(error: Exception) -> None:
    bank = Bank()
    run = bank.agent(error).run("Go")
    await outcome(run)
    before = await bank.log.read(run.task_id)

    resumed = await outcome(bank.agent("never said").resume(run.task_id))

    assert resumed.state == "failed"
    assert await bank.log.read(run.task_id) == before


async def test_resume_is_refused_while_another_run_holds_the_conversation() -> None:
    bank = Bank()
    paused = await bank.request_payment(context_id="c")
    refused = asyncio.Event()

    @tool
    async def holds() -> str:
        """Holds the conversation."""
        with pytest.raises(ContextBusy):
            await bank.agent().resume(paused.task_id, inputs={"1.0.1": True})
        refused.set()
        return "ok"

    await bank.agent(call("holds"), "done", tools=[holds]).run("Go", context_id="c")
    assert refused.is_set()


def test_model_sees_an_interrupted_call_once_after_answer_cancel_and_resume() -> None:
    with virtual_time() as time:

        async def main() -> None:
            bank = Bank()
            paused = await bank.request_payment()
            run = bank.agent().resume(paused.task_id, inputs={"1.0.1": True})
            run.cancel()
            await outcome(run)
            model = ScriptedModel("I see.")
            requests: list[ModelRequest] = model.requests
            result = await Agent(model, tools=[bank.pay], log=bank.log).resume(paused.task_id)
            assert result.output == "I see."
            assert bank.paid == []
            assert [message.text for message in requests[0].messages if message.role == "tool"] == [NEVER_BEGAN]

        time.run(main())
