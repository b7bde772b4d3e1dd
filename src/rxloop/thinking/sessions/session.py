"""A thinking session: a fold of its thoughts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple

from rxloop.state.history import Ledger
from rxloop.thinking.sessions.thought import SequentialThought

Status = Literal["active", "complete"]


class BranchOrigin(NamedTuple):
    """Where a branch, an alternative line of thoughts, leaves from."""

    branch_id: str
    from_thought: int
    """The number of the thought that it leaves from, as its author said it."""
    parent: str | None
    """The branch that this thought is on; None is the main line."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A thought, and where it stands among the others. Thoughts are told apart by their place, from 1."""

    place: int
    thought: SequentialThought
    branch: str | None
    """The branch that it is on; None is the main line."""
    follows: int | None
    """The thought before it on its line, or the one that its branch leaves from."""
    revises: int | None
    """The thought that it replaces."""
    opens: bool
    """Whether it is the first of its branch."""
    branches: int
    """How many branches there are with it."""


# Without slots, like `RunState`: a copy is then a copy of one dict.
@dataclass(frozen=True)
class Session:
    """A session after some thoughts; it never changes, and one more thought gives another one."""

    session_id: str
    owner: str = ""
    created: int = 0
    """Milliseconds since 1970."""
    used: int = 0
    """When the last thought came, in milliseconds since 1970."""
    version: int = 0
    """Counts the changes that are stored."""
    status: Status = "active"
    _placed: Ledger[int, Placed] = field(default_factory=Ledger[int, Placed], repr=False)
    _calls: Ledger[str, int] = field(default_factory=Ledger[str, int], repr=False)
    _numbers: Ledger[tuple[str | None, int], int] = field(
        default_factory=Ledger[tuple[str | None, int], int], repr=False
    )
    _anywhere: Ledger[int, int] = field(default_factory=Ledger[int, int], repr=False)
    _branches: Ledger[str, BranchOrigin] = field(default_factory=Ledger[str, BranchOrigin], repr=False)
    _newest: dict[str | None, Placed] = field(default_factory=dict[str | None, Placed], repr=False)
    _highest: dict[str | None, int] = field(default_factory=dict[str | None, int], repr=False)

    def __len__(self) -> int:
        return len(self._placed)

    def __bool__(self) -> bool:
        return True

    @property
    def thoughts(self) -> tuple[SequentialThought, ...]:
        """All thoughts, in the order in which they came."""
        return tuple(placed.thought for placed in self.placed())

    @property
    def branches(self) -> dict[str, tuple[SequentialThought, ...]]:
        """The thoughts of each branch, by its name, in the order in which the branches were opened."""
        lines: dict[str, list[SequentialThought]] = {name: [] for name in self._branches}
        for placed in self.placed():
            if placed.branch is not None:
                lines[placed.branch].append(placed.thought)
        return {name: tuple(line) for name, line in lines.items()}

    @property
    def total_thoughts(self) -> int:
        """How many thoughts the newest one expects; 0 before the first."""
        return self._placed[len(self)].thought.total_thoughts if len(self) else 0

    def branch(self, name: str) -> BranchOrigin | None:
        """Return where a branch leaves from; None if there is no such branch."""
        return self._branches.get(name)

    def branch_names(self, count: int | None = None) -> list[str]:
        """Return the names of the branches that were opened first, all of them by default."""
        return list(islice(self._branches, count))

    def placed(self, first: int = 1, last: int | None = None) -> Sequence[Placed]:
        """Return the thoughts with their places, from one place to another."""
        return [self._placed[place] for place in range(first, (len(self) if last is None else last) + 1)]

    def at(self, place: int) -> Placed:
        """Return the thought of that place, from 1.

        Raises:
            KeyError: There is none.
        """
        return self._placed[place]

    def of_call(self, call_id: str) -> Placed | None:
        """Find the thought that a tool call has made already."""
        place = self._calls.get(call_id)
        return None if place is None else self._placed[place]

    def newest(self, branch: str | None = None) -> Placed | None:
        """Return the last thought of a branch, or of the main line."""
        return self._newest.get(branch)

    def find(self, number: int, branch: str | None = None) -> int | None:
        """Find the place of the thought with that number: on this line, on those that it comes from, or on any."""
        line = branch
        while (place := self._numbers.get((line, number))) is None and line is not None:
            above = self._branches.get(line)
            line = above.parent if above is not None else None
        return self._anywhere.get(number) if place is None else place

    def has_number(self, number: int, branch: str | None) -> bool:
        """Return whether that line has a thought of that number."""
        return (branch, number) in self._numbers

    def highest(self, branch: str | None) -> int | None:
        """Return the highest number on that line; None if it has no thought."""
        return self._highest.get(branch)

    def line_of(self, branch_id: str | None, branch_from: int | None) -> str | None:
        """Return the branch that a thought with these fields stands on: one that exists, or one that it opens."""
        if branch_id is None or (branch_id not in self._branches and branch_from is None):
            return None
        return branch_id

    def changed(self, **changes: Any) -> Session:
        """Copy the session with some fields changed; `dataclasses.replace` costs ten times as much."""
        session = object.__new__(Session)
        fields = vars(session)
        fields.update(vars(self))
        fields.update(changes)
        return session

    def add(self, thought: SequentialThought) -> Session:
        """Return the session with one more thought."""
        placed = self._place(thought)
        line, number = placed.branch, thought.thought_number
        branches = self._branches
        if placed.opens and line is not None:
            origin = self._placed[placed.follows].branch if placed.follows is not None else None
            branches = branches.add(line, BranchOrigin(line, thought.branch_from_thought or 0, origin))
        goes_on = thought.next_thought_needed or bool(thought.needs_more_thoughts)
        return self.changed(
            used=thought.at,
            version=self.version + 1,
            status="active" if goes_on else "complete",
            _placed=self._placed.add(placed.place, placed),
            _calls=self._calls if thought.call_id is None else self._calls.add(thought.call_id, placed.place),
            _numbers=self._numbers.add((line, number), placed.place),
            _anywhere=self._anywhere.add(number, placed.place),
            _branches=branches,
            _newest={**self._newest, line: placed},
            _highest={**self._highest, line: max(number, self._highest.get(line, 0))},
        )

    def _place(self, thought: SequentialThought) -> Placed:
        line = self.line_of(thought.branch_id, thought.branch_from_thought)
        opens = line is not None and line not in self._branches
        if opens and thought.branch_from_thought is not None:
            last = self._placed.get(len(self))
            follows = self.find(thought.branch_from_thought, last.branch if last is not None else None)
        else:
            before = self._newest.get(line)
            follows = before.place if before is not None else None
        revises = thought.revises_thought
        return Placed(
            place=len(self) + 1,
            thought=thought,
            branch=line,
            follows=follows,
            revises=None if revises is None else self.find(revises, line),
            opens=opens,
            branches=len(self._branches) + opens,
        )
