"""Rendering strategies as diagrams and text."""

from __future__ import annotations

import re

import pytest

from rxloop.strategies import STRATEGIES
from rxloop.thinking import Stage, StrategyDefinition


def test_diagram_shows_decisions_and_loops() -> None:
    assert STRATEGIES["scratchpad"].to_mermaid() == (
        "flowchart TD\n"
        '    problem_reception(["problem reception"])\n'
        '    scratchpad_initialization["scratchpad initialization"]\n'
        '    iterative_calculation["iterative calculation"]\n'
        '    state_tracking["state tracking"]\n'
        '    continuation_decision{"continuation decision"}\n'
        '    result_extraction["result extraction"]\n'
        '    final_response(["final response"])\n'
        "    problem_reception --> scratchpad_initialization\n"
        "    scratchpad_initialization --> iterative_calculation\n"
        "    iterative_calculation --> state_tracking\n"
        "    state_tracking --> continuation_decision\n"
        "    continuation_decision -. again .-> iterative_calculation\n"
        "    continuation_decision --> result_extraction\n"
        "    result_extraction --> final_response\n"
    )


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=lambda each: each.name)
def test_diagram_contains_each_stage_and_transition_once(strategy: StrategyDefinition) -> None:
    drawing = strategy.to_mermaid()
    arrows = re.findall(r"^    (\w+) (-->|-\. again \.->) (\w+)$", drawing, re.MULTILINE)
    assert [(source, target) for source, _, target in arrows] == [
        (stage.name, target) for stage in strategy.stages for target in stage.next
    ]
    assert {(source, target) for source, arrow, target in arrows if arrow != "-->"} == {*strategy.loops}
    assert re.findall(r'^    (\w+)\{"', drawing, re.MULTILINE) == list(strategy.decision_points)
    assert len(drawing.splitlines()) == 1 + len(strategy.stages) + len(arrows)


@pytest.mark.parametrize("name", ["end", "Graph", "straße", "a.b", "a-b", "subgraph"])
def test_reserved_mermaid_names_are_not_used_as_ids(name: str) -> None:
    own = StrategyDefinition(name="own", stages=(Stage(name="a", next=(name,)), Stage(name=name)))
    drawing = own.to_mermaid().splitlines()
    assert drawing[1] == '    n0(["a"])'
    assert drawing[2].startswith('    n1(["')
    assert drawing[3] == "    n0 --> n1"


def test_strategy_is_described_as_text() -> None:
    assert STRATEGIES["react"].describe() == (
        "react: ReAct\n"
        "For questions that need tools, where each result decides what to do next.\n"
        "\n"
        " 1. problem_reception: Take in the problem and restate it\n"
        "      then initial_reasoning\n"
        " 2. initial_reasoning: Find out what is not yet known\n"
        "      then action_planning\n"
        " 3. action_planning: Pick one concrete action\n"
        "      then action_execution\n"
        " 4. action_execution: Run the action outside\n"
        "      needs action or plannedActions\n"
        "      then observation_reception\n"
        " 5. observation_reception: Take in what the action returned\n"
        "      needs observation or actionResults\n"
        "      then reasoning_update\n"
        " 6. reasoning_update: Fold the observation into the reasoning\n"
        "      then evaluation_checkpoint\n"
        " 7. evaluation_checkpoint: Choose: act again or answer\n"
        "      then back to action_planning or solution_formulation\n"
        " 8. solution_formulation: Derive the answer from what was found\n"
        "      then final_response\n"
        " 9. final_response: Give the answer; nothing follows\n"
    )
    assert STRATEGIES["linear"].describe().startswith("linear (also base_sequential): Base Sequential\n")
    bare = StrategyDefinition(name="own", stages=(Stage(name="only"),))
    assert bare.describe() == "own: Own\n\n 1. only\n"
