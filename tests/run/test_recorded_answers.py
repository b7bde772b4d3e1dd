"""Recorded answers after the tool or guard was changed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from rxloop import (
    Agent,
    InputReceivedEvent,
    LLMNoticeEvent,
    MemoryEventLog,
    RunContext,
    Runtime,
    Signal,
    StatusUpdateEvent,
    ToolCompleteEvent,
    ToolRequest,
    client_tool,
    op,
    tool,
)
from rxloop.testing import ScriptedModel, call
from support.processes.machines import two_machines
from support.runs import copy_first_events

payments: list[Any] = []


@pytest.fixture(autouse=True)
def clear_payments() -> None:
    payments.clear()


def make_pay_tool(**options: Any) -> Any:
    @tool(**options)
    async def pay(amount: int = 0, currency: str = "EUR") -> str:
        """Pays."""
        payments.append(amount)
        return f"paid {amount}"

    return pay


def agent(log: MemoryEventLog, *turns: Any, tools: Any = (), **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), tools=list(tools), log=log, **options)


async def notices(log: MemoryEventLog, task_id: str) -> list[str]:
    events = await log.read(task_id)
    events_found = [event for event in events if isinstance(event, LLMNoticeEvent)]
    return [event.message for event in events_found if event.code == "unread_answer"]


def results(result: Any) -> list[str]:
    return [message.text for message in result.messages if message.role == "tool"]


@tool(name="pay")
async def disburse(total: str = "") -> str:
    """Pays another way."""
    payments.append(total)
    return "paid"


def make_nested_pay() -> Any:
    return Agent(ScriptedModel("paid"), name="pay", tools=[]).as_tool(name="pay", description="Pays.")


CHANGED_TOOLS: dict[str, Callable[[], list[Any]]] = {
    "no-approval": lambda: [make_pay_tool()],
    "removed": list,
    "renamed": lambda: [make_pay_tool(name="pay_now")],
    "other-arguments": lambda: [disburse],
    "other-question": lambda: [make_pay_tool(approve="Spend {amount}?")],
    "same-question": lambda: [make_pay_tool(approve=True)],
    "client-tool": lambda: [client_tool("pay")],
    "hidden": lambda: [make_pay_tool(hidden=True)],
    "idempotent": lambda: [make_pay_tool(idempotent=True)],
    "read-only": lambda: [make_pay_tool(read_only=True)],
    "agent": lambda: [make_nested_pay()],
    "disabled": lambda: [make_pay_tool(enabled=lambda ctx: False)],
}


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("change", CHANGED_TOOLS)
async def test_refused_call_stays_refused_when_its_tool_was_changed(change: str, early: bool) -> None:  # P19
    log = MemoryEventLog()
    paused = await agent(log, call("pay", amount=5), tools=[make_pay_tool(approve=True)]).run("Pay")

    loop = op.standard(early=early) if early else None
    later = agent(log, "I did not pay.", tools=CHANGED_TOOLS[change](), **({"loop": loop} if loop else {}))
    result = await later.resume(paused.task_id, inputs={paused.pending[0].input_id: False})

    assert payments == []
    assert result.state == "completed"
    assert results(result) == ["The call of pay was not approved."]


async def test_approved_call_is_executed_when_its_tool_no_longer_asks() -> None:
    log = MemoryEventLog()
    paused = await agent(log, call("pay", amount=5), tools=[make_pay_tool(approve=True)]).run("Pay")

    result = await agent(log, "Done", tools=[make_pay_tool()]).resume(
        paused.task_id, inputs={paused.pending[0].input_id: True}
    )

    assert payments == [5]
    assert results(result) == ["paid 5"]
    assert len(await notices(log, paused.task_id)) == 1


async def test_approval_is_requested_again_when_the_arguments_were_changed() -> None:
    log = MemoryEventLog()
    paused = await agent(log, call("pay", amount=5), tools=[make_pay_tool(approve="Pay {amount}?")]).run("Pay")

    @op.on(ToolRequest)
    async def double(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(amount=10)

    later = agent(log, tools=[make_pay_tool(approve="Pay {amount}?")], loop=op.standard(before_tools=[double]))
    result = await later.resume(paused.task_id, inputs={paused.pending[0].input_id: True})

    assert payments == []
    assert result.state == "input-required"
    assert [question.prompt for question in result.pending] == ["Pay 10?"]


async def test_refusal_counts_when_the_arguments_were_changed() -> None:  # P19
    log = MemoryEventLog()
    paused = await agent(log, call("pay", amount=5), tools=[make_pay_tool(approve="Pay {amount}?")]).run("Pay")

    @op.on(ToolRequest)
    async def double(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(amount=10)

    later = agent(
        log, "Not paid.", tools=[make_pay_tool(approve="Pay {amount}?")], loop=op.standard(before_tools=[double])
    )
    result = await later.resume(paused.task_id, inputs={paused.pending[0].input_id: False})

    assert payments == []
    assert result.output == "Not paid."


# -- guards

ANSWERS: list[tuple[Any, dict[str, Any], Any, str]] = [
    (bool, {}, False, "The call of pay was not approved."),
    (str, {"options": ["yes", "no", "Ann instead"]}, "no", "The call of pay was not approved."),
    (str, {}, "No, it is too expensive", "The call of pay was not approved: No, it is too expensive"),
    (
        dict[str, Any],
        {},
        {"approved": False, "reason": "too expensive"},
        "The call of pay was not approved: too expensive",
    ),
    (dict[str, Any], {}, {"action": "decline"}, "The call of pay was not approved."),
]


@pytest.mark.parametrize(("kind", "options", "answer", "text"), ANSWERS)
async def test_refusal_of_a_guard_counts_when_the_guard_is_removed(  # P19
    kind: Any, options: Any, answer: Any, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = MemoryEventLog()

    @op.on(ToolRequest)
    async def guard(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request if await ctx.ask("Pay?", kind, **options) == "yes" else request.refuse("no")

    guarded = agent(log, call("pay", amount=5), tools=[make_pay_tool()], loop=op.standard(before_tools=[guard]))
    paused = await guarded.run("Pay")
    input_id = paused.pending[0].input_id

    with caplog.at_level(logging.WARNING, "rxloop"):
        result = await agent(log, "No.", tools=[make_pay_tool()]).resume(paused.task_id, inputs={input_id: answer})

    assert payments == []
    assert results(result) == [text]
    assert any(input_id in record.getMessage() for record in caplog.records)
    assert [input_id in text for text in await notices(log, paused.task_id)] == [True]


async def test_guard_that_still_asks_interprets_the_answer_itself() -> None:
    log = MemoryEventLog()

    @op.on(ToolRequest)
    async def guard(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(currency="NOK" if await ctx.ask("In euros?") is False else "EUR")

    guarded = agent(log, call("pay", amount=5), "Done", tools=[make_pay_tool()], loop=op.standard(before_tools=[guard]))
    paused = await guarded.run("Pay")
    result = await guarded.resume(paused.task_id, inputs={paused.pending[0].input_id: False})

    assert payments == [5]
    assert result.output == "Done"
    assert await notices(log, paused.task_id) == []


async def test_answer_of_a_question_outside_calls_is_reported_when_no_code_asks() -> None:  # P19
    log = MemoryEventLog()

    async def instructions(ctx: RunContext[Any]) -> str:
        return await ctx.ask("Which tone?", str)

    paused = await agent(log, instructions=instructions).run("Hi")
    input_id = paused.pending[0].input_id
    result = await agent(log, "Hello").resume(paused.task_id, inputs={input_id: "kind"})

    assert result.output == "Hello"
    assert [input_id in text for text in await notices(log, paused.task_id)] == [True]


async def test_answer_is_reported_when_the_tool_no_longer_asks() -> None:  # P19
    log = MemoryEventLog()

    @tool(name="pay")
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks in its middle."""
        return "yes" if await ctx.ask("Really?") else "no"

    paused = await agent(log, call("pay"), tools=[asks]).run("Pay")
    input_id = paused.pending[0].input_id
    result = await agent(log, "Done", tools=[make_pay_tool()]).resume(paused.task_id, inputs={input_id: True})

    assert result.output == "Done"
    assert [input_id in text for text in await notices(log, paused.task_id)] == [True]


async def test_refusal_inside_a_tool_counts_when_the_tool_was_removed() -> None:  # P19
    log = MemoryEventLog()

    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks in its middle."""
        return "yes" if await ctx.ask("Really?") else "no"

    paused = await agent(log, call("asks"), tools=[asks]).run("Go")
    result = await agent(log, "Done").resume(paused.task_id, inputs={paused.pending[0].input_id: False})

    assert results(result) == ["The call of asks was not approved."]


@pytest.mark.parametrize("change", ["no-approval", "other-arguments", "agent", "client-tool", "removed"])
async def test_refusal_inside_a_tool_counts_when_the_tool_no_longer_asks(change: str) -> None:  # P19
    log = MemoryEventLog()

    @tool(name="pay")
    async def asks(ctx: RunContext[Any], amount: int) -> str:
        """Asks in its middle."""
        if not await ctx.ask("Really?"):
            return "kept"
        payments.append(amount)
        return "paid"

    paused = await agent(log, call("pay", amount=5), tools=[asks]).run("Pay")
    input_id = paused.pending[0].input_id
    result = await agent(log, "Done", tools=CHANGED_TOOLS[change]()).resume(paused.task_id, inputs={input_id: False})

    assert payments == []
    assert result.output == "Done"
    assert results(result) == ["The call of pay was not approved."]
    assert [input_id in text for text in await notices(log, paused.task_id)] == [True]


@pytest.mark.parametrize(
    ("answer", "text"),
    [({"error": "The user closed the page."}, "The user closed the page."), ("paid by the page", "paid by the page")],
)
@pytest.mark.parametrize("change", ["no-approval", "other-arguments", "agent"])
async def test_client_answer_is_the_result_when_the_tool_is_no_longer_a_client_tool(  # P19
    answer: Any, text: str, change: str
) -> None:
    log = MemoryEventLog()
    paused = await agent(log, call("pay"), tools=[client_tool("pay")]).run("Pay")

    later = agent(log, "Done", tools=CHANGED_TOOLS[change]())
    result = await later.resume(paused.task_id, inputs={paused.pending[0].input_id: answer})

    assert payments == []
    assert results(result) == [text]


# -- delivery


async def test_refusal_counts_when_it_arrived_while_no_process_was_running() -> None:  # P19
    a, b = two_machines()
    task_id = (await a.agent(call("pay", amount=5)).run("Pay")).task_id
    await a.agent().get_run(task_id).answer({"1.0.1": False})

    record = await agent(b.log, "Not paid.", tools=[make_pay_tool()]).get_run(task_id).execute()

    assert payments == a.paid == []
    assert record.state == "completed"
    assert "The call of pay was not approved." in [
        event.content for event in await a.log.read(task_id) if isinstance(event, ToolCompleteEvent)
    ]


async def wait_for_state(runtime: Runtime, task_id: str, state: str = "input-required") -> str:
    """Wait for an attempt to end."""
    async for event in runtime.follow(task_id):
        if isinstance(event, StatusUpdateEvent) and event.final and event.state in (state, "failed"):
            return event.state
    return "lost"


@pytest.mark.parametrize("change", ["no-approval", "removed", "same-question"])
async def test_refusal_counts_in_another_runtime(change: str) -> None:  # P19
    log = MemoryEventLog()
    async with Runtime(
        {"agent": agent(log, call("pay", amount=5), tools=[make_pay_tool(approve=True)])}, log=log
    ) as first:
        record = await first.start("agent", "Pay")
        await wait_for_state(first, record.task_id)

    async with Runtime({"agent": agent(log, "Not paid.", tools=CHANGED_TOOLS[change]())}, log=log) as second:
        await second.answer(record.task_id, {"1.0.1": False})
        last = await wait_for_state(second, record.task_id, "completed")

    assert payments == []
    assert last == "completed"


async def test_refusal_counts_after_a_crash_following_the_answer() -> None:  # P19
    log = MemoryEventLog()
    asking_agent = agent(log, call("pay", amount=5), "No.", tools=[make_pay_tool(approve=True)])
    run = await asking_agent.run("Pay", on_input=lambda question: False)
    events = await log.read(run.task_id)
    answered = next(event.seq for event in events if isinstance(event, InputReceivedEvent))

    crashed = await copy_first_events(log, run.task_id, answered)
    result = await agent(crashed, "No.", tools=[make_pay_tool()]).resume(run.task_id)

    assert payments == []
    assert results(result) == ["The call of pay was not approved."]


async def test_refusal_counts_in_a_fork_after_the_answer() -> None:  # P19
    log = MemoryEventLog()
    asking_agent = agent(log, call("pay", amount=5), "No.", tools=[make_pay_tool(approve=True)])
    run = await asking_agent.run("Pay", on_input=lambda question: False)
    events = await log.read(run.task_id)
    answered = next(event.seq for event in events if isinstance(event, InputReceivedEvent))

    result = await agent(log, "No.", tools=[make_pay_tool()]).fork(run.task_id, at=answered)

    assert payments == []
    assert results(result) == ["The call of pay was not approved."]


@pytest.mark.parametrize("change", ["no-approval", "removed", "renamed", "other-question", "client-tool"])
async def test_refusal_in_a_nested_run_counts(change: str) -> None:  # P19
    log = MemoryEventLog()

    def outer(tools: list[Any], *turns: Any, inner: Any) -> Agent[Any, Any]:
        clerk = Agent(ScriptedModel(*inner), name="clerk", tools=tools)
        return agent(log, *turns, tools=[clerk.as_tool()])

    first = outer([make_pay_tool(approve=True)], call("clerk", prompt="Pay"), inner=[call("pay", amount=5)])
    paused = await first.run("Pay")
    later = outer(CHANGED_TOOLS[change](), "Done", inner=["I did not pay."])
    result = await later.resume(paused.task_id, inputs={paused.pending[0].input_id: False})

    assert payments == []
    assert results(result) == ["I did not pay."]


async def test_answer_to_a_nested_run_is_reported_when_its_agent_was_removed() -> None:  # P19
    log = MemoryEventLog()
    clerk = Agent(ScriptedModel(call("pay", amount=5)), name="clerk", tools=[make_pay_tool(approve=True)])
    paused = await agent(log, call("clerk", prompt="Pay"), tools=[clerk.as_tool()]).run("Pay")
    input_id = paused.pending[0].input_id

    result = await agent(log, "Done", tools=[make_pay_tool()]).resume(paused.task_id, inputs={input_id: False})

    assert payments == []
    assert result.output == "Done"
    assert [input_id in text for text in await notices(log, paused.task_id)] == [True]


async def test_refusal_counts_in_a_run_of_a_strategy() -> None:  # P19
    log = MemoryEventLog()
    paused = await agent(log, call("pay", amount=5), tools=[make_pay_tool(approve=True)], strategy="react").run("Pay")

    later = agent(log, "Answer: no", tools=[make_pay_tool()], strategy="react")
    result = await later.resume(paused.task_id, inputs={paused.pending[0].input_id: False})

    assert payments == []
    assert result.state == "completed"


async def test_refusal_of_a_client_counts_when_the_tool_is_removed() -> None:  # P19
    log = MemoryEventLog()
    paused = await agent(log, call("pay"), tools=[client_tool("pay")]).run("Pay")

    later = agent(log, "Done")
    result = await later.resume(paused.task_id, inputs={paused.pending[0].input_id: {"error": "The user said no."}})

    assert results(result) == ["The user said no."]
