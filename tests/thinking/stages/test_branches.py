"""Branches of a flow."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.errors import BranchRefused
from rxloop.strategies import get_stages
from rxloop.thinking import StageManager
from rxloop.thinking.stages.branches import Branches


def make_tree(*names: str) -> Branches:
    """Make a tree of thoughts at its branch creation, and open the branches."""
    flow = StageManager(get_stages("tree_of_thoughts"))
    flow.enter("approach_exploration")
    flow.enter("branch_creation")
    branches = Branches(flow)
    for name in names:
        branches.open(name)
    return branches


def make_scored(**scores: float) -> Branches:
    branches = make_tree(*scores)
    for name, score in scores.items():
        branches.score(name, score)
    return branches


def snapshot(branches: Branches) -> list[object]:
    lines = [(each.name, each.parent, each.status, each.score, each.merged_into) for each in branches]
    return [branches.main.snapshot(), *lines, *(each.stages.snapshot() for each in branches)]


def test_each_branch_has_its_own_stage() -> None:  # T73
    branches = make_tree("A", "B")
    branches.stages("A").enter("branch_development")
    branches.stages("A").enter("branch_evaluation")
    branches.stages("B").enter("branch_development")
    assert branches["A"].stages.stage == "branch_evaluation"
    assert branches["B"].stages.stage == "branch_development"
    assert branches.stages(None).stage == "branch_creation"
    assert branches["A"].stages.history[:2] == branches.main.history


def test_selection_prunes_the_rest_and_keeps_pruned_branches_readable() -> None:  # T74
    branches = make_scored(A=0.9, B=0.4)
    branches.stages("B").enter("branch_development")
    assert branches.select(keep=1) == (("A",), ("B",))
    assert (branches["A"].status, branches["B"].status) == ("active", "pruned")
    assert branches["B"].stages.history[-1] == "branch_creation"
    assert branches.active == ("A",)
    assert [each.name for each in branches] == ["A", "B"]
    with pytest.raises(BranchRefused, match="branch 'B' was pruned; goes no further"):
        branches.stages("B")


def test_first_branch_is_kept_when_scores_are_equal() -> None:  # T74
    assert make_scored(A=0.5, B=0.7, C=0.5).select(keep=2) == (("A", "B"), ("C",))
    assert make_scored(A=1, B=2).select(keep=5) == (("A", "B"), ())


def test_selection_considers_the_leaves_or_the_given_branches() -> None:  # T74 T76
    branches = make_scored(A=0.1, B=0.9)
    for name, score in {"A1": 0.8, "A2": 0.3}.items():
        branches.open(name, "A")
        branches.score(name, score)
    assert branches.leaves == ("B", "A1", "A2")
    assert branches.select(keep=2) == (("B", "A1"), ("A2",))
    assert branches.select(keep=1, among=["A", "B"]) == (("B",), ("A", "A1"))


def test_merged_branch_cannot_continue() -> None:  # T75
    branches = make_tree("A", "B")
    branches.merge("B")
    assert (branches["B"].status, branches["B"].merged_into) == ("merged", None)
    for operation in (
        lambda: branches.stages("B"),
        lambda: branches.score("B", 1.0),
        lambda: branches.merge("B"),
        lambda: branches.prune("B"),
        lambda: branches.open("B1", "B"),
        lambda: branches.merge("A", into="B"),
        lambda: branches.select(1, among=["B"]),
    ):
        with pytest.raises(BranchRefused, match="branch 'B' was merged into the main branch"):
            operation()
    assert [each.name for each in branches] == ["A", "B"]


def test_branch_can_be_merged_into_another() -> None:  # T75
    branches = make_tree("A", "B")
    branches.merge("B", into="A")
    assert (branches["B"].status, branches["B"].merged_into) == ("merged", "A")
    with pytest.raises(BranchRefused, match="was merged into 'A'"):
        branches.stages("B")


def test_branch_of_a_branch_has_its_parent() -> None:  # T76
    branches = make_tree("A")
    branches.stages("A").enter("branch_development")
    inner = branches.open("A1", "A")
    assert (inner.parent, inner.stages.stage) == ("A", "branch_development")
    assert branches.lineage("A1") == ("A1", "A")
    assert branches.lineage(None) == ()


def test_pruning_a_branch_prunes_its_descendants() -> None:  # T74 T76
    branches = make_tree("A", "B")
    branches.open("A1", "A")
    branches.open("A11", "A1")
    branches.merge("A11")
    assert branches.prune("A") == ("A", "A1")
    assert branches["A11"].status == "merged"
    assert branches.active == ("B",)


@pytest.mark.parametrize("name", ["__proto__", "constructor", "10", "main"])
def test_special_names_are_ordinary_branch_names(name: str) -> None:
    assert make_tree(name, "z")[name].name == name


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda b: b.open("A"), "branch 'A' already exists (active); choose another name"),
        (lambda b: b.open(""), "a branch needs a name"),
        (lambda b: b.open("C", "X"), "there is no branch 'X'; there are 'A', 'B', 'A1'"),
        (lambda b: b.stages("X"), "there is no branch 'X'"),
        (lambda b: b.score("A", float("nan")), "the score of branch 'A' is nan; it has to be a finite number"),
        (lambda b: b.select(1), "there is no score yet for 'B', 'A1'; score every branch before selecting"),
        (lambda b: b.select(0), "keep must be at least 1, got 0"),
        (lambda b: b.select(1, ["A", "A1"]), "branch 'A1' came from 'A'; select among branches side by side"),
        (lambda b: b.select(1, ["X"]), "there is no branch 'X'"),
        (lambda b: b.merge("A"), "branch 'A' cannot be merged before its child 'A1'"),
        (lambda b: b.merge("A", into="A1"), "cannot be merged into 'A1', which is or came from it"),
        (lambda b: b.merge("A1", into="A1"), "cannot be merged into 'A1', which is or came from it"),
    ],
)
def test_refused_operation_has_a_reason_and_changes_nothing(operation: Any, message: str) -> None:
    branches = make_scored(A=0.5)
    branches.open("B")
    branches.open("A1", "A")
    before = snapshot(branches)
    with pytest.raises(BranchRefused) as caught:
        operation(branches)
    assert message in str(caught.value)
    assert snapshot(branches) == before
