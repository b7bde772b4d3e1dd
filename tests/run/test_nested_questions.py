"""Questions of nested runs pause the outer run, and their answers resume both."""

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
from rxloop.run.final_events import make_canceled_call
from rxloop.state import fold
from rxloop.testing import call
from support.nested_agents import (
    check_attempts,
    collect_checked,
    editor,
    filter_by_path,
    in_virtual_time,
    researcher,
    total_usage,
    turn_with_usage,
)
from support.runs import collect, outcome, shape

EFFECTS: list[Any] = []


@pytest.fixture(autouse=True)
def clear_payments() -> None:
    EFFECTS.clear()


@tool
async def pay(ctx: RunContext[Any], amount: int) -> str:
    """Pays."""
    approved = await ctx.ask(f"Pay {amount}?")
    EFFECTS.append((amount, approved))
    return str(approved)


@tool
async def look() -> str:
    """Looks."""
    EFFECTS.append("looked")
    return "seen"


def make_asking_agent(*turns: Any, **fields: Any) -> Agent:
    script = turns or (call("look"), [call("pay", amount=5), call("look")], turn_with_usage("Paid."))
    return researcher(*script, tools=[pay, look], **fields)


async def test_question_of_nested_run_pauses_the_outer_run() -> None:  # L117
    run = editor(make_asking_agent().as_tool("research")).run("q")
    events = await collect_checked(run)
    result = await run
    assert result.state == "input-required"
    (question,) = result.pending
    assert question.prompt == "Pay 5?"
    assert question.input_id == "1.0:2.0.1"
    assert (question.task_id, question.agent_path) == (filter_by_path(events, "researcher")[0].task_id, ("researcher",))
    assert question.call is not None
    assert question.call.name == "pay"
    assert [event.state for event in events if isinstance(event, SubtaskEvent)] == ["working", "input-required"]
    assert not [event for event in filter_by_path(events) if isinstance(event, ToolCompleteEvent)]
    assert EFFECTS == ["looked", "looked"]


async def test_answer_resumes_nested_and_outer_run_without_repeating_calls() -> None:  # L117
    agent = editor(make_asking_agent().as_tool("research"))
    first = agent.run("q")
    before = await collect_checked(first)
    (question,) = (await first).pending
    second = agent.resume(first.task_id, inputs={question.input_id: True})
    after = await collect(second)
    result = await second
    assert result.output == "A page."
    assert EFFECTS == ["looked", "looked", (5, True)]
    assert result.usage == total_usage([*before, *after])
    assert shape(result.messages)[-2:] == ["tool: Paid.", "assistant: A page."]
    events = await agent.log.read(first.task_id)  # type: ignore[union-attr]
    check_attempts(events)
    (answer,) = [event for event in events if isinstance(event, InputReceivedEvent)]
    assert (answer.task_id, answer.agent_path) == (question.task_id, ("researcher",))
    assert len([event for event in events if isinstance(event, InputRequiredEvent)]) == 1
    statuses = [event for event in filter_by_path(events, "researcher") if isinstance(event, StatusUpdateEvent)]
    assert [event.state for event in statuses] == ["working", "input-required", "working", "completed"]
    assert [event.resumed for event in statuses] == [False, False, True, False]
    state = RunState()
    for event in events:
        state = fold(state, event)
    assert list(state.messages) == result.messages
    assert state.usage == result.usage
    assert state.pending == {}


async def test_on_input_answers_a_question_of_a_nested_run_without_a_pause() -> None:
    questions: list[Any] = []

    def answer(question: Any) -> bool:
        questions.append(question)
        return False

    run = editor(make_asking_agent().as_tool("research")).run("q", on_input=answer)
    await collect_checked(run)
    assert (await run).output == "A page."
    assert EFFECTS[-1] == (5, False) or (5, False) in EFFECTS
    assert questions[0].agent_path == ("researcher",)


async def test_questions_of_several_nested_runs_have_different_ids() -> None:
    agents = [
        make_asking_agent(call("pay", amount=n), turn_with_usage("Paid."), name=f"r{n}").as_tool(f"r{n}")
        for n in range(2)
    ]
    agent = editor(
        pay,
        *agents,
        turns=[[call("r0", prompt="0"), call("r1", prompt="1"), call("pay", amount=9)], turn_with_usage("Done.")],
    )
    first = agent.run("q")
    await collect_checked(first)
    pending = {question.prompt: question.input_id for question in (await first).pending}
    assert pending == {"Pay 0?": "1.0:1.0.1", "Pay 1?": "1.1:1.0.1", "Pay 9?": "1.2.1"}

    second = agent.resume(first.task_id, inputs={pending["Pay 1?"]: True})
    await collect(second)
    result = await second
    assert result.state == "input-required"
    assert {question.prompt for question in result.pending} == {"Pay 0?", "Pay 9?"}
    assert EFFECTS == [(1, True)]

    last = agent.resume(first.task_id, inputs={pending["Pay 0?"]: True, pending["Pay 9?"]: False})
    await collect(last)
    assert (await last).output == "Done."
    assert sorted(EFFECTS) == [(0, True), (1, True), (9, False)]
    check_attempts(await agent.log.read(first.task_id))  # type: ignore[union-attr]


async def test_question_of_deeply_nested_run_pauses_the_outer_run() -> None:
    middle = researcher(
        call("research", prompt="x"),
        turn_with_usage("M."),
        name="middle",
        tools=[make_asking_agent().as_tool("research")],
    )
    agent = editor(middle.as_tool("research"))
    first = agent.run("q")
    await collect_checked(first)
    (question,) = (await first).pending
    assert (question.input_id, question.agent_path) == ("1.0:1.0:2.0.1", ("middle", "researcher"))
    second = agent.resume(first.task_id, inputs={question.input_id: True})
    await collect(second)
    result = await second
    assert result.output == "A page."
    assert EFFECTS == ["looked", "looked", (5, True)]
    assert result.usage.input_tokens == 30
    check_attempts(await agent.log.read(first.task_id))  # type: ignore[union-attr]


async def test_resume_rejects_invalid_answer_for_nested_run() -> None:
    agent = editor(make_asking_agent().as_tool("research"))
    first = agent.run("q")
    await collect(first)
    with pytest.raises(InvalidInput, match="does not answer"):
        await agent.resume(first.task_id, inputs={"1.0:2.0.1": "perhaps"})
    with pytest.raises(InvalidInput, match=r"waiting for 1\.0:2\.0\.1"):
        await agent.resume(first.task_id)


async def test_nested_run_starts_only_after_its_call_is_approved() -> None:
    agent = editor(researcher().as_tool("research", approve="Research {prompt}?"))
    first = agent.run("q")
    events = await collect_checked(first)
    (question,) = (await first).pending
    assert (question.prompt, question.task_id) == ("Research Oslo??", None)
    assert not filter_by_path(events, "researcher")
    second = agent.resume(first.task_id, inputs={question.input_id: True})
    await collect(second)
    assert (await second).output == "A page."


@in_virtual_time
async def test_canceled_nested_run_has_no_pending_question() -> None:
    async def never_answer(question: Any) -> Any:
        await asyncio.Event().wait()

    nested = make_asking_agent().as_tool("research")

    @tool
    async def research(prompt: str, ctx: RunContext[Any]) -> Any:
        """Limit the nested run, including time spent on questions."""
        async with asyncio.timeout(3):
            return await nested.call({"prompt": prompt}, ctx)

    run = editor(research).run("q", on_input=never_answer)
    events = await collect_checked(run)
    result = await run
    assert result.output == "A page."
    assert result.pending == []
    assert filter_by_path(events, "researcher")[-1].kind == "status-update"


@in_virtual_time
async def test_cancel_at_any_event_drops_all_nested_questions() -> None:  # L100, L117
    @tool
    async def wait() -> str:
        """Waits."""
        await asyncio.sleep(1)
        return "waited"

    def make_agent_tree(log: MemoryEventLog) -> Agent:
        leaf = researcher(
            [call("pay", amount=5), call("wait")], turn_with_usage("Paid."), name="leaf", tools=[pay, wait]
        ).as_tool()
        middle = researcher(
            [call("leaf", prompt="x"), call("wait")], turn_with_usage("Asked."), name="middle", tools=[leaf, wait]
        ).as_tool()
        parallel_calls = [call("middle", prompt="x"), call("wait")]
        return editor(middle, wait, turns=[parallel_calls, turn_with_usage("A page.")], log=log)

    recorded = await collect(make_agent_tree(MemoryEventLog()).run("q"))
    for position in range(len(recorded)):
        log = MemoryEventLog()
        run = make_agent_tree(log).run("q")
        count = 0
        async for _ in run:
            if count == position:
                run.cancel()
            count += 1
        result = await outcome(run)
        assert result.state == "input-required" or not result.pending, (position, result.pending)
        state = RunState()
        for event in await log.read(run.task_id):
            state = fold(state, event)
        assert list(state.pending.values()) == result.pending


async def test_nested_questions_are_dropped_when_their_call_is_canceled() -> None:
    log = MemoryEventLog()
    run = editor(make_asking_agent().as_tool("research"), log=log).run("q")
    await collect(run)
    state = RunState()
    for event in await log.read(run.task_id):
        state = fold(state, event)
    (question,) = state.pending.values()
    assert question.agent_path == ("researcher",)
    assert state.batch is not None
    assert not fold(state, make_canceled_call(state.batch, 0, "cut off")).pending


async def test_cancel_of_paused_run_ends_its_waiting_nested_runs() -> None:  # L117
    log = MemoryEventLog()
    middle = researcher(call("leaf", prompt="x"), name="middle", tools=[make_asking_agent(name="leaf").as_tool()])
    agent = editor(middle.as_tool("research"), log=log)
    run = agent.run("q")
    await collect_checked(run)
    await agent.get_run(run.task_id).cancel()
    recorded = await log.read(run.task_id)
    check_attempts(recorded)
    ends = [event for event in recorded if isinstance(event, StatusUpdateEvent) and event.final]
    assert [(event.agent_path, event.state) for event in ends[3:]] == [
        (("middle", "leaf"), "canceled"),
        (("middle",), "canceled"),
        ((), "canceled"),
    ]


async def test_history_is_complete_after_the_next_run_drops_a_nested_question() -> None:  # L100
    agent = editor(make_asking_agent().as_tool("research"), turns=[call("research", prompt="x"), "Never mind."])
    first = agent.run("q", context_id="c")
    await collect(first)
    result = await agent.run("Something else.", context_id="c")
    assert [text.split(":")[0] for text in shape(result.messages)] == ["user", "assistant", "tool", "user", "assistant"]


async def test_answer_survives_a_crash_before_the_nested_run_resumes() -> None:
    log = MemoryEventLog()
    agent = editor(make_asking_agent().as_tool("research"), log=log)
    first = agent.run("q")
    await collect(first)
    run = agent.resume(first.task_id, inputs={"1.0:2.0.1": True})
    await collect(run)
    events = await log.read(first.task_id)
    received = next(event for event in events if isinstance(event, InputReceivedEvent))
    truncated_log = MemoryEventLog()
    await truncated_log.append(first.task_id, events[: received.seq], expected_seq=0)
    EFFECTS.clear()
    resumed = editor(
        make_asking_agent(turn_with_usage("Paid.")).as_tool("research"),
        turns=[turn_with_usage("A page.")],
        log=truncated_log,
    ).resume(first.task_id)
    await collect(resumed)
    assert (await resumed).output == "A page."
    assert EFFECTS == [(5, True)]
    check_attempts(await truncated_log.read(first.task_id))


async def test_public_question_of_hidden_nested_run_reveals_nothing() -> None:
    run = editor(make_asking_agent().as_tool("research", hidden=True)).run("q")
    events = await collect_checked(run)
    (question,) = (await run).pending
    assert question.hidden
    public_events = [public_event for event in events if (public_event := event.to_public()) is not None]
    assert not [event for event in public_events if event.agent_path]
    assert "Pay" not in repr(public_events)
    final = public_events[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert [item.input_id for item in final.pending] == [question.input_id]
