"""Pauses combined with crashes."""

from typing import Any

import pytest
from reactivex import Observable
from reactivex import operators as ops

from rxloop import (
    Agent,
    ContentCompleteEvent,
    InputReceivedEvent,
    MemoryEventLog,
    ModelRequest,
    RunContext,
    Signal,
    ToolStartEvent,
    op,
    tool,
)
from rxloop.errors import ContextLengthExceeded, InvalidInput
from rxloop.state.history import INTERRUPTED
from rxloop.stream.sources import emit
from rxloop.testing import ScriptedModel, call
from support.runs import collect, copy_first_events


class PaymentWorld:
    """Payment tool with a question."""

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


async def test_payment_approved_by_callback_is_not_repeated_after_a_crash() -> None:  # L89
    log = MemoryEventLog()
    result = await PaymentWorld().agent(log, call("pay", amount=5), "done").run("Pay", on_input=lambda question: True)
    events = await log.read(result.task_id)
    answered = next(event.seq for event in events if isinstance(event, InputReceivedEvent))
    truncated_log = await copy_first_events(log, result.task_id, answered)
    world = PaymentWorld()

    resumed = await world.agent(truncated_log, "done").resume(result.task_id)

    assert world.paid == []
    assert resumed.messages[2].text.startswith(INTERRUPTED)


async def test_payment_started_after_a_pause_is_not_repeated_after_a_crash() -> None:  # L89
    log = MemoryEventLog()
    paused = await PaymentWorld().agent(log, call("pay", amount=5)).run("Pay")
    await PaymentWorld().agent(log, "done").resume(paused.task_id, inputs={"1.0.1": True})
    events = await log.read(paused.task_id)
    starts = [event.seq for event in events if isinstance(event, ToolStartEvent)]
    assert len(starts) == 2

    # Answered but not restarted, so this call runs.
    world = PaymentWorld()
    await world.agent(await copy_first_events(log, paused.task_id, starts[1] - 1), "done").resume(paused.task_id)
    assert world.paid == [5]

    # Restarted after its answer, so its effect is unknown.
    world = PaymentWorld()
    result = await world.agent(await copy_first_events(log, paused.task_id, starts[1]), "done").resume(paused.task_id)
    assert world.paid == []
    assert result.messages[2].text.startswith(INTERRUPTED)


async def test_call_that_waits_through_two_pauses_is_executed_after_its_answer() -> None:  # L98
    log = MemoryEventLog()
    paused = await PaymentWorld().agent(log, [call("pay", amount=1), call("pay", amount=2)]).run("Pay")
    await PaymentWorld().agent(log).resume(paused.task_id, inputs={"1.0.1": True})
    world = PaymentWorld()

    result = await world.agent(log, "done").resume(paused.task_id, inputs={"1.1.1": True})

    assert world.paid == [2]
    assert [message.text for message in result.messages if message.role == "tool"] == ["paid", "paid"]


async def test_pending_question_survives_a_crash() -> None:  # L108
    log = MemoryEventLog()
    paused = await PaymentWorld().agent(log, call("pay", amount=5)).run("Pay")
    events = await log.read(paused.task_id)
    question_seq = next(event.seq for event in events if event.kind == "input-required")
    truncated_log = await copy_first_events(log, paused.task_id, question_seq)  # truncated before its final event
    world = PaymentWorld()

    # The run continues up to the recorded question and waits there.
    resumed = await world.agent(truncated_log, "done").resume(paused.task_id)
    assert resumed.state == "input-required"
    assert [question.input_id for question in resumed.pending] == ["1.0.1"]
    assert sum(event.kind == "input-required" for event in await truncated_log.read(paused.task_id)) == 1
    with pytest.raises(InvalidInput, match=r"waiting for 1\.0\.1"):
        await world.agent(truncated_log, "done").resume(paused.task_id)
    result = await world.agent(truncated_log, "done").resume(paused.task_id, inputs={"1.0.1": True})

    assert result.output == "done"
    assert world.paid == [5]


@pytest.mark.parametrize("asking", ["b", None])
async def test_pause_closes_the_failed_request_of_another_branch(asking: str | None) -> None:
    def add_branch(signal: Signal) -> Observable[Signal]:
        if not isinstance(signal, ModelRequest):
            return emit(signal)
        return emit(signal.replace(branch="b", step=f"b/{signal.step}"), signal)

    requests: list[str] = []

    def answer(request: ModelRequest) -> Any:
        requests.append(request.step)
        if len(requests) > 2:
            return "done"
        return call("pay", amount=5) if request.branch == asking else ContextLengthExceeded("too long")

    log, world = MemoryEventLog(), PaymentWorld()
    model = ScriptedModel(*[answer] * 6)
    agent = Agent(model, tools=world.tools, log=log, loop=[ops.flat_map(add_branch), *op.standard()])
    run = agent.run("Pay")
    events = await collect(run.pipe(op.grammar()))
    failed = "1" if asking else "b/1"
    closed = [each for each in events if isinstance(each, ContentCompleteEvent) and each.finish_reason == "canceled"]
    assert [each.step for each in closed] == [failed]
    [question] = (await run).pending
    assert not world.paid

    resumed = agent.resume(run.task_id, inputs={question.input_id: True})
    await collect(resumed.pipe(op.grammar()))
    result = await resumed
    assert result.output == "done"
    assert world.paid == [5]
    assert requests[2] == ("1" if asking else "b/2")
