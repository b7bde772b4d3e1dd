"""Plans of tool calls that refer to earlier results by label."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.errors import PlanRefused
from rxloop.strategies import Plan
from rxloop.strategies.plan import PlanStep, parse_plan

PLAN = """
I will plan first.

Plan: Find the director. #E1 = search[{"query": "Who directed Alien?"}]
Plan: Find where he was born,
with the name from before.
#E2 = search[{"query": "birthplace of #E1", "limit": 3}]
**Plan 3:** Look up the weather anyway.
#E3 = weather[{"city": "Oslo", "days": ["mon]", "tue"]}]

Done.
"""


def list_ids(steps: Any) -> list[str]:
    return [step.id for step in steps]


def test_plan_is_parsed_from_lines_with_json_arguments() -> None:  # T79
    plan = parse_plan(PLAN)
    assert list(plan) == [
        PlanStep("E1", "search", {"query": "Who directed Alien?"}, "Find the director."),
        PlanStep(
            "E2",
            "search",
            {"query": "birthplace of #E1", "limit": 3},
            "Find where he was born, with the name from before.",
        ),
        PlanStep("E3", "weather", {"city": "Oslo", "days": ["mon]", "tue"]}, "Look up the weather anyway."),
    ]
    assert dict(plan.dependencies) == {"E1": frozenset(), "E2": {"E1"}, "E3": frozenset()}
    assert (len(plan), plan["#E2"], plan["E2"]) == (3, plan.steps[1], plan.steps[1])
    with pytest.raises(KeyError, match="E9"):
        plan["E9"]


def test_plan_is_parsed_from_the_published_format() -> None:
    plan = parse_plan(
        "Plan: Search.\n#E1 = Google[Leonardo DiCaprio's girlfriend [2020]]\n"
        "Plan: Ask.\n#E2 = LLM[How old is she,\ngiven #E1?]\n#E3=Calculator[#E2 ^ 0.43]"
    )
    assert [(step.tool, step.arguments, step.why) for step in plan] == [
        ("Google", "Leonardo DiCaprio's girlfriend [2020]", "Search."),
        ("LLM", "How old is she,\ngiven #E1?", "Ask."),
        ("Calculator", "#E2 ^ 0.43", ""),
    ]
    assert plan.arguments("E3", {"E2": 25}) == "25 ^ 0.43"
    assert parse_plan("#E1 = now[]")["E1"].arguments == ""


def test_line_break_in_a_json_argument_is_accepted() -> None:
    assert parse_plan('#E1 = write[ {"text": "one\ntwo"} ]')["E1"].arguments == {"text": "one\ntwo"}


def test_line_may_contain_several_steps() -> None:
    plan = parse_plan('Plan: a #E1 = t[{"x": 1}] Plan: b #E2 = t[{"x": "#E1"}]')
    assert [(step.why, step.arguments) for step in plan] == [("a", {"x": 1}), ("b", {"x": "#E1"})]


@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```", 'Here it is:\n```\n{{"steps": {}}}\n```'])
def test_plan_is_parsed_from_a_json_list(form: str) -> None:
    steps = [
        {"id": "#E2", "tool": "search", "arguments": {"query": "#E1"}, "plan": "Look  it up."},
        {"id": "E1", "tool": "now"},
    ]
    plan = parse_plan(form.format(json.dumps(steps)))
    assert list(plan) == [
        PlanStep("E1", "now", {}),
        PlanStep("E2", "search", {"query": "#E1"}, "Look it up."),
    ]
    assert list_ids(parse_plan('[{"tool": "a"}, {"tool": "b", "arguments": "#E1"}]')) == ["E1", "E2"]


def test_independent_steps_are_ready_together() -> None:  # T79
    plan = parse_plan(PLAN)
    assert list_ids(plan.list_ready(done=())) == ["E1", "E3"]
    assert list_ids(plan.list_ready(done=(), running={"E1"})) == ["E3"]
    assert list_ids(plan.list_ready(done={"E1"}, running={"E3"})) == ["E2"]
    assert list_ids(plan.list_ready(done={"E3"})) == ["E1"]
    assert plan.list_ready(done={"E1", "E2", "E3"}) == ()


def test_labels_are_replaced_by_results() -> None:  # T79
    plan = parse_plan(
        '#E1 = t[{}]\n#E2 = t[{}]\n#E10 = t[{"whole": "#E1", "within": "<#E1> and #E2, #E1", '
        '"deep": [{"x": " #E2 "}, 1, null], "#E1": "key"}]'
    )
    evidence = {"E1": {"n": 1, "to": "é"}, "E2": "see #E1"}
    assert plan.arguments("E10", evidence) == {
        "whole": {"n": 1, "to": "é"},
        "within": '<{"n": 1, "to": "é"}> and see #E1, {"n": 1, "to": "é"}',
        "deep": [{"x": "see #E1"}, 1, None],
        "#E1": "key",
    }
    assert plan["E10"].arguments != plan.arguments("E10", evidence)
    assert list_ids(plan) == ["E1", "E2", "E10"]


def test_missing_result_is_refused() -> None:
    with pytest.raises(PlanRefused, match="step #E2 needs the missing result of #E1"):
        parse_plan(PLAN).arguments("E2", {"E3": "sun"})


def test_evidence_is_in_label_order() -> None:  # T79
    assert parse_plan(PLAN).format_with_evidence({"E3": ["sun"], "E1": "Ridley Scott"}) == (
        "Plan: Find the director.\n"
        '#E1 = search[{"query": "Who directed Alien?"}]\n'
        "Evidence: Ridley Scott\n"
        "Plan: Find where he was born, with the name from before.\n"
        '#E2 = search[{"query": "birthplace of #E1", "limit": 3}]\n'
        "Evidence: none\n"
        "Plan: Look up the weather anyway.\n"
        '#E3 = weather[{"city": "Oslo", "days": ["mon]", "tue"]}]\n'
        'Evidence: ["sun"]'
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("#E1 = a[x #E9]\n#E2 = b[y]", "step #E1 uses unknown steps #E9, expected #E1, #E2"),
        (
            "#E1 = a[#E2]\n#E2 = b[#E3]\n#E3 = c[#E2]\n#E4 = d[x]",
            "circular dependency between steps: #E2 -> #E3 -> #E2.",
        ),
        ("#E1 = a[#E1]", "circular dependency between steps: #E1 -> #E1."),
        ("#E1 = a[x]\n#E1 = b[y]", "step numbers must be unique, got #E1 twice"),
        ("#E1 = a[x]\n#E01 = b[y]", "step numbers must be unique, got #E1 twice"),
        (
            "I shall think about it.",
            "the plan must have at least one step; write each on a line as `Plan: why. #E1 = tool_name[",
        ),
        ("", "the plan must have at least one step"),
        ("[]", "the plan must have at least one step"),
        ("#E2 = a[#E1 #E10 #E9]", "step #E2 uses unknown steps #E1, #E9, #E10, expected #E2"),
        ('#E1 = a[{"x": tru}]', "invalid JSON in step #E1: Expecting value at 'tru}]'"),
        ('#E1 = a[{"x": 1}', "missing closing bracket after the arguments of step #E1"),
        ("#E1 = a[what if [it is open]", "missing closing bracket in step #E1"),
        ('[{"id": "first", "tool": "a"}]', "invalid id 'first' in step 1, expected E1, E2 and so on"),
        ('[{"id": "E1"}]', "step 1 must be an object with the key"),
        ('["search"]', 'step 1 must be an object with the key "tool", got "search"'),
        ('[{"tool": "a", "arguments": [1]}]', "the arguments of step #E1 must be an object, got [1]"),
    ],
)
def test_invalid_plan_is_refused(text: str, problem: str) -> None:  # T80
    with pytest.raises(PlanRefused) as caught:
        parse_plan(text)
    assert problem in str(caught.value)


@pytest.mark.parametrize("before", ["", '#E1 = a[{"x": '])
def test_deeply_nested_arguments_are_refused(before: str) -> None:  # T80
    with pytest.raises(PlanRefused, match="must not be nested too deeply"):
        parse_plan(before + "[" * 100_000)


def test_unknown_tool_is_refused() -> None:  # T80
    assert len(parse_plan(PLAN, tools=["weather", "search"])) == 3
    with pytest.raises(PlanRefused, match="step #E3 uses unknown tool 'weather', expected one of search, now"):
        parse_plan(PLAN, tools=["search", "now"])


@given(st.dictionaries(st.integers(1, 8), st.sets(st.integers(1, 8), max_size=3), min_size=1, max_size=8))
def test_plan_is_refused_or_every_step_becomes_ready(needs: dict[int, set[int]]) -> None:  # T79 T80
    steps = tuple(PlanStep(f"E{at}", "t", {"all": [f"#E{need}" for need in each]}) for at, each in needs.items())
    try:
        plan = Plan(steps)
    except PlanRefused:
        return
    done: dict[str, int] = {}
    while ready := plan.list_ready(done):
        for step in ready:
            assert plan.arguments(step.id, done) == {"all": [done[each] for each in list_labels(step)]}
        done.update({step.id: int(step.id[1:]) for step in ready})
    assert set(done) == {f"E{at}" for at in needs}


def list_labels(step: PlanStep) -> list[str]:
    assert isinstance(step.arguments, dict)
    return [label.removeprefix("#") for label in step.arguments["all"]]


@given(st.text(alphabet='#E12 =[]{}":,\nPlan`ab') | st.text())
def test_any_text_is_a_plan_or_refused(text: str) -> None:
    try:
        plan = parse_plan("#E1 = a[x]\n" + text)
    except PlanRefused:
        return
    assert plan.list_ready(())
