"""Strategies of one's own, and what is refused of them."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.errors import ConfigurationError
from rxloop.thinking import Stage, StageManager, StrategyDefinition
from rxloop.thinking.stages import Branching, IterationPoint


def stages(**following: Any) -> tuple[Stage, ...]:
    """Stages from what may follow each, such as `a="b c"`."""
    return tuple(Stage(name=name, next=targets.split()) for name, targets in following.items())


def build(**more: Any) -> StrategyDefinition:
    three = stages(draft="check", check="draft done", done="")
    fields: dict[str, Any] = {"name": "own", "stages": three, **more}
    return StrategyDefinition(**fields)


def test_a_strategy_of_three_stages_works() -> None:  # T72
    flow = StageManager(build())
    assert flow.advance() == "check"
    assert flow.is_decision_point
    for stage in ("draft", "check", "done"):
        flow.transition_to(stage)
    assert flow.is_terminal
    assert flow.history == ("draft", "check", "draft", "check")


def test_what_is_not_said_is_found_in_the_stages() -> None:
    own = build()
    assert (own.title, own.initial, own.terminal, own.decision_points) == ("Own", "draft", ("done",), ("check",))
    assert own.loops == (("check", "draft"),)
    assert dict(own.transitions) == {"draft": ("check",), "check": ("draft", "done"), "done": ()}
    assert [own.steps_to_end(stage) for stage in own.transitions] == [2, 1, 0]
    assert "check" in own
    assert "party" not in own


def test_lists_and_single_names_become_tuples() -> None:
    stage = Stage(name="a", next="b", fields=["x", "y|z"], description="Do it")
    assert (stage.next, stage.fields, stage.prompt) == (("b",), ("x", "y|z"), "Do it")
    point = IterationPoint(stage="a", back_to="b", via=["c"])
    assert (point.back_to, point.via) == (("b",), ("c",))
    own = build(stages=list(stages(a="b", b="")), aliases=["mine"], traits={"revision"})
    assert (type(own.stages), own.aliases, own.traits) == (tuple, ("mine",), frozenset({"revision"}))
    assert isinstance(hash(own), int)


def test_of_alternative_fields_one_is_enough() -> None:  # T86
    stage = Stage(name="act", fields=("action|plannedActions", "reason"))
    assert stage.missing(()) == ("action|plannedActions", "reason")
    assert stage.missing({"plannedActions"}) == ("reason",)
    assert stage.missing({"action": "look", "reason": "why"}) == ()


def test_several_ends_are_named() -> None:
    own = build(stages=stages(ask="yes no", yes="", no=""), terminal=("yes", "no"))
    assert own.steps_to_end("ask") == 1
    assert StageManager(own).transition_to("yes") == "yes"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        # T71
        ({"stages": stages(a="b", b="c", lost="c", c="")}, "strategy 'own' has no way from 'a' to lost"),
        ({"stages": stages(a="b c", b="d", d="b", c="")}, "strategy 'own' has no way from b, d to its end, c"),
        ({"stages": stages(a="b", b="x", c="")}, "strategy 'own' has no stage 'x', which is to follow 'b'"),
        (
            {"stages": stages(a="b stuck", stuck="", b="")},
            "has no way from stuck to its end, b; name in `terminal` what is an end, too",
        ),
        ({"stages": (*stages(a="b", b=""), *stages(a=""))}, "has two stages 'a'"),
        ({"stages": stages(a="b b", b="")}, "names 'b' twice after 'a'"),
        ({"stages": stages(a="a b", b="")}, "lets 'a' follow itself"),
        ({"stages": stages(a="b", b="a")}, "ends at 'b', but lets a follow it"),
        ({"stages": ()}, "has no stages"),
        ({"stages": (Stage(name=" a"),)}, "has a stage ' a'; a name has at most 100 letters"),
        ({"name": ""}, "strategy '' has the name ''"),
        ({"aliases": ("a b",)}, "has the name 'a b'"),
        ({"initial": "begin"}, "has no stage 'begin', which it names as initial"),
        ({"terminal": ("end",)}, "has no stage 'end', which it names as terminal"),
        ({"traits": {"speed"}}, "unknown trait 'speed'; there are external_tools"),
        ({"decision_points": ("draft",)}, "names draft as decision points, but there is a choice after check"),
        (
            {"stages": stages(a="b", b=""), "decision_points": ("a",)},
            "names a as decision points, but there is a choice after none",
        ),
        (
            {"iteration_point": IterationPoint(stage="draft", back_to=("check",))},
            "'draft', which is not a decision point",
        ),
        (
            {"iteration_point": IterationPoint(stage="check", back_to=("check",))},
            "goes back to 'check', to which no way",
        ),
        (
            {"iteration_point": IterationPoint(stage="check", back_to=("draft",), via=("check",))},
            "goes round via 'check', which may not follow 'check'",
        ),
        ({"branching": Branching(kind="tree", stage="x")}, "branches at 'x', which is not one of its stages"),
    ],
)
def test_what_does_not_hold_together_is_refused_by_the_name_of_the_stage(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        build(**more)
    assert said in str(caught.value)


def test_the_decision_points_may_be_named_in_any_order() -> None:
    split = stages(a="b c", b="c a", c="")
    assert build(stages=split, decision_points=("b", "a")).decision_points == ("a", "b")


def test_a_stage_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(ConfigurationError, match="'own' has no stage 'x'; it has draft, check, done"):
        build().stage("x")
    with pytest.raises(ConfigurationError, match="no stage 'x'"):
        build().steps_to_end("x")
