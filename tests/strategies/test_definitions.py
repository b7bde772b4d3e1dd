"""The nine strategies against the table of the specification."""

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

NINE = (
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


@pytest.fixture(params=NINE)
def definition(request: pytest.FixtureRequest) -> StrategyDefinition:
    return STRATEGIES[request.param]


def at(definition: StrategyDefinition, stage: str) -> StageManager:
    """A flow that went to a stage by the first way that leads there."""
    ways: dict[str, list[str]] = {definition.initial: []}
    waiting = [definition.initial]
    while stage not in ways:
        source = waiting.pop(0)
        for target in definition.transitions[source]:
            if target not in ways:
                ways[target] = [*ways[source], target]
                waiting.append(target)
    flow = StageManager(definition)
    for each in ways[stage]:
        flow.transition_to(each)
    return flow


def plain(definition: StrategyDefinition) -> dict[str, Any]:
    """A definition in the form of the table."""
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
        "traits": definition.traits,
        "stage_fields": {stage.name: list(stage.fields) for stage in definition.stages if stage.fields},
        "transitions": {name: list(following) for name, following in definition.transitions.items()},
        "steps_to_end": {name: definition.steps_to_end(name) for name in definition.transitions},
    }


def test_there_are_nine() -> None:
    assert tuple(STRATEGIES) == NINE


@needs_table
def test_each_strategy_is_what_the_table_says(definition: StrategyDefinition) -> None:  # T60
    expected = dict(EXPECTED[definition.name])
    cycles = expected.pop("cycles")
    expected["traits"] = frozenset(trait for trait, has in expected["traits"].items() if has)
    assert plain(definition) == expected
    assert list(definition.transitions) == expected["stages"]
    edges = [{*zip(cycle, [*cycle[1:], cycle[0]], strict=True)} for cycle in cycles]
    assert all(len(each & {*definition.loops}) == 1 for each in edges)
    assert {*definition.loops} <= {edge for each in edges for edge in each}


@needs_table
def test_the_stages_are_described_as_the_table_does(definition: StrategyDefinition) -> None:
    assert {stage.name: stage.description for stage in definition.stages} == {
        stage.name: TABLE["stage_descriptions"][stage.name] for stage in definition.stages
    }


def test_every_stage_tells_the_model_what_to_do_and_every_strategy_when_to_use_it(
    definition: StrategyDefinition,
) -> None:
    assert definition.when.endswith(".")
    for stage in definition.stages:
        assert stage.prompt.endswith((".", "?"))
        assert stage.prompt != stage.description


@pytest.mark.parametrize("name", [*NINE, "base_sequential", "Tree-of-Thoughts", " chain of thought "])
def test_a_flow_of_each_name_stands_at_the_reception_of_the_problem(name: str) -> None:  # T55
    flow = StageManager(get_stages(name))
    assert flow.stage == "problem_reception"
    assert flow.history == ()
    assert flow.strategy is get_stages(name)


def test_the_alias_of_linear_is_linear() -> None:  # T55
    assert get_stages("base_sequential") is STRATEGIES["linear"]


def test_reading_one_definition_imports_the_module_of_that_strategy_only() -> None:
    code = "import sys; from rxloop.strategies import STRATEGIES; STRATEGIES['react']; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {f"rxloop.strategies.{name}" for name in NINE} & {*done.stdout.split()} == {"rxloop.strategies.react"}


def test_an_unknown_name_is_refused_with_the_names_that_there_are() -> None:  # T56
    with pytest.raises(ConfigurationError, match="no strategy 'guessing'") as caught:
        StageManager(get_stages("guessing"))
    assert str(caught.value).endswith(f"there are {', '.join(NINE)}")


def test_all_74_transitions_are_accepted_and_all_562_other_pairs_refused() -> None:  # T57 T58
    accepted = refused = 0
    for each in STRATEGIES.values():
        for source, target in product(each.transitions, repeat=2):
            flow = at(each, source)
            before = flow.snapshot()
            if target in each.transitions[source]:
                assert target in flow.next_stages
                assert flow.transition_to(target) == target
                assert (flow.stage, flow.history) == (target, (*before["history"], source))
                accepted += 1
            else:
                assert target not in flow.next_stages
                with pytest.raises(StageRefused, match="may not follow") as caught:
                    flow.transition_to(target)
                assert (caught.value.stage, caught.value.target) == (source, target)
                assert caught.value.allowed == each.transitions[source]
                assert flow.snapshot() == before
                refused += 1
    assert (accepted, refused) == (74, 562)


@needs_table
def test_the_rejected_transitions_of_the_table_are_refused() -> None:  # T58
    assert len(TABLE["rejected_transitions"]) == 18
    for name, source, target in TABLE["rejected_transitions"]:
        with pytest.raises(StageRefused):
            at(STRATEGIES[name], source).transition_to(target)


@needs_table
@pytest.mark.parametrize("walk", ["react_two_cycles", "tot_two_branches"])
def test_the_walks_of_the_table_are_accepted(walk: str) -> None:  # T61
    name, path = TABLE["accepted_walks"][walk]["strategy"], TABLE["accepted_walks"][walk]["path"]
    flow = StageManager(get_stages(name))
    for stage in path[1:]:  # the first move names the second stage: the flow stands at the first from the beginning
        flow.transition_to(stage)
    assert [*flow.history, flow.stage] == path
    assert flow.is_terminal


def test_from_every_stage_the_shortest_way_ends_in_as_many_steps_as_it_said(
    definition: StrategyDefinition,
) -> None:  # T60
    for stage in definition.transitions:
        flow = at(definition, stage)
        distance = definition.steps_to_end(stage)
        assert flow.steps_to_end == distance
        for left in reversed(range(distance)):
            flow.transition_to(next(each for each in flow.next_stages if definition.steps_to_end(each) == left))
        assert flow.stage == "final_response"
        assert flow.is_terminal


def test_a_definition_cannot_be_changed(definition: StrategyDefinition) -> None:
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


def test_a_definition_can_be_copied_and_pickled(definition: StrategyDefinition) -> None:
    at(definition, "final_response")
    for copied in (copy.deepcopy(definition), pickle.loads(pickle.dumps(definition))):
        assert copied == definition
        assert copied.transitions == definition.transitions
