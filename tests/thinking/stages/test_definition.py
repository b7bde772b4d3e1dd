"""Custom strategy definitions and their validation."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.errors import ConfigurationError
from rxloop.thinking import Stage, StageManager, StrategyDefinition
from rxloop.thinking.stages import Branching, IterationPoint


def make_stages(**following: Any) -> tuple[Stage, ...]:
    """Parse stages with their successors, as in `a="b c"`."""
    return tuple(Stage(name=name, next=targets.split()) for name, targets in following.items())


def make_definition(**fields: Any) -> StrategyDefinition:
    stages = make_stages(draft="check", check="draft done", done="")
    values: dict[str, Any] = {"name": "own", "stages": stages, **fields}
    return StrategyDefinition(**values)


def test_flow_follows_a_custom_strategy() -> None:  # T72
    flow = StageManager(make_definition())
    assert flow.advance() == "check"
    assert flow.is_decision_point
    for stage in ("draft", "check", "done"):
        flow.enter(stage)
    assert flow.is_terminal
    assert flow.history == ("draft", "check", "draft", "check")


def test_omitted_fields_are_derived_from_the_stages() -> None:
    own = make_definition()
    assert (own.title, own.initial, own.terminal, own.decision_points) == ("Own", "draft", ("done",), ("check",))
    assert own.loops == (("check", "draft"),)
    assert dict(own.transitions) == {"draft": ("check",), "check": ("draft", "done"), "done": ()}
    assert [own.steps_to_end(stage) for stage in own.transitions] == [2, 1, 0]
    assert "check" in own
    assert "party" not in own


def test_lists_and_single_names_are_converted_to_tuples() -> None:
    stage = Stage(name="a", next="b", fields=["x", "y|z"], description="Do it")
    assert (stage.next, stage.fields, stage.prompt) == (("b",), ("x", "y|z"), "Do it")
    point = IterationPoint(stage="a", back_to="b", via=["c"])
    assert (point.back_to, point.via) == (("b",), ("c",))
    own = make_definition(stages=list(make_stages(a="b", b="")), aliases=["mine"], features={"revision"})
    assert (type(own.stages), own.aliases, own.features) == (tuple, ("mine",), frozenset({"revision"}))
    assert isinstance(hash(own), int)


def test_one_of_alternative_fields_is_sufficient() -> None:  # T86
    stage = Stage(name="act", fields=("action|plannedActions", "reason"))
    assert stage.find_missing(()) == ("action|plannedActions", "reason")
    assert stage.find_missing({"plannedActions"}) == ("reason",)
    assert stage.find_missing({"action": "look", "reason": "why"}) == ()


def test_strategy_may_have_several_ends() -> None:
    own = make_definition(stages=make_stages(ask="yes no", yes="", no=""), terminal=("yes", "no"))
    assert own.steps_to_end("ask") == 1
    assert StageManager(own).enter("yes") == "yes"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        # T71
        ({"stages": make_stages(a="b", b="c", lost="c", c="")}, "strategy 'own' has no path from 'a' to lost"),
        ({"stages": make_stages(a="b c", b="d", d="b", c="")}, "strategy 'own' has no path from b, d to its end, c"),
        (
            {"stages": make_stages(a="b", b="x", c="")},
            "strategy 'own' has no stage 'x', named as the next stage of 'b'",
        ),
        (
            {"stages": make_stages(a="b stuck", stuck="", b="")},
            "has no path from stuck to its end, b; list every end in `terminal`",
        ),
        ({"stages": (*make_stages(a="b", b=""), *make_stages(a=""))}, "has two stages 'a'"),
        ({"stages": make_stages(a="b b", b="")}, "names 'b' twice after 'a'"),
        ({"stages": make_stages(a="a b", b="")}, "lets 'a' follow itself"),
        ({"stages": make_stages(a="b", b="a")}, "ends at 'b', but lets a follow it"),
        ({"stages": ()}, "has no stages"),
        ({"stages": (Stage(name=" a"),)}, "has a stage ' a'; a name has at most 100 letters"),
        ({"name": ""}, "strategy '' has the name ''"),
        ({"aliases": ("a b",)}, "has the name 'a b'"),
        ({"initial": "begin"}, "has no stage 'begin', named as initial"),
        ({"terminal": ("end",)}, "has no stage 'end', named as terminal"),
        ({"features": {"speed"}}, "unknown feature 'speed'; expected external_tools"),
        ({"decision_points": ("draft",)}, "names draft as decision points, but there is a choice after check"),
        (
            {"stages": make_stages(a="b", b=""), "decision_points": ("a",)},
            "names a as decision points, but there is a choice after none",
        ),
        (
            {"iteration_point": IterationPoint(stage="draft", back_to=("check",))},
            "'draft', which is not a decision point",
        ),
        (
            {"iteration_point": IterationPoint(stage="check", back_to=("check",))},
            "iterates back to 'check', which cannot be reached",
        ),
        (
            {"iteration_point": IterationPoint(stage="check", back_to=("draft",), via=("check",))},
            "iterates via 'check', which may not follow 'check'",
        ),
        ({"branching": Branching(kind="tree", stage="x")}, "branches at 'x', which is not one of its stages"),
    ],
)
def test_inconsistent_definition_is_refused_with_the_stage(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_definition(**fields)
    assert message in str(caught.value)


def test_decision_points_may_be_in_any_order() -> None:
    split = make_stages(a="b c", b="c a", c="")
    assert make_definition(stages=split, decision_points=("b", "a")).decision_points == ("a", "b")


def test_unknown_stage_is_refused_with_the_known_stages() -> None:
    with pytest.raises(ConfigurationError, match="'own' has no stage 'x'; its stages are draft, check, done"):
        make_definition().stage("x")
    with pytest.raises(ConfigurationError, match="no stage 'x'"):
        make_definition().steps_to_end("x")
