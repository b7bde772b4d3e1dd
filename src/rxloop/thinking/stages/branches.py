"""Branch management for strategy flows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rxloop.errors import BranchRefused
from rxloop.thinking.stages.stage_manager import StageManager

BranchStatus = Literal["active", "pruned", "merged"]


@dataclass(slots=True)
class Branch:
    """Flow branch with an independent strategy position."""

    name: str
    parent: str | None
    """Parent branch. None for the main branch."""
    stages: StageManager
    status: BranchStatus = "active"
    score: float | None = None
    """Score of the evaluation. Higher is better."""
    merged_into: str | None = None
    """Target of a merged branch. None for the main branch."""


class Selection(NamedTuple):
    """Kept and pruned branch names, in creation order."""

    kept: tuple[str, ...]
    pruned: tuple[str, ...]


class Branches:
    """The main branch of a flow and all other branches.

    Arguments are names of branches, or None for the main branch. Pruned and merged branches can be read but not
    continued. A rejected operation changes nothing.

    Iteration yields the branches except the main branch, in the order in which they were opened. `branches["a"]`
    returns a branch of any status.

    Args:
        main: The main branch.
    """

    def __init__(self, main: StageManager) -> None:
        self.main = main
        self._branches: dict[str, Branch] = {}

    def __iter__(self) -> Iterator[Branch]:
        return iter(self._branches.values())

    def __getitem__(self, name: str) -> Branch:
        branch = self._branches.get(name)
        if branch is None:
            raise BranchRefused(f"there is no branch {name!r}; there are {_listed(self._branches)}")
        return branch

    @property
    def active(self) -> tuple[str, ...]:
        """Open branches."""
        return tuple(branch.name for branch in self if branch.status == "active")

    @property
    def leaves(self) -> tuple[str, ...]:
        """Open branches without open children."""
        parents = {branch.parent for branch in self if branch.status == "active"}
        return tuple(name for name in self.active if name not in parents)

    def stages(self, name: str | None) -> StageManager:
        """Return the strategy position of an open branch or the main branch.

        Raises:
            BranchRefused: Unknown or closed branch.
        """
        return self.main if name is None else self._open(name, "goes no further").stages

    def lineage(self, name: str | None) -> tuple[str, ...]:
        """Return a branch and its ancestors, nearest first. Empty for the main branch."""
        names: list[str] = []
        while name is not None:
            names.append(name)
            name = self[name].parent
        return tuple(names)

    def open(self, name: str, parent: str | None = None) -> Branch:
        """Open a branch at the current position of its parent.

        Args:
            name: Name for the new branch.
            parent: Parent branch name. Defaults to the main branch.

        Raises:
            BranchRefused: Empty or duplicate name, or closed parent branch.
        """
        if not name:
            raise BranchRefused("a branch needs a name")
        if name in self._branches:
            raise BranchRefused(f"branch {name!r} already exists ({self._branches[name].status}); choose another name")
        source = self.main if parent is None else self._open(parent, "no branch can start from it").stages
        branch = self._branches[name] = Branch(name, parent, source.copy())
        return branch

    def score(self, name: str, score: float) -> None:
        """Update the score of an open branch. Higher scores are better.

        Raises:
            BranchRefused: Closed branch or non-finite score.
        """
        branch = self._open(name, "it gets no score")
        if not math.isfinite(score):
            raise BranchRefused(f"the score of branch {name!r} is {score}; it has to be a finite number")
        branch.score = score

    def select(self, keep: int, among: Iterable[str] | None = None) -> Selection:
        """Keep the branches with the highest scores and prune the others.

        If scores are equal, earlier branches are kept.

        Args:
            keep: Number of branches to keep.
            among: Candidates. Defaults to all leaves.

        Raises:
            BranchRefused: If a candidate is not open, has no score or descends from another candidate, or `keep` is
                below 1.
        """
        if keep < 1:
            raise BranchRefused(f"keep must be at least 1, got {keep}; to keep none, prune the branches by name")
        names = set(self.leaves if among is None else among)
        for name in names:
            self._open(name, "it cannot be selected")
            if above := [branch for branch in self.lineage(name)[1:] if branch in names]:
                raise BranchRefused(f"branch {name!r} came from {above[0]!r}; select among branches side by side")
        candidates = [branch for branch in self if branch.name in names]
        unscored = [branch.name for branch in candidates if branch.score is None]
        if unscored:
            raise BranchRefused(f"there is no score yet for {_listed(unscored)}; score every branch before selecting")
        best = {branch.name for branch in sorted(candidates, key=lambda branch: -(branch.score or 0.0))[:keep]}
        kept = tuple(branch.name for branch in candidates if branch.name in best)
        return Selection(kept, self._prune(names - best))

    def prune(self, name: str) -> tuple[str, ...]:
        """Prune an open branch and its open descendants.

        Returns:
            Names of the pruned branches.

        Raises:
            BranchRefused: If the branch is not open.
        """
        self._open(name, "it cannot be pruned")
        return self._prune({name})

    def merge(self, name: str, into: str | None = None) -> None:
        """Merge an open branch into another branch. Defaults to the main branch.

        Raises:
            BranchRefused: Closed branch, open child branches, or a target descended from the merged branch.
        """
        branch = self._open(name, "it cannot be merged")
        if into is not None:
            self._open(into, "nothing can be merged into it")
            if name in self.lineage(into):
                raise BranchRefused(f"branch {name!r} cannot be merged into {into!r}, which is or came from it")
        children = [branch.name for branch in self if branch.parent == name and branch.status == "active"]
        if children:
            raise BranchRefused(
                f"branch {name!r} cannot be merged before its child {_listed(children)}; merge or prune the child first"
            )
        branch.status, branch.merged_into = "merged", into

    def _prune(self, names: set[str]) -> tuple[str, ...]:
        pruned = [
            branch for branch in self if branch.status == "active" and not names.isdisjoint(self.lineage(branch.name))
        ]
        for branch in pruned:
            branch.status = "pruned"
        return tuple(branch.name for branch in pruned)

    def _open(self, name: str, otherwise: str) -> Branch:
        branch = self[name]
        if branch.status != "active":
            target = ""
            if branch.status == "merged":
                target = " into the main branch" if branch.merged_into is None else f" into {branch.merged_into!r}"
            raise BranchRefused(f"branch {name!r} was {branch.status}{target}; {otherwise}")
        return branch


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
