"""Reasoning and acting."""

from contextlib import aclosing
from typing import Any

import pytest

from rxloop import Agent, Event, LimitReached, StageEvent, ToolError, tool
from rxloop.strategies import react
from rxloop.testing import Conversation, OfflineModel, Reply, ScriptedModel, call
from support.runs import collect, repeat_turn
from support.strategy_cases import add, is_legal, list_thoughts, stage_path

FACTS = {
    ("The Trumpet", "author"): "Ada Holm",
    ("Ada Holm", "mother"): "Rut Holm",
    ("Rut Holm", "birthplace"): "Bergen",
}


@tool
async def look_up(entity: str, relation: str) -> str:
    """Look up a fact."""
    if (entity, relation) not in FACTS:
        raise ToolError(f"unknown {relation} of {entity}")
    return FACTS[entity, relation]


def follow_relations(conversation: Conversation) -> Reply:
    """Look up relations one by one. The answer is the last result."""
    relations = ["author", "mother", "birthplace"]
    calls = conversation.calls
    if len(calls) == len(relations):
        return Reply(str(calls[-1].result))
    entity = str(calls[-1].result) if calls else "The Trumpet"
    relation = relations[len(calls)]
    return Reply(f"I need the {relation} of {entity}.", [("look_up", {"entity": entity, "relation": relation})])


QUESTION = "Where was the mother of the author of The Trumpet born?"


async def test_react_answers_a_question_of_several_hops_over_http() -> None:
    offline = OfflineModel([follow_relations])
    async with aclosing(offline.provider()) as model:
        run = Agent(model, tools=[look_up], strategy=react()).run(QUESTION)
        events = await collect(run)
        assert (await run).output == "Bergen"
        assert len(offline.requests) == 4
    assert is_legal(stage_path(events), "react")
    assert stage_path(events).count("action_execution") == 3


def list_stages_and_kinds(events: list[Event]) -> list[str]:
    kinds = ("stage", "thought-stream", "tool-start", "tool-complete")
    return [event.to_stage if isinstance(event, StageEvent) else event.kind for event in events if event.kind in kinds]


async def test_stage_events_precede_the_events_of_their_stage() -> None:
    model = ScriptedModel(["I add.", call("add", a=1, b=2)], "3")
    events = await collect(Agent(model, tools=[add], strategy=react()).run("1 + 2?"))
    assert list_stages_and_kinds(events) == [
        "problem_reception",
        "initial_reasoning",
        "action_planning",
        "thought-stream",
        "action_execution",
        "tool-start",
        "tool-complete",
        "observation_reception",
        "thought-stream",
        "reasoning_update",
        "evaluation_checkpoint",
        "solution_formulation",
        "final_response",
    ]


async def test_observation_is_related_to_its_plan() -> None:
    # T81
    both = ["I add twice.", call("add", "c1", a=1, b=2), call("add", "c2", a=3, b=4)]
    model = ScriptedModel(both, ["Once more.", call("add", "c3", a=3, b=7)], "10")
    run = Agent(model, tools=[add], strategy=react()).run("?")
    plan, first, second, again, third = list_thoughts(await collect(run))
    assert [(each.content, each.tool_call_id, each.related_to) for each in (first, second)] == [
        ("3", "c1", plan.thought_id),
        ("7", "c2", plan.thought_id),
    ]
    assert (plan.content, plan.thought_type, first.thought_type) == ("I add twice.", "planning", "observation")
    assert (again.related_to, third.related_to, third.content) == (second.thought_id, again.thought_id, "10")
    graph = (await run).thoughts
    assert [plan, second, again, third] in graph.chains()


async def test_message_with_only_calls_is_a_planning_thought() -> None:
    events = await collect(Agent(ScriptedModel(call("add", a=1, b=2), "3"), tools=[add], strategy=react()).run("?"))
    assert list_thoughts(events)[0].content == "Call add"


async def test_react_answers_without_tools_in_one_model_call() -> None:
    run = Agent(ScriptedModel("4"), tools=[add], strategy=react()).run("2 + 2?")
    events = await collect(run)
    assert (await run).output == "4"
    assert is_legal(stage_path(events), "react")


@pytest.mark.parametrize("cycles", [1, 2, 3])
async def test_model_gets_no_tools_after_the_last_cycle(cycles: int) -> None:
    model = ScriptedModel(*repeat_turn(call("add", a=1, b=1), cycles), "About 2.")
    run = Agent(model, tools=[add], strategy=react(max_cycles=cycles)).run("?")
    events = await collect(run)
    assert (await run).output == "About 2."
    assert [bool(request.tools) for request in model.requests] == [True] * cycles + [False]
    assert is_legal(stage_path(events), "react")


async def test_failed_tool_is_an_observation_and_repeated_failures_end_the_run() -> None:
    wrong: Any = call("look_up", entity="?", relation="author")
    model = ScriptedModel(wrong, "Unknown.")
    run = Agent(model, tools=[look_up], strategy=react()).run("?")
    assert list_thoughts(await collect(run))[1].content == "unknown author of ?"
    model = ScriptedModel(*repeat_turn(wrong, 9))
    with pytest.raises(LimitReached) as raised:
        await Agent(model, tools=[look_up], strategy=react(max_cycles=9)).run("?")
    assert raised.value.code == "tool_failures"
    assert len(model.requests) == 3
