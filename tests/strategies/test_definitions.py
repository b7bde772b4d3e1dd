"""Definitions of the nine strategies, compared with the table of the specification."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from itertools import product
from typing import Any

import pytest

from rxloop.errors import ConfigurationError, StageRefused
from rxloop.strategies import STRATEGIES, get_stages
from rxloop.thinking import StageManager, StrategyDefinition
from support.strategy_table import EXPECTED, TABLE, needs_table

NAMES = (
    "linear",
    "chain_of_thought",
    "react",
    "rewoo",
    "scratchpad",
    "self_ask",
    "self_consistency",
    "step_back",
    "tree_of_thoughts",
)


@pytest.fixture(params=NAMES)
def definition(request: pytest.FixtureRequest) -> StrategyDefinition:
    return STRATEGIES[request.param]


def enter_stage(definition: StrategyDefinition, stage: str) -> StageManager:
    """Return a flow that reached a stage on a shortest path."""
    paths: dict[str, list[str]] = {definition.initial: []}
    queue = [definition.initial]
    while stage not in paths:
        source = queue.pop(0)
        for target in definition.transitions[source]:
            if target not in paths:
                paths[target] = [*paths[source], target]
                queue.append(target)
    flow = StageManager(definition)
    for each in paths[stage]:
        flow.enter(each)
    return flow


def to_table_form(definition: StrategyDefinition) -> dict[str, Any]:
    """Convert a definition to the format of the table."""
    point, branching = definition.iteration_point, definition.branching
    return {
        "id": definition.name,
        "title": definition.title,
        "aliases": list(definition.aliases),
        "pattern": definition.pattern,
        "initial": definition.initial,
        "terminal": list(definition.terminal),
        "stages": [stage.name for stage in definition.stages],
        "decision_points": list(definition.decision_points),
        "iteration_point": point and {"stage": point.stage, "back_to": list(point.back_to), "via": list(point.via)},
        "branching": branching and {"kind": branching.kind, "stage": branching.stage, "fields": list(branching.fields)},
        "features": definition.features,
        "stage_fields": {stage.name: list(stage.fields) for stage in definition.stages if stage.fields},
        "transitions": {name: list(following) for name, following in definition.transitions.items()},
        "steps_to_end": {name: definition.steps_to_end(name) for name in definition.transitions},
    }


def test_strategies_are_the_documented_nine() -> None:
    assert tuple(STRATEGIES) == NAMES


@needs_table
def test_definition_matches_the_table(definition: StrategyDefinition) -> None:  # T60
    expected = dict(EXPECTED[definition.name])
    cycles = expected.pop("cycles")
    expected["features"] = frozenset(name for name, has in expected.pop("traits").items() if has)
    assert to_table_form(definition) == expected
    assert list(definition.transitions) == expected["stages"]
    edges = [{*zip(cycle, [*cycle[1:], cycle[0]], strict=True)} for cycle in cycles]
    assert all(len(each & {*definition.loops}) == 1 for each in edges)
    assert {*definition.loops} <= {edge for each in edges for edge in each}


@needs_table
def test_stage_descriptions_match_the_table(definition: StrategyDefinition) -> None:
    assert {stage.name: stage.description for stage in definition.stages} == {
        stage.name: TABLE["stage_descriptions"][stage.name] for stage in definition.stages
    }


def test_each_stage_has_a_prompt_and_each_strategy_a_purpose(
    definition: StrategyDefinition,
) -> None:
    assert definition.when.endswith(".")
    for stage in definition.stages:
        assert stage.prompt.endswith((".", "?"))
        assert stage.prompt != stage.description


@pytest.mark.parametrize("name", [*NAMES, "base_sequential", "Tree-of-Thoughts", " chain of thought "])
def test_flow_of_each_name_starts_at_problem_reception(name: str) -> None:  # T55
    flow = StageManager(get_stages(name))
    assert flow.stage == "problem_reception"
    assert flow.history == ()
    assert flow.strategy is get_stages(name)


def test_alias_of_linear_returns_linear() -> None:  # T55
    assert get_stages("base_sequential") is STRATEGIES["linear"]


def test_reading_a_definition_imports_only_its_module() -> None:
    code = "import sys; from rxloop.strategies import STRATEGIES; STRATEGIES['react']; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {f"rxloop.strategies.{name}" for name in NAMES} & {*done.stdout.split()} == {"rxloop.strategies.react"}


def test_unknown_name_is_refused_with_the_known_names() -> None:  # T56
    with pytest.raises(ConfigurationError, match="unknown strategy 'guessing'") as caught:
        StageManager(get_stages("guessing"))
    assert str(caught.value).endswith(f"expected one of {', '.join(NAMES)}")


def test_74_transitions_are_accepted_and_562_other_pairs_refused() -> None:  # T57 T58
    accepted = refused = 0
    for each in STRATEGIES.values():
        for source, target in product(each.transitions, repeat=2):
            flow = enter_stage(each, source)
            before = flow.snapshot()
            if target in each.transitions[source]:
                assert target in flow.next_stages
                assert flow.enter(target) == target
                assert (flow.stage, flow.history) == (target, (*before["history"], source))
                accepted += 1
            else:
                assert target not in flow.next_stages
                with pytest.raises(StageRefused, match="may not follow") as caught:
                    flow.enter(target)
                assert (caught.value.stage, caught.value.target) == (source, target)
                assert caught.value.allowed == each.transitions[source]
                assert flow.snapshot() == before
                refused += 1
    assert (accepted, refused) == (74, 562)


@needs_table
def test_rejected_transitions_of_the_table_are_refused() -> None:  # T58
    assert len(TABLE["rejected_transitions"]) == 18
    for name, source, target in TABLE["rejected_transitions"]:
        with pytest.raises(StageRefused):
            enter_stage(STRATEGIES[name], source).enter(target)


@needs_table
@pytest.mark.parametrize("walk", ["react_two_cycles", "tot_two_branches"])
def test_walks_of_the_table_are_accepted(walk: str) -> None:  # T61
    name, path = TABLE["accepted_walks"][walk]["strategy"], TABLE["accepted_walks"][walk]["path"]
    flow = StageManager(get_stages(name))
    for stage in path[1:]:
        flow.enter(stage)
    assert [*flow.history, flow.stage] == path
    assert flow.is_terminal


def test_steps_to_end_is_the_length_of_the_shortest_path(
    definition: StrategyDefinition,
) -> None:  # T60
    for stage in definition.transitions:
        flow = enter_stage(definition, stage)
        distance = definition.steps_to_end(stage)
        assert flow.steps_to_end == distance
        for left in reversed(range(distance)):
            flow.enter(next(each for each in flow.next_stages if definition.steps_to_end(each) == left))
        assert flow.stage == "final_response"
        assert flow.is_terminal


def test_definition_is_immutable(definition: StrategyDefinition) -> None:
    with pytest.raises(FrozenInstanceError):
        definition.initial = "x"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(FrozenInstanceError):
        definition.stages[0].next = ()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError):
        definition.transitions["x"] = ()  # pyright: ignore[reportIndexIssue]
    with pytest.raises(TypeError):
        STRATEGIES["x"] = definition  # pyright: ignore[reportIndexIssue]
    assert replace(definition) == definition
    assert hash(replace(definition)) == hash(definition)


def test_definition_can_be_copied_and_pickled(definition: StrategyDefinition) -> None:
    enter_stage(definition, "final_response")
    for copied in (copy.deepcopy(definition), pickle.loads(pickle.dumps(definition))):
        assert copied == definition
        assert copied.transitions == definition.transitions
