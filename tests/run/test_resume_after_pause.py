"""Calls beside a question, over pauses and crashes: what was begun is not begun twice."""

from typing import Any

import pytest

from rxloop import (
    Agent,
    InputReceivedEvent,
    MemoryEventLog,
    RunContext,
    ToolStartEvent,
    tool,
)
from rxloop.errors import InvalidInput
from rxloop.state.history import INTERRUPTED
from rxloop.testing import ScriptedModel, call
from support.runs import first_events


class Asking:
    """A payment that asks first, in a process that may die at any moment."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.die = False

        @tool
        async def pay(ctx: RunContext[Any], amount: int) -> str:
            """Pays."""
            if not await ctx.ask(f"Pay {amount}?"):
                return "not paid"
            self.paid.append(amount)
            return "paid"

        self.tools = [pay]

    def agent(self, log: MemoryEventLog, *turns: Any) -> Agent:
        return Agent(ScriptedModel(*turns), tools=self.tools, log=log)


async def test_a_payment_that_had_its_answer_at_once_is_not_made_twice() -> None:  # L89
    log = MemoryEventLog()
    result = await Asking().agent(log, call("pay", amount=5), "done").run("Pay", on_input=lambda question: True)
    events = await log.read(result.task_id)
    answered = next(event.seq for event in events if isinstance(event, InputReceivedEvent))
    cut = await first_events(log, result.task_id, answered)
    world = Asking()

    again = await world.agent(cut, "done").resume(result.task_id)

    assert world.paid == []
    assert again.messages[2].text.startswith(INTERRUPTED)


async def test_a_payment_that_was_begun_after_a_pause_is_not_made_twice() -> None:  # L89
    log = MemoryEventLog()
    paused = await Asking().agent(log, call("pay", amount=5)).run("Pay")
    await Asking().agent(log, "done").resume(paused.task_id, inputs={"1.0.1": True})
    events = await log.read(paused.task_id)
    begun = [event.seq for event in events if isinstance(event, ToolStartEvent)]
    assert len(begun) == 2

    # The answer is in the log, and the tool has not begun again: it is called.
    world = Asking()
    await world.agent(await first_events(log, paused.task_id, begun[1] - 1), "done").resume(paused.task_id)
    assert world.paid == [5]

    # It has begun again, with the answer: nobody knows how far it came.
    world = Asking()
    result = await world.agent(await first_events(log, paused.task_id, begun[1]), "done").resume(paused.task_id)
    assert world.paid == []
    assert result.messages[2].text.startswith(INTERRUPTED)


async def test_a_call_that_waited_through_two_pauses_is_made_when_its_answer_comes() -> None:  # L98
    log = MemoryEventLog()
    paused = await Asking().agent(log, [call("pay", amount=1), call("pay", amount=2)]).run("Pay")
    await Asking().agent(log).resume(paused.task_id, inputs={"1.0.1": True})
    world = Asking()

    result = await world.agent(log, "done").resume(paused.task_id, inputs={"1.1.1": True})

    assert world.paid == [2]
    assert [message.text for message in result.messages if message.role == "tool"] == ["paid", "paid"]


async def test_a_crash_while_a_question_waits_keeps_the_question() -> None:  # L108
    log = MemoryEventLog()
    paused = await Asking().agent(log, call("pay", amount=5)).run("Pay")
    events = await log.read(paused.task_id)
    asked = next(event.seq for event in events if event.kind == "input-required")
    cut = await first_events(log, paused.task_id, asked)  # not even the end of the attempt is in the log
    world = Asking()

    # It goes up to the question, without another one, and waits there.
    again = await world.agent(cut, "done").resume(paused.task_id)
    assert (again.state, [question.input_id for question in again.pending]) == ("input-required", ["1.0.1"])
    assert sum(event.kind == "input-required" for event in await cut.read(paused.task_id)) == 1
    with pytest.raises(InvalidInput, match=r"waits for 1\.0\.1"):
        await world.agent(cut, "done").resume(paused.task_id)
    result = await world.agent(cut, "done").resume(paused.task_id, inputs={"1.0.1": True})

    assert (result.output, world.paid) == ("done", [5])
