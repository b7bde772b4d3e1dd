"""Questions: asked by tools and guards, answered at once or at a resume."""

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
from support.runs import collect, letters, outcome, shape, well_formed


async def test_without_anybody_to_ask_the_attempt_ends_as_input_required(bank: Payments) -> None:  # L95
    run = bank.agent(call("pay", amount=5)).run("Pay")
    events = await collect(run)
    result = await run

    assert letters(events) == "twlcsikF"
    assert (result.state, result.reason) == ("input-required", "input")
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
async def test_with_its_answer_the_tool_is_called_again_and_the_run_goes_on(bank: Payments, value: bool) -> None:  # L96
    paused = await bank.agent(call("pay", amount=5)).run("Pay")
    agent = bank.agent("done")
    run = agent.resume(paused.task_id, inputs={"1.0.1": value})
    events = await collect(run)
    result = await run

    assert bank.paid == [(5, value)]
    assert result.output == "done"
    assert shape(result.messages) == ["user: Pay", "assistant: pay", f"tool: {value}", "assistant: done"]
    assert letters(events) == "wrsxklckF"
    assert [event.seq for event in events if event.durable] == list(range(9, 18))
    assert {event.attempt for event in events} == {2}


@pytest.mark.parametrize("value", [0, 0.0, "", [], None, {}])
async def test_a_value_that_is_empty_is_an_answer(value: Any) -> None:  # L96
    got: list[Any] = []

    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks."""
        got.append(await ctx.ask("What?", type(value) if value is not None else None))  # type: ignore[arg-type]
        return "ok"

    log = MemoryEventLog()
    paused = await Agent(ScriptedModel(call("asks")), tools=[asks], log=log).run("Go")
    agent = Agent(ScriptedModel("done"), tools=[asks], log=log)

    assert (await agent.resume(paused.task_id, inputs={"1.0.1": value})).output == "done"
    assert got == [value]


async def test_what_else_was_in_the_batch_is_not_run_again(bank: Payments) -> None:  # L97
    paused = await bank.agent([call("pay", amount=5), call("step", n=7), call("step", n=8)]).run("Pay")
    assert bank.paid == [7, 8]

    result = await bank.agent("done").resume(paused.task_id, inputs={"1.0.1": True})

    assert bank.paid == [7, 8, (5, True)]
    assert shape(result.messages)[2:5] == ["tool: True", "tool: 7", "tool: 8"]


async def test_with_one_of_two_answers_the_run_waits_for_the_other(bank: Payments) -> None:  # L98
    paused = await bank.agent([call("pay", amount=1), call("pay", amount=2)]).run("Pay")
    assert [question.input_id for question in paused.pending] == ["1.0.1", "1.1.1"]

    agent = bank.agent("done")
    waiting = await agent.resume(paused.task_id, inputs={"1.1.1": False})
    assert waiting.state == "input-required"
    assert [question.input_id for question in waiting.pending] == ["1.0.1"]
    assert bank.paid == [(2, False)]
    assert agent.model.requests == []  # type: ignore[attr-defined]

    result = await agent.resume(paused.task_id, inputs={"1.0.1": True})

    assert bank.paid == [(2, False), (1, True)]
    assert shape(result.messages)[2:4] == ["tool: True", "tool: False"]
    assert result.output == "done"


async def test_a_tool_that_asks_again_gets_a_fresh_id_each_time() -> None:  # L99
    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks three times."""
        return f"{await ctx.ask('One?', str)}{await ctx.ask('Two?', str)}{await ctx.ask('Three?', str)}"

    log = MemoryEventLog()
    result = await Agent(ScriptedModel(call("asks")), tools=[asks], log=log).run("Go")
    seen: list[str] = []
    for answer in "abc":
        seen.append(result.pending[0].input_id)
        agent = Agent(ScriptedModel("done"), tools=[asks], log=log)
        result = await agent.resume(result.task_id, inputs={seen[-1]: answer})

    assert seen == ["1.0.1", "1.0.2", "1.0.3"]
    assert shape(result.messages)[2] == "tool: abc"
    asked = [event for event in await log.read(result.task_id) if isinstance(event, InputRequiredEvent)]
    assert [event.input_id for event in asked] == seen


async def test_a_new_message_while_it_waits_answers_the_calls_and_starts_a_turn(bank: Payments) -> None:  # L100
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
    assert well_formed(result.messages)


@pytest.mark.parametrize("options", [{"inputs": {"1.0.1": True}}, {"on_input": lambda question: True}])
async def test_an_answer_that_comes_when_a_later_run_let_the_question_go_is_refused(
    bank: Payments, options: dict[str, Any]
) -> None:
    paused = await bank.agent([call("pay", amount=5)]).run("Pay", context_id="c")
    asked = (await bank.log.get_record(paused.task_id)).seq
    later = await bank.agent("Never mind then.").run("Forget it.", context_id="c")
    before = await bank.log.read(paused.task_id)

    with pytest.raises(InvalidInput, match=rf"{paused.task_id} does not wait .*{later.task_id}.* new run.*fork"):
        await bank.agent("Paid.").resume(paused.task_id, **options)
    assert bank.paid == []
    assert await bank.log.read(paused.task_id) == before

    forked = await bank.agent("Paid.").fork(paused.task_id, asked, on_input=lambda question: True)
    assert (forked.output, bank.paid) == ("Paid.", [(5, True)])


async def test_a_plain_function_is_asked_one_question_after_the_other_in_order(bank: Payments) -> None:
    held = threading.Lock()
    asked: list[tuple[str, bool]] = []

    def at_the_terminal(question: PendingInput) -> bool:
        alone = held.acquire(blocking=False)
        # The event loop has its turns meanwhile, in which another question could come.
        for _ in range(20):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(5)
        asked.append((question.prompt, alone))
        if alone:
            held.release()
        return True

    loop = asyncio.get_running_loop()
    calls = [call("pay", amount=amount) for amount in range(4)]
    await bank.agent(calls, "done").run("Pay", on_input=at_the_terminal)
    assert asked == [(f"Pay {amount}?", True) for amount in range(4)]


async def test_without_inputs_a_run_that_waits_is_refused_and_goes_on_waiting(bank: Payments) -> None:  # L101
    paused = await bank.agent(call("pay", amount=5)).run("Pay")
    before = await bank.log.read(paused.task_id)
    agent = bank.agent("done")

    with pytest.raises(InvalidInput, match=r"1\.0\.1.*inputs="):
        await agent.resume(paused.task_id)

    assert await bank.log.read(paused.task_id) == before
    assert agent.model.requests == []  # type: ignore[attr-defined]
    assert (await agent.resume(paused.task_id, inputs={"1.0.1": True})).output == "done"


@pytest.mark.parametrize("inputs", [{"9.9.9": True}, {"1.0.1": True, "9.9.9": True}])
async def test_an_unknown_id_is_refused_by_name(bank: Payments, inputs: dict[str, Any]) -> None:  # L102
    paused = await bank.agent(call("pay", amount=5)).run("Pay")
    agent = bank.agent("done")

    with pytest.raises(InvalidInput, match=r"'9\.9\.9'.*waits for 1\.0\.1"):
        await agent.resume(paused.task_id, inputs=inputs)

    assert agent.model.requests == []  # type: ignore[attr-defined]
    assert bank.paid == []


@pytest.mark.parametrize("value", ["yes", 1, None, {}])
async def test_an_answer_that_does_not_fit_is_refused_before_anything_happens(bank: Payments, value: Any) -> None:
    paused = await bank.agent(call("pay", amount=5)).run("Pay")
    before = await bank.log.read(paused.task_id)

    with pytest.raises(InvalidInput, match=r"Pay 5\?"):
        await bank.agent("done").resume(paused.task_id, inputs={"1.0.1": value})

    assert await bank.log.read(paused.task_id) == before


async def test_inputs_for_a_run_that_waits_for_nothing_are_refused(bank: Payments) -> None:  # L102
    cancelled = bank.agent(call("step")).run("Go")
    cancelled.cancel()
    await outcome(cancelled)

    with pytest.raises(InvalidInput, match="waits for nothing"):
        await bank.agent("done").resume(cancelled.task_id, inputs={"1.0.1": True})


async def test_a_choice_is_one_of_its_options() -> None:  # L104
    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks."""
        return await ctx.ask("Which?", str, options=["red", "blue"])

    log = MemoryEventLog()
    paused = await Agent(ScriptedModel(call("asks")), tools=[asks], log=log).run("Go")
    assert (paused.pending[0].input_kind, paused.pending[0].options) == ("selection", ["red", "blue"])

    agent = Agent(ScriptedModel("done"), tools=[asks], log=log)
    with pytest.raises(InvalidInput, match="none of the options"):
        await agent.resume(paused.task_id, inputs={"1.0.1": "green"})
    assert (await agent.resume(paused.task_id, inputs={"1.0.1": "blue"})).output == "done"


@pytest.mark.parametrize("answers_later", [False, True])
def test_with_somebody_to_ask_the_answer_comes_while_the_run_waits(answers_later: bool) -> None:
    asked: list[PendingInput] = []

    def at_once(question: PendingInput) -> bool:
        asked.append(question)
        return True

    async def later(question: PendingInput) -> bool:
        asked.append(question)
        await asyncio.sleep(60)
        return True

    bank = Payments()
    with virtual_time() as time:
        run = bank.agent(call("pay", amount=5), "done").run("Pay", on_input=later if answers_later else at_once)
        events = time.run(collect(run))
        result = time.run(run)
        assert time.now == (60 if answers_later else 0)

    assert letters(events) == "twlcsirxklckF"
    assert result.output == "done"
    assert [question.prompt for question in asked] == ["Pay 5?"]
    assert [event.value for event in events if isinstance(event, InputReceivedEvent)] == [True]


@pytest.mark.parametrize("on_input", [lambda question: "perhaps", lambda question: 1 / 0])
async def test_an_answer_at_once_that_does_not_fit_is_a_failure_of_the_call(bank: Payments, on_input: Any) -> None:
    events = await collect(bank.agent(call("pay", amount=5), "done").run("Pay", on_input=on_input))

    (answer,) = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert not answer.success
    assert bank.paid == []
    assert events[-1].state == "completed"  # type: ignore[attr-defined]


def test_call_fails_when_its_own_time_limit_ends_a_question() -> None:
    @tool(timeout=10)
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks, and waits for a second: the time limit of the call itself stops at a question."""
        async with asyncio.timeout(1):
            return str(await ctx.ask("Sure?"))

    async def never(question: PendingInput) -> bool:
        await asyncio.sleep(3600)
        return True

    with virtual_time() as time:
        result = time.run(Agent(ScriptedModel(call("asks"), "done"), tools=[asks]).run("Go", on_input=never))

    assert result.output == "done"
    assert "TimeoutError" in result.messages[2].text


async def test_a_run_that_waits_can_be_resumed_by_somebody_to_ask(bank: Payments) -> None:
    paused = await bank.agent(call("pay", amount=5)).run("Pay")

    result = await bank.agent("done").resume(paused.task_id, on_input=lambda question: True)

    assert result.output == "done"
    assert bank.paid == [(5, True)]


async def test_a_pause_passes_through_a_tools_own_except() -> None:
    @tool
    async def careful(ctx: RunContext[Any]) -> str:
        """Catches what it can."""
        try:
            return str(await ctx.ask("Sure?"))
        except Exception:
            return "swallowed"

    result = await Agent(ScriptedModel(call("careful")), tools=[careful], log=MemoryEventLog()).run("Go")

    assert result.state == "input-required"


class Deletions:
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


@pytest.mark.parametrize("agreed", [True, False])
async def test_a_tool_that_needs_approval_is_called_once_it_is_given(agreed: bool) -> None:
    disk = Deletions()
    run = disk.agent(call("delete", path="/tmp/a")).run("Go")
    events = await collect(run)
    paused = await run
    assert letters(events) == "twlcikF"  # nothing has started
    assert "delete" in paused.pending[0].prompt
    assert "/tmp/a" in paused.pending[0].prompt

    run = disk.agent("done").resume(paused.task_id, inputs={"1.0.1": agreed})
    events = await collect(run)

    assert disk.deleted == (["/tmp/a"] if agreed else [])
    assert letters(events) == ("wrsxklckF" if agreed else "wrxklckF")
    answer = next(event for event in events if isinstance(event, ToolCompleteEvent))
    assert answer.success is agreed


async def test_a_guard_may_ask_and_so_may_the_tool_behind_it(bank: Payments) -> None:
    @op.on(ToolRequest)
    async def guard(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        if await ctx.ask("May it?"):
            yield request
        else:
            yield request.refuse("It may not.")

    def agent(*turns: Any) -> Agent:
        return bank.agent(*turns, loop=op.standard(before_tools=[guard]))

    paused = await agent(call("pay", amount=5)).run("Pay")
    assert [(each.input_id, each.prompt) for each in paused.pending] == [("1.0.1", "May it?")]

    paused = await agent().resume(paused.task_id, inputs={"1.0.1": True})
    assert [(each.input_id, each.prompt) for each in paused.pending] == [("1.0.2", "Pay 5?")]

    result = await agent("done").resume(paused.task_id, inputs={"1.0.2": True})

    assert result.output == "done"
    assert bank.paid == [(5, True)]


async def test_without_a_log_a_run_may_still_pause(bank: Payments) -> None:
    result = await bank.agent(call("pay", amount=5), log=None).run("Pay")

    assert result.state == "input-required"
    assert shape(result.messages) == ["user: Pay"]


async def test_a_context_of_no_run_says_so() -> None:
    with pytest.raises(Exception, match="belongs to no run"):
        await RunContext[None]().ask("Sure?")


def seen(events: list[Event], kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for event in events)
