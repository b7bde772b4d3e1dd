"""Session state derived from thoughts, and validation of new thoughts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple

from rxloop.errors import InvalidThought, SessionFull
from rxloop.state.history import Ledger
from rxloop.support.misuse import check_minimum
from rxloop.thinking.sessions.thought import SequentialThought, ThoughtInput, ThoughtWarning

Status = Literal["active", "complete"]


class BranchOrigin(NamedTuple):
    """Origin of a branch."""

    branch_id: str
    from_thought: int
    """Branching point: a thought number sent by the model."""
    parent: str | None
    """Parent branch, or None for the main branch."""


@dataclass(frozen=True, slots=True)
class PlacedThought:
    """A thought and its position in the session. Positions start at 1 and identify thoughts."""

    place: int
    thought: SequentialThought
    branch: str | None
    """Branch of the thought. None for the main branch."""
    follows: int | None
    """Position of the previous thought on the branch. For its first thought, the position of the branching point."""
    revises: int | None
    """Position of the revised thought."""
    opens: bool
    """True for the first thought on a branch."""
    branches: int
    """Branch count, including the current branch."""


# Without slots, because copying a single instance dict is faster. See `RunState`.
@dataclass(frozen=True)
class Session:
    """Immutable state of a session. Adding a thought returns a new state."""

    session_id: str
    owner: str = ""
    created: int = 0
    """Creation time in milliseconds since the Unix epoch."""
    used: int = 0
    """Last thought time in milliseconds since the Unix epoch."""
    version: int = 1
    """Incremented when the session restarts because it was cleared or has expired."""
    status: Status = "active"
    _placed: Ledger[int, PlacedThought] = field(default_factory=Ledger[int, PlacedThought], repr=False)
    _calls: Ledger[str, int] = field(default_factory=Ledger[str, int], repr=False)
    _numbers: Ledger[tuple[str | None, int], int] = field(
        default_factory=Ledger[tuple[str | None, int], int], repr=False
    )
    _anywhere: Ledger[int, int] = field(default_factory=Ledger[int, int], repr=False)
    _branches: Ledger[str, BranchOrigin] = field(default_factory=Ledger[str, BranchOrigin], repr=False)
    _newest: dict[str | None, PlacedThought] = field(default_factory=dict[str | None, PlacedThought], repr=False)
    _highest: dict[str | None, int] = field(default_factory=dict[str | None, int], repr=False)

    def __len__(self) -> int:
        return len(self._placed)

    def __bool__(self) -> bool:
        return True

    @property
    def thoughts(self) -> tuple[SequentialThought, ...]:
        """All thoughts in order."""
        return tuple(placed.thought for placed in self.list_placed())

    @property
    def branches(self) -> dict[str, tuple[SequentialThought, ...]]:
        """Thoughts grouped by branch name, in branch creation order."""
        lines: dict[str, list[SequentialThought]] = {name: [] for name in self._branches}
        for placed in self.list_placed():
            if placed.branch is not None:
                lines[placed.branch].append(placed.thought)
        return {name: tuple(line) for name, line in lines.items()}

    @property
    def total_thoughts(self) -> int:
        """Expected number of thoughts according to the newest one. 0 for an empty session."""
        return self._placed[len(self)].thought.total_thoughts if len(self) else 0

    def branch(self, name: str) -> BranchOrigin | None:
        """Return the branch origin, or None for unknown branches."""
        return self._branches.get(name)

    def branch_names(self, count: int | None = None) -> list[str]:
        """Return branch names in creation order, optionally limited to a count."""
        return list(islice(self._branches, count))

    def list_placed(self, first: int = 1, last: int | None = None) -> Sequence[PlacedThought]:
        """Return the thoughts with positions in a range."""
        return [self._placed[position] for position in range(first, (len(self) if last is None else last) + 1)]

    def get_thought(self, position: int) -> PlacedThought:
        """Return the thought at a one-based position.

        Raises:
            KeyError: Position not found.
        """
        return self._placed[position]

    def thought_id(self, position: int) -> str:
        """Return the event id of the thought at a position."""
        return f"{self.session_id}#{position}" if self.version == 1 else f"{self.session_id}#{self.version}.{position}"

    def find_by_call(self, call_id: str) -> PlacedThought | None:
        """Find the thought previously added by a tool call."""
        position = self._calls.get(call_id)
        return None if position is None else self._placed[position]

    def newest(self, branch: str | None = None) -> PlacedThought | None:
        """Return the most recent thought on a branch, or on the main branch by default."""
        return self._newest.get(branch)

    def find(self, number: int, branch: str | None = None) -> int | None:
        """Find the position of a numbered thought.

        The branch and its ancestors are searched first, followed by all other branches.
        """
        line = branch
        while (position := self._numbers.get((line, number))) is None and line is not None:
            above = self._branches.get(line)
            line = above.parent if above is not None else None
        return self._anywhere.get(number) if position is None else position

    def has_number(self, number: int, branch: str | None) -> bool:
        """Return True if a branch has a thought with a number."""
        return (branch, number) in self._numbers

    def highest(self, branch: str | None) -> int | None:
        """Return the highest number on a branch, or None if the branch is empty."""
        return self._highest.get(branch)

    def find_branch(self, branch_id: str | None, branch_from: int | None) -> str | None:
        """Return the branch for these fields, or None for the main branch."""
        if branch_id is None or (branch_id not in self._branches and branch_from is None):
            return None
        return branch_id

    def changed(self, **changes: Any) -> Session:
        """Return a copy with changed fields. Ten times as fast as `dataclasses.replace`."""
        session = object.__new__(Session)
        fields = vars(session)
        fields.update(vars(self))
        fields.update(changes)
        return session

    def add(self, thought: SequentialThought) -> Session:
        """Return the session with another thought."""
        placed = self._locate(thought)
        line, number = placed.branch, thought.thought_number
        branches = self._branches
        if placed.opens and line is not None:
            origin = self._placed[placed.follows].branch if placed.follows is not None else None
            branches = branches.add(line, BranchOrigin(line, thought.branch_from_thought or 0, origin))
        continues = thought.next_thought_needed or bool(thought.needs_more_thoughts)
        return self.changed(
            used=thought.at,
            status="active" if continues else "complete",
            _placed=self._placed.add(placed.place, placed),
            _calls=self._calls if thought.call_id is None else self._calls.add(thought.call_id, placed.place),
            _numbers=self._numbers.add((line, number), placed.place),
            _anywhere=self._anywhere.add(number, placed.place),
            _branches=branches,
            _newest={**self._newest, line: placed},
            _highest={**self._highest, line: max(number, self._highest.get(line, 0))},
        )

    def _locate(self, thought: SequentialThought) -> PlacedThought:
        line = self.find_branch(thought.branch_id, thought.branch_from_thought)
        opens = line is not None and line not in self._branches
        if opens and thought.branch_from_thought is not None:
            last = self._placed.get(len(self))
            follows = self.find(thought.branch_from_thought, last.branch if last is not None else None)
        else:
            before = self._newest.get(line)
            follows = before.place if before is not None else None
        revises = thought.revises_thought
        return PlacedThought(
            place=len(self) + 1,
            thought=thought,
            branch=line,
            follows=follows,
            revises=None if revises is None else self.find(revises, line),
            opens=opens,
            branches=len(self._branches) + opens,
        )


REPETITIONS = 3
"""Number of consecutive equal thoughts that count as a repetition."""

RAISED = "total_raised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Limits of a session."""

    strict: bool = False
    """True to reject a thought that revises or branches from a missing thought. Otherwise it gets a warning."""
    max_length: int = 20_000
    """Maximum thought length in characters."""
    max_thoughts: int = 200
    """Maximum number of thoughts per session."""

    @property
    def max_name(self) -> int:
        """Maximum branch name length: 200 characters, or 1 percent of `max_length` if larger."""
        return max(200, self.max_length // 100)

    def __post_init__(self) -> None:
        check_minimum(1, max_length=self.max_length, max_thoughts=self.max_thoughts)


def accept(
    session: Session, thought: ThoughtInput, rules: Rules, *, now: int, call_id: str | None
) -> SequentialThought:
    """Validate a thought, and return it in its stored form. The session is not changed.

    Args:
        session: Session for the thought.
        thought: The thought.
        rules: Limits of the session.
        now: Current time, in milliseconds since 1970.
        call_id: Id of the tool call that sent the thought.

    Raises:
        InvalidThought: If the thought is too long, or refers to a missing thought and the rules are strict.
        SessionFull: If the session has reached its maximum number of thoughts.
    """
    if len(thought.thought) > rules.max_length:
        reason = f"too long: {len(thought.thought)} characters, and {rules.max_length} are allowed. Shorten it"
        raise InvalidThought(f"thought: {reason}", {"thought": reason}, code="thought_too_long")
    if thought.branch_id is not None and len(thought.branch_id) > rules.max_name:
        reason = (
            f"too long: {len(thought.branch_id)} characters, and {rules.max_name} are allowed. Choose a shorter name"
        )
        raise InvalidThought(f"branchId: {reason}", {"branchId": reason})
    if len(session) >= rules.max_thoughts:
        raise SessionFull(
            f"This session has reached its limit of {rules.max_thoughts} thoughts. Conclude now: give your answer "
            "from what you have, or begin again with clearSession.",
            code="max_thoughts",
        )
    warnings = list(_iterate_warnings(session, thought))
    rejected = next((warning for warning in warnings if rules.strict and warning.code.startswith("dangling")), None)
    if rejected is not None:
        field = "revisesThought" if rejected.code == "dangling_revision" else "branchFromThought"
        raise InvalidThought(f"{field}: {rejected.message}", {field: rejected.message}, code=rejected.code)
    total = max(thought.total_thoughts, thought.thought_number)
    if any(warning.code == RAISED for warning in warnings):
        total = thought.thought_number + 1
    return SequentialThought(
        thought=thought.thought,
        thought_number=thought.thought_number,
        total_thoughts=total,
        next_thought_needed=thought.next_thought_needed,
        is_revision=thought.is_revision,
        revises_thought=thought.revises_thought,
        branch_from_thought=thought.branch_from_thought,
        branch_id=thought.branch_id,
        needs_more_thoughts=thought.needs_more_thoughts,
        at=now,
        call_id=call_id,
        warnings=tuple(warnings),
    )


def _iterate_warnings(session: Session, thought: ThoughtInput) -> Iterator[ThoughtWarning]:
    yield from _check_revision(session, thought)
    yield from _check_branch(session, thought)
    yield from _check_number(session, thought)
    number = thought.thought_number
    if thought.needs_more_thoughts and not thought.next_thought_needed:
        yield _warning(
            "needs_more", "needsMoreThoughts is true and nextThoughtNeeded is false: the session stays open."
        )
        if number >= thought.total_thoughts:
            yield _warning(RAISED, f"More thoughts are needed: totalThoughts is now {number + 1}.")
    if session.status == "complete":
        yield _warning("reopened", "The session was complete; this thought has opened it again.")
    if not thought.thought.strip():
        yield _warning("empty_thought", "The thought is empty.")
    last = session.list_placed(max(1, len(session) - REPETITIONS + 2))
    if len(last) == REPETITIONS - 1 and all(placed.thought.thought == thought.thought for placed in last):
        yield _warning(
            "repetition",
            f"The same thought came {REPETITIONS} times in a row. Think of something new, revise, branch, or conclude.",
        )


def _check_revision(session: Session, thought: ThoughtInput) -> Iterator[ThoughtWarning]:
    target = thought.revises_thought
    if target is None:
        if thought.is_revision:
            yield _warning("revision_without_target", "isRevision is true, but revisesThought does not say of what.")
    elif session.find(target) is None:
        yield _warning("dangling_revision", f"There is no thought {target} to revise{_describe_length(session)}.")


def _check_branch(session: Session, thought: ThoughtInput) -> Iterator[ThoughtWarning]:
    origin, name = thought.branch_from_thought, thought.branch_id
    branch = None if name is None else session.branch(name)
    if origin is not None and branch is None and session.find(origin) is None:
        yield _warning("dangling_branch", f"There is no thought {origin} to branch from{_describe_length(session)}.")
    if origin is not None and name is None:
        yield _warning(
            "branch_without_id", f"A branch from thought {origin} needs a branchId; this thought is on the main line."
        )
    if name is not None and branch is None and origin is None:
        yield _warning(
            "branch_without_origin",
            f"There is no branch {name!r}; to open it, give branchFromThought. This thought is on the main line.",
        )
    if branch is not None and origin is not None and origin != branch.from_thought:
        yield _warning(
            "branch_elsewhere",
            f"The branch {name!r} leaves from thought {branch.from_thought}, not {origin}; this thought goes on in it.",
        )


def _check_number(session: Session, thought: ThoughtInput) -> Iterator[ThoughtWarning]:
    line = session.find_branch(thought.branch_id, thought.branch_from_thought)
    number = thought.thought_number
    revision = thought.is_revision or thought.revises_thought is not None
    if not revision and session.has_number(number, line):
        yield _warning("duplicate_number", f"There is a thought {number} already; both are kept.")
    before = session.highest(line)
    if before is None and line is not None:
        before = thought.branch_from_thought
    if before is not None and number > before + 1:
        yield _warning("gap", f"Thought {number} comes after thought {before}: there is none in between.")


def _describe_length(session: Session) -> str:
    if not len(session):
        return ": the session is empty"
    return f" among the {len(session)} of the session"


def _warning(code: str, message: str) -> ThoughtWarning:
    return ThoughtWarning(code=code, message=message)
