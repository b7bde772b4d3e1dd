"""Questions of nested runs: they pause the run around them, and their answers let both go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import (
    Agent,
    InputReceivedEvent,
    InputRequiredEvent,
    MemoryEventLog,
    RunContext,
    RunState,
    StatusUpdateEvent,
    SubtaskEvent,
    ToolCompleteEvent,
    tool,
)
from rxloop.errors import InvalidInput
from rxloop.run.ends import canceled_call
from rxloop.state import fold
from rxloop.testing import call
from support.nested_agents import check_attempts, checked, editor, in_virtual_time, of, researcher, tokens, used
from support.runs import collect, outcome, shape

PAID: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    PAID.clear()


@tool
async def pay(ctx: RunContext[Any], amount: int) -> str:
    """Pays."""
    agreed = await ctx.ask(f"Pay {amount}?")
    PAID.append((amount, agreed))
    return str(agreed)


@tool
async def look() -> str:
    """Looks."""
    PAID.append("looked")
    return "seen"


def asking(*turns: Any, **fields: Any) -> Agent:
    script = turns or (call("look"), [call("pay", amount=5), call("look")], tokens("Paid."))
    return researcher(*script, tools=[pay, look], **fields)


async def test_the_question_of_a_nested_run_pauses_the_run_around_it() -> None:  # L117
    run = editor(asking().as_tool("research")).run("q")
    events = await checked(run)
    result = await run
    assert result.state == "input-required"
    (question,) = result.pending
    assert (question.prompt, question.input_id) == ("Pay 5?", "1.0:2.0.1")
    assert (question.task_id, question.agent_path) == (of(events, "researcher")[0].task_id, ("researcher",))
    assert question.call is not None
    assert question.call.name == "pay"
    assert [event.state for event in events if isinstance(event, SubtaskEvent)] == ["working", "input-required"]
    assert not [event for event in of(events) if isinstance(event, ToolCompleteEvent)]
    assert PAID == ["looked", "looked"]


async def test_the_answer_lets_both_go_on_and_nothing_is_done_twice() -> None:  # L117
    agent = editor(asking().as_tool("research"))
    first = agent.run("q")
    before = await checked(first)
    (question,) = (await first).pending
    second = agent.resume(first.task_id, inputs={question.input_id: True})
    after = await collect(second)
    result = await second
    assert result.output == "A page."
    assert PAID == ["looked", "looked", (5, True)]
    assert result.usage == used([*before, *after])
    assert shape(result.messages)[-2:] == ["tool: Paid.", "assistant: A page."]
    events = await agent.log.read(first.task_id)  # type: ignore[union-attr]
    check_attempts(events)
    (answer,) = [event for event in events if isinstance(event, InputReceivedEvent)]
    assert (answer.task_id, answer.agent_path) == (question.task_id, ("researcher",))
    assert len([event for event in events if isinstance(event, InputRequiredEvent)]) == 1
    statuses = [event for event in of(events, "researcher") if isinstance(event, StatusUpdateEvent)]
    assert [event.state for event in statuses] == ["working", "input-required", "working", "completed"]
    assert [event.resumed for event in statuses] == [False, False, True, False]
    state = RunState()
    for event in events:
        state = fold(state, event)
    assert (list(state.messages), state.usage, state.pending) == (result.messages, result.usage, {})


async def test_an_answer_at_once_needs_no_pause() -> None:
    asked: list[Any] = []

    def answer(question: Any) -> bool:
        asked.append(question)
        return False

    run = editor(asking().as_tool("research")).run("q", on_input=answer)
    await checked(run)
    assert (await run).output == "A page."
    assert PAID[-1] == (5, False) or (5, False) in PAID
    assert asked[0].agent_path == ("researcher",)


async def test_questions_of_several_nested_runs_have_ids_of_their_own() -> None:
    agents = [asking(call("pay", amount=n), tokens("Paid."), name=f"r{n}").as_tool(f"r{n}") for n in range(2)]
    agent = editor(
        pay, *agents, turns=[[call("r0", prompt="0"), call("r1", prompt="1"), call("pay", amount=9)], tokens("Done.")]
    )
    first = agent.run("q")
    await checked(first)
    pending = {question.prompt: question.input_id for question in (await first).pending}
    assert pending == {"Pay 0?": "1.0:1.0.1", "Pay 1?": "1.1:1.0.1", "Pay 9?": "1.2.1"}

    second = agent.resume(first.task_id, inputs={pending["Pay 1?"]: True})
    await collect(second)
    result = await second
    assert result.state == "input-required"
    assert {question.prompt for question in result.pending} == {"Pay 0?", "Pay 9?"}
    assert PAID == [(1, True)]

    last = agent.resume(first.task_id, inputs={pending["Pay 0?"]: True, pending["Pay 9?"]: False})
    await collect(last)
    assert (await last).output == "Done."
    assert sorted(PAID) == [(0, True), (1, True), (9, False)]
    check_attempts(await agent.log.read(first.task_id))  # type: ignore[union-attr]


async def test_a_question_comes_up_from_any_depth() -> None:
    middle = researcher(call("research", prompt="x"), tokens("M."), name="middle", tools=[asking().as_tool("research")])
    agent = editor(middle.as_tool("research"))
    first = agent.run("q")
    await checked(first)
    (question,) = (await first).pending
    assert (question.input_id, question.agent_path) == ("1.0:1.0:2.0.1", ("middle", "researcher"))
    second = agent.resume(first.task_id, inputs={question.input_id: True})
    await collect(second)
    result = await second
    assert (result.output, PAID) == ("A page.", ["looked", "looked", (5, True)])
    assert result.usage.input_tokens == 30
    check_attempts(await agent.log.read(first.task_id))  # type: ignore[union-attr]


async def test_an_answer_that_does_not_fit_is_refused() -> None:
    agent = editor(asking().as_tool("research"))
    first = agent.run("q")
    await collect(first)
    with pytest.raises(InvalidInput, match="does not answer"):
        await agent.resume(first.task_id, inputs={"1.0:2.0.1": "perhaps"})
    with pytest.raises(InvalidInput, match=r"waits for 1\.0:2\.0\.1"):
        await agent.resume(first.task_id)


async def test_a_nested_run_whose_call_needs_approval_is_not_begun_before() -> None:
    agent = editor(researcher().as_tool("research", approve="Research {prompt}?"))
    first = agent.run("q")
    events = await checked(first)
    (question,) = (await first).pending
    assert (question.prompt, question.task_id) == ("Research Oslo??", None)
    assert not of(events, "researcher")
    second = agent.resume(first.task_id, inputs={question.input_id: True})
    await collect(second)
    assert (await second).output == "A page."


@in_virtual_time
async def test_a_nested_run_that_is_cancelled_at_its_question_asks_no_more() -> None:
    async def never(question: Any) -> Any:
        await asyncio.Event().wait()

    nested = asking().as_tool("research")

    @tool
    async def research(prompt: str, ctx: RunContext[Any]) -> Any:
        """Give the nested run a limit that goes on while a person is asked."""
        async with asyncio.timeout(3):
            return await nested.call({"prompt": prompt}, ctx)

    run = editor(research).run("q", on_input=never)
    events = await checked(run)
    result = await run
    assert result.output == "A page."
    assert result.pending == []
    assert of(events, "researcher")[-1].kind == "status-update"


@in_virtual_time
async def test_a_cancel_at_any_event_lets_go_of_every_question_below() -> None:  # L100, L117
    @tool
    async def wait() -> str:
        """Waits."""
        await asyncio.sleep(1)
        return "waited"

    def family(log: MemoryEventLog) -> Agent:
        leaf = researcher(
            [call("pay", amount=5), call("wait")], tokens("Paid."), name="leaf", tools=[pay, wait]
        ).as_tool()
        middle = researcher(
            [call("leaf", prompt="x"), call("wait")], tokens("Asked."), name="middle", tools=[leaf, wait]
        ).as_tool()
        both = [call("middle", prompt="x"), call("wait")]
        return editor(middle, wait, turns=[both, tokens("A page.")], log=log)

    whole = await collect(family(MemoryEventLog()).run("q"))
    for place in range(len(whole)):
        log = MemoryEventLog()
        run = family(log).run("q")
        seen = 0
        async for _ in run:
            if seen == place:
                run.cancel()
            seen += 1
        result = await outcome(run)
        assert result.state == "input-required" or not result.pending, (place, result.pending)
        state = RunState()
        for event in await log.read(run.task_id):
            state = fold(state, event)
        assert list(state.pending.values()) == result.pending


async def test_the_questions_below_a_call_that_is_answered_are_let_go() -> None:
    log = MemoryEventLog()
    run = editor(asking().as_tool("research"), log=log).run("q")
    await collect(run)
    state = RunState()
    for event in await log.read(run.task_id):
        state = fold(state, event)
    (question,) = state.pending.values()
    assert question.agent_path == ("researcher",)
    assert state.batch is not None
    assert not fold(state, canceled_call(state.batch, 0, "cut off")).pending


async def test_a_paused_run_that_is_cancelled_ends_the_runs_that_wait_below() -> None:  # L117
    log = MemoryEventLog()
    middle = researcher(call("leaf", prompt="x"), name="middle", tools=[asking(name="leaf").as_tool()])
    agent = editor(middle.as_tool("research"), log=log)
    run = agent.run("q")
    await checked(run)
    await agent.get_run(run.task_id).cancel()
    whole = await log.read(run.task_id)
    check_attempts(whole)
    ends = [event for event in whole if isinstance(event, StatusUpdateEvent) and event.final]
    assert [(event.agent_path, event.state) for event in ends[3:]] == [
        (("middle", "leaf"), "canceled"),
        (("middle",), "canceled"),
        ((), "canceled"),
    ]


async def test_a_question_that_is_let_go_by_the_next_run_leaves_a_whole_history() -> None:  # L100
    agent = editor(asking().as_tool("research"), turns=[call("research", prompt="x"), "Never mind."])
    first = agent.run("q", context_id="c")
    await collect(first)
    result = await agent.run("Something else.", context_id="c")
    assert [text.split(":")[0] for text in shape(result.messages)] == ["user", "assistant", "tool", "user", "assistant"]


async def test_a_crash_between_the_answer_and_the_nested_run_loses_nothing() -> None:
    log = MemoryEventLog()
    agent = editor(asking().as_tool("research"), log=log)
    first = agent.run("q")
    await collect(first)
    run = agent.resume(first.task_id, inputs={"1.0:2.0.1": True})
    await collect(run)
    events = await log.read(first.task_id)
    received = next(event for event in events if isinstance(event, InputReceivedEvent))
    cut = MemoryEventLog()
    await cut.append(first.task_id, events[: received.seq], expected_seq=0)
    PAID.clear()
    again = editor(asking(tokens("Paid.")).as_tool("research"), turns=[tokens("A page.")], log=cut).resume(
        first.task_id
    )
    await collect(again)
    assert ((await again).output, PAID) == ("A page.", [(5, True)])
    check_attempts(await cut.read(first.task_id))


async def test_a_hidden_nested_run_asks_in_words_that_give_nothing_away() -> None:
    run = editor(asking().as_tool("research", hidden=True)).run("q")
    events = await checked(run)
    (question,) = (await run).pending
    assert question.hidden
    shown = [form for event in events if (form := event.to_public()) is not None]
    assert not [event for event in shown if event.agent_path]
    assert "Pay" not in repr(shown)
    final = shown[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert [each.input_id for each in final.pending] == [question.input_id]
