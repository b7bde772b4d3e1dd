"""The branches of a flow."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.errors import BranchRefused
from rxloop.strategies import get_stages
from rxloop.thinking import StageManager
from rxloop.thinking.stages.branches import Branches


def tree(*names: str) -> Branches:
    """A tree of thoughts whose main line has come to open branches, with some of them."""
    flow = StageManager(get_stages("tree_of_thoughts"))
    flow.transition_to("approach_exploration")
    flow.transition_to("branch_creation")
    branches = Branches(flow)
    for name in names:
        branches.open(name)
    return branches


def scored(**scores: float) -> Branches:
    branches = tree(*scores)
    for name, score in scores.items():
        branches.score(name, score)
    return branches


def drawn(branches: Branches) -> list[object]:
    """All that can be seen of branches."""
    lines = [(each.name, each.parent, each.status, each.score, each.merged_into) for each in branches]
    return [branches.main.snapshot(), *lines, *(each.stages.snapshot() for each in branches)]


def test_each_branch_has_its_own_place() -> None:  # T73
    branches = tree("A", "B")
    branches.stages("A").transition_to("branch_development")
    branches.stages("A").transition_to("branch_evaluation")
    branches.stages("B").transition_to("branch_development")
    assert branches["A"].stages.stage == "branch_evaluation"
    assert branches["B"].stages.stage == "branch_development"
    assert branches.stages(None).stage == "branch_creation"
    assert branches["A"].stages.history[:2] == branches.main.history


def test_a_selection_prunes_the_rest_and_what_was_pruned_can_still_be_read() -> None:  # T74
    branches = scored(A=0.9, B=0.4)
    branches.stages("B").transition_to("branch_development")
    assert branches.select(keep=1) == (("A",), ("B",))
    assert (branches["A"].status, branches["B"].status) == ("active", "pruned")
    assert branches["B"].stages.history[-1] == "branch_creation"
    assert branches.active == ("A",)
    assert [each.name for each in branches] == ["A", "B"]
    with pytest.raises(BranchRefused, match="branch 'B' was pruned; goes no further"):
        branches.stages("B")


def test_of_equal_scores_the_branch_that_was_opened_first_stays() -> None:  # T74
    assert scored(A=0.5, B=0.7, C=0.5).select(keep=2) == (("A", "B"), ("C",))
    assert scored(A=1, B=2).select(keep=5) == (("A", "B"), ())


def test_a_selection_is_among_the_leaves_or_the_branches_named() -> None:  # T74 T76
    branches = scored(A=0.1, B=0.9)
    for name, score in {"A1": 0.8, "A2": 0.3}.items():
        branches.open(name, "A")
        branches.score(name, score)
    assert branches.leaves == ("B", "A1", "A2")
    assert branches.select(keep=2) == (("B", "A1"), ("A2",))
    assert branches.select(keep=1, among=["A", "B"]) == (("B",), ("A", "A1"))


def test_a_merged_branch_goes_no_further_and_the_main_line_knows_of_it() -> None:  # T75
    branches = tree("A", "B")
    branches.merge("B")
    assert (branches["B"].status, branches["B"].merged_into) == ("merged", None)
    for refused in (
        lambda: branches.stages("B"),
        lambda: branches.score("B", 1.0),
        lambda: branches.merge("B"),
        lambda: branches.prune("B"),
        lambda: branches.open("B1", "B"),
        lambda: branches.merge("A", into="B"),
        lambda: branches.select(1, among=["B"]),
    ):
        with pytest.raises(BranchRefused, match="branch 'B' was merged into the main line"):
            refused()
    assert [each.name for each in branches] == ["A", "B"]


def test_a_branch_may_be_merged_into_another_one() -> None:  # T75
    branches = tree("A", "B")
    branches.merge("B", into="A")
    assert (branches["B"].status, branches["B"].merged_into) == ("merged", "A")
    with pytest.raises(BranchRefused, match="was merged into 'A'"):
        branches.stages("B")


def test_a_branch_of_a_branch_keeps_its_parent() -> None:  # T76
    branches = tree("A")
    branches.stages("A").transition_to("branch_development")
    inner = branches.open("A1", "A")
    assert (inner.parent, inner.stages.stage) == ("A", "branch_development")
    assert branches.lineage("A1") == ("A1", "A")
    assert branches.lineage(None) == ()


def test_pruning_takes_along_what_came_from_the_branch() -> None:  # T74 T76
    branches = tree("A", "B")
    branches.open("A1", "A")
    branches.open("A11", "A1")
    branches.merge("A11")
    assert branches.prune("A") == ("A", "A1")
    assert branches["A11"].status == "merged"
    assert branches.active == ("B",)


@pytest.mark.parametrize("name", ["__proto__", "constructor", "10", "main"])
def test_any_name_is_an_ordinary_name(name: str) -> None:
    assert tree(name, "z")[name].name == name


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (lambda b: b.open("A"), "there is a branch 'A' already (active); take another name"),
        (lambda b: b.open(""), "a branch needs a name"),
        (lambda b: b.open("C", "X"), "there is no branch 'X'; there are 'A', 'B', 'A1'"),
        (lambda b: b.stages("X"), "there is no branch 'X'"),
        (lambda b: b.score("A", float("nan")), "the score of branch 'A' is nan; it has to be a finite number"),
        (lambda b: b.select(1), "there is no score yet for 'B', 'A1'; score every branch before selecting"),
        (lambda b: b.select(0), "0 branches are to be kept"),
        (lambda b: b.select(1, ["A", "A1"]), "branch 'A1' came from 'A'; select among branches side by side"),
        (lambda b: b.select(1, ["X"]), "there is no branch 'X'"),
        (lambda b: b.merge("A"), "branch 'A' cannot be merged while 'A1' departs from it"),
        (lambda b: b.merge("A", into="A1"), "cannot be merged into 'A1', which is or came from it"),
        (lambda b: b.merge("A1", into="A1"), "cannot be merged into 'A1', which is or came from it"),
    ],
)
def test_a_refused_operation_says_why_and_changes_nothing(refused: Any, said: str) -> None:
    branches = scored(A=0.5)
    branches.open("B")
    branches.open("A1", "A")
    before = drawn(branches)
    with pytest.raises(BranchRefused) as caught:
        refused(branches)
    assert said in str(caught.value)
    assert drawn(branches) == before
