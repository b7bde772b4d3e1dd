"""Finds the session for a thought: the one that was asked for, its successor, or a new one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from rxloop.errors import UnknownSession
from rxloop.pipeline.values import SessionChange, SessionRecord
from rxloop.thinking.sessions.session import Session
from rxloop.thinking.sessions.thought import SequentialThought, ThoughtWarning

NEW = "session_new"
_GIVEN_OUT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thought goes."""

    session: Session
    over: SessionRecord | None = None
    """The session that ends by it."""
    detour: SessionRecord | None = None
    """The session that was asked for, where it was cleared and leads here by way of others."""
    notices: tuple[ThoughtWarning, ...] = ()

    def cleared(self, now: int) -> Place:
        """Put a new session in the place of one that is not empty."""
        session = self.session
        if not session.version:
            return self
        return replace(self, session=fresh(session.owner, now), over=record_of(session))


def new_id() -> str:
    """Make the id of a new session: a UUID of version 7, so that ids sort by time."""
    # Imported here: uuid6 brings importlib.metadata, a good part of the time that importing rxloop takes.
    import uuid6

    return str(uuid6.uuid7())


def was_given_out(session_id: str) -> bool:
    """Return whether an id looks like those of `new_id`, and not like a name that a program has chosen."""
    return _GIVEN_OUT.fullmatch(session_id) is not None


def unknown(session_id: str) -> UnknownSession:
    """Make the error for an id that leads to no session."""
    return UnknownSession(
        f"there is no session {session_id!r}: leave sessionId out to begin one, and go on with the id of its answer"
    )


def fresh(owner: str, now: int, session_id: str | None = None) -> Session:
    """Make a session without thoughts."""
    return Session(session_id if session_id is not None else new_id(), owner, created=now, used=now)


def begun(owner: str, now: int, session_id: str) -> Place:
    """Begin a session under an id that a program has named; warn if the id suggests that it had thoughts."""
    message = (
        f"There is no session {session_id} here, though the id looks like one that was given out: it starts empty, "
        "without the thoughts that it may have had. Are they in another store, or has it expired?"
    )
    notices = (ThoughtWarning(code=NEW, message=message),) if was_given_out(session_id) else ()
    return Place(fresh(owner, now, session_id), notices=notices)


def expired(session_id: str) -> ThoughtWarning:
    """Write the notice that a session has expired."""
    return ThoughtWarning(
        code="session_expired", message=f"Session {session_id} has expired; this thought begins a new one."
    )


def cleared(session_id: str, successor: str) -> ThoughtWarning:
    """Write the notice that a session was cleared."""
    return ThoughtWarning(
        code="session_cleared",
        message=f"Session {session_id} was cleared; this thought is in {successor}, which follows it.",
    )


def record_of(session: Session) -> SessionRecord:
    """Make the record that a store keeps of a session."""
    return SessionRecord(
        owner=session.owner,
        session_id=session.session_id,
        version=session.version,
        length=len(session),
        created=session.created,
        used=session.used,
        state=session.status,
    )


def ended(record: SessionRecord, state: Literal["cleared", "expired"], successor: Session) -> SessionChange:
    """End a session: from now on its id leads to another one."""
    left = replace(record, length=0, used=successor.used, state=state, successor=successor.session_id)
    return SessionChange(replace(left, version=record.version + 1))


def shortcut(record: SessionRecord, successor: Session) -> SessionChange:
    """Let a record that leads to a session by way of others lead to it directly."""
    left = replace(record, used=successor.used, successor=successor.session_id)
    return SessionChange(replace(left, version=record.version + 1))


def is_open(record: SessionRecord) -> bool:
    """Return whether a record is that of a session, and not what is left of one."""
    return record.state in ("active", "complete")


def entry(thought: SequentialThought) -> bytes:
    """Write a thought as a store keeps it."""
    return thought.model_dump_json(exclude_none=True, exclude_defaults=True).encode()
