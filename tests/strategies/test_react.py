"""ReAct: rounds of reasoning and acting, by real tools."""

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
    """Looks a fact up."""
    if (entity, relation) not in FACTS:
        raise ToolError(f"nothing is known about the {relation} of {entity}")
    return FACTS[entity, relation]


def follows(conversation: Conversation) -> Reply:
    """A model that follows one relation after the other, and answers with what it finds last."""
    relations = ["author", "mother", "birthplace"]
    found = conversation.calls
    if len(found) == len(relations):
        return Reply(str(found[-1].result))
    entity = str(found[-1].result) if found else "The Trumpet"
    relation = relations[len(found)]
    return Reply(f"I need the {relation} of {entity}.", [("look_up", {"entity": entity, "relation": relation})])


QUESTION = "Where was the mother of the author of The Trumpet born?"


async def test_a_look_up_of_several_hops_over_http() -> None:
    offline = OfflineModel([follows])
    async with aclosing(offline.provider()) as model:
        run = Agent(model, tools=[look_up], strategy=react()).run(QUESTION)
        events = await collect(run)
        assert (await run).output == "Bergen"
        assert len(offline.requests) == 4
    assert is_legal(stage_path(events), "react")
    assert stage_path(events).count("action_execution") == 3


def letters(events: list[Event]) -> list[str]:
    kinds = ("stage", "thought-stream", "tool-start", "tool-complete")
    return [event.to_stage if isinstance(event, StageEvent) else event.kind for event in events if event.kind in kinds]


async def test_the_stages_frame_what_is_done_in_them() -> None:
    model = ScriptedModel(["I add.", call("add", a=1, b=2)], "3")
    events = await collect(Agent(model, tools=[add], strategy=react()).run("1 + 2?"))
    assert letters(events) == [
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


async def test_what_was_observed_is_linked_to_the_thought_that_planned_it() -> None:
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
    # In the graph the call hangs under the thought of its message, too.
    graph = (await run).thoughts
    assert [plan, second, again, third] in graph.chains()


async def test_a_message_that_only_calls_is_a_plan_all_the_same() -> None:
    events = await collect(Agent(ScriptedModel(call("add", a=1, b=2), "3"), tools=[add], strategy=react()).run("?"))
    assert list_thoughts(events)[0].content == "Call add"


async def test_what_needs_no_tool_is_answered_by_one_model_call() -> None:
    run = Agent(ScriptedModel("4"), tools=[add], strategy=react()).run("2 + 2?")
    events = await collect(run)
    assert (await run).output == "4"
    assert is_legal(stage_path(events), "react")


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_after_the_last_round_the_model_has_to_answer_without_tools(most: int) -> None:
    model = ScriptedModel(*repeat_turn(call("add", a=1, b=1), most), "About 2.")
    run = Agent(model, tools=[add], strategy=react(max_cycles=most)).run("?")
    events = await collect(run)
    assert (await run).output == "About 2."
    assert [bool(request.tools) for request in model.requests] == [True] * most + [False]
    assert is_legal(stage_path(events), "react")


async def test_a_failed_tool_is_an_observation_and_too_many_end_the_run() -> None:
    wrong: Any = call("look_up", entity="?", relation="author")
    model = ScriptedModel(wrong, "Unknown.")
    run = Agent(model, tools=[look_up], strategy=react()).run("?")
    assert list_thoughts(await collect(run))[1].content == "nothing is known about the author of ?"
    model = ScriptedModel(*repeat_turn(wrong, 9))
    with pytest.raises(LimitReached) as raised:
        await Agent(model, tools=[look_up], strategy=react(max_cycles=9)).run("?")
    assert raised.value.code == "tool_failures"
    assert len(model.requests) == 3
