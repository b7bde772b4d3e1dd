"""Tool `strategic_thinking`, alone and in runs (T55 to T87)."""

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
    """Session of the tool outside a run."""

    def __init__(self, *strategies: Any, **options: Any) -> None:
        self.tool = strategic_thinking(*strategies, session_id="s", **options)
        self.number = 0

    async def think(self, stage: str | None = None, **fields: Any) -> dict[str, Any]:
        self.number += 1
        arguments = thought(self.number, 99, **({"stage": stage} if stage else {}), **fields)
        return (await self.tool.call(arguments, RunContext())).value

    async def expect_refusal(self, stage: str | None = None, **fields: Any) -> dict[str, Any]:
        with pytest.raises(ToolError) as caught:
            await self.think(stage, **fields)
        self.number -= 1
        return json.loads(str(caught.value))

    async def walk(self, stages: Iterable[str], **fields: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for stage in stages:
            result = await self.think(stage, **fields)
        return result


async def make_tree(*branches: str, **options: Any) -> Thinker:
    """Start a tree of thoughts and develop the branches."""
    thinker = Thinker("tree_of_thoughts", **options)
    await thinker.walk(TO_BRANCHES)
    for name in branches:
        await thinker.think("branch_development", branchFromThought=3, branchId=name)
    return thinker


@pytest.mark.parametrize("name", [*STRATEGIES, "base_sequential", "Tree of Thoughts"])
async def test_strategy_starts_with_its_first_stage(name: str) -> None:
    # T55
    result = await Thinker().think(strategy=name)
    assert result["stage"] == "problem_reception"
    assert result["strategy"] == ("linear" if name == "base_sequential" else name.lower().replace(" ", "_"))


async def test_unknown_strategy_is_refused_with_all_names() -> None:
    # T56
    thinker = Thinker()
    for fields, code in (({"strategy": "magic"}, "unknown_strategy"), ({}, "strategy_required")):
        result = await thinker.expect_refusal(**fields)
        assert result["code"] == code
        assert all(name in result["error"] for name in STRATEGIES)
    assert await thinker.tool.sessions.all_sessions() == []


async def test_repeated_stage_is_counted_and_is_not_a_transition() -> None:
    # T58
    thinker = Thinker("react")
    await thinker.walk(["problem_reception", "initial_reasoning"])
    result = await thinker.think("initial_reasoning")
    assert (result["stage"], result["thoughtHistoryLength"]) == ("initial_reasoning", 3)


async def test_nothing_follows_the_final_stage() -> None:
    # T59
    thinker = Thinker(DRAFT)
    result = await thinker.walk(["draft", "check", "answer"])
    assert (result["nextStages"], result["stepsToEnd"]) == ([], 0)
    for stage in (None, "draft"):
        assert (await thinker.expect_refusal(stage))["code"] == "stage_refused"


async def test_first_thought_may_skip_the_first_stage() -> None:
    # T61
    result = await Thinker("react").think("initial_reasoning")
    assert result["stage"] == "initial_reasoning"
    refused = await Thinker("react").expect_refusal("action_planning")
    assert refused["allowed"] == ["initial_reasoning"]


async def test_single_successor_is_entered_automatically() -> None:
    # T62
    thinker = Thinker("chain_of_thought")
    stages = [(await thinker.think())["stage"] for _ in range(6)]
    assert stages == [stage.name for stage in STRATEGIES["chain_of_thought"].stages]


async def test_stage_must_be_named_at_a_decision_point() -> None:
    # T63
    thinker = Thinker("linear")
    await thinker.walk(["problem_reception", "initial_thought_planning", "thought_generation", "thought_evaluation"])
    result = await thinker.expect_refusal()
    assert result["code"] == "stage_choice_required"
    assert result["choices"] == ["thought_revision", "continuation_decision"]
    assert len(await thinker.tool.session()) == 4
    assert (await thinker.think("continuation_decision"))["stage"] == "continuation_decision"


async def test_illegal_stage_is_refused_with_the_allowed_ones() -> None:
    # T64, T65
    thinker = Thinker("linear")
    await thinker.walk(["problem_reception", "initial_thought_planning", "thought_generation", "thought_evaluation"])
    await thinker.think("continuation_decision")
    result = await thinker.expect_refusal("final_response")
    assert "continuation_decision" in result["error"]
    assert result["allowed"] == ["thought_adjustment", "branch_creation", "hypothesis_generation"]


async def test_adjustment_raises_the_total_and_returns_to_generation() -> None:
    # T67, T68
    thinker = Thinker("linear")
    await thinker.walk(["problem_reception", "initial_thought_planning", "thought_generation", "thought_evaluation"])
    await thinker.think("continuation_decision")
    call = thought(6, 3, stage="thought_adjustment", needsMoreThoughts=True)
    result = (await thinker.tool.call(call, RunContext())).value
    assert result["totalThoughts"] == 6
    call = thought(7, 9, stage="thought_adjustment", needsMoreThoughts=True)
    result = (await thinker.tool.call(call, RunContext())).value
    assert (result["totalThoughts"], result["nextStages"]) == (9, ["thought_generation"])


async def test_loop_is_offered_until_its_cap() -> None:
    # T69
    thinker = Thinker(DRAFT, loop_cap=2)
    await thinker.think("draft")
    for _ in range(2):
        await thinker.walk(["check", "draft"])
    result = await thinker.think("check")
    assert result["nextStages"] == ["answer"]
    assert (await thinker.expect_refusal("draft"))["code"] == "stage_refused"
    assert (await thinker.think())["stage"] == "answer"


async def test_budget_leads_to_the_final_stage_in_time() -> None:
    # T70
    thinker = Thinker("react", budget=14)
    result = await thinker.think()
    while result["nextStages"]:
        result = await thinker.think(result["nextStages"][0])
    assert (result["stage"], result["thoughtHistoryLength"]) == ("final_response", 14)
    with pytest.raises(ConfigurationError, match="budget must be at least 9"):
        strategic_thinking("react", budget=8)


async def test_custom_strategy_can_be_used() -> None:
    # T72, T86
    thinker = Thinker(DRAFT, "react")
    result = await thinker.think(strategy="draft_and_check")
    assert result["stage"] == "draft"
    result = await thinker.think("check", verdict="not yet")
    assert "missingFields" not in result
    assert (await thinker.tool.session()).thoughts[-1].flow == {
        "strategy": "draft_and_check",
        "stage": "check",
        "trail": [("draft", "check")],
        "nextStages": ["draft", "answer"],
        "stepsToEnd": 1,
        "fields": {"verdict": "not yet"},
    }


async def test_each_branch_has_its_own_stage() -> None:
    # T73
    thinker = await make_tree("a", "b")
    result = await thinker.think("branch_evaluation", branchId="a", evaluationScore=0.9)
    assert result["stage"] == "branch_evaluation"
    result = await thinker.think("branch_development", branchId="b")
    assert result["stage"] == "branch_development"


async def test_selection_prunes_the_worse_branch_and_keeps_its_thoughts() -> None:
    # T74
    thinker = await make_tree("a", "b")
    await thinker.think("branch_evaluation", branchId="a", evaluationScore="0.9")
    await thinker.think("branch_evaluation", branchId="b", evaluationScore=0.4)
    result = await thinker.think("branch_selection", branchId="a", keep=1)
    assert (result["kept"], result["pruned"]) == (["a"], ["b"])
    assert len((await thinker.tool.session()).branches["b"]) == 2
    refused = await thinker.expect_refusal("branch_selection", branchId="b")
    assert (refused["code"], "pruned" in refused["error"]) == ("branch_refused", True)


async def test_selection_requires_scores() -> None:
    # T74
    thinker = await make_tree("a", "b")
    assert "no score yet" in (await thinker.expect_refusal("branch_evaluation", branchId="a", keep=1))["error"]
    assert (await thinker.think("branch_evaluation", branchId="a"))["stage"] == "branch_evaluation"
    assert (await thinker.expect_refusal(branchId="a", evaluationScore="good"))["fields"] == {
        "evaluationScore": "must be a number, such as 0.8 (got 'good')"
    }


async def test_merged_branch_continues_on_the_main_branch() -> None:
    # T75
    thinker = await make_tree("b")
    for stage in ("branch_evaluation", "branch_selection", "continuation_decision"):
        await thinker.think(stage, branchId="b")
    result = await thinker.think("solution_formulation", mergeBranch="b")
    assert (result["merged"], result["stage"]) == ("b", "solution_formulation")
    refused = await thinker.expect_refusal("solution_formulation", branchId="b")
    assert "was merged into the main branch" in refused["error"]
    assert [(await thinker.think())["stage"] for _ in range(2)] == ["path_justification", "final_response"]


async def test_branch_of_a_branch_has_its_parent() -> None:
    # T76
    thinker = await make_tree("a")
    for stage in ("branch_evaluation", "branch_selection", "continuation_decision", "branch_creation"):
        await thinker.think(stage, branchId="a")
    await thinker.think("branch_development", branchFromThought=8, branchId="a.1")
    branch = (await thinker.tool.session()).branch("a.1")
    assert branch is not None
    assert branch.parent == "a"


async def test_strategy_can_change_only_at_a_decision_point() -> None:
    # T84
    thinker = Thinker(DRAFT, "chain_of_thought")
    await thinker.think(strategy="draft_and_check")
    refused = await thinker.expect_refusal(strategy="chain_of_thought")
    assert "at a decision point (check)" in refused["error"]
    await thinker.think("check", verdict="?")
    result = await thinker.think(strategy="chain_of_thought")
    assert (result["strategy"], result["stage"]) == ("chain_of_thought", "problem_reception")
    assert result["thoughtHistoryLength"] == 3
    assert (await thinker.think())["stage"] == "step_decomposition"


async def test_missing_fields_are_reported_and_refused_in_strict_mode() -> None:
    # T86
    thinker = Thinker(DRAFT)
    await thinker.think()
    assert (await thinker.think())["missingFields"] == ["verdict"]
    strict = Thinker(DRAFT, strict=True)
    await strict.think()
    refused = await strict.expect_refusal()
    assert (refused["code"], list(refused["fields"])) == ("missing_fields", ["verdict"])
    assert (await strict.think(verdict="right"))["stage"] == "check"


async def test_repeated_first_number_does_not_reset_the_session() -> None:
    # T87
    thinker = Thinker("chain_of_thought")
    await thinker.walk(["problem_reception", "step_decomposition"])
    thinker.number = 0
    result = await thinker.think()
    assert (result["stage"], result["thoughtHistoryLength"]) == ("sequential_reasoning", 3)


async def test_session_continues_after_a_restart(tmp_path: Path) -> None:
    # T83
    def make_thinker() -> Thinker:
        return Thinker("tree_of_thoughts", sessions=ThinkingSessions(SqliteArtifacts(tmp_path / "s.db")))

    first = make_thinker()
    await first.walk(TO_BRANCHES)
    for name in ("a", "b"):
        await first.think("branch_development", branchFromThought=3, branchId=name)
        await first.think("branch_evaluation", branchId=name, evaluationScore=0.5)
    await first.think("branch_selection", branchId="a", keep=1)
    await first.tool.sessions.aclose()
    second = make_thinker()
    assert (await second.expect_refusal("branch_selection", branchId="b"))["code"] == "branch_refused"
    assert (await second.think(branchId="a"))["stage"] == "continuation_decision"
    await second.tool.sessions.aclose()


async def test_clearing_the_session_restarts_the_flow() -> None:
    thinker = Thinker("chain_of_thought")
    await thinker.walk(["problem_reception", "step_decomposition"])
    assert (await thinker.think(clearSession=True))["stage"] == "problem_reception"
    assert (await thinker.think())["stage"] == "step_decomposition"


async def collect_events(tool: StrategicThinking, *thoughts: dict[str, Any], **options: Any) -> list[Event]:
    model = ScriptedModel(*(call(NAME, **each) for each in thoughts), "Done.")
    return [event async for event in Agent(model, tools=[tool], thoughts=False, **options).run("Think.")]


async def test_accepted_and_refused_stage_changes_are_events() -> None:
    # T85
    story = [thought(1), thought(2, stage="answer"), thought(2), thought(3, stage="check")]
    events = await collect_events(strategic_thinking(DRAFT, session_id="s"), *story)
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


async def test_model_gets_guidance_for_the_next_stage() -> None:
    events = await collect_events(strategic_thinking(DRAFT), thought(1))
    (end,) = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert json.loads(end.content)["guidance"] == {"check": "Is it right?"}


async def test_graph_shows_merged_branches() -> None:
    # T75
    stages = ("branch_evaluation", "branch_selection", "continuation_decision")
    story = [
        *(thought(number, 9, stage=stage) for number, stage in enumerate(TO_BRANCHES, start=1)),
        thought(4, 9, stage="branch_development", branchFromThought=3, branchId="b"),
        *(thought(number, 9, stage=stage, branchId="b") for number, stage in enumerate(stages, start=5)),
        thought(8, 9, stage="solution_formulation", mergeBranch="b"),
    ]
    graph = ThoughtGraph.of(await collect_events(strategic_thinking("tree_of_thoughts", session_id="s"), *story))
    assert [tuple(edge) for edge in graph.edges if edge.kind not in ("thought", "branch")] == [("s#7", "s#8", "merge")]
    assert "-. merged .->" in graph.to_mermaid()
    assert "label=merged" in graph.to_dot()
    assert graph.to_html().count('class="merge"') == 1


async def test_resumed_run_repeats_no_step() -> None:
    # T44
    log = MemoryEventLog()
    tool = strategic_thinking("chain_of_thought", session_id="s")
    model = ScriptedModel(call(NAME, **thought(1)), call(NAME, **thought(2)), "Done.")
    complete_result = await Agent(model, tools=[tool], log=log).run("Think.")
    events = list(await log.read(complete_result.task_id))
    start = [at for at, event in enumerate(events) if event.kind == "tool-start"][1]
    copy = MemoryEventLog()
    await copy.append(complete_result.task_id, events[: start + 1], expected_seq=0)
    result = await Agent(ScriptedModel("Done."), tools=[tool], log=copy).resume(complete_result.task_id)
    assert [each.thought_id for each in result.thoughts] == ["s#1", "s#2"]
    assert result.messages == complete_result.messages


def test_invalid_strategies_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="unknown strategy 'magic'"):
        strategic_thinking("magic")
    twin = StrategyDefinition(name="twin", stages=DRAFT.stages, aliases="react")
    with pytest.raises(ConfigurationError, match="two strategies have the name 'react'"):
        strategic_thinking(twin, "react")


async def test_stage_names_and_fields_are_bounded() -> None:
    thinker = Thinker(DRAFT)
    for wrong in ("x" * 201, "\x1b]0;title\x07"):
        assert (await thinker.expect_refusal(wrong))["code"] == "invalid_thought"
    refusal = await thinker.expect_refusal("draft", notes="x" * 30_001)
    assert "must take at most 20000 bytes, got 30013" in refusal["error"]
    assert (await thinker.think("draft", notes="short"))["stage"] == "draft"
