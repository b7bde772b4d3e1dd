"""ReWOO: plan, tool calls and answer."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from rxloop import (
    Agent,
    Event,
    LLMCallEvent,
    MemoryEventLog,
    RunError,
    StageEvent,
    ToolError,
    ToolStartEvent,
    tool,
)
from rxloop.errors import PlanRefused
from rxloop.state.history import INTERRUPTED
from rxloop.strategies import rewoo
from rxloop.testing import Conversation, OfflineModel, Reply, ScriptedModel, virtual_time
from support.runs import collect, copy_first_events
from support.strategy_cases import add, is_legal, list_thoughts, stage_path

CAPITALS = {"Norway": "Oslo", "Peru": "Lima"}
CITIZENS = {"Oslo": 717_710, "Lima": 10_092_000}


@tool(idempotent=True)
async def capital(country: str) -> str:
    """Return the capital of a country."""
    if country not in CAPITALS:
        raise ToolError(f"unknown country {country!r}")
    return CAPITALS[country]


@tool(idempotent=True)
async def citizens(city: str) -> int:
    """Return the population of a city."""
    return CITIZENS[city]


PLAN = """Plan: Find both capitals.
#E1 = capital[Norway]
#E2 = capital[{"country": "Peru"}]
Plan: Then how many live there.
#E3 = citizens[#E1]
#E4 = citizens[#E2]
Plan: Add them.
#E5 = add[{"a": "#E3", "b": "#E4"}]
"""
TOOLS = [capital, citizens, add]


def answer_prompt(conversation: Conversation) -> Reply:
    """Return the plan or, given evidence, the answer."""
    if "Evidence:" not in conversation.question:
        return Reply(PLAN)
    return Reply(conversation.question.split("Evidence: ")[-1])


async def test_rewoo_answers_a_question_of_several_hops_with_two_model_calls() -> None:
    offline = OfflineModel([answer_prompt])
    async with aclosing(offline.provider()) as model:
        run = Agent(model, tools=TOOLS, strategy=rewoo()).run("How many live in the capitals of Norway and Peru?")
        events = await collect(run)
        assert (await run).output == str(717_710 + 10_092_000)
        assert len(offline.requests) == 2
        assert not [body for body in offline.requests if body.get("tools")]
    assert is_legal(stage_path(events), "rewoo")


@pytest.mark.parametrize("count", [1, 2, 5, 12])
async def test_rewoo_needs_two_model_calls_for_any_number_of_tools(count: int) -> None:
    # T82
    plan = "\n".join(f'#E{each} = add[{{"a": {each}, "b": 1}}]' for each in range(1, count + 1))
    model = ScriptedModel(plan, "Done.")
    run = Agent(model, tools=TOOLS, strategy=rewoo()).run("?")
    events = await collect(run)
    assert (await run).output == "Done."
    assert len(model.requests) == 2
    assert sum(isinstance(event, ToolStartEvent) for event in events) == count
    stage = ""
    for event in events:
        if isinstance(event, StageEvent):
            stage = event.to_stage
        elif isinstance(event, LLMCallEvent):
            assert stage in ("tool_call_specification", "final_response")


def test_independent_calls_run_concurrently() -> None:
    # T79
    times: dict[str, tuple[float, float]] = {}

    @tool
    async def slow(name: str, value: int = 0) -> int:
        """Takes a second."""
        begin = time.now
        await asyncio.sleep(1)
        times[name] = (begin, time.now)
        return value + 1

    plan = """#E1 = slow[{"name": "one"}]
    #E2 = slow[{"name": "two", "value": "#E1"}]
    #E3 = slow[{"name": "three"}]"""
    with virtual_time() as time:
        model = ScriptedModel(plan, "Done.")
        events = time.run(collect(Agent(model, tools=[slow], strategy=rewoo()).run("?")))
    assert times == {"one": (0, 1), "three": (0, 1), "two": (1, 2)}
    solving = model.requests[1].tail[-1].text
    assert [line for line in solving.splitlines() if line.startswith("Evidence")] == [
        "Evidence: 1",
        "Evidence: 2",
        "Evidence: 1",
    ]
    observed_ids = [thought.tool_call_id for thought in list_thoughts(events) if thought.thought_type == "observation"]
    assert observed_ids == ["rewoo/E1", "rewoo/E2", "rewoo/E3"]


def test_rewoo_respects_its_concurrency() -> None:
    @tool
    async def slow(name: str) -> str:
        """Takes a second."""
        await asyncio.sleep(1)
        return name

    # E1 depends on E4. While it waits, it does not count towards the concurrency.
    plan = "#E1 = slow[#E4]\n#E2 = slow[b]\n#E3 = slow[c]\n#E4 = slow[d]"
    with virtual_time() as time:
        model = ScriptedModel(plan, "Done.")
        time.run(collect(Agent(model, tools=[slow], strategy=rewoo(concurrency=1)).run("?")))
        assert time.now == 4


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        ("#E1 = capital[#E2]\n#E2 = capital[#E1]", "circular dependency"),
        ("#E1 = capital[#E9]", "#E9"),
        ("#E1 = search[Norway]", "search"),
        ("Oslo, I think.", "at least one step"),
    ],
)
async def test_invalid_plan_is_corrected_once_and_then_refused(plan: str, problem: str) -> None:
    # T80
    model = ScriptedModel(plan, "#E1 = capital[Norway]", "Oslo.")
    assert (await Agent(model, tools=TOOLS, strategy=rewoo()).run("?")).output == "Oslo."
    assert problem in model.requests[1].messages[-1].text

    run = Agent(ScriptedModel(plan), tools=TOOLS, strategy=rewoo(replans=0)).run("?")
    events: list[Event] = await collect(run)
    with pytest.raises(RunError, match=problem) as raised:
        await run
    assert isinstance(raised.value.__cause__, PlanRefused)
    assert stage_path(events)[-1] == "tool_call_specification"


async def test_failed_call_is_evidence() -> None:
    model = ScriptedModel("#E1 = capital[Nowhere]\n#E2 = capital[Peru]", "Lima.")
    assert (await Agent(model, tools=TOOLS, strategy=rewoo()).run("?")).output == "Lima."
    assert "Evidence: unknown country 'Nowhere'\n" in model.requests[1].tail[-1].text


@pytest.mark.parametrize(("argument", "result"), [("4", 5), ("#E2", 3), ("many", None)])
async def test_plain_argument_is_converted_to_the_type_of_the_first_parameter(argument: str, result: Any) -> None:
    @tool
    async def increment(value: int) -> int:
        """Return the next number."""
        return value + 1

    @tool
    async def two() -> int:
        """Return two."""
        return 2

    model = ScriptedModel(f"#E1 = increment[{argument}]\n#E2 = two[]", "Done.")
    await Agent(model, tools=[increment, two], strategy=rewoo()).run("?")
    evidence = model.requests[1].tail[-1].text.split("Evidence: ")[1].splitlines()[0]
    assert evidence == str(result) if result is not None else not evidence.isdigit()


async def test_started_calls_are_not_repeated_after_a_crash() -> None:
    calls: list[str] = []

    @tool
    async def count(name: str) -> str:
        """Counts its calls."""
        calls.append(name)
        return name

    log = MemoryEventLog()
    turns = ["#E1 = count[a]\n#E2 = count[#E1]", "Done."]
    complete_result = await Agent(ScriptedModel(*turns), tools=[count], strategy=rewoo(), log=log).run("?")
    events = await log.read(complete_result.task_id)
    for event_count in range(2, len(events)):
        calls.clear()
        partial_log = await copy_first_events(log, complete_result.task_id, event_count)
        kinds = [event.kind for event in events[:event_count]]
        model = ScriptedModel(*turns[kinds.count("content-complete") and 1 :])
        result = await Agent(model, tools=[count], strategy=rewoo(), log=partial_log).resume(complete_result.task_id)
        assert result.output == "Done."
        assert len(calls) == 2 - kinds.count("tool-start")


@pytest.mark.parametrize("idempotent", [True, False])
async def test_cancelled_call_is_repeated_if_it_is_idempotent(idempotent: bool) -> None:
    calls = 0

    @tool(idempotent=idempotent)
    async def pay(amount: int) -> str:
        """Block twice, then pay."""
        nonlocal calls
        calls += 1
        if calls < 3:
            await asyncio.get_running_loop().create_future()
        return f"paid {amount}"

    log = MemoryEventLog()
    agent = Agent(ScriptedModel("#E1 = pay[5]", "Done.", "Done."), tools=[pay], strategy=rewoo(), log=log)
    run = agent.run("?")
    for _ in range(2):
        async for event in run:
            if isinstance(event, ToolStartEvent):
                run.cancel()
        run = agent.resume(run.task_id)
    assert (await run).output == "Done."
    # Other calls wait until their start is durable, so they are cancelled before they run.
    assert calls == (3 if idempotent else 0)
    observed = [
        each.content for each in list_thoughts(await log.read(run.task_id)) if each.thought_type == "observation"
    ]
    assert observed == ["paid 5" if idempotent else INTERRUPTED]
