"""Plans of tool calls whose results stand for each other by label."""

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


def ids(steps: Any) -> list[str]:
    return [step.id for step in steps]


def test_a_plan_is_read_from_lines_with_json_arguments() -> None:  # T79
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


def test_the_published_form_is_read() -> None:
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


def test_a_line_break_within_the_text_of_an_argument_is_let_pass() -> None:
    assert parse_plan('#E1 = write[ {"text": "one\ntwo"} ]')["E1"].arguments == {"text": "one\ntwo"}


def test_several_steps_may_stand_on_one_line() -> None:
    plan = parse_plan('Plan: a #E1 = t[{"x": 1}] Plan: b #E2 = t[{"x": "#E1"}]')
    assert [(step.why, step.arguments) for step in plan] == [("a", {"x": 1}), ("b", {"x": "#E1"})]


@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```", 'Here it is:\n```\n{{"steps": {}}}\n```'])
def test_a_plan_is_read_from_a_json_list(form: str) -> None:
    steps = [
        {"id": "#E2", "tool": "search", "arguments": {"query": "#E1"}, "plan": "Look  it up."},
        {"id": "E1", "tool": "now"},
    ]
    plan = parse_plan(form.format(json.dumps(steps)))
    assert list(plan) == [
        PlanStep("E1", "now", {}),
        PlanStep("E2", "search", {"query": "#E1"}, "Look it up."),
    ]
    assert ids(parse_plan('[{"tool": "a"}, {"tool": "b", "arguments": "#E1"}]')) == ["E1", "E2"]


def test_what_does_not_depend_on_each_other_is_ready_together() -> None:  # T79
    plan = parse_plan(PLAN)
    assert ids(plan.list_ready(done=())) == ["E1", "E3"]
    assert ids(plan.list_ready(done=(), running={"E1"})) == ["E3"]
    assert ids(plan.list_ready(done={"E1"}, running={"E3"})) == ["E2"]
    assert ids(plan.list_ready(done={"E3"})) == ["E1"]
    assert plan.list_ready(done={"E1", "E2", "E3"}) == ()


def test_a_result_takes_the_place_of_its_label() -> None:  # T79
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
    assert ids(plan) == ["E1", "E2", "E10"]


def test_a_result_that_is_not_there_is_refused() -> None:
    with pytest.raises(PlanRefused, match="step #E2 needs the result of #E1, which is not there"):
        parse_plan(PLAN).arguments("E2", {"E3": "sun"})


def test_the_evidence_stands_in_the_order_of_the_labels() -> None:  # T79
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
    ("text", "said"),
    [
        ("#E1 = a[x #E9]\n#E2 = b[y]", "step #E1 refers to #E9; the plan has only #E1, #E2"),
        ("#E1 = a[#E2]\n#E2 = b[#E3]\n#E3 = c[#E2]\n#E4 = d[x]", "the steps #E2 -> #E3 -> #E2 wait for each other"),
        ("#E1 = a[#E1]", "the steps #E1 -> #E1 wait for each other"),
        ("#E1 = a[x]\n#E1 = b[y]", "the plan has two steps #E1"),
        ("#E1 = a[x]\n#E01 = b[y]", "the plan has two steps #E1"),
        ("I shall think about it.", "the plan has no step; write each on a line as `Plan: why. #E1 = tool_name["),
        ("", "the plan has no step"),
        ("[]", "the plan has no step"),
        ("#E2 = a[#E1 #E10 #E9]", "step #E2 refers to #E1, #E9, #E10; the plan has only #E2"),
        ('#E1 = a[{"x": tru}]', "the arguments of step #E1 are not JSON: Expecting value at 'tru}]'"),
        ('#E1 = a[{"x": 1}', "the arguments of step #E1 are not followed by a closing bracket"),
        ("#E1 = a[what if [it is open]", "the input of step #E1 has no closing bracket"),
        ('[{"id": "first", "tool": "a"}]', "step 1 of the plan has the id 'first'; ids are E1, E2 and so on"),
        ('[{"id": "E1"}]', "step 1 of the plan is not an object with a tool"),
        ('["search"]', 'step 1 of the plan is not an object with a tool; it is "search"'),
        ('[{"tool": "a", "arguments": [1]}]', "the arguments of step #E1 are [1]; they have to be an object"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(text: str, said: str) -> None:  # T80
    with pytest.raises(PlanRefused) as caught:
        parse_plan(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("before", ["", '#E1 = a[{"x": '])
def test_arguments_without_a_bottom_are_refused(before: str) -> None:  # T80
    with pytest.raises(PlanRefused, match="nested too deeply"):
        parse_plan(before + "[" * 100_000)


def test_a_tool_that_is_not_there_is_refused() -> None:  # T80
    assert len(parse_plan(PLAN, tools=["weather", "search"])) == 3
    with pytest.raises(PlanRefused, match="step #E3 calls 'weather'; there are only the tools search, now"):
        parse_plan(PLAN, tools=["search", "now"])


@given(st.dictionaries(st.integers(1, 8), st.sets(st.integers(1, 8), max_size=3), min_size=1, max_size=8))
def test_a_plan_is_refused_or_every_step_gets_its_turn(needs: dict[int, set[int]]) -> None:  # T79 T80
    steps = tuple(PlanStep(f"E{at}", "t", {"all": [f"#E{need}" for need in each]}) for at, each in needs.items())
    try:
        plan = Plan(steps)
    except PlanRefused:
        return
    done: dict[str, int] = {}
    while ready := plan.list_ready(done):
        for step in ready:
            assert plan.arguments(step.id, done) == {"all": [done[each] for each in labels(step)]}
        done.update({step.id: int(step.id[1:]) for step in ready})
    assert set(done) == {f"E{at}" for at in needs}


def labels(step: PlanStep) -> list[str]:
    assert isinstance(step.arguments, dict)
    return [label.removeprefix("#") for label in step.arguments["all"]]


@given(st.text(alphabet='#E12 =[]{}":,\nPlan`ab') | st.text())
def test_whatever_a_model_writes_is_a_plan_or_refused(text: str) -> None:
    try:
        plan = parse_plan("#E1 = a[x]\n" + text)
    except PlanRefused:
        return
    assert plan.list_ready(())
