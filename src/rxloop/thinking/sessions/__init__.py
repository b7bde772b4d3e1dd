"""Sessions of an application, kept as artifacts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeGuard, TypeVar
from weakref import WeakValueDictionary

from rxloop.errors import ConfigurationError, SessionConflict, UnknownSession
from rxloop.pipeline.artifacts import ArtifactStore
from rxloop.support.tasks import CLOCK
from rxloop.thinking.sessions.limits import SessionLimits
from rxloop.thinking.sessions.result import ThoughtResult
from rxloop.thinking.sessions.session import Rules, Session, accept
from rxloop.thinking.sessions.session_artifacts import (
    SessionArtifacts,
    StoredSession,
    artifact_id,
    is_generated,
    new_id,
)
from rxloop.thinking.sessions.thought import ThoughtInput, ThoughtWarning, wrong_with_name

T = TypeVar("T")

Admit = Callable[[Session, ThoughtInput], dict[str, Any]]

NEW = "session_new"

_TRIES = 50
"""How often a thought is tried again when another writer was first."""


class ThinkingSessions:
    """Sequential thinking: sessions of thoughts, kept in an artifact store.

    Each session belongs to an owner, and no model finds another owner's. There is no timer: a lifetime is checked
    when a session is touched, and from time to time a thought frees the expired sessions of all owners.

    Attributes:
        artifacts: Keeps the sessions.
        rules: What a session takes.

    Example:
        >>> sessions = ThinkingSessions(MemoryArtifacts())
        >>> result = await sessions.think(
        ...     {"thought": "Two cases.", "nextThoughtNeeded": True, "thoughtNumber": 1, "totalThoughts": 3}
        ... )
        >>> session = await sessions.get_session(result.session_id)
    """

    def __init__(
        self,
        artifacts: ArtifactStore,
        *,
        ttl: float | None = 30 * 60,
        ttl_from: Literal["used", "created"] = "used",
        max_sessions: int = 1_000,
        max_total: int = 10_000,
        strict: bool = False,
        max_thoughts: int = 200,
        max_length: int = 20_000,
    ) -> None:
        """Describe how sessions are kept.

        Args:
            artifacts: Keeps them; may be the store of an event log, `log.artifacts`.
            ttl: Seconds that a session lives; None is for ever.
            ttl_from: Whether they count from the last thought, or from the beginning of the session.
            max_sessions: Sessions of an owner. Of more, the least recently used goes: a complete one if there is one.
            max_total: Sessions of all owners. Of more, a tenth goes, in that order.
            strict: Refuse a thought that revises, or branches from, one that does not exist.
            max_thoughts: Thoughts of a session.
            max_length: Characters of a thought.

        Raises:
            ConfigurationError: A number is too small, or `ttl_from` is neither of the two.
        """
        self.artifacts = artifacts
        self.rules = Rules(strict=strict, max_thoughts=max_thoughts, max_length=max_length)
        self._stored = SessionArtifacts(artifacts)
        self._limits = SessionLimits(
            self._stored, ttl=ttl, ttl_from=ttl_from, max_sessions=max_sessions, max_total=max_total
        )
        self._locks: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()

    async def think(
        self,
        thought: ThoughtInput | Mapping[str, Any],
        *,
        owner: str | None = None,
        session_id: str | None = None,
        call_id: str | None = None,
        admit: Admit | None = None,
    ) -> ThoughtResult:
        """Take one thought into its session: validated first, and then stored, all of it or nothing.

        Args:
            thought: The thought, with the names of the wire. Its `sessionId` must be one that was given out before;
                without any it begins a session.
            owner: Whose sessions these are. By default the program's; and a generated `session_id` leads to its
                session, whoever owns it.
            session_id: The session, whatever the thought says of it; one that does not exist begins with it. One that
                begins though its id looks like one that was given out has the warning `session_new`.
            call_id: Names the call: the same one again makes no other thought, and gives the first answer again.
            admit: What else decides on the thought: called with the session and the thought, before anything is stored,
                it gives what is kept as `flow`, or raises. It is called again when another writer was first.

        Raises:
            InvalidThought: The thought does not fit.
            UnknownSession: The owner has no session of the id that the thought names, or `session_id` is another
                owner's and cannot be meant.
            SessionFull: The session has all the thoughts that it may have.
            SessionConflict: Other writers were first every time.
            ArtifactError: The store failed.
        """
        if session_id is not None and (wrong := wrong_with_name(session_id)) is not None:
            raise ConfigurationError(f"session_id={session_id[:60]!r} {wrong}")
        given = ThoughtInput.of(thought)
        wanted = session_id if session_id is not None else given.session_id
        # Before anything else that waits: thoughts of one session keep the order in which they came.
        async with self._lock(owner or "", wanted):
            await self._limits.tidy()
            if wanted is None:
                return await _retried(lambda: self._think_in_new(given, owner or "", call_id, admit))
            adopt = session_id is not None
            return await _retried(lambda: self._think_in(wanted, given, owner, call_id, admit, adopt=adopt))

    async def get_session(self, session_id: str, *, owner: str | None = None) -> Session:
        """Return a session as it is now; a value that never changes.

        Args:
            session_id: Its id.
            owner: Whose it is. By default the program's; and a generated id leads to its session, whoever owns it.

        Raises:
            UnknownSession: The owner has no such session, or it has expired.
            ArtifactError: The store failed.
        """
        return (await _retried(lambda: self._find_open(session_id, owner))).session

    async def all_sessions(self, *, owner: str | None = None) -> list[Session]:
        """List the sessions of an owner, or of all, the least recently used first; without those that have expired.

        Raises:
            ArtifactError: The store failed.
        """
        records = await self._stored.list(owner)
        found = [stored.session for record in records if (stored := await self._stored.read(record)) and stored.lines]
        # Generated ids sort by time, so of sessions that were used in the same millisecond the oldest comes first.
        return sorted(
            (each for each in found if not self._limits.is_expired(each)),
            key=lambda session: (session.used, session.created, session.session_id),
        )

    async def clear_session(self, session_id: str, *, owner: str | None = None) -> Session:
        """Forget the thoughts of a session, and return it: its id stays, and it is empty.

        Args:
            session_id: Its id.
            owner: Whose it is, as for `get_session`.

        Raises:
            UnknownSession: The owner has no such session, or it has expired.
            ArtifactError: The store failed.
        """

        async def clear() -> Session:
            found = await self._find_open(session_id, owner)
            stored = await self._stored.append(found, _begun_again(found.session), None, begins=True)
            self._limits.note(stored)
            return stored.session

        async with self._lock(owner or "", session_id):
            return await _retried(clear)

    async def clear_all_sessions(self, *, owner: str = "") -> int:
        """Delete all sessions of an owner, by default of the program; how many there were."""
        return await self._limits.delete_all(owner)

    async def sweep(self) -> int:
        """Delete the sessions of all owners that have expired, and those beyond `max_total`; how many that were.

        A thought does the same when a lifetime has passed since the last sweep, or when `max_total` is exceeded.
        """
        return await self._limits.sweep()

    async def aclose(self) -> None:
        """Close the store."""
        await self.artifacts.aclose()

    async def _find_open(self, session_id: str, owner: str | None) -> StoredSession:
        found = await self._stored.find(artifact_id(owner or "", session_id))
        if not _is_named(found, session_id, owner) or self._limits.is_expired(found.session):
            raise _unknown(session_id)
        return found

    async def _think_in_new(
        self, given: ThoughtInput, owner: str, call_id: str | None, admit: Admit | None
    ) -> ThoughtResult:
        """Take a thought that names no session, unless its call has begun one already."""
        session_id, found = new_id(), None
        if call_id is not None:
            session_id = new_id(owner, call_id)
            found = await self._stored.find(artifact_id(owner, session_id))
            if found is not None and (placed := found.session.of_call(call_id)) is not None:
                return ThoughtResult(found.session, placed)
            if found is not None and not found.lines:
                # A process has created the artifact and crashed, or is about to write the thought.
                session_id = found.session.session_id
            elif found is not None:
                # The session that the call has begun was cleared.
                session_id, found = new_id(), None
        return await self._add(given, found, _fresh(session_id, owner), call_id, admit, begins=True)

    async def _think_in(
        self,
        wanted: str,
        given: ThoughtInput,
        owner: str | None,
        call_id: str | None,
        admit: Admit | None,
        *,
        adopt: bool,
    ) -> ThoughtResult:
        """Take a thought into a session that a program or a model names."""
        artifact = artifact_id(owner or "", wanted)
        # Only a program's word leads to another owner's session; what a model names has to be the owner's.
        whose = owner if adopt else owner or ""
        found = self._stored.cached(artifact)
        if found is None or self._limits.is_expired(found.session):
            found = await self._stored.find(artifact)
        if found is not None and found.lines:
            if not _is_named(found, wanted, whose):
                raise _unknown(wanted)
            session = found.session
            if call_id is not None and (placed := session.of_call(call_id)) is not None:
                return ThoughtResult(session, placed)
            if self._limits.is_expired(session):
                notice = (_expired(wanted),)
                return await self._add(given, found, _begun_again(session), call_id, admit, notice, begins=True)
            if given.clear_session and len(session):
                return await self._add(given, found, _begun_again(session), call_id, admit, begins=True)
            return await self._add(given, found, session, call_id, admit, begins=False)
        fresh, notices = _fresh(wanted, owner or ("" if found is None else found.session.owner)), ()
        if self._limits.was_expired(fresh.owner, wanted):
            # The ids of its thoughts must differ from those of the deleted session.
            fresh, notices = fresh.changed(version=fresh.created), (_expired(wanted),)
        elif not adopt:
            raise _unknown(wanted)
        elif is_generated(wanted):
            notices = (_not_found(wanted),)
        return await self._add(given, found, fresh, call_id, admit, notices, begins=True)

    async def _add(
        self,
        given: ThoughtInput,
        found: StoredSession | None,
        session: Session,
        call_id: str | None,
        admit: Admit | None,
        notices: tuple[ThoughtWarning, ...] = (),
        *,
        begins: bool,
    ) -> ThoughtResult:
        """Check a thought, and store it.

        Args:
            given: The thought.
            found: What is stored of the session, if there is anything.
            session: The session to which the thought is added; empty if it begins, or begins again.
            call_id: The call.
            admit: What else decides on the thought.
            notices: What happened to the session.
            begins: True if the session begins, or begins again.
        """
        kept = accept(session, given, self.rules, at=CLOCK.get().now(), call_id=call_id)
        if admit is not None:
            kept = kept.model_copy(update={"flow": admit(session, given)})
        if found is None or not found.lines:
            await self._limits.make_room(session.owner)
        stored = await self._stored.append(found, session.add(kept), kept, begins=begins)
        self._limits.note(stored)
        return ThoughtResult(stored.session, stored.session.at(len(stored.session)), notices)

    def _lock(self, owner: str, session_id: str | None) -> asyncio.Lock:
        """Return the one lock of a session and event loop. Between loops and processes, the store detects conflicts."""
        if session_id is None:
            return asyncio.Lock()
        key = (id(asyncio.get_running_loop()), artifact_id(owner, session_id))
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock


async def _retried(change: Callable[[], Awaitable[T]]) -> T:
    """Make a change; when another writer was first, make it again on what the store has now."""
    for _ in range(_TRIES - 1):
        try:
            return await change()
        except SessionConflict:
            continue
    return await change()


def _is_named(found: StoredSession | None, session_id: str, owner: str | None) -> TypeGuard[StoredSession]:
    """Return whether a session was begun and has that id and that owner; None is any owner."""
    if found is None or not found.lines:
        return False
    return found.session.session_id == session_id and owner in (None, found.session.owner)


def _fresh(session_id: str, owner: str, *, version: int = 1) -> Session:
    now = CLOCK.get().now()
    return Session(session_id, owner, created=now, used=now, version=version)


def _begun_again(session: Session) -> Session:
    return _fresh(session.session_id, session.owner, version=session.version + 1)


def _unknown(session_id: str) -> UnknownSession:
    return UnknownSession(
        f"there is no session {session_id!r}: leave sessionId out to begin one, and go on with the id of its answer"
    )


def _expired(session_id: str) -> ThoughtWarning:
    message = f"Session {session_id} has expired; this thought begins it again, without the thoughts before."
    return ThoughtWarning(code="session_expired", message=message)


def _not_found(session_id: str) -> ThoughtWarning:
    message = (
        f"There is no session {session_id} here, though the id looks like one that was given out: it starts empty, "
        "without the thoughts that it may have had. Are they in another store, or has it expired?"
    )
    return ThoughtWarning(code=NEW, message=message)
