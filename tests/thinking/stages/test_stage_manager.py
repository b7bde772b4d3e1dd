"""Navigating the stages of a strategy."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from rxloop.errors import ConfigurationError, StageChoiceRequired, StageRefused
from rxloop.strategies import STRATEGIES, get_stages
from rxloop.thinking import Stage, StageManager, StrategyDefinition

LOOP = ["action_planning", "action_execution", "observation_reception", "reasoning_update", "evaluation_checkpoint"]


def make_flow(strategy: str | StrategyDefinition, *stages: str, **options: Any) -> StageManager:
    flow = StageManager(get_stages(strategy) if isinstance(strategy, str) else strategy, **options)
    for stage in stages:
        flow.enter(stage)
    return flow


def make_flow_at_checkpoint(**options: Any) -> StageManager:
    """Make a ReAct flow at its first decision."""
    return make_flow("react", "initial_reasoning", *LOOP, **options)


def make_flow_at_decision(**options: Any) -> StageManager:
    """Make a linear flow at the decision to continue."""
    first = ("initial_thought_planning", "thought_generation", "thought_evaluation", "continuation_decision")
    return make_flow("linear", *first, **options)


def test_nothing_follows_the_last_stage() -> None:  # T59
    flow = StageManager(get_stages("chain_of_thought"))
    while not flow.is_terminal:
        flow.advance()
    before = flow.snapshot()
    assert flow.stage == "final_response"
    assert (flow.next_stages, flow.steps_to_end) == ((), 0)
    with pytest.raises(StageRefused, match="no stage follows"):
        flow.advance()
    with pytest.raises(StageRefused, match="no stage follows"):
        flow.enter("problem_reception")
    assert flow.snapshot() == before


def test_advance_enters_the_only_next_stage() -> None:  # T62
    flow = StageManager(get_stages("react"))
    assert flow.advance() == "initial_reasoning"
    assert (flow.stage, flow.history) == ("initial_reasoning", ("problem_reception",))


def test_advance_at_a_decision_lists_the_choices_and_changes_nothing() -> None:  # T63
    flow = make_flow_at_decision()
    before = flow.snapshot()
    with pytest.raises(StageChoiceRequired) as caught:
        flow.advance()
    assert caught.value.allowed == ("thought_adjustment", "branch_creation", "hypothesis_generation")
    assert str(caught.value) == (
        "linear, stage continuation_decision: there is a choice, so name the next stage; "
        "one of thought_adjustment, branch_creation, hypothesis_generation"
    )
    assert caught.value.code == "stage_choice_required"
    assert flow.is_decision_point
    assert flow.snapshot() == before


def test_unknown_stage_is_refused_with_the_current_and_allowed_stages() -> None:  # T64
    flow = make_flow_at_checkpoint()
    with pytest.raises(StageRefused) as caught:
        flow.enter("celebration")
    assert str(caught.value) == (
        "react, stage evaluation_checkpoint: the strategy has no stage 'celebration'; "
        "allowed: action_planning, solution_formulation"
    )
    assert "celebration" not in flow.next_stages


def test_linear_decision_offers_three_stages_without_the_final_one() -> None:  # T65
    flow = make_flow_at_decision()
    assert flow.next_stages == ("thought_adjustment", "branch_creation", "hypothesis_generation")
    with pytest.raises(StageRefused, match="final_response may not follow"):
        flow.enter("final_response")


def test_failed_hypothesis_returns_to_the_decision() -> None:  # T66
    flow = make_flow_at_decision()
    flow.enter("hypothesis_generation")
    flow.enter("hypothesis_verification")
    assert flow.enter("continuation_decision") == "continuation_decision"


def test_adjustment_is_followed_by_the_next_thought() -> None:  # T67
    flow = make_flow_at_decision()
    flow.enter("thought_adjustment")
    assert flow.strategy.stage(flow.stage).fields == ("needsMoreThoughts", "totalThoughts")
    assert flow.prompt == STRATEGIES["linear"].stage("thought_adjustment").prompt
    assert flow.advance() == "thought_generation"


def test_loop_is_offered_ten_times_and_then_only_the_exit() -> None:  # T69
    flow = make_flow_at_checkpoint()
    for _ in range(10):
        assert flow.next_stages == ("action_planning", "solution_formulation")
        for stage in LOOP:
            flow.enter(stage)
    assert flow.passes == {("evaluation_checkpoint", "action_planning"): 10}
    assert flow.next_stages == ("solution_formulation",)
    with pytest.raises(StageRefused, match="the loop by way of action_planning was taken 10 times, which is its cap"):
        flow.enter("action_planning")
    assert flow.advance() == "solution_formulation"


def test_stage_before_a_closed_loop_is_not_offered() -> None:  # T69
    flow = make_flow_at_decision(loop_cap=2)
    for _ in range(2):
        for stage in ("thought_adjustment", "thought_generation", "thought_evaluation", "continuation_decision"):
            flow.enter(stage)
    assert flow.next_stages == ("branch_creation", "hypothesis_generation")
    for _ in range(2):
        for stage in ("hypothesis_generation", "hypothesis_verification", "continuation_decision"):
            flow.enter(stage)
    flow.enter("hypothesis_generation")
    flow.advance()
    assert flow.next_stages == ("solution_finalization",)


def test_loop_cap_of_zero_offers_no_loop() -> None:  # T69
    assert make_flow_at_checkpoint(loop_cap=0).next_stages == ("solution_formulation",)
    with pytest.raises(ConfigurationError, match="loop_cap must not be negative, got -1"):
        StageManager(get_stages("react"), loop_cap=-1)


def test_only_shortening_stages_are_offered_when_no_step_is_spare() -> None:  # T70
    flow = make_flow("linear", "initial_thought_planning", "thought_generation", "thought_evaluation", budget=8)
    assert (flow.remaining, flow.steps_to_end) == (5, 5)
    assert flow.next_stages == ("continuation_decision",)
    with pytest.raises(StageRefused, match="by way of thought_revision the end is too far for the 5 steps left"):
        flow.enter("thought_revision")
    while not flow.is_terminal:
        flow.advance()
    assert (flow.remaining, flow.steps) == (0, 8)


def test_loop_is_offered_if_the_budget_allows_a_full_round() -> None:  # T70
    assert make_flow_at_checkpoint(budget=12).next_stages == ("solution_formulation",)
    assert make_flow_at_checkpoint(budget=13).next_stages == ("action_planning", "solution_formulation")


def test_stay_costs_a_step_and_is_refused_without_a_spare_one() -> None:  # T70
    flow = StageManager(get_stages("rewoo"), budget=7)
    flow.stay()
    before = flow.snapshot()
    assert (flow.steps, flow.remaining, flow.stage) == (1, 6, "problem_reception")
    with pytest.raises(StageRefused, match="6 steps left, and the end needs them all; allowed: planning_phase"):
        flow.stay()
    assert flow.snapshot() == before
    unlimited = StageManager(get_stages("rewoo"))
    unlimited.stay()
    assert (unlimited.steps, unlimited.remaining) == (1, None)


def test_budget_below_the_shortest_path_is_refused() -> None:  # T70
    with pytest.raises(ConfigurationError, match="budget must be at least 8 for the strategy 'linear', got 7"):
        StageManager(get_stages("linear"), budget=7)


def test_distance_ignores_closed_loops() -> None:
    tricky = StrategyDefinition(
        name="tricky",
        stages=(
            Stage(name="a", next=("b", "end")),
            Stage(name="b", next=("a", "c")),
            Stage(name="c", next=("d",)),
            Stage(name="d", next=("end",)),
            Stage(name="end"),
        ),
    )
    flow = make_flow(tricky, "b", loop_cap=1, budget=5)
    assert flow.steps_to_end == 2
    assert flow.next_stages == ("a", "c")
    flow.enter("a")
    # The loop is used up, so b would need more than the three remaining steps.
    assert flow.next_stages == ("end",)
    assert make_flow(tricky, "b", "a", "b", loop_cap=1).steps_to_end == 3


def test_copy_is_independent() -> None:  # T73
    flow = make_flow_at_checkpoint()
    other = flow.copy()
    other.enter("action_planning")
    assert (flow.stage, flow.passes[flow.strategy.loops[0]]) == ("evaluation_checkpoint", 0)
    assert (other.stage, other.passes[flow.strategy.loops[0]]) == ("action_planning", 1)
    assert other.history == (*flow.history, "evaluation_checkpoint")


def test_flow_can_be_restored_within_a_loop() -> None:  # T83
    flow = make_flow_at_checkpoint(loop_cap=2, budget=40)
    for stage in [*LOOP, *LOOP[:2]]:
        flow.enter(stage)
    flow.stay()
    restored = StageManager.restore(json.loads(json.dumps(flow.snapshot())), STRATEGIES["react"])
    assert restored.snapshot() == flow.snapshot()
    assert restored.strategy is flow.strategy
    assert (restored.stage, restored.history, restored.passes) == (flow.stage, flow.history, flow.passes)
    assert (restored.remaining, restored.steps) == (flow.remaining, flow.steps)
    for stage in LOOP[2:]:
        restored.enter(stage)
    assert restored.next_stages == ("solution_formulation",)


def test_flow_of_a_custom_strategy_is_restored_with_that_strategy() -> None:  # T72 T83
    own = StrategyDefinition(
        name="own",
        stages=(Stage(name="draft", next="check"), Stage(name="check", next=("draft", "done")), Stage(name="done")),
    )
    flow = make_flow(own, "check", "draft")
    assert StageManager.restore(flow.snapshot(), own).snapshot() == flow.snapshot()
    with pytest.raises(ConfigurationError, match="belongs to the strategy 'own', not to 'react'"):
        StageManager.restore(flow.snapshot(), STRATEGIES["react"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stage": "final_response"}, "snapshot does not match the strategy: .*final_response may not follow"),
        ({"stage": "party"}, "has no stage 'party'"),
        ({"history": ["initial_reasoning"]}, "starts at 'problem_reception'"),
        ({"history": "problem_reception"}, "history: .*valid list"),
        ({"stays": -1}, "is inconsistent"),
        ({"budget": 7}, "is inconsistent: 1 of 7 steps taken, 0 of them stays, and 7 steps to the end"),
        ({"loop_cap": "many"}, "loop_cap: .*valid integer"),
        ({"strategy": None}, "strategy: .*valid string"),
    ],
)
def test_impossible_snapshot_is_refused(change: dict[str, Any], message: str) -> None:  # T83
    snapshot = {**make_flow("react", "initial_reasoning").snapshot(), **change}
    with pytest.raises(ConfigurationError, match=message):
        StageManager.restore(snapshot, STRATEGIES["react"])
    del snapshot["stage"]
    with pytest.raises(ConfigurationError, match="stage is missing"):
        StageManager.restore(snapshot, STRATEGIES["react"])


def test_transition_takes_under_20_microseconds_for_any_history() -> None:
    def measure_round(flow: StageManager) -> float:
        start = time.perf_counter()
        for stage in LOOP:
            flow.enter(stage)
        return (time.perf_counter() - start) / len(LOOP)

    flow = make_flow_at_checkpoint(loop_cap=100_000, budget=200_000)
    early = min(measure_round(flow) for _ in range(100))
    for _ in range(5_000):
        measure_round(flow)
    late = min(measure_round(flow) for _ in range(100))
    assert len(flow.history) > 25_000
    assert early < 20e-6
    assert late < 20e-6


def test_repr_shows_the_current_stage() -> None:
    assert repr(make_flow("react", "initial_reasoning")) == "<StageManager react, stage initial_reasoning after 1 step>"
