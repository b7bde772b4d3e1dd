"""What a session takes, and what it remarks on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rxloop.errors import ConfigurationError, InvalidThought, SessionFull
from rxloop.thinking.sessions.session import Session
from rxloop.thinking.sessions.thought import SequentialThought, ThoughtInput, ThoughtWarning

REPETITIONS = 3
"""How often the same thought in a row is a repetition."""
RAISED = "total_raised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a session takes."""

    strict: bool = False
    """Refuse a thought that revises, or branches from, one that does not exist; otherwise it is kept with a warning."""
    max_length: int = 20_000
    """Characters of a thought."""
    max_thoughts: int = 200
    """Thoughts of a session."""

    @property
    def max_name(self) -> int:
        """Characters of the name of a branch: a hundredth of those of a thought, and 200 at least."""
        return max(200, self.max_length // 100)

    def __post_init__(self) -> None:
        if self.max_length < 1 or self.max_thoughts < 1:
            raise ConfigurationError(
                f"max_length={self.max_length!r} and max_thoughts={self.max_thoughts!r} must be at least 1"
            )


def accept(session: Session, given: ThoughtInput, rules: Rules, *, at: int, call_id: str | None) -> SequentialThought:
    """Check a thought, and return it as the session would keep it; the session stays as it is.

    Args:
        session: The session that it comes to.
        given: What was sent.
        rules: What the session takes.
        at: Now, in milliseconds since 1970.
        call_id: The tool call that it comes from.

    Raises:
        InvalidThought: It is too long, or refers to nothing and the rules are strict.
        SessionFull: The session has all the thoughts that it may have.
    """
    if len(given.thought) > rules.max_length:
        reason = f"too long: {len(given.thought)} characters, and {rules.max_length} are allowed. Say it in less"
        raise InvalidThought(f"thought: {reason}", {"thought": reason}, code="thought_too_long")
    if given.branch_id is not None and len(given.branch_id) > rules.max_name:
        reason = f"too long: {len(given.branch_id)} characters, and {rules.max_name} are allowed. Take a short name"
        raise InvalidThought(f"branchId: {reason}", {"branchId": reason})
    if len(session) >= rules.max_thoughts:
        raise SessionFull(
            f"This session has all of its {rules.max_thoughts} thoughts. Conclude now: give your answer from what you "
            "have, or begin again with clearSession.",
            code="max_thoughts",
        )
    warnings = list(_remarks(session, given))
    refused = next((warning for warning in warnings if rules.strict and warning.code.startswith("dangling")), None)
    if refused is not None:
        field = "revisesThought" if refused.code == "dangling_revision" else "branchFromThought"
        raise InvalidThought(f"{field}: {refused.message}", {field: refused.message}, code=refused.code)
    total = max(given.total_thoughts, given.thought_number)
    if any(warning.code == RAISED for warning in warnings):
        total = given.thought_number + 1
    return SequentialThought(
        thought=given.thought,
        thought_number=given.thought_number,
        total_thoughts=total,
        next_thought_needed=given.next_thought_needed,
        is_revision=given.is_revision,
        revises_thought=given.revises_thought,
        branch_from_thought=given.branch_from_thought,
        branch_id=given.branch_id,
        needs_more_thoughts=given.needs_more_thoughts,
        at=at,
        call_id=call_id,
        warnings=tuple(warnings),
    )


def _remarks(session: Session, given: ThoughtInput) -> Iterator[ThoughtWarning]:
    yield from _about_revision(session, given)
    yield from _about_branch(session, given)
    yield from _about_number(session, given)
    number = given.thought_number
    if given.needs_more_thoughts and not given.next_thought_needed:
        yield _warning(
            "needs_more", "needsMoreThoughts is true and nextThoughtNeeded is false: the session stays open."
        )
        if number >= given.total_thoughts:
            yield _warning(RAISED, f"More thoughts are needed: totalThoughts is now {number + 1}.")
    if session.status == "complete":
        yield _warning("reopened", "The session was complete; this thought has opened it again.")
    if not given.thought.strip():
        yield _warning("empty_thought", "The thought is empty.")
    last = session.placed(max(1, len(session) - REPETITIONS + 2))
    if len(last) == REPETITIONS - 1 and all(placed.thought.thought == given.thought for placed in last):
        yield _warning(
            "repetition",
            f"The same thought came {REPETITIONS} times in a row. Think of something new, revise, branch, or conclude.",
        )


def _about_revision(session: Session, given: ThoughtInput) -> Iterator[ThoughtWarning]:
    target = given.revises_thought
    if target is None:
        if given.is_revision:
            yield _warning("revision_without_target", "isRevision is true, but revisesThought does not say of what.")
    elif session.find(target) is None:
        yield _warning("dangling_revision", f"There is no thought {target} to revise{_has(session)}.")


def _about_branch(session: Session, given: ThoughtInput) -> Iterator[ThoughtWarning]:
    origin, name = given.branch_from_thought, given.branch_id
    known = None if name is None else session.branch(name)
    if origin is not None and known is None and session.find(origin) is None:
        yield _warning("dangling_branch", f"There is no thought {origin} to branch from{_has(session)}.")
    if origin is not None and name is None:
        yield _warning(
            "branch_without_id", f"A branch from thought {origin} needs a branchId; this thought is on the main line."
        )
    if name is not None and known is None and origin is None:
        yield _warning(
            "branch_without_origin",
            f"There is no branch {name!r}; to open it, give branchFromThought. This thought is on the main line.",
        )
    if known is not None and origin is not None and origin != known.from_thought:
        yield _warning(
            "branch_elsewhere",
            f"The branch {name!r} leaves from thought {known.from_thought}, not {origin}; this thought goes on in it.",
        )


def _about_number(session: Session, given: ThoughtInput) -> Iterator[ThoughtWarning]:
    line = session.line_of(given.branch_id, given.branch_from_thought)
    number = given.thought_number
    revision = given.is_revision or given.revises_thought is not None
    if not revision and session.has_number(number, line):
        yield _warning("duplicate_number", f"There is a thought {number} already; both are kept.")
    before = session.highest(line)
    if before is None and line is not None:
        before = given.branch_from_thought
    if before is not None and number > before + 1:
        yield _warning("gap", f"Thought {number} comes after thought {before}: there is none in between.")


def _has(session: Session) -> str:
    if not len(session):
        return ": the session is empty"
    return f" among the {len(session)} of the session"


def _warning(code: str, message: str) -> ThoughtWarning:
    return ThoughtWarning(code=code, message=message)
