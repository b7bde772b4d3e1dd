"""The tool `strategic_thinking`: stages, choices, branches and their fate, in runs and by itself; T55 to T87."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rxloop import (
    Agent,
    Event,
    MemoryEventLog,
    RunContext,
    StageEvent,
    ThoughtGraph,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    strategic_thinking,
)
from rxloop.errors import ConfigurationError, ToolError
from rxloop.storage import SqliteArtifacts
from rxloop.strategies import STRATEGIES
from rxloop.strategies.strategic_thinking import NAME, StrategicThinking
from rxloop.testing import ScriptedModel, call
from rxloop.thinking import Stage, StrategyDefinition, ThinkingSessions
from support.sequential_thoughts import TO_BRANCHES, thought

DRAFT = StrategyDefinition(
    name="draft_and_check",
    stages=[
        Stage(name="draft", next="check", prompt="Write a first version."),
        Stage(name="check", next=["draft", "answer"], fields=["verdict"], prompt="Is it right?"),
        Stage(name="answer", prompt="Give the answer."),
    ],
)


class Thinker:
    """A session of the tool, outside a run."""

    def __init__(self, *strategies: Any, **options: Any) -> None:
        self.tool = strategic_thinking(*strategies, session_id="s", **options)
        self.number = 0

    async def think(self, stage: str | None = None, **fields: Any) -> dict[str, Any]:
        self.number += 1
        given = thought(self.number, 99, **({"stage": stage} if stage else {}), **fields)
        return (await self.tool.call(given, RunContext())).value

    async def refused(self, stage: str | None = None, **fields: Any) -> dict[str, Any]:
        with pytest.raises(ToolError) as caught:
            await self.think(stage, **fields)
        self.number -= 1
        return json.loads(str(caught.value))

    async def walk(self, stages: Iterable[str], **fields: Any) -> dict[str, Any]:
        said: dict[str, Any] = {}
        for stage in stages:
            said = await self.think(stage, **fields)
        return said


async def tree(*branches: str, **options: Any) -> Thinker:
    """A tree of thoughts with some branches, each developed and evaluated."""
    thinker = Thinker("tree_of_thoughts", **options)
    await thinker.walk(TO_BRANCHES)
    for name in branches:
        await thinker.think("branch_development", branchFromThought=3, branchId=name)
    return thinker


@pytest.mark.parametrize("name", [*STRATEGIES, "base_sequential", "Tree of Thoughts"])
async def test_every_strategy_begins_with_its_first_stage(name: str) -> None:
    # T55
    said = await Thinker().think(strategy=name)
    assert said["stage"] == "problem_reception"
    assert said["strategy"] == ("linear" if name == "base_sequential" else name.lower().replace(" ", "_"))


async def test_an_unknown_strategy_is_refused_with_the_names_of_the_nine() -> None:
    # T56
    thinker = Thinker()
    for fields, code in (({"strategy": "magic"}, "unknown_strategy"), ({}, "strategy_required")):
        said = await thinker.refused(**fields)
        assert said["code"] == code
        assert all(name in said["error"] for name in STRATEGIES)
    assert await thinker.tool.sessions.all_sessions() == []


async def test_the_current_stage_is_no_transition_and_counts() -> None:
    # T58
    thinker = Thinker("react")
    await thinker.walk(["problem_reception", "initial_reasoning"])
    said = await thinker.think("initial_reasoning")
    assert (said["stage"], said["thoughtHistoryLength"]) == ("initial_reasoning", 3)


async def test_nothing_follows_the_end() -> None:
    # T59
    thinker = Thinker(DRAFT)
    said = await thinker.walk(["draft", "check", "answer"])
    assert (said["nextStages"], said["stepsToEnd"]) == ([], 0)
    for stage in (None, "draft"):
        assert (await thinker.refused(stage))["code"] == "stage_refused"


async def test_a_first_thought_may_leave_the_first_stage_out() -> None:
    # T61
    said = await Thinker("react").think("initial_reasoning")
    assert said["stage"] == "initial_reasoning"
    refused = await Thinker("react").refused("action_planning")
    assert refused["allowed"] == ["initial_reasoning"]


async def test_one_successor_follows_by_itself() -> None:
    # T62
    thinker = Thinker("chain_of_thought")
    stages = [(await thinker.think())["stage"] for _ in range(6)]
    assert stages == [stage.name for stage in STRATEGIES["chain_of_thought"].stages]


async def test_at_a_decision_point_a_stage_has_to_be_named() -> None:
    # T63
    thinker = Thinker("linear")
    await thinker.walk(["problem_reception", "initial_thought_planning", "thought_generation", "thought_evaluation"])
    said = await thinker.refused()
    assert said["code"] == "stage_choice_required"
    assert said["choices"] == ["thought_revision", "continuation_decision"]
    assert len(await thinker.tool.session()) == 4
    assert (await thinker.think("continuation_decision"))["stage"] == "continuation_decision"


async def test_an_illegal_stage_is_refused_with_what_is_allowed() -> None:
    # T64, T65
    thinker = Thinker("linear")
    await thinker.walk(["problem_reception", "initial_thought_planning", "thought_generation", "thought_evaluation"])
    await thinker.think("continuation_decision")
    said = await thinker.refused("final_response")
    assert "continuation_decision" in said["error"]
    assert said["allowed"] == ["thought_adjustment", "branch_creation", "hypothesis_generation"]


async def test_an_adjustment_raises_the_total_and_leads_back() -> None:
    # T67, T68
    thinker = Thinker("linear")
    await thinker.walk(["problem_reception", "initial_thought_planning", "thought_generation", "thought_evaluation"])
    await thinker.think("continuation_decision")
    call = thought(6, 3, stage="thought_adjustment", needsMoreThoughts=True)
    said = (await thinker.tool.call(call, RunContext())).value
    assert said["totalThoughts"] == 6
    call = thought(7, 9, stage="thought_adjustment", needsMoreThoughts=True)
    said = (await thinker.tool.call(call, RunContext())).value
    assert (said["totalThoughts"], said["nextStages"]) == (9, ["thought_generation"])


async def test_a_loop_is_offered_as_often_as_its_cap_says() -> None:
    # T69
    thinker = Thinker(DRAFT, loop_cap=2)
    await thinker.think("draft")
    for _ in range(2):
        await thinker.walk(["check", "draft"])
    said = await thinker.think("check")
    assert said["nextStages"] == ["answer"]
    assert (await thinker.refused("draft"))["code"] == "stage_refused"
    assert (await thinker.think())["stage"] == "answer"


async def test_a_budget_leads_to_the_end_in_time() -> None:
    # T70
    thinker = Thinker("react", budget=14)
    said = await thinker.think()
    while said["nextStages"]:
        said = await thinker.think(said["nextStages"][0])
    assert (said["stage"], said["thoughtHistoryLength"]) == ("final_response", 14)
    with pytest.raises(ConfigurationError, match="shortest way has 9 thoughts"):
        strategic_thinking("react", budget=8)


async def test_a_strategy_of_ones_own_works_through_the_same_tool() -> None:
    # T72, T86
    thinker = Thinker(DRAFT, "react")
    said = await thinker.think(strategy="draft_and_check")
    assert said["stage"] == "draft"
    said = await thinker.think("check", verdict="not yet")
    assert "missingFields" not in said
    assert (await thinker.tool.session()).thoughts[-1].flow == {
        "strategy": "draft_and_check",
        "stage": "check",
        "trail": [("draft", "check")],
        "nextStages": ["draft", "answer"],
        "stepsToEnd": 1,
        "fields": {"verdict": "not yet"},
    }


async def test_each_branch_has_a_place_of_its_own() -> None:
    # T73
    thinker = await tree("a", "b")
    said = await thinker.think("branch_evaluation", branchId="a", evaluationScore=0.9)
    assert said["stage"] == "branch_evaluation"
    said = await thinker.think("branch_development", branchId="b")
    assert said["stage"] == "branch_development"


async def test_a_selection_gives_up_the_worse_branch_and_keeps_its_thoughts() -> None:
    # T74
    thinker = await tree("a", "b")
    await thinker.think("branch_evaluation", branchId="a", evaluationScore="0.9")
    await thinker.think("branch_evaluation", branchId="b", evaluationScore=0.4)
    said = await thinker.think("branch_selection", branchId="a", keep=1)
    assert (said["kept"], said["pruned"]) == (["a"], ["b"])
    assert len((await thinker.tool.session()).branches["b"]) == 2
    refused = await thinker.refused("branch_selection", branchId="b")
    assert (refused["code"], "pruned" in refused["error"]) == ("branch_refused", True)


async def test_a_selection_needs_scores() -> None:
    # T74
    thinker = await tree("a", "b")
    assert "no score yet" in (await thinker.refused("branch_evaluation", branchId="a", keep=1))["error"]
    assert (await thinker.think("branch_evaluation", branchId="a"))["stage"] == "branch_evaluation"
    assert (await thinker.refused(branchId="a", evaluationScore="good"))["fields"] == {
        "evaluationScore": "must be a number, such as 0.8 (got 'good')"
    }


async def test_a_merged_branch_goes_on_on_the_main_line() -> None:
    # T75
    thinker = await tree("b")
    for stage in ("branch_evaluation", "branch_selection", "continuation_decision"):
        await thinker.think(stage, branchId="b")
    said = await thinker.think("solution_formulation", mergeBranch="b")
    assert (said["merged"], said["stage"]) == ("b", "solution_formulation")
    refused = await thinker.refused("solution_formulation", branchId="b")
    assert "was merged into the main line" in refused["error"]
    assert [(await thinker.think())["stage"] for _ in range(2)] == ["path_justification", "final_response"]


async def test_a_branch_of_a_branch_keeps_its_parent() -> None:
    # T76
    thinker = await tree("a")
    for stage in ("branch_evaluation", "branch_selection", "continuation_decision", "branch_creation"):
        await thinker.think(stage, branchId="a")
    await thinker.think("branch_development", branchFromThought=8, branchId="a.1")
    branch = (await thinker.tool.session()).branch("a.1")
    assert branch is not None
    assert branch.parent == "a"


async def test_another_strategy_begins_at_a_decision_point_only() -> None:
    # T84
    thinker = Thinker(DRAFT, "chain_of_thought")
    await thinker.think(strategy="draft_and_check")
    refused = await thinker.refused(strategy="chain_of_thought")
    assert "at a decision point only (check)" in refused["error"]
    await thinker.think("check", verdict="?")
    said = await thinker.think(strategy="chain_of_thought")
    assert (said["strategy"], said["stage"]) == ("chain_of_thought", "problem_reception")
    assert said["thoughtHistoryLength"] == 3
    assert (await thinker.think())["stage"] == "step_decomposition"


async def test_missing_fields_are_named_and_refused_where_that_is_strict() -> None:
    # T86
    thinker = Thinker(DRAFT)
    await thinker.think()
    assert (await thinker.think())["missingFields"] == ["verdict"]
    strict = Thinker(DRAFT, strict=True)
    await strict.think()
    refused = await strict.refused()
    assert (refused["code"], list(refused["fields"])) == ("missing_fields", ["verdict"])
    assert (await strict.think(verdict="right"))["stage"] == "check"


async def test_a_first_number_again_resets_nothing() -> None:
    # T87
    thinker = Thinker("chain_of_thought")
    await thinker.walk(["problem_reception", "step_decomposition"])
    thinker.number = 0
    said = await thinker.think()
    assert (said["stage"], said["thoughtHistoryLength"]) == ("sequential_reasoning", 3)


async def test_a_session_goes_on_after_a_restart(tmp_path: Path) -> None:
    # T83
    async def thinker() -> Thinker:
        return Thinker("tree_of_thoughts", sessions=ThinkingSessions(SqliteArtifacts(tmp_path / "s.db")))

    first = await thinker()
    await first.walk(TO_BRANCHES)
    for name in ("a", "b"):
        await first.think("branch_development", branchFromThought=3, branchId=name)
        await first.think("branch_evaluation", branchId=name, evaluationScore=0.5)
    await first.think("branch_selection", branchId="a", keep=1)
    await first.tool.sessions.aclose()
    second = await thinker()
    assert (await second.refused("branch_selection", branchId="b"))["code"] == "branch_refused"
    assert (await second.think(branchId="a"))["stage"] == "continuation_decision"
    await second.tool.sessions.aclose()


async def test_clearing_begins_the_flow_anew() -> None:
    thinker = Thinker("chain_of_thought")
    await thinker.walk(["problem_reception", "step_decomposition"])
    assert (await thinker.think(clearSession=True))["stage"] == "problem_reception"
    assert (await thinker.think())["stage"] == "step_decomposition"


async def events_of(tool: StrategicThinking, *thoughts: dict[str, Any], **options: Any) -> list[Event]:
    model = ScriptedModel(*(call(NAME, **each) for each in thoughts), "Done.")
    return [event async for event in Agent(model, tools=[tool], thoughts=False, **options).run("Think.")]


async def test_each_change_of_stage_is_an_event_and_so_is_one_that_is_refused() -> None:
    # T85
    story = [thought(1), thought(2, stage="answer"), thought(2), thought(3, stage="check")]
    events = await events_of(strategic_thinking(DRAFT, session_id="s"), *story)
    stages = [event for event in events if isinstance(event, StageEvent)]
    moves = [(each.from_stage, each.to_stage, each.accepted, each.thought_id) for each in stages]
    assert moves == [(None, "draft", True, "s#1"), ("draft", "answer", False, None), ("draft", "check", True, "s#2")]
    assert {each.strategy for each in stages} == {"draft_and_check"}
    assert "allowed: check" in stages[1].reason
    thoughts = [event for event in events if isinstance(event, ThoughtStreamEvent)]
    assert [(each.session.stage, each.source) for each in thoughts if each.session] == [
        ("draft", "strategy"),
        ("check", "strategy"),
        ("check", "strategy"),
    ]


async def test_the_model_reads_what_to_do_next() -> None:
    events = await events_of(strategic_thinking(DRAFT), thought(1))
    (end,) = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert json.loads(end.content)["guidance"] == {"check": "Is it right?"}


async def test_the_graph_shows_where_a_branch_ends() -> None:
    # T75
    stages = ("branch_evaluation", "branch_selection", "continuation_decision")
    story = [
        *(thought(number, 9, stage=stage) for number, stage in enumerate(TO_BRANCHES, start=1)),
        thought(4, 9, stage="branch_development", branchFromThought=3, branchId="b"),
        *(thought(number, 9, stage=stage, branchId="b") for number, stage in enumerate(stages, start=5)),
        thought(8, 9, stage="solution_formulation", mergeBranch="b"),
    ]
    graph = ThoughtGraph.of(await events_of(strategic_thinking("tree_of_thoughts", session_id="s"), *story))
    assert [tuple(edge) for edge in graph.edges if edge.kind not in ("thought", "branch")] == [("s#7", "s#8", "merge")]
    assert "-. merged .->" in graph.to_mermaid()
    assert "label=merged" in graph.to_dot()
    assert graph.to_html().count('class="merge"') == 1


async def test_a_resumed_run_takes_no_step_twice() -> None:
    # T44
    log = MemoryEventLog()
    tool = strategic_thinking("chain_of_thought", session_id="s")
    model = ScriptedModel(call(NAME, **thought(1)), call(NAME, **thought(2)), "Done.")
    whole = await Agent(model, tools=[tool], log=log).run("Think.")
    events = list(await log.read(whole.task_id))
    start = [at for at, event in enumerate(events) if event.kind == "tool-start"][1]
    copy = MemoryEventLog()
    await copy.append(whole.task_id, events[: start + 1], expected_seq=0)
    result = await Agent(ScriptedModel("Done."), tools=[tool], log=copy).resume(whole.task_id)
    assert [each.thought_id for each in result.thoughts] == ["s#1", "s#2"]
    assert result.messages == whole.messages


def test_strategies_that_cannot_be_offered_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="there is no strategy 'magic'"):
        strategic_thinking("magic")
    twin = StrategyDefinition(name="twin", stages=DRAFT.stages, aliases="react")
    with pytest.raises(ConfigurationError, match="two strategies are called 'react'"):
        strategic_thinking(twin, "react")


async def test_names_and_fields_of_a_stage_are_bounded() -> None:
    thinker = Thinker(DRAFT)
    for wrong in ("x" * 201, "\x1b]0;title\x07"):
        assert (await thinker.refused(wrong))["code"] == "invalid_thought"
    assert "take 30013 bytes, and 20000 are allowed" in (await thinker.refused("draft", notes="x" * 30_001))["error"]
    assert (await thinker.think("draft", notes="short"))["stage"] == "draft"
