"""Thinking sessions: what carries a thought into one, whoever keeps it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

from rxloop.errors import ConfigurationError, SessionConflict, UnknownSession
from rxloop.protocols import SessionStore
from rxloop.records import SessionChange, SessionRecord
from rxloop.stream.clock import CLOCK
from rxloop.thinking.sessions.memory import MemorySessionStore
from rxloop.thinking.sessions.result import ThoughtResult
from rxloop.thinking.sessions.rules import Rules, accept
from rxloop.thinking.sessions.session import Session
from rxloop.thinking.sessions.thought import SequentialThought, ThoughtInput, ThoughtWarning

T = TypeVar("T")
Admit = Callable[[Session, ThoughtInput], dict[str, Any]]

_KEPT = 256
"""Sessions whose thoughts are kept at hand, so that a thought does not cost reading those before it."""
_TRIES = 50
"""How often a thought is tried again when another writer was first."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a thought goes."""

    session: Session
    over: SessionRecord | None = None
    """The session that ends by it."""
    detour: SessionRecord | None = None
    """The session that was asked for, where it was cleared and leads here by way of others."""
    notices: tuple[ThoughtWarning, ...] = ()


class ThinkingSessions:
    """Sequential thinking: sessions of thoughts, kept by a store.

    Each session belongs to an owner, and another owner's does not exist. Its lifetime is looked at when it is touched:
    there is no timer.

    Example:
        >>> sessions = ThinkingSessions()
        >>> result = await sessions.think(
        ...     {"thought": "Two cases.", "nextThoughtNeeded": True, "thoughtNumber": 1, "totalThoughts": 3}
        ... )
        >>> session = await sessions.get_session(result.session_id)
    """

    def __init__(
        self,
        store: SessionStore | None = None,
        *,
        ttl: float | None = 30 * 60,
        ttl_from: Literal["used", "created"] = "used",
        max_sessions: int = 1_000,
        strict: bool = False,
        max_thoughts: int = 200,
        max_length: int = 20_000,
    ) -> None:
        """Describe how sessions are kept.

        Args:
            store: Who keeps them; in memory by default.
            ttl: Seconds that a session lives; None is for ever.
            ttl_from: Whether they count from the last thought, or from the beginning of the session.
            max_sessions: Sessions of an owner. Of more, the least recently used goes: a complete one if there is one.
            strict: Refuse a thought that revises, or branches from, one that does not exist.
            max_thoughts: Thoughts of a session.
            max_length: Characters of a thought.

        Raises:
            ConfigurationError: A number is too small, or `ttl_from` is neither of both.
        """
        if (ttl is not None and not ttl > 0) or max_sessions < 1:
            raise ConfigurationError(f"ttl={ttl!r} must be more than 0 seconds, and max_sessions={max_sessions!r} 1")
        if ttl_from not in ("used", "created"):
            raise ConfigurationError(f"ttl_from is 'used' or 'created', not {ttl_from!r}")
        self.store: SessionStore = store if store is not None else MemorySessionStore()
        self.rules = Rules(strict=strict, max_thoughts=max_thoughts, max_length=max_length)
        self._ttl = ttl
        self._ttl_from = ttl_from
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[tuple[str, str], Session] = OrderedDict()
        self._locks: WeakValueDictionary[tuple[int, str, str], asyncio.Lock] = WeakValueDictionary()

    async def think(
        self,
        thought: ThoughtInput | Mapping[str, Any],
        *,
        owner: str = "",
        session_id: str | None = None,
        call_id: str | None = None,
        admit: Admit | None = None,
    ) -> ThoughtResult:
        """Take one thought into its session: validated first, and then stored, all of it or nothing.

        Args:
            thought: The thought, with the names of the wire. Its `sessionId` must be one that was given out before;
                without any it begins a session.
            owner: Whose sessions these are.
            session_id: The session, whatever the thought says of it; one that does not exist begins with it.
            call_id: Names the call: the same one again makes no other thought, and gives the first answer again.
            admit: What else decides on the thought: called with the session and the thought, before anything is stored,
                it gives what is kept as `flow`, or raises. It is called again when another writer was first.

        Raises:
            InvalidThought: The thought does not fit.
            UnknownSession: The owner has no session of the id that the thought names.
            SessionFull: The session has all the thoughts that it may have.
            SessionConflict: Other writers were first every time.
        """
        given = ThoughtInput.of(thought)
        wanted = session_id if session_id is not None else given.session_id
        async with self._lock(owner, wanted or ""):
            return await self._retried(
                owner, lambda: self._think(given, owner, wanted, call_id, admit, adopt=session_id is not None)
            )

    async def get_session(self, session_id: str, *, owner: str = "") -> Session:
        """A session as it is now, or the one that followed it; a value that never changes.

        Raises:
            UnknownSession: The owner has no such session, or it has expired.
        """
        _, record = await self._follow(owner, session_id)
        if record is None or self._expired(record):
            raise unknown(session_id)
        return await self._read(record)

    async def all_sessions(self, *, owner: str = "") -> list[Session]:
        """The sessions of an owner that have not expired, the least recently used first."""
        records = await self.store.records(owner)
        return [await self._read(record) for record in records if _is_open(record) and not self._expired(record)]

    async def clear_session(self, session_id: str, *, owner: str = "") -> Session:
        """Forget the thoughts of a session. The id that it had leads to the new, empty one.

        Raises:
            UnknownSession: The owner has no such session.
        """
        async with self._lock(owner, session_id):
            return await self._retried(owner, lambda: self._clear(owner, session_id))

    async def clear_all_sessions(self, *, owner: str = "") -> int:
        """Remove all sessions of an owner; how many there were."""
        records = await self.store.records(owner)
        await self.store.delete([(owner, record.session_id) for record in records])
        self._forget(owner)
        return sum(map(_is_open, records))

    async def sweep(self) -> int:
        """Remove what has expired, of all owners, and what led there; how many records that were.

        Nothing needs it but the memory, or the file, of the store.
        """
        records = {(record.owner, record.session_id): record for record in await self.store.records()}
        alive = {key for key, record in records.items() if _is_open(record) and not self._expired(record)}

        def leads_on(key: tuple[str, str]) -> bool:
            seen: set[tuple[str, str]] = set()
            while key in records and key not in alive and key not in seen:
                seen.add(key)
                key = (key[0], records[key].successor or "")
            return key in alive

        gone = [key for key in records if not leads_on(key)]
        await self.store.delete(gone)
        for key in gone:
            self._sessions.pop(key, None)
        return len(gone)

    async def aclose(self) -> None:
        """Close the store."""
        await self.store.aclose()

    async def _think(
        self,
        given: ThoughtInput,
        owner: str,
        wanted: str | None,
        call_id: str | None,
        admit: Admit | None,
        *,
        adopt: bool,
    ) -> ThoughtResult:
        if call_id is not None and (made := await self._made_before(owner, call_id)) is not None:
            return made
        now = CLOCK.get().now()
        place = await self._place(owner, wanted, now, adopt=adopt)
        if given.clear_session:
            place = _cleared(place, now)
        kept = accept(place.session, given, self.rules, at=now, call_id=call_id)
        if admit is not None:
            kept = kept.model_copy(update={"flow": admit(place.session, given)})
        session = place.session.add(kept)
        changes = [SessionChange(_record(session), (_entry(kept),), call_id)]
        if place.over is not None:
            state = "expired" if self._expired(place.over) else "cleared"
            changes.insert(0, _over(place.over, state, session))
        if place.detour is not None:
            changes.append(_shortcut(place.detour, session))
        if session.version == 1:
            await self._make_room(owner, place.over)
        await self.store.commit(changes)
        self._keep(session)
        return ThoughtResult(session, session.at(len(session)), place.notices)

    async def _clear(self, owner: str, session_id: str) -> Session:
        _, record = await self._follow(owner, session_id)
        if record is None or self._expired(record):
            raise unknown(session_id)
        session = _fresh(owner, CLOCK.get().now()).changed(version=1)
        await self.store.commit([_over(record, "cleared", session), SessionChange(_record(session))])
        self._sessions.pop((owner, record.session_id), None)
        return session

    async def _retried(self, owner: str, change: Callable[[], Awaitable[T]]) -> T:
        """Make a change, and make it anew on what the store has when another writer was first."""
        for _ in range(_TRIES - 1):
            try:
                return await change()
            except SessionConflict:
                self._forget(owner)
        return await change()

    async def _made_before(self, owner: str, call_id: str) -> ThoughtResult | None:
        """The answer to a call that has made its thought already."""
        session_id = await self.store.of_call(owner, call_id)
        record = None if session_id is None else await self.store.load(owner, session_id)
        if record is None:
            return None
        session = await self._read(record)
        placed = session.of_call(call_id)
        return None if placed is None else ThoughtResult(session, placed)

    async def _place(self, owner: str, wanted: str | None, now: int, *, adopt: bool) -> _Place:
        """The session that a thought goes to, which may be a new one."""
        if wanted is None:
            return _Place(_fresh(owner, now))
        session = self._sessions.get((owner, wanted))
        if session is not None and not self._expired(session):
            return _Place(session)
        first, record = await self._follow(owner, wanted)
        if record is None:
            if adopt:
                return _Place(_fresh(owner, now, wanted))
            raise unknown(wanted)
        # A tombstone that leads to another one is turned towards the end, or every clearing would make the way longer.
        detour = first if first is not None and first.successor not in (None, record.session_id) else None
        if self._expired(record):
            notice = ThoughtWarning(
                code="session_expired",
                message=f"Session {record.session_id} has expired; this thought begins a new one.",
            )
            return _Place(_fresh(owner, now), record, detour, (notice,))
        session = await self._read(record)
        if record.session_id == wanted or adopt:
            return _Place(session, detour=detour)
        message = f"Session {wanted} was cleared; this thought is in {record.session_id}, which follows it."
        notice = ThoughtWarning(code="session_cleared", message=message)
        return _Place(session, detour=detour, notices=(notice,))

    async def _follow(self, owner: str, session_id: str) -> tuple[SessionRecord | None, SessionRecord | None]:
        """The record of that id, and the last one that followed it: the same, if it is open."""
        seen: set[str] = set()
        first = record = await self.store.load(owner, session_id)
        while record is not None and not _is_open(record) and record.session_id not in seen:
            seen.add(record.session_id)
            record = await self.store.load(owner, record.successor or "")
        return first, record if record is not None and _is_open(record) else None

    async def _read(self, record: SessionRecord) -> Session:
        """The session of a record: the thoughts that are at hand, and those that came since."""
        session = self._sessions.get((record.owner, record.session_id))
        if session is None or session.created != record.created or session.version > record.version:
            session = Session(record.session_id, record.owner, created=record.created, used=record.used)
        if session.version != record.version:
            rows = await self.store.entries(record.owner, record.session_id, first=len(session))
            missing = record.length - len(session)
            if len(rows) < missing:
                raise SessionConflict(f"session {record.session_id!r} changed while it was read; read it again")
            for row in rows[:missing]:
                session = session.add(SequentialThought.model_validate_json(row))
            session = session.changed(version=record.version)
            self._keep(session)
        return session

    async def _make_room(self, owner: str, over: SessionRecord | None) -> None:
        """Remove an owner's sessions beyond the limit: expired ones, then complete ones, then the others."""
        records = [record for record in await self.store.records(owner) if _is_open(record) and record != over]
        excess = len(records) - self._max_sessions + 1
        if excess > 0:
            records.sort(key=lambda record: (not self._expired(record), record.state != "complete"))
            gone = [(owner, record.session_id) for record in records[:excess]]
            await self.store.delete(gone)
            for key in gone:
                self._sessions.pop(key, None)

    def _expired(self, record: SessionRecord | Session) -> bool:
        if self._ttl is None:
            return False
        start = record.used if self._ttl_from == "used" else record.created
        return CLOCK.get().now() - start > self._ttl * 1_000

    def _lock(self, owner: str, session_id: str) -> asyncio.Lock:
        """One lock a session and event loop; between loops and processes, versions do the same."""
        key = (id(asyncio.get_running_loop()), owner, session_id)
        lock = self._locks.get(key) if session_id else None
        if lock is None:
            lock = asyncio.Lock()
            if session_id:
                self._locks[key] = lock
        return lock

    def _keep(self, session: Session) -> None:
        key = (session.owner, session.session_id)
        self._sessions[key] = session
        self._sessions.move_to_end(key)
        if len(self._sessions) > _KEPT:
            self._sessions.popitem(last=False)

    def _forget(self, owner: str) -> None:
        """Read an owner's sessions again: what is at hand is not what the store has."""
        for key in [key for key in self._sessions if key[0] == owner]:
            del self._sessions[key]


def new_id() -> str:
    """The id of a new session: a UUID of version 7, so that ids sort by time."""
    # Imported here: uuid6 brings importlib.metadata, a good part of the time that importing rxloop takes.
    import uuid6

    return str(uuid6.uuid7())


def unknown(session_id: str) -> UnknownSession:
    """The error for an id that leads to no session."""
    return UnknownSession(
        f"there is no session {session_id!r}: leave sessionId out to begin one, and go on with the id of its answer"
    )


def _fresh(owner: str, now: int, session_id: str | None = None) -> Session:
    return Session(session_id if session_id is not None else new_id(), owner, created=now, used=now)


def _cleared(place: _Place, now: int) -> _Place:
    """A new session in the place of one that is not empty."""
    session = place.session
    if not session.version:
        return place
    return replace(place, session=_fresh(session.owner, now), over=_record(session))


def _record(session: Session) -> SessionRecord:
    return SessionRecord(
        owner=session.owner,
        session_id=session.session_id,
        version=session.version,
        length=len(session),
        created=session.created,
        used=session.used,
        state=session.status,
    )


def _over(record: SessionRecord, state: Literal["cleared", "expired"], successor: Session) -> SessionChange:
    """The end of a session: from now on its id leads to another one."""
    return SessionChange(
        replace(record, version=record.version + 1, length=0, state=state, successor=successor.session_id)
    )


def _shortcut(record: SessionRecord, successor: Session) -> SessionChange:
    """What leads to a session by way of others leads to it at once."""
    return SessionChange(replace(record, version=record.version + 1, successor=successor.session_id))


def _is_open(record: SessionRecord) -> bool:
    return record.state in ("active", "complete")


def _entry(thought: SequentialThought) -> bytes:
    return thought.model_dump_json(exclude_none=True, exclude_defaults=True).encode()
