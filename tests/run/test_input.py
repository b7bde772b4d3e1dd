"""Questions from tools and guards."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rxloop import (
    Agent,
    Event,
    InputReceivedEvent,
    InputRequiredEvent,
    MemoryEventLog,
    NotFinished,
    PendingInput,
    RunContext,
    StatusUpdateEvent,
    ToolCompleteEvent,
    op,
    tool,
)
from rxloop.errors import InvalidInput
from rxloop.pipeline.requests import Signal, ToolRequest
from rxloop.testing import ScriptedModel, call, virtual_time
from support.payments import Payments
from support.runs import collect, format_marbles, is_well_formed, outcome, shape


async def test_attempt_ends_as_input_required_without_on_input(bank: Payments) -> None:  # L95
    run = bank.agent(call("pay", amount=5)).run("Pay")
    events = await collect(run)
    result = await run

    assert format_marbles(events) == "twlcsikF"
    assert result.state == "input-required"
    assert result.reason == "input"
    (question,) = result.pending
    assert (question.input_id, question.prompt, question.input_kind) == ("1.0.1", "Pay 5?", "confirmation")
    assert question.call is not None
    assert (question.call.name, question.answer_schema) == ("pay", {"type": "boolean"})
    final = events[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert final.pending == [question]
    assert await bank.log.read(run.task_id) == tuple(event for event in events if event.durable)
    with pytest.raises(NotFinished, match=r"1\.0\.1"):
        _ = result.output


@pytest.mark.parametrize("value", [True, False])
async def test_resume_with_the_answer_calls_the_tool_again_and_completes(bank: Payments, value: bool) -> None:  # L96
    paused = await bank.agent(call("pay", amount=5)).run("Pay")
    agent = bank.agent("done")
    run = agent.resume(paused.task_id, inputs={"1.0.1": value})
    events = await collect(run)
    result = await run

    assert bank.paid == [(5, value)]
    assert result.output == "done"
    assert shape(result.messages) == ["user: Pay", "assistant: pay", f"tool: {value}", "assistant: done"]
    assert format_marbles(events) == "wrsxklckF"
    assert [event.seq for event in events if event.durable] == list(range(9, 18))
    assert {event.attempt for event in events} == {2}


@pytest.mark.parametrize("value", [0, 0.0, "", [], None, {}])
async def test_falsy_value_is_a_valid_answer(value: Any) -> None:  # L96
    received: list[Any] = []

    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks."""
        received.append(await ctx.ask("What?", type(value) if value is not None else None))  # type: ignore[arg-type]
        return "ok"

    log = MemoryEventLog()
    paused = await Agent(ScriptedModel(call("asks")), tools=[asks], log=log).run("Go")
    agent = Agent(ScriptedModel("done"), tools=[asks], log=log)

    assert (await agent.resume(paused.task_id, inputs={"1.0.1": value})).output == "done"
    assert received == [value]


async def test_other_calls_of_the_batch_are_not_repeated_on_resume(bank: Payments) -> None:  # L97
    paused = await bank.agent([call("pay", amount=5), call("step", n=7), call("step", n=8)]).run("Pay")
    assert bank.paid == [7, 8]

    result = await bank.agent("done").resume(paused.task_id, inputs={"1.0.1": True})

    assert bank.paid == [7, 8, (5, True)]
    assert shape(result.messages)[2:5] == ["tool: True", "tool: 7", "tool: 8"]


async def test_run_waits_for_the_second_answer_after_the_first(bank: Payments) -> None:  # L98
    paused = await bank.agent([call("pay", amount=1), call("pay", amount=2)]).run("Pay")
    assert [question.input_id for question in paused.pending] == ["1.0.1", "1.1.1"]

    agent = bank.agent("done")
    partial = await agent.resume(paused.task_id, inputs={"1.1.1": False})
    assert partial.state == "input-required"
    assert [question.input_id for question in partial.pending] == ["1.0.1"]
    assert bank.paid == [(2, False)]
    assert agent.model.requests == []  # type: ignore[attr-defined]

    result = await agent.resume(paused.task_id, inputs={"1.0.1": True})

    assert bank.paid == [(2, False), (1, True)]
    assert shape(result.messages)[2:4] == ["tool: True", "tool: False"]
    assert result.output == "done"


async def test_each_question_of_a_call_has_its_own_id() -> None:  # L99
    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks three times."""
        return f"{await ctx.ask('One?', str)}{await ctx.ask('Two?', str)}{await ctx.ask('Three?', str)}"

    log = MemoryEventLog()
    result = await Agent(ScriptedModel(call("asks")), tools=[asks], log=log).run("Go")
    input_ids: list[str] = []
    for answer in "abc":
        input_ids.append(result.pending[0].input_id)
        agent = Agent(ScriptedModel("done"), tools=[asks], log=log)
        result = await agent.resume(result.task_id, inputs={input_ids[-1]: answer})
    assert input_ids == ["1.0.1", "1.0.2", "1.0.3"]
    assert shape(result.messages)[2] == "tool: abc"
    questions = [event for event in await log.read(result.task_id) if isinstance(event, InputRequiredEvent)]
    assert [event.input_id for event in questions] == input_ids


async def test_new_message_closes_pending_calls_and_starts_a_turn(bank: Payments) -> None:  # L100
    await bank.agent([call("pay", amount=5), call("step", n=7)]).run("Pay", context_id="c")

    model_agent = bank.agent("Never mind then.")
    result = await model_agent.run("Forget it.", context_id="c")

    assert result.output == "Never mind then."
    assert shape(result.messages) == [
        "user: Pay",
        "assistant: pay,step",
        "tool: The call was cancelled before it had a result.",
        "tool: 7",
        "user: Forget it.",
        "assistant: Never mind then.",
    ]
    assert is_well_formed(result.messages)


@pytest.mark.parametrize("options", [{"inputs": {"1.0.1": True}}, {"on_input": lambda question: True}])
async def test_answer_is_rejected_after_a_later_run_dropped_the_question(
    bank: Payments, options: dict[str, Any]
) -> None:
    paused = await bank.agent([call("pay", amount=5)]).run("Pay", context_id="c")
    question_seq = (await bank.log.get_record(paused.task_id)).seq
    answer_later = await bank.agent("Never mind then.").run("Forget it.", context_id="c")
    before = await bank.log.read(paused.task_id)

    with pytest.raises(
        InvalidInput, match=rf"{paused.task_id} is no longer waiting .*{answer_later.task_id}.* new run.*fork"
    ):
        await bank.agent("Paid.").resume(paused.task_id, **options)
    assert bank.paid == []
    assert await bank.log.read(paused.task_id) == before

    forked = await bank.agent("Paid.").fork(paused.task_id, question_seq, on_input=lambda question: True)
    assert forked.output == "Paid."
    assert bank.paid == [(5, True)]


async def test_synchronous_on_input_is_called_sequentially_in_order(bank: Payments) -> None:
    lock = threading.Lock()
    asked: list[tuple[str, bool]] = []

    def answer_in_thread(question: PendingInput) -> bool:
        is_exclusive = lock.acquire(blocking=False)
        # The event loop runs meanwhile, so that another question could arrive.
        for _ in range(20):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(5)
        asked.append((question.prompt, is_exclusive))
        if is_exclusive:
            lock.release()
        return True

    loop = asyncio.get_running_loop()
    calls = [call("pay", amount=amount) for amount in range(4)]
    await bank.agent(calls, "done").run("Pay", on_input=answer_in_thread)
    assert asked == [(f"Pay {amount}?", True) for amount in range(4)]


async def test_resume_of_waiting_run_without_inputs_is_rejected(bank: Payments) -> None:  # L101
    paused = await bank.agent(call("pay", amount=5)).run("Pay")
    before = await bank.log.read(paused.task_id)
    agent = bank.agent("done")

    with pytest.raises(InvalidInput, match=r"1\.0\.1.*inputs="):
        await agent.resume(paused.task_id)

    assert await bank.log.read(paused.task_id) == before
    assert agent.model.requests == []  # type: ignore[attr-defined]
    assert (await agent.resume(paused.task_id, inputs={"1.0.1": True})).output == "done"


@pytest.mark.parametrize("inputs", [{"9.9.9": True}, {"1.0.1": True, "9.9.9": True}])
async def test_resume_rejects_unknown_input_id_by_name(bank: Payments, inputs: dict[str, Any]) -> None:  # L102
    paused = await bank.agent(call("pay", amount=5)).run("Pay")
    agent = bank.agent("done")

    with pytest.raises(InvalidInput, match=r"'9\.9\.9'.*waiting for 1\.0\.1"):
        await agent.resume(paused.task_id, inputs=inputs)

    assert agent.model.requests == []  # type: ignore[attr-defined]
    assert bank.paid == []


@pytest.mark.parametrize("value", ["yes", 1, None, {}])
async def test_resume_rejects_invalid_answer_without_writing_events(bank: Payments, value: Any) -> None:
    paused = await bank.agent(call("pay", amount=5)).run("Pay")
    before = await bank.log.read(paused.task_id)

    with pytest.raises(InvalidInput, match=r"Pay 5\?"):
        await bank.agent("done").resume(paused.task_id, inputs={"1.0.1": value})

    assert await bank.log.read(paused.task_id) == before


async def test_resume_rejects_inputs_for_a_run_without_questions(bank: Payments) -> None:  # L102
    cancelled = bank.agent(call("step")).run("Go")
    cancelled.cancel()
    await outcome(cancelled)

    with pytest.raises(InvalidInput, match="waiting for nothing"):
        await bank.agent("done").resume(cancelled.task_id, inputs={"1.0.1": True})


async def test_answer_must_be_one_of_the_options() -> None:  # L104
    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks."""
        return await ctx.ask("Which?", str, options=["red", "blue"])

    log = MemoryEventLog()
    paused = await Agent(ScriptedModel(call("asks")), tools=[asks], log=log).run("Go")
    assert (paused.pending[0].input_kind, paused.pending[0].options) == ("selection", ["red", "blue"])

    agent = Agent(ScriptedModel("done"), tools=[asks], log=log)
    with pytest.raises(InvalidInput, match="must be one of"):
        await agent.resume(paused.task_id, inputs={"1.0.1": "green"})
    assert (await agent.resume(paused.task_id, inputs={"1.0.1": "blue"})).output == "done"


@pytest.mark.parametrize("answer", [1, 0, "true", None])
async def test_number_is_not_one_of_the_options_true_and_false(answer: Any) -> None:
    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks."""
        return str(await ctx.ask("Sure?", object, options=[True, False]))

    log = MemoryEventLog()
    paused = await Agent(ScriptedModel(call("asks")), tools=[asks], log=log).run("Go")
    agent = Agent(ScriptedModel("done"), tools=[asks], log=log)
    with pytest.raises(InvalidInput):
        await agent.resume(paused.task_id, inputs={"1.0.1": answer})
    assert (await agent.resume(paused.task_id, inputs={"1.0.1": True})).output == "done"


@pytest.mark.parametrize("is_async", [False, True])
def test_on_input_answers_a_question_within_the_same_attempt(is_async: bool) -> None:
    asked: list[PendingInput] = []

    def answer(question: PendingInput) -> bool:
        asked.append(question)
        return True

    async def answer_later(question: PendingInput) -> bool:
        asked.append(question)
        await asyncio.sleep(60)
        return True

    bank = Payments()
    with virtual_time() as time:
        run = bank.agent(call("pay", amount=5), "done").run("Pay", on_input=answer_later if is_async else answer)
        events = time.run(collect(run))
        result = time.run(run)
        assert time.now == (60 if is_async else 0)

    assert format_marbles(events) == "twlcsirxklckF"
    assert result.output == "done"
    assert [question.prompt for question in asked] == ["Pay 5?"]
    assert [event.value for event in events if isinstance(event, InputReceivedEvent)] == [True]


@pytest.mark.parametrize("on_input", [lambda question: "perhaps", lambda question: 1 / 0])
async def test_call_fails_when_on_input_raises_or_returns_an_invalid_answer(bank: Payments, on_input: Any) -> None:
    events = await collect(bank.agent(call("pay", amount=5), "done").run("Pay", on_input=on_input))

    (answer,) = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert not answer.success
    assert bank.paid == []
    assert events[-1].state == "completed"  # type: ignore[attr-defined]


def test_call_fails_when_its_own_time_limit_ends_a_question() -> None:
    @tool(timeout=10)
    async def asks(ctx: RunContext[Any]) -> str:
        """Ask with a time limit that includes questions, unlike the call timeout."""
        async with asyncio.timeout(1):
            return str(await ctx.ask("Sure?"))

    async def never_answer(question: PendingInput) -> bool:
        await asyncio.sleep(3600)
        return True

    with virtual_time() as time:
        result = time.run(Agent(ScriptedModel(call("asks"), "done"), tools=[asks]).run("Go", on_input=never_answer))

    assert result.output == "done"
    assert "TimeoutError" in result.messages[2].text


async def test_waiting_run_can_be_resumed_with_on_input(bank: Payments) -> None:
    paused = await bank.agent(call("pay", amount=5)).run("Pay")

    result = await bank.agent("done").resume(paused.task_id, on_input=lambda question: True)

    assert result.output == "done"
    assert bank.paid == [(5, True)]


async def test_pause_is_not_caught_by_except_exception_in_a_tool() -> None:
    @tool
    async def careful(ctx: RunContext[Any]) -> str:
        """Catches what it can."""
        try:
            return str(await ctx.ask("Sure?"))
        except Exception:
            return "swallowed"

    result = await Agent(ScriptedModel(call("careful")), tools=[careful], log=MemoryEventLog()).run("Go")

    assert result.state == "input-required"


class DeleteTool:
    def __init__(self) -> None:
        self.deleted: list[str] = []

        @tool(approve=True)
        async def delete(path: str) -> str:
            """Deletes."""
            self.deleted.append(path)
            return "gone"

        self.tool = delete
        self.log = MemoryEventLog()

    def agent(self, *turns: Any) -> Agent:
        return Agent(ScriptedModel(*turns), tools=[self.tool], log=self.log)


@pytest.mark.parametrize("approved", [True, False])
async def test_tool_with_approval_is_called_only_after_consent(approved: bool) -> None:
    disk = DeleteTool()
    run = disk.agent(call("delete", path="/tmp/a")).run("Go")
    events = await collect(run)
    paused = await run
    assert format_marbles(events) == "twlcikF"  # nothing has started
    assert "delete" in paused.pending[0].prompt
    assert "/tmp/a" in paused.pending[0].prompt

    run = disk.agent("done").resume(paused.task_id, inputs={"1.0.1": approved})
    events = await collect(run)

    assert disk.deleted == (["/tmp/a"] if approved else [])
    assert format_marbles(events) == ("wrsxklckF" if approved else "wrxklckF")
    answer = next(event for event in events if isinstance(event, ToolCompleteEvent))
    assert answer.success is approved


async def test_guard_and_tool_can_both_ask_questions(bank: Payments) -> None:
    @op.on(ToolRequest)
    async def guard(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        if await ctx.ask("May it?"):
            yield request
        else:
            yield request.refuse("It may not.")

    def agent(*turns: Any) -> Agent:
        return bank.agent(*turns, loop=op.standard(before_tools=[guard]))

    paused = await agent(call("pay", amount=5)).run("Pay")
    assert [(question.input_id, question.prompt) for question in paused.pending] == [("1.0.1", "May it?")]

    paused = await agent().resume(paused.task_id, inputs={"1.0.1": True})
    assert [(question.input_id, question.prompt) for question in paused.pending] == [("1.0.2", "Pay 5?")]

    result = await agent("done").resume(paused.task_id, inputs={"1.0.2": True})

    assert result.output == "done"
    assert bank.paid == [(5, True)]


async def test_run_without_log_can_pause(bank: Payments) -> None:
    result = await bank.agent(call("pay", amount=5), log=None).run("Pay")

    assert result.state == "input-required"
    assert shape(result.messages) == ["user: Pay"]


async def test_ask_raises_on_a_context_without_run() -> None:
    with pytest.raises(Exception, match="does not belong to a run"):
        await RunContext[None]().ask("Sure?")


def count_events(events: list[Event], kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for event in events)
