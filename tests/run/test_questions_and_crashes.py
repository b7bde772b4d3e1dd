"""Questions and answers survive crashes."""

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
from support.bank import Bank, log_after_crash
from support.runs import collect, copy_first_events, outcome


async def test_run_killed_at_its_question_pauses_again_when_resumed() -> None:
    bank = Bank()
    paused = await bank.request_payment()
    question_seq = next(e.seq for e in await bank.log.read(paused.task_id) if e.kind == "input-required")
    bank.log = await copy_first_events(bank.log, paused.task_id, question_seq)

    resumed = await bank.agent().resume(paused.task_id)

    assert resumed.state == "input-required"
    assert bank.paid == []
    assert (await bank.agent("done").resume(paused.task_id, inputs={"1.0.1": True})).output == "done"
    assert len(bank.paid) == 1


async def test_answer_survives_a_crash_before_the_tool_received_it() -> None:
    bank = Bank()

    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks in its middle."""
        return "yes" if await ctx.ask("Really?") else "no"

    paused = await bank.agent(call("asks"), tools=[asks]).run("Go")
    question_seq = next(e.seq for e in await bank.log.read(paused.task_id) if e.kind == "input-required")
    bank.log = await copy_first_events(bank.log, paused.task_id, question_seq)
    await bank.agent("done", tools=[asks]).resume(paused.task_id, inputs={"1.0.1": True})
    events = await bank.log.read(paused.task_id)
    bank.log = await log_after_crash(bank.log, paused.task_id, InputReceivedEvent)

    result = await bank.agent("done", tools=[asks]).resume(paused.task_id)

    assert [message.text for message in result.messages if message.role == "tool"] == ["yes"]
    assert [e.kind for e in events].count("tool-complete") == 1


async def test_repeated_answer_is_ignored() -> None:
    bank = Bank()
    paused = await bank.request_payment()
    answers = {"1.0.1": True}
    first = await bank.agent("done").resume(paused.task_id, inputs=answers)

    resumed = await bank.agent("never said").resume(paused.task_id, inputs=answers)

    assert resumed.output == first.output
    assert len(bank.paid) == 1
    bank.log = await log_after_crash(bank.log, paused.task_id, InputReceivedEvent)
    third = await bank.agent("done").resume(paused.task_id, inputs=answers)
    assert third.output == "done"
    assert [e.kind for e in await bank.log.read(paused.task_id)].count("input-received") == 1


@pytest.mark.parametrize("other_answer", [False, 1, "true", None])
async def test_different_answer_to_an_answered_question_is_rejected(other_answer: Any) -> None:
    bank = Bank()
    paused = await bank.request_payment()
    await bank.agent("done").resume(paused.task_id, inputs={"1.0.1": True})

    with pytest.raises(InvalidInput, match="was already answered with True"):
        await bank.agent().resume(paused.task_id, inputs={"1.0.1": other_answer})


@pytest.mark.parametrize("state", ["completed", "failed", "canceled"])
async def test_answer_to_a_finished_run_is_rejected_with_its_state(state: str) -> None:  # L102
    bank = Bank()
    turns = {"completed": "done", "failed": RuntimeError("broken"), "canceled": "never said"}
    run = bank.agent(turns[state]).run("Hi")
    if state == "canceled":
        run.cancel()
    assert (await outcome(run)).state == state
    before = await bank.log.read(run.task_id)

    with pytest.raises(InvalidInput, match=f"is {state} and not waiting for 'zz'; it is waiting for nothing"):
        await bank.agent().resume(run.task_id, inputs={"zz": 1})

    assert await bank.log.read(run.task_id) == before


async def test_resume_starts_a_run_with_only_a_task_event() -> None:
    bank = Bank()
    task = TaskEvent(
        context_id="c",
        task_id="t",
        seq=1,
        attempt=1,
        timestamp=5,
        messages=[Message.user("Hi")],
        model="m",
        agent_name="agent",
    )
    await bank.log.append("t", [task], expected_seq=0)

    run = bank.agent("Hello.").resume("t")
    events = await collect(run.pipe(op.grammar()))

    assert (await run).output == "Hello."
    assert events[0] == task
    status = events[1]
    assert isinstance(status, StatusUpdateEvent)
    assert (status.attempt, status.resumed) == (1, False)
    assert status.after_seq is None
    assert [event.seq for event in events if event.durable] == list(range(1, len(await bank.log.read("t")) + 1))
