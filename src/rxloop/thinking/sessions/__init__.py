"""Thinking sessions, stored as artifacts."""

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
from rxloop.thinking.sessions.thought import ThoughtInput, ThoughtWarning, find_name_problem

T = TypeVar("T")

Admit = Callable[[Session, ThoughtInput], dict[str, Any]]

NEW = "session_new"

_MAX_ATTEMPTS = 50
"""Maximum number of attempts to store a thought if other writers are faster."""


class ThinkingSessions:
    """Sessions of sequential thoughts in an artifact store.

    Each session belongs to an owner and is invisible to the models of other owners. No timer is used: the lifetime of
    a session is checked on access, and adding a thought occasionally deletes all expired sessions.

    Attributes:
        artifacts: Store of the sessions.
        rules: Limits of a session.

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
        """Create the storage.

        Args:
            artifacts: Store of the sessions, such as the store of an event log, `log.artifacts`.
            ttl: Lifetime of a session in seconds. None for no limit.
            ttl_from: Start of the lifetime: the last thought, or the creation of the session.
            max_sessions: Maximum number of sessions per owner. If it is exceeded, the least recently used session is
                deleted, complete sessions first.
            max_total: Maximum number of sessions of all owners. If it is exceeded, 10 % are deleted in the same order.
            strict: True to reject a thought that revises or branches from a missing thought.
            max_thoughts: Maximum number of thoughts of a session.
            max_length: Maximum number of characters of a thought.

        Raises:
            ConfigurationError: If a number is too small, or `ttl_from` is invalid.
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
        """Validate a thought and add it to its session. Either the whole thought is stored or nothing.

        Args:
            thought: The thought with wire names. Its `sessionId` must be the generated id of an earlier result. Without
                an id, a session is created.
            owner: Owner of the session. By default the program, and a generated `session_id` is valid for any owner.
            session_id: Id of the session. Overrides the id in the thought. If the session does not exist, it is
                created. If its id looks like a generated one, the result has the warning `session_new`.
            call_id: Id of the tool call. A repeated call adds no second thought and returns the first result again.
            admit: Called with the session and the thought before it is stored. Returns the data to store as `flow`, or
                raises. Called again if another writer was faster.

        Raises:
            InvalidThought: If the thought is invalid.
            UnknownSession: If the owner has no session with the id in the thought, or `session_id` belongs to another
                owner.
            SessionFull: If the session has reached its maximum number of thoughts.
            SessionConflict: If other writers were faster in all attempts.
            ArtifactError: If the store failed.
        """
        if session_id is not None and (problem := find_name_problem(session_id)) is not None:
            raise ConfigurationError(f"session_id={session_id[:60]!r} {problem}")
        parsed = ThoughtInput.of(thought)
        requested_id = session_id if session_id is not None else parsed.session_id
        # Acquire the lock before other operations to preserve thought order.
        async with self._lock(owner or "", requested_id):
            await self._limits.tidy()
            if requested_id is None:
                return await _retry(lambda: self._think_in_new_session(parsed, owner or "", call_id, admit))
            adopt = session_id is not None
            return await _retry(
                lambda: self._think_in_session(requested_id, parsed, owner, call_id, admit, adopt=adopt)
            )

    async def get_session(self, session_id: str, *, owner: str | None = None) -> Session:
        """Return the current state of a session. The returned object never changes.

        Args:
            session_id: Id of the session.
            owner: Owner of the session. By default the program, and a generated id is valid for any owner.

        Raises:
            UnknownSession: If the owner has no such session, or it has expired.
            ArtifactError: If the store failed.
        """
        return (await _retry(lambda: self._find_open(session_id, owner))).session

    async def all_sessions(self, *, owner: str | None = None) -> list[Session]:
        """Return the sessions of an owner or of all owners, least recently used first. Omits expired sessions.

        Raises:
            ArtifactError: If the store failed.
        """
        records = await self._stored.list(owner)
        current = [stored.session for record in records if (stored := await self._stored.read(record)) and stored.lines]
        # Generated ids sort by time, so sessions used in the same millisecond are sorted by age.
        return sorted(
            (each for each in current if not self._limits.is_expired(each)),
            key=lambda session: (session.used, session.created, session.session_id),
        )

    async def clear_session(self, session_id: str, *, owner: str | None = None) -> Session:
        """Delete all thoughts of a session and return the empty session.

        The session id is preserved.

        Args:
            session_id: Session id.
            owner: Session owner, see `get_session`.

        Raises:
            UnknownSession: Unknown or expired session.
            ArtifactError: Storage failure.
        """

        async def clear() -> Session:
            current = await self._find_open(session_id, owner)
            stored = await self._stored.append(current, _restart(current.session), None, begins=True)
            self._limits.note(stored)
            return stored.session

        async with self._lock(owner or "", session_id):
            return await _retry(clear)

    async def clear_all_sessions(self, *, owner: str | None = None) -> int:
        """Delete all sessions of an owner, or of all owners, and return their number.

        Args:
            owner: Owner of the sessions. "" selects the sessions that the program created without an owner.
        """
        return await self._limits.delete_all(owner)

    async def sweep(self) -> int:
        """Delete expired sessions of all owners and sessions beyond `max_total`. Return their number.

        A thought does the same if a lifetime has passed since the last sweep, or `max_total` is exceeded.
        """
        return await self._limits.sweep()

    async def aclose(self) -> None:
        """Close the store."""
        await self.artifacts.aclose()

    async def _find_open(self, session_id: str, owner: str | None) -> StoredSession:
        current = await self._stored.find(artifact_id(owner or "", session_id))
        if not _matches(current, session_id, owner) or self._limits.is_expired(current.session):
            raise _make_unknown_error(session_id)
        return current

    async def _think_in_new_session(
        self, thought: ThoughtInput, owner: str, call_id: str | None, admit: Admit | None
    ) -> ThoughtResult:
        """Add a thought without a session id to a new session, unless its call has already created one."""
        session_id, current = new_id(), None
        if call_id is not None:
            session_id = new_id(owner, call_id)
            current = await self._stored.find(artifact_id(owner, session_id))
            if current is not None and (placed := current.session.find_by_call(call_id)) is not None:
                return ThoughtResult(current.session, placed)
            if current is not None and not current.lines:
                # A process has created the artifact and crashed, or is about to write the thought.
                session_id = current.session.session_id
            elif current is not None:
                # The original session was cleared in the meantime.
                session_id, current = new_id(), None
        return await self._add(thought, current, _create(session_id, owner), call_id, admit, begins=True)

    async def _think_in_session(
        self,
        requested_id: str,
        thought: ThoughtInput,
        owner: str | None,
        call_id: str | None,
        admit: Admit | None,
        *,
        adopt: bool,
    ) -> ThoughtResult:
        """Add a thought to an explicitly requested session."""
        artifact = artifact_id(owner or "", requested_id)
        # Application code may access sessions of any owner.
        required_owner = owner if adopt else owner or ""
        current = self._stored.cached(artifact)
        if current is None or self._limits.is_expired(current.session):
            current = await self._stored.find(artifact)
        if current is not None and current.lines:
            if not _matches(current, requested_id, required_owner):
                raise _make_unknown_error(requested_id)
            session = current.session
            if call_id is not None and (placed := session.find_by_call(call_id)) is not None:
                return ThoughtResult(session, placed)
            if self._limits.is_expired(session):
                notice = (_make_expired_warning(requested_id),)
                return await self._add(thought, current, _restart(session), call_id, admit, notice, begins=True)
            if thought.clear_session and len(session):
                return await self._add(thought, current, _restart(session), call_id, admit, begins=True)
            return await self._add(thought, current, session, call_id, admit, begins=False)
        fresh, notices = (_create(requested_id, owner or ("" if current is None else current.session.owner)), ())
        if self._limits.was_expired(fresh.owner, requested_id):
            # Prevent duplicate thought ids after a session was deleted.
            fresh, notices = fresh.changed(version=fresh.created), (_make_expired_warning(requested_id),)
        elif not adopt:
            raise _make_unknown_error(requested_id)
        elif is_generated(requested_id):
            notices = (_make_new_warning(requested_id),)
        return await self._add(thought, current, fresh, call_id, admit, notices, begins=True)

    async def _add(
        self,
        thought: ThoughtInput,
        current: StoredSession | None,
        session: Session,
        call_id: str | None,
        admit: Admit | None,
        notices: tuple[ThoughtWarning, ...] = (),
        *,
        begins: bool,
    ) -> ThoughtResult:
        """Validate and store a thought.

        Args:
            thought: The thought.
            current: Stored session, or None.
            session: Session to extend. Empty if it is new or restarted.
            call_id: Id of the tool call.
            admit: See `think`.
            notices: Warnings about the session.
            begins: True if the session is new or restarted.
        """
        accepted = accept(session, thought, self.rules, now=CLOCK.get().now(), call_id=call_id)
        if admit is not None:
            accepted = accepted.model_copy(update={"flow": admit(session, thought)})
        if current is None or not current.lines:
            await self._limits.make_room(session.owner)
        stored = await self._stored.append(current, session.add(accepted), accepted, begins=begins)
        self._limits.note(stored)
        return ThoughtResult(stored.session, stored.session.get_thought(len(stored.session)), notices)

    def _lock(self, owner: str, session_id: str | None) -> asyncio.Lock:
        """Return the session lock for the current event loop.

        Conflicts across loops and processes are detected by the store.
        """
        if session_id is None:
            return asyncio.Lock()
        key = (id(asyncio.get_running_loop()), artifact_id(owner, session_id))
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock


async def _retry(change: Callable[[], Awaitable[T]]) -> T:
    """Run a change, and repeat it on the current data if another writer was faster."""
    for _ in range(_MAX_ATTEMPTS - 1):
        try:
            return await change()
        except SessionConflict:
            continue
    return await change()


def _matches(current: StoredSession | None, session_id: str, owner: str | None) -> TypeGuard[StoredSession]:
    """Return True if a session has thoughts, this id and this owner. None matches any owner."""
    if current is None or not current.lines:
        return False
    return current.session.session_id == session_id and owner in (None, current.session.owner)


def _create(session_id: str, owner: str, *, version: int = 1) -> Session:
    now = CLOCK.get().now()
    return Session(session_id, owner, created=now, used=now, version=version)


def _restart(session: Session) -> Session:
    return _create(session.session_id, session.owner, version=session.version + 1)


def _make_unknown_error(session_id: str) -> UnknownSession:
    return UnknownSession(
        f"unknown sessionId {session_id!r}. Omit sessionId to create a session, then pass the id from its result."
    )


def _make_expired_warning(session_id: str) -> ThoughtWarning:
    message = f"Session {session_id} has expired; this thought begins it again, without the thoughts before."
    return ThoughtWarning(code="session_expired", message=message)


def _make_new_warning(session_id: str) -> ThoughtWarning:
    message = (
        f"There is no session {session_id} here, though the id looks like one that was given out: it starts empty, "
        "without the thoughts that it may have had. Are they in another store, or has it expired?"
    )
    return ThoughtWarning(code=NEW, message=message)
