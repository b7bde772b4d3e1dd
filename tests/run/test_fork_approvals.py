"""Questions and interrupted calls in forks: one approval causes one effect."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from rxloop import (
    Agent,
    Event,
    InputReceivedEvent,
    InputRequiredEvent,
    MemoryEventLog,
    RunContext,
    ToolCompleteEvent,
    ToolStartEvent,
    client_tool,
    op,
    tool,
)
from rxloop.errors import NotAsked
from rxloop.pipeline.requests import ModelRequest, RunRequest, Signal, ToolRequest
from rxloop.state.history import INTERRUPTED
from rxloop.testing import ScriptedModel, call
from support.runs import collect, is_well_formed

payments: list[str] = []


@pytest.fixture(autouse=True)
def forget_payments() -> None:
    payments.clear()


async def find(log: MemoryEventLog, task_id: str, kind: type[Event], number: int = 0) -> int:
    return [event.seq for event in await log.read(task_id) if isinstance(event, kind)][number]


def make_pay(**options: Any) -> Any:
    @tool(**options)
    async def pay(ctx: RunContext[Any], amount: int) -> str:
        """Pay."""
        payments.append(ctx.idempotency_key)
        return f"paid {amount}"

    return pay


@tool
async def pay_asking(ctx: RunContext[Any], amount: int) -> str:
    """Pay after an answer."""
    if not await ctx.ask(f"Pay {amount}?"):
        return "not paid"
    payments.append(ctx.idempotency_key)
    return f"paid {amount}"


@tool
async def pay_twice_asked(ctx: RunContext[Any]) -> str:
    """Pay after two answers."""
    if await ctx.ask("Pay?") and await ctx.ask("Really?"):
        payments.append(ctx.idempotency_key)
    return "done"


@op.on(ToolRequest)
async def guard(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    if await ctx.ask(f"Allow {request.call.name}?"):
        yield request
    else:
        yield request.refuse("not allowed")


APPROVALS: dict[str, Any] = {
    "tool": lambda: {"tools": [make_pay(approve=True)]},
    "guard": lambda: {"tools": [make_pay()], "loop": op.standard(before_tools=[guard])},
    "inside": lambda: {"tools": [pay_asking]},
    "idempotent": lambda: {"tools": [make_pay(approve=True, idempotent=True)]},
}


def make_agent(log: MemoryEventLog, kind: str, *turns: Any) -> Agent[Any, str]:
    name = "pay_asking" if kind == "inside" else "pay"
    return Agent(ScriptedModel(*(turns or (call(name, amount=5), "Done."))), log=log, **APPROVALS[kind]())


async def pay_once(log: MemoryEventLog, kind: str, *, inline: bool) -> str:
    """Execute a run whose only call is approved, either by `on_input` or after a pause. Return its id."""
    agent = make_agent(log, kind)
    if inline:
        return (await agent.run("Pay", on_input=lambda question: True)).task_id
    paused = await agent.run("Pay")
    await agent.resume(paused.task_id, inputs={paused.pending[0].input_id: True})
    return paused.task_id


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("kind", APPROVALS)
async def test_fork_asks_again_when_the_approved_call_was_not_completed(kind: str, inline: bool) -> None:
    log = MemoryEventLog()
    original = await pay_once(log, kind, inline=inline)
    assert len(payments) == 1
    answered = await find(log, original, InputReceivedEvent)

    forks = [await make_agent(log, kind, "Done.").fork(original, answered) for _ in range(5)]

    assert len(payments) == 1
    assert [fork.state for fork in forks] == ["input-required"] * 5
    for fork in forks:
        events = await log.read(fork.task_id)
        asked = [event for event in events[answered:] if isinstance(event, InputRequiredEvent)]
        assert [event.input for event in asked] == fork.pending
    # Each new approval causes one effect, under its own key.
    fork = forks[0]
    result = await make_agent(log, kind, "Done.").resume(fork.task_id, inputs={fork.pending[0].input_id: True})
    assert result.output == "Done."
    assert len(set(payments)) == len(payments) == 2


@pytest.mark.parametrize("kind", APPROVALS)
async def test_fork_does_not_accept_the_answer_that_it_copied(kind: str) -> None:
    log = MemoryEventLog()
    original = await pay_once(log, kind, inline=False)
    events = await log.read(original)
    answer = next(event for event in events if isinstance(event, InputReceivedEvent))
    fork = await make_agent(log, kind, "Done.").fork(original, answer.seq)

    assert answer.input_id not in [question.input_id for question in fork.pending]
    with pytest.raises(NotAsked):
        await make_agent(log, kind, "Done.").resume(fork.task_id, inputs={answer.input_id: True})
    assert len(payments) == 1


@pytest.mark.parametrize("kind", APPROVALS)
async def test_refusal_of_a_fork_counts_after_the_original_was_approved(kind: str) -> None:
    log = MemoryEventLog()
    original = await pay_once(log, kind, inline=False)
    fork = await make_agent(log, kind).fork(original, await find(log, original, InputReceivedEvent))

    result = await make_agent(log, kind, "Then not.").resume(fork.task_id, inputs={fork.pending[0].input_id: False})

    assert result.output == "Then not."
    assert len(payments) == 1


@pytest.mark.parametrize("kind", APPROVALS)
async def test_fork_can_approve_a_call_that_was_refused_in_the_original_run(kind: str) -> None:
    log = MemoryEventLog()
    agent = make_agent(log, kind)
    original = await agent.run("Pay", on_input=lambda question: False)
    assert payments == []
    answered = await find(log, original.task_id, InputReceivedEvent)

    result = await make_agent(log, kind, "Done.").fork(original.task_id, answered, on_input=lambda question: True)

    assert len(payments) == 1
    assert result.output == "Done."


@pytest.mark.parametrize("kind", APPROVALS)
async def test_on_input_of_a_fork_is_asked_again(kind: str) -> None:
    log = MemoryEventLog()
    original = await pay_once(log, kind, inline=True)
    asked: list[str] = []

    await make_agent(log, kind, "Done.").fork(
        original,
        await find(log, original, InputReceivedEvent),
        on_input=lambda question: bool(asked.append(question.prompt)),
    )

    assert len(asked) == 1
    assert len(payments) == 1


@pytest.mark.parametrize("kind", APPROVALS)
async def test_fork_of_a_fork_asks_again(kind: str) -> None:
    log = MemoryEventLog()
    task_id = await pay_once(log, kind, inline=False)
    used: set[str] = set()
    for paid in (2, 3):
        at = await find(log, task_id, InputReceivedEvent, -1)
        fork = await make_agent(log, kind, "Done.").fork(task_id, at)
        assert fork.state == "input-required"
        assert len(payments) == paid - 1
        [question] = fork.pending
        assert question.input_id not in used
        used.add(question.input_id)
        await make_agent(log, kind, "Done.").resume(fork.task_id, inputs={question.input_id: True})
        assert len(payments) == paid
        task_id = fork.task_id


@pytest.mark.parametrize("kind", APPROVALS)
async def test_interrupted_fork_keeps_its_question_and_ignores_the_copied_answer(kind: str) -> None:
    log = MemoryEventLog()
    original = await pay_once(log, kind, inline=False)
    fork = await make_agent(log, kind).fork(original, await find(log, original, InputReceivedEvent))
    events = await log.read(fork.task_id)
    # Crashes after any event of the fork.
    for count in range(await find(log, original, InputReceivedEvent) + 1, len(events) + 1):
        if isinstance(events[count - 1], ToolStartEvent):
            # The started call is closed, like in any other run.
            continue
        copy = MemoryEventLog()
        await copy.append(fork.task_id, events[:count], expected_seq=0)
        agent = make_agent(copy, kind, "Done.")
        if count < len(events):
            again = await agent.resume(fork.task_id)
            assert [question.input_id for question in again.pending] == [fork.pending[0].input_id]
        assert len(payments) == 1
        result = await agent.resume(fork.task_id, inputs={fork.pending[0].input_id: True})
        assert result.output == "Done."
        assert payments.pop() != payments[0]


async def test_fork_asks_all_questions_of_a_call_again() -> None:
    log = MemoryEventLog()

    def agent(*turns: Any) -> Agent[Any, str]:
        return Agent(ScriptedModel(*turns), tools=[pay_twice_asked], log=log)

    paused = await agent(call("pay_twice_asked")).run("Pay")
    paused = await agent().resume(paused.task_id, inputs={paused.pending[0].input_id: True})
    await agent("Done.").resume(paused.task_id, inputs={paused.pending[0].input_id: True})
    assert len(payments) == 1
    second_question = await find(log, paused.task_id, InputRequiredEvent, 1)
    second_answer = await find(log, paused.task_id, InputReceivedEvent, 1)

    for at in (second_question, second_answer):
        fork = await agent().fork(paused.task_id, at)
        assert [question.prompt for question in fork.pending] == ["Pay?"]
        fork = await agent().resume(fork.task_id, inputs={fork.pending[0].input_id: True})
        assert [question.prompt for question in fork.pending] == ["Really?"]
        payments.clear()
        await agent("Done.").resume(fork.task_id, inputs={fork.pending[0].input_id: True})
        assert len(payments) == 1


async def test_completed_call_of_a_batch_keeps_its_result_when_a_fork_asks_again() -> None:
    log = MemoryEventLog()

    def agent(*turns: Any) -> Agent[Any, str]:
        return Agent(ScriptedModel(*turns), tools=[make_pay(approve=True)], log=log)

    calls = [call("pay", "a", amount=1), call("pay", "b", amount=2)]
    paused = await agent(calls).run("Pay")
    first, second = paused.pending
    paused = await agent().resume(paused.task_id, inputs={first.input_id: True})
    await agent("Done.").resume(paused.task_id, inputs={second.input_id: True})
    assert len(payments) == 2

    fork = await agent().fork(paused.task_id, await find(log, paused.task_id, InputReceivedEvent, 1))

    assert len(payments) == 2
    assert [question.prompt for question in fork.pending] == [second.prompt]
    result = await agent("Done.").resume(fork.task_id, inputs={fork.pending[0].input_id: True})
    assert len(payments) == 3
    assert is_well_formed(result.messages)


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("inner", ["pay", "pay_asking"])
async def test_fork_asks_the_question_of_a_nested_agent_again(inner: str, inline: bool) -> None:
    log = MemoryEventLog()

    def agent(outer: Sequence[Any], nested: Sequence[Any]) -> Agent[Any, str]:
        buyer = Agent(ScriptedModel(*nested), name="buyer", tools=[make_pay(approve=True), pay_asking])
        return Agent(ScriptedModel(*outer), tools=[buyer.as_tool()], log=log)

    delegate = [call("buyer", prompt="Pay")]
    if inline:
        run = await agent([*delegate, "Done."], [call(inner, amount=5), "Paid."]).run("Go", on_input=lambda _: True)
    else:
        run = await agent(delegate, [call(inner, amount=5)]).run("Go")
        run = await agent(["Done."], ["Paid."]).resume(run.task_id, inputs={run.pending[0].input_id: True})
    assert len(payments) == 1

    answered = await find(log, run.task_id, InputReceivedEvent)
    fork, *others = [await agent([], []).fork(run.task_id, answered) for _ in range(3)]
    assert [each.state for each in (fork, *others)] == ["input-required"] * 3
    assert len(payments) == 1
    result = await agent(["Done."], ["Paid."]).resume(fork.task_id, inputs={fork.pending[0].input_id: True})
    assert result.output == "Done."
    assert len(set(payments)) == len(payments) == 2
    # The fork of a fork asks as well.
    again = await agent([], []).fork(fork.task_id, await find(log, fork.task_id, InputReceivedEvent, -1))
    assert again.state == "input-required"
    assert len(payments) == 2


async def test_client_executes_the_call_again_in_a_fork_that_copied_its_answer() -> None:
    log = MemoryEventLog()
    show = client_tool("show", {"type": "object", "properties": {}})

    def agent(*turns: Any) -> Agent[Any, str]:
        return Agent(ScriptedModel(*turns), tools=[show], log=log)

    paused = await agent(call("show")).run("Show")
    await agent("Done.").resume(paused.task_id, inputs={paused.pending[0].input_id: "shown"})

    fork = await agent().fork(paused.task_id, await find(log, paused.task_id, InputReceivedEvent))
    assert [question.input_kind for question in fork.pending] == ["tool"]
    result = await agent("Done.").resume(fork.task_id, inputs={fork.pending[0].input_id: "shown again"})
    assert result.messages[2].text == "shown again"


async def test_fork_asks_for_the_credential_again() -> None:
    log = MemoryEventLog()

    @tool
    async def sign_in(ctx: RunContext[Any]) -> str:
        """Sign in."""
        payments.append(await ctx.require_auth("bank"))
        return "signed in"

    agent = Agent(ScriptedModel(call("sign_in"), "Done.", "Done."), tools=[sign_in], log=log)
    paused = await agent.run("Go")
    await agent.resume(paused.task_id, inputs={paused.pending[0].input_id: "secret"})

    fork = await agent.fork(paused.task_id, await find(log, paused.task_id, InputReceivedEvent))

    assert fork.state == "auth-required"
    assert payments == ["secret"]


async def test_fork_asks_again_before_the_model_is_called() -> None:
    log = MemoryEventLog()
    asked: list[str] = []

    @op.on(ModelRequest)
    async def confirm(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        if await ctx.ask(f"Ask the model for step {request.step}?"):
            yield request

    def answer(question: Any) -> bool:
        asked.append(question.prompt)
        return True

    agent = Agent(ScriptedModel("Hello.", "Hello."), log=log, loop=op.standard(before_model=[confirm]))
    run = await agent.run("Hi", on_input=answer)

    await agent.fork(run.task_id, await find(log, run.task_id, InputReceivedEvent), on_input=answer)
    assert asked == ["Ask the model for step 1?"] * 2
    # Nothing is left to approve in a copy of the whole run.
    end = (await log.read(run.task_id))[-1].seq
    await agent.fork(run.task_id, end, on_input=answer)
    assert asked == ["Ask the model for step 1?"] * 2


async def test_fork_of_a_strategy_keeps_answers_that_were_used_before_the_fork() -> None:
    log = MemoryEventLog()
    asked: list[str] = []

    @op.on(RunRequest)
    async def confirm(request: RunRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        if await ctx.ask("Begin?"):
            yield request

    def answer(question: Any) -> bool:
        asked.append(question.prompt)
        return True

    def strategy(pipeline: Any) -> Any:
        return op.compose(confirm, op.iterate(pipeline))

    agent = Agent(ScriptedModel(call("pay", amount=1), *["Done."] * 3), tools=[make_pay()], log=log, strategy=strategy)
    run = await agent.run("Hi", on_input=answer)
    assert asked == ["Begin?"]

    await agent.fork(run.task_id, await find(log, run.task_id, ToolCompleteEvent), on_input=answer)
    assert asked == ["Begin?"]
    await agent.fork(run.task_id, await find(log, run.task_id, InputReceivedEvent), on_input=answer)
    assert asked == ["Begin?"] * 2


@pytest.mark.parametrize("kind", ["tool", "guard", "inside"])
async def test_fork_does_not_repeat_a_call_that_the_copied_part_started(kind: str) -> None:
    log = MemoryEventLog()
    original = await pay_once(log, kind, inline=False)
    started = await find(log, original, ToolStartEvent, -1)

    result = await make_agent(log, kind, "It is unclear.").fork(original, started, on_input=lambda question: True)

    assert len(payments) == 1
    assert result.messages[2].text == INTERRUPTED


async def test_fork_repeats_an_idempotent_call_with_the_key_of_the_original_run() -> None:
    log = MemoryEventLog()
    original = await pay_once(log, "idempotent", inline=False)
    started = await find(log, original, ToolStartEvent)

    fork = await make_agent(log, "idempotent").fork(original, started)
    assert fork.state == "input-required"
    fork = await make_agent(log, "idempotent", "Done.").resume(fork.task_id, inputs={fork.pending[0].input_id: True})
    assert len(payments) == 2
    assert len(set(payments)) == 1
    events = await collect(make_agent(log, "idempotent", "Done.").fork(fork.task_id, started + 3, on_input=lambda _: 1))
    assert len(events) > started
    assert len(set(payments)) == 1


async def test_copied_events_are_equal_to_those_of_the_original_run() -> None:
    log = MemoryEventLog()
    original = await pay_once(log, "tool", inline=False)
    answered = await find(log, original, InputReceivedEvent)
    fork = await make_agent(log, "tool").fork(original, answered)

    ids = {"task_id": "", "context_id": ""}
    copied = (await log.read(fork.task_id))[1:answered]
    assert [event.model_copy(update=ids) for event in copied] == [
        event.model_copy(update=ids) for event in (await log.read(original))[1:answered]
    ]
