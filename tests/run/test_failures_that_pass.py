"""A run that failed by something that passes can go on."""

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
from support.run_checks import finals
from support.runs import collect, outcome


@pytest.mark.parametrize("error", [Overloaded("503"), RateLimited("429"), ProviderConnectionError("broken")])
async def test_a_run_that_failed_by_something_that_passes_goes_on(error: Exception) -> None:
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
    # Nobody takes it up by itself.
    assert await bank.log.list_runs(unfinished=True) == []

    again = bank.agent("done", tools=[step]).resume(run.task_id)
    events = await collect(again)

    assert ((await again).output, len(steps)) == ("done", 2)
    assert {event.attempt for event in events} == {2}
    whole = await bank.log.read(run.task_id)
    assert [event.state for event in finals(whole)] == ["failed", "completed"]


@pytest.mark.parametrize("error", [RuntimeError("a mistake"), ValueError("bad")])
async def test_a_run_that_failed_for_good_gives_its_end_once_more(error: Exception) -> None:
    bank = Bank()
    run = bank.agent(error).run("Go")
    await outcome(run)
    before = await bank.log.read(run.task_id)

    again = await outcome(bank.agent("never said").resume(run.task_id))

    assert again.state == "failed"
    assert await bank.log.read(run.task_id) == before


async def test_a_conversation_that_is_busy_refuses_a_cancelled_attempt_too() -> None:
    bank = Bank()
    waiting = await bank.waiting(context_id="c")
    held = asyncio.Event()

    @tool
    async def holds() -> str:
        """Holds the conversation."""
        with pytest.raises(ContextBusy):
            await bank.agent().resume(waiting.task_id, inputs={"1.0.1": True})
        held.set()
        return "ok"

    await bank.agent(call("holds"), "done", tools=[holds]).run("Go", context_id="c")
    assert held.is_set()


def test_the_model_that_is_asked_again_is_told_of_nothing_twice() -> None:
    """The order of the parts: an answer, a cancel, another resume."""
    with virtual_time() as time:

        async def main() -> None:
            bank = Bank()
            waiting = await bank.waiting()
            run = bank.agent().resume(waiting.task_id, inputs={"1.0.1": True})
            run.cancel()
            await outcome(run)
            model = ScriptedModel("I see.")
            requests: list[ModelRequest] = model.requests
            result = await Agent(model, tools=[bank.pay], log=bank.log).resume(waiting.task_id)
            assert (result.output, bank.paid) == ("I see.", [])
            assert [message.text for message in requests[0].messages if message.role == "tool"] == [NEVER_BEGAN]

        time.run(main())
