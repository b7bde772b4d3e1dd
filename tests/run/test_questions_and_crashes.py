"""A question and its answer survive a crash, and count once."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop import (
    InputReceivedEvent,
    RunContext,
    StatusUpdateEvent,
    TaskEvent,
    op,
    tool,
)
from rxloop.errors import (
    InvalidInput,
)
from rxloop.protocol.messages import Message
from rxloop.testing import call
from support.bank import Bank, crashed
from support.runs import collect, first_events, outcome


async def test_a_run_that_was_killed_at_its_question_goes_up_to_it_and_pauses() -> None:
    bank = Bank()
    waiting = await bank.waiting()
    asked = next(e.seq for e in await bank.log.read(waiting.task_id) if e.kind == "input-required")
    bank.log = await first_events(bank.log, waiting.task_id, asked)

    again = await bank.agent().resume(waiting.task_id)

    assert (again.state, bank.paid) == ("input-required", [])
    assert (await bank.agent("done").resume(waiting.task_id, inputs={"1.0.1": True})).output == "done"
    assert len(bank.paid) == 1


async def test_an_answer_survives_a_kill_before_the_tool_had_it() -> None:
    bank = Bank()

    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks in its middle."""
        return "yes" if await ctx.ask("Really?") else "no"

    waiting = await bank.agent(call("asks"), tools=[asks]).run("Go")
    asked = next(e.seq for e in await bank.log.read(waiting.task_id) if e.kind == "input-required")
    bank.log = await first_events(bank.log, waiting.task_id, asked)
    await bank.agent("done", tools=[asks]).resume(waiting.task_id, inputs={"1.0.1": True})
    events = await bank.log.read(waiting.task_id)
    bank.log = await crashed(bank.log, waiting.task_id, InputReceivedEvent)

    result = await bank.agent("done", tools=[asks]).resume(waiting.task_id)

    assert [message.text for message in result.messages if message.role == "tool"] == ["yes"]
    assert [e.kind for e in events].count("tool-complete") == 1


async def test_the_same_answer_twice_is_passed_over() -> None:
    bank = Bank()
    waiting = await bank.waiting()
    answers = {"1.0.1": True}
    first = await bank.agent("done").resume(waiting.task_id, inputs=answers)

    again = await bank.agent("never said").resume(waiting.task_id, inputs=answers)

    assert (again.output, len(bank.paid)) == (first.output, 1)
    bank.log = await crashed(bank.log, waiting.task_id, InputReceivedEvent)
    once_more = await bank.agent("done").resume(waiting.task_id, inputs=answers)
    assert once_more.output == "done"
    assert [e.kind for e in await bank.log.read(waiting.task_id)].count("input-received") == 1


@pytest.mark.parametrize("other", [False, 1, "true", None])
async def test_another_answer_to_an_answered_question_is_refused(other: Any) -> None:
    bank = Bank()
    waiting = await bank.waiting()
    await bank.agent("done").resume(waiting.task_id, inputs={"1.0.1": True})

    with pytest.raises(InvalidInput, match="has its answer already: True"):
        await bank.agent().resume(waiting.task_id, inputs={"1.0.1": other})


@pytest.mark.parametrize("state", ["completed", "failed", "canceled"])
async def test_answers_for_a_run_that_is_over_are_refused_by_its_state(state: str) -> None:  # L102
    bank = Bank()
    turns = {"completed": "done", "failed": RuntimeError("broken"), "canceled": "never said"}
    run = bank.agent(turns[state]).run("Hi")
    if state == "canceled":
        run.cancel()
    assert (await outcome(run)).state == state
    before = await bank.log.read(run.task_id)

    with pytest.raises(InvalidInput, match=f"is {state} and does not wait for 'zz'; it waits for nothing"):
        await bank.agent().resume(run.task_id, inputs={"zz": 1})

    assert await bank.log.read(run.task_id) == before


async def test_a_run_of_which_only_the_task_is_written_is_begun_by_a_resume() -> None:
    bank = Bank()
    task = TaskEvent(
        context_id="c",
        task_id="t",
        seq=1,
        attempt=1,
        timestamp=5,
        messages=[Message.user("Hi")],
        model="m",
        agent_name="a",
    )
    await bank.log.append("t", [task], expected_seq=0)

    run = bank.agent("Hello.").resume("t")
    events = await collect(run.pipe(op.grammar()))

    assert (await run).output == "Hello."
    assert events[0] == task
    begun = events[1]
    assert isinstance(begun, StatusUpdateEvent)
    assert (begun.attempt, begun.resumed, begun.after_seq) == (1, False, None)
    assert [event.seq for event in events if event.durable] == list(range(1, len(await bank.log.read("t")) + 1))
