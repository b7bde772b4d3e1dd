"""Open, selected and merged branches of a flow."""

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
    """One line of a flow; its place in the strategy is its own."""

    name: str
    parent: str | None
    """The branch that it departs from; None is the main line."""
    stages: StageManager
    status: BranchStatus = "active"
    score: float | None = None
    """What the evaluation gave it; the larger the better."""
    merged_into: str | None = None
    """Where a merged branch went; None is the main line."""


class Selection(NamedTuple):
    """What a selection kept and what it pruned, each in the order in which the branches were opened."""

    kept: tuple[str, ...]
    pruned: tuple[str, ...]


class Branches:
    """The main line of a flow and the branches that were opened from it, and from each other.

    Every argument takes the name of a branch, or None for the main line. A pruned or merged branch can still be read,
    but not continued. A refused operation changes nothing.

    Iterating gives the branches, without the main line, in the order in which they were opened; `branches["a"]` is one
    of them, whatever its status.

    Args:
        main: The main line.
    """

    def __init__(self, main: StageManager) -> None:
        self.main = main
        self._branches: dict[str, Branch] = {}

    def __iter__(self) -> Iterator[Branch]:
        return iter(self._branches.values())

    def __getitem__(self, name: str) -> Branch:
        found = self._branches.get(name)
        if found is None:
            raise BranchRefused(f"there is no branch {name!r}; there are {_listed(self._branches)}")
        return found

    @property
    def active(self) -> tuple[str, ...]:
        """The branches that are open."""
        return tuple(branch.name for branch in self if branch.status == "active")

    @property
    def leaves(self) -> tuple[str, ...]:
        """The open branches from which no open branch departs: the ends of the tree."""
        parents = {branch.parent for branch in self if branch.status == "active"}
        return tuple(name for name in self.active if name not in parents)

    def stages(self, name: str | None) -> StageManager:
        """Return the place in the strategy of an open branch, or of the main line, to go on from.

        Raises:
            BranchRefused: There is no such branch, or it is no longer open.
        """
        return self.main if name is None else self._open(name, "goes no further").stages

    def lineage(self, name: str | None) -> tuple[str, ...]:
        """Return a branch and its ancestors, the nearest first; nothing for the main line."""
        found: list[str] = []
        while name is not None:
            found.append(name)
            name = self[name].parent
        return tuple(found)

    def open(self, name: str, parent: str | None = None) -> Branch:
        """Open a branch, which begins where its parent stands in the strategy.

        Args:
            name: Its name.
            parent: The branch that it departs from.

        Raises:
            BranchRefused: The name is taken, or the parent is not open.
        """
        if not name:
            raise BranchRefused("a branch needs a name")
        if name in self._branches:
            raise BranchRefused(
                f"there is a branch {name!r} already ({self._branches[name].status}); take another name"
            )
        source = self.main if parent is None else self._open(parent, "no branch departs from it").stages
        made = self._branches[name] = Branch(name, parent, source.copy())
        return made

    def score(self, name: str, score: float) -> None:
        """Score an open branch: the larger the better, and the last score counts.

        Raises:
            BranchRefused: It is not open, or the score is not a finite number.
        """
        branch = self._open(name, "it gets no score")
        if not math.isfinite(score):
            raise BranchRefused(f"the score of branch {name!r} is {score}; it has to be a finite number")
        branch.score = score

    def select(self, keep: int, among: Iterable[str] | None = None) -> Selection:
        """Keep the branches with the highest scores and prune the others; of equals, what was opened first stays.

        Args:
            keep: How many to keep.
            among: The candidates: all leaves, unless given.

        Raises:
            BranchRefused: A candidate is not open, has no score or came from another candidate, or `keep` is below 1.
        """
        if keep < 1:
            raise BranchRefused(f"{keep} branches are to be kept; keep one at least, or prune them by name")
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
        """Give up an open branch, and the open ones that came from it.

        Returns:
            What was pruned.

        Raises:
            BranchRefused: It is not open.
        """
        self._open(name, "it cannot be pruned")
        return self._prune({name})

    def merge(self, name: str, into: str | None = None) -> None:
        """Merge an open branch into the main line, or into another open branch.

        Raises:
            BranchRefused: One of them is not open, the target came from the branch, or open branches depart from it.
        """
        branch = self._open(name, "it cannot be merged")
        if into is not None:
            self._open(into, "nothing can be merged into it")
            if name in self.lineage(into):
                raise BranchRefused(f"branch {name!r} cannot be merged into {into!r}, which is or came from it")
        still = [branch.name for branch in self if branch.parent == name and branch.status == "active"]
        if still:
            raise BranchRefused(
                f"branch {name!r} cannot be merged while {_listed(still)} departs from it; merge or prune that first"
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
            where = ""
            if branch.status == "merged":
                where = " into the main line" if branch.merged_into is None else f" into {branch.merged_into!r}"
            raise BranchRefused(f"branch {name!r} was {branch.status}{where}; {otherwise}")
        return branch


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
