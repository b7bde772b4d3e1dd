"""Where a flow stands, and where it may go."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from rxloop.errors import ConfigurationError, StageChoiceRequired, StageRefused
from rxloop.strategies import STRATEGIES, get_stages
from rxloop.thinking import Stage, StageManager, StrategyDefinition

LOOP = ["action_planning", "action_execution", "observation_reception", "reasoning_update", "evaluation_checkpoint"]


def walked(strategy: str | StrategyDefinition, *stages: str, **options: Any) -> StageManager:
    flow = StageManager(get_stages(strategy) if isinstance(strategy, str) else strategy, **options)
    for stage in stages:
        flow.transition_to(stage)
    return flow


def at_checkpoint(**options: Any) -> StageManager:
    """ReAct, at its first decision."""
    return walked("react", "initial_reasoning", *LOOP, **options)


def at_decision(**options: Any) -> StageManager:
    """Linear, where it goes on or concludes."""
    first = ("initial_thought_planning", "thought_generation", "thought_evaluation", "continuation_decision")
    return walked("linear", *first, **options)


def test_the_last_stage_is_the_end() -> None:  # T59
    flow = StageManager(get_stages("chain_of_thought"))
    while not flow.is_terminal:
        flow.advance()
    before = flow.snapshot()
    assert flow.stage == "final_response"
    assert (flow.next_stages, flow.steps_to_end) == ((), 0)
    with pytest.raises(StageRefused, match="no stage follows"):
        flow.advance()
    with pytest.raises(StageRefused, match="no stage follows"):
        flow.transition_to("problem_reception")
    assert flow.snapshot() == before


def test_where_one_stage_may_follow_the_flow_advances_to_it() -> None:  # T62
    flow = StageManager(get_stages("react"))
    assert flow.advance() == "initial_reasoning"
    assert (flow.stage, flow.history) == ("initial_reasoning", ("problem_reception",))


def test_at_a_decision_the_choices_are_listed_in_order_and_nothing_moves() -> None:  # T63
    flow = at_decision()
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


def test_a_stage_that_does_not_exist_is_refused_with_the_current_one_and_those_allowed() -> None:  # T64
    flow = at_checkpoint()
    with pytest.raises(StageRefused) as caught:
        flow.transition_to("celebration")
    assert str(caught.value) == (
        "react, stage evaluation_checkpoint: the strategy has no stage 'celebration'; "
        "allowed: action_planning, solution_formulation"
    )
    assert "celebration" not in flow.next_stages


def test_the_linear_decision_offers_three_ways_and_the_end_is_none_of_them() -> None:  # T65
    flow = at_decision()
    assert flow.next_stages == ("thought_adjustment", "branch_creation", "hypothesis_generation")
    with pytest.raises(StageRefused, match="final_response may not follow"):
        flow.transition_to("final_response")


def test_a_hypothesis_that_fails_leads_back_to_the_decision() -> None:  # T66
    flow = at_decision()
    flow.transition_to("hypothesis_generation")
    flow.transition_to("hypothesis_verification")
    assert flow.transition_to("continuation_decision") == "continuation_decision"


def test_after_the_adjustment_comes_the_next_thought() -> None:  # T67
    flow = at_decision()
    flow.transition_to("thought_adjustment")
    assert flow.strategy.stage(flow.stage).fields == ("needsMoreThoughts", "totalThoughts")
    assert flow.prompt == STRATEGIES["linear"].stage("thought_adjustment").prompt
    assert flow.advance() == "thought_generation"


def test_a_way_back_is_offered_ten_times_and_then_the_exit_alone() -> None:  # T69
    flow = at_checkpoint()
    for _ in range(10):
        assert flow.next_stages == ("action_planning", "solution_formulation")
        for stage in LOOP:
            flow.transition_to(stage)
    assert flow.passes == {("evaluation_checkpoint", "action_planning"): 10}
    assert flow.next_stages == ("solution_formulation",)
    with pytest.raises(StageRefused, match="the loop by way of action_planning was taken 10 times, which is its cap"):
        flow.transition_to("action_planning")
    assert flow.advance() == "solution_formulation"


def test_the_stage_before_a_way_back_is_not_offered_when_that_is_closed() -> None:  # T69
    flow = at_decision(loop_cap=2)
    for _ in range(2):
        for stage in ("thought_adjustment", "thought_generation", "thought_evaluation", "continuation_decision"):
            flow.transition_to(stage)
    assert flow.next_stages == ("branch_creation", "hypothesis_generation")
    for _ in range(2):
        for stage in ("hypothesis_generation", "hypothesis_verification", "continuation_decision"):
            flow.transition_to(stage)
    flow.transition_to("hypothesis_generation")
    flow.advance()
    assert flow.next_stages == ("solution_finalization",)


def test_with_a_cap_of_none_there_is_no_way_back() -> None:  # T69
    assert at_checkpoint(loop_cap=0).next_stages == ("solution_formulation",)
    with pytest.raises(ConfigurationError, match="loop_cap is -1"):
        StageManager(get_stages("react"), loop_cap=-1)


def test_when_the_steps_left_are_those_to_the_end_only_what_shortens_is_offered() -> None:  # T70
    flow = walked("linear", "initial_thought_planning", "thought_generation", "thought_evaluation", budget=8)
    assert (flow.remaining, flow.steps_to_end) == (5, 5)
    assert flow.next_stages == ("continuation_decision",)
    with pytest.raises(StageRefused, match="by way of thought_revision the end is too far for the 5 steps left"):
        flow.transition_to("thought_revision")
    while not flow.is_terminal:
        flow.advance()
    assert (flow.remaining, flow.steps) == (0, 8)


def test_a_way_back_is_offered_as_long_as_the_budget_allows_the_whole_round() -> None:  # T70
    assert at_checkpoint(budget=12).next_stages == ("solution_formulation",)
    assert at_checkpoint(budget=13).next_stages == ("action_planning", "solution_formulation")


def test_a_thought_that_stays_in_its_stage_costs_a_step_as_long_as_there_is_one_to_spare() -> None:  # T70
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


def test_a_budget_below_the_shortest_way_is_refused() -> None:  # T70
    with pytest.raises(
        ConfigurationError, match="budget of 7 steps is too small for the strategy 'linear', whose shortest way has 8"
    ):
        StageManager(get_stages("linear"), budget=7)


def test_the_distance_is_that_of_the_ways_still_open() -> None:
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
    flow = walked(tricky, "b", loop_cap=1, budget=5)
    assert flow.steps_to_end == 2
    assert flow.next_stages == ("a", "c")
    flow.transition_to("a")
    # From b there is only the long way now, for which the three steps left are too few.
    assert flow.next_stages == ("end",)
    assert walked(tricky, "b", "a", "b", loop_cap=1).steps_to_end == 3


def test_a_copy_goes_its_own_way() -> None:  # T73
    flow = at_checkpoint()
    other = flow.copy()
    other.transition_to("action_planning")
    assert (flow.stage, flow.passes[flow.strategy.loops[0]]) == ("evaluation_checkpoint", 0)
    assert (other.stage, other.passes[flow.strategy.loops[0]]) == ("action_planning", 1)
    assert other.history == (*flow.history, "evaluation_checkpoint")


def test_a_flow_is_restored_in_the_middle_of_a_loop_and_goes_on() -> None:  # T83
    flow = at_checkpoint(loop_cap=2, budget=40)
    for stage in [*LOOP, *LOOP[:2]]:
        flow.transition_to(stage)
    flow.stay()
    again = StageManager.restore(json.loads(json.dumps(flow.snapshot())), STRATEGIES["react"])
    assert again.snapshot() == flow.snapshot()
    assert again.strategy is flow.strategy
    assert (again.stage, again.history, again.passes) == (flow.stage, flow.history, flow.passes)
    assert (again.remaining, again.steps) == (flow.remaining, flow.steps)
    for stage in LOOP[2:]:
        again.transition_to(stage)
    assert again.next_stages == ("solution_formulation",)


def test_a_flow_of_a_strategy_of_ones_own_is_restored_with_it() -> None:  # T72 T83
    own = StrategyDefinition(
        name="own",
        stages=(Stage(name="draft", next="check"), Stage(name="check", next=("draft", "done")), Stage(name="done")),
    )
    flow = walked(own, "check", "draft")
    assert StageManager.restore(flow.snapshot(), own).snapshot() == flow.snapshot()
    with pytest.raises(ConfigurationError, match="is of the strategy 'own', not of 'react'"):
        StageManager.restore(flow.snapshot(), STRATEGIES["react"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stage": "final_response"}, "snapshot does not fit: .*final_response may not follow"),
        ({"stage": "party"}, "has no stage 'party'"),
        ({"history": ["initial_reasoning"]}, "begins at 'problem_reception'"),
        ({"history": "problem_reception"}, "history: .*valid list"),
        ({"stays": -1}, "does not add up"),
        ({"budget": 7}, "does not add up: 1 of 7 steps taken, 0 of them stays, and 7 to go"),
        ({"loop_cap": "many"}, "loop_cap: .*valid integer"),
        ({"strategy": None}, "strategy: .*valid string"),
    ],
)
def test_a_snapshot_that_could_not_have_been_is_refused(change: dict[str, Any], said: str) -> None:  # T83
    snapshot = {**walked("react", "initial_reasoning").snapshot(), **change}
    with pytest.raises(ConfigurationError, match=said):
        StageManager.restore(snapshot, STRATEGIES["react"])
    del snapshot["stage"]
    with pytest.raises(ConfigurationError, match="stage is missing"):
        StageManager.restore(snapshot, STRATEGIES["react"])


def test_a_transition_takes_under_20_microseconds_however_long_the_history() -> None:
    def of_a_round(flow: StageManager) -> float:
        started = time.perf_counter()
        for stage in LOOP:
            flow.transition_to(stage)
        return (time.perf_counter() - started) / len(LOOP)

    flow = at_checkpoint(loop_cap=100_000, budget=200_000)
    early = min(of_a_round(flow) for _ in range(100))
    for _ in range(5_000):
        of_a_round(flow)
    late = min(of_a_round(flow) for _ in range(100))
    assert len(flow.history) > 25_000
    assert early < 20e-6
    assert late < 20e-6


def test_a_flow_says_where_it_stands() -> None:
    assert repr(walked("react", "initial_reasoning")) == "<StageManager react, stage initial_reasoning after 1 step>"
