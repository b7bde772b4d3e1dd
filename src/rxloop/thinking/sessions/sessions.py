"""Thinking sessions: takes thoughts into them, in whatever store they are kept."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

from rxloop.errors import ConfigurationError, SessionConflict, UnknownSession
from rxloop.pipeline.seams import SessionStore
from rxloop.pipeline.values import SessionChange, SessionRecord
from rxloop.stream.clock import CLOCK
from rxloop.thinking.sessions import places
from rxloop.thinking.sessions.memory import MemorySessionStore
from rxloop.thinking.sessions.places import Place, is_open, record_of, unknown
from rxloop.thinking.sessions.result import ThoughtResult
from rxloop.thinking.sessions.rules import Rules, accept
from rxloop.thinking.sessions.session import Session
from rxloop.thinking.sessions.sweeping import to_remove
from rxloop.thinking.sessions.thought import SequentialThought, ThoughtInput, wrong_with_name

T = TypeVar("T")
Admit = Callable[[Session, ThoughtInput], dict[str, Any]]

_KEPT = 256
"""Sessions whose thoughts are cached, so that a new thought does not cost reading those before it."""
_TRIES = 50
"""How often a thought is tried again when another writer was first."""
_REMEMBERED = 1_000
"""Expired sessions that a sweep removed, and that an answer still names as expired."""


class ThinkingSessions:
    """Sequential thinking: sessions of thoughts, kept by a store.

    Each session belongs to an owner, and no model finds another owner's. There is no timer: a lifetime is checked
    when a session is touched, and from time to time a thought frees the expired sessions of all owners.

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
        max_total: int = 10_000,
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
            max_total: Sessions of all owners, and what is left of cleared ones. Of more, a tenth goes, in that order.
            strict: Refuse a thought that revises, or branches from, one that does not exist.
            max_thoughts: Thoughts of a session.
            max_length: Characters of a thought.

        Raises:
            ConfigurationError: A number is too small, or `ttl_from` is neither of the two.
        """
        if (ttl is not None and not ttl > 0) or max_sessions < 1 or max_total < 1:
            raise ConfigurationError(
                f"ttl={ttl!r} must be more than 0 seconds, max_sessions={max_sessions!r} and max_total={max_total!r} "
                "at least 1"
            )
        if ttl_from not in ("used", "created"):
            raise ConfigurationError(f"ttl_from is 'used' or 'created', not {ttl_from!r}")
        self.store: SessionStore = store if store is not None else MemorySessionStore()
        self.rules = Rules(strict=strict, max_thoughts=max_thoughts, max_length=max_length)
        self._ttl = ttl
        self._ttl_from = ttl_from
        self._max_sessions = max_sessions
        self._max_total = max_total
        self._swept: int | None = None  # When, in milliseconds since 1970.
        self._records = 0  # After the last sweep, and with what has begun since.
        self._expired_ids: OrderedDict[tuple[str, str], SessionRecord] = OrderedDict()
        self._sessions: OrderedDict[tuple[str, str], Session] = OrderedDict()
        self._locks: WeakValueDictionary[tuple[int, str, str], asyncio.Lock] = WeakValueDictionary()

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
            owner: Whose sessions these are. By default the program's; and a `session_id` that is another owner's alone
                is meant as it stands.
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
        """
        if session_id is not None and (wrong := wrong_with_name(session_id)) is not None:
            raise ConfigurationError(f"session_id={session_id[:60]!r} {wrong}")
        given = ThoughtInput.of(thought)
        wanted = session_id if session_id is not None else given.session_id
        # Before anything else that waits: thoughts of one session keep the order in which they came.
        async with self._lock(owner or "", wanted or ""):
            await self._tidy()
            # What the model names has to be the owner's; only a program's word leads to somebody else's session.
            whose = (owner or "") if session_id is None else await self._whose(session_id, owner)
            return await self._retried(
                whose, lambda: self._think(given, whose, wanted, call_id, admit, adopt=session_id is not None)
            )

    async def get_session(self, session_id: str, *, owner: str | None = None) -> Session:
        """Return a session as it is now, or the one that followed it; a value that never changes.

        Args:
            session_id: Its id.
            owner: Whose it is; needed only where several owners, and not the program, have a session of that id.

        Raises:
            UnknownSession: The owner has no such session, or it has expired.
        """
        owner = await self._whose(session_id, owner)
        _, record = await self._follow(owner, session_id)
        if record is None or self._expired(record):
            raise unknown(session_id)
        return await self._read(record)

    async def all_sessions(self, *, owner: str | None = None) -> list[Session]:
        """List the sessions that have not expired, of one owner or of all, the least recently used first."""
        records = await self.store.records(owner)
        return [await self._read(record) for record in records if is_open(record) and not self._expired(record)]

    async def clear_session(self, session_id: str, *, owner: str | None = None) -> Session:
        """Forget the thoughts of a session. The id that it had leads to the new, empty one.

        Args:
            session_id: Its id.
            owner: Whose it is, as for `get_session`.

        Raises:
            UnknownSession: The owner has no such session.
        """
        async with self._lock(owner or "", session_id):
            whose = await self._whose(session_id, owner)
            return await self._retried(whose, lambda: self._clear(whose, session_id))

    async def clear_all_sessions(self, *, owner: str = "") -> int:
        """Remove all sessions of an owner, by default of the program; how many there were."""
        records = await self.store.records(owner)
        await self.store.delete([(owner, record.session_id) for record in records])
        self._forget(owner)
        return sum(map(is_open, records))

    async def sweep(self) -> int:
        """Remove what has expired, of all owners, and what led there; how many records that were.

        A thought does the same when a lifetime has passed since the last sweep, or when `max_total` is exceeded.
        """
        self._swept = CLOCK.get().now()
        records = await self.store.records()
        gone = to_remove(records, self._expired, self._max_total)
        self._records = len(records) - len(gone)
        if gone:
            await self.store.delete([(record.owner, record.session_id) for record in gone])
        for record in gone:
            key = record.owner, record.session_id
            self._sessions.pop(key, None)
            if is_open(record) and self._expired(record):
                self._expired_ids[key] = replace(record, version=0, length=0)
        while len(self._expired_ids) > _REMEMBERED:
            self._expired_ids.popitem(last=False)
        return len(gone)

    async def aclose(self) -> None:
        """Close the store."""
        await self.store.aclose()

    async def _tidy(self) -> None:
        """Sweep when it is time to: each session pays for a few records, however many there are."""
        now = CLOCK.get().now()
        if self._swept is None:
            self._swept = now
        late = self._ttl is not None and now - self._swept > self._ttl * 1_000
        if late or self._records > self._max_total:
            await self.sweep()

    async def _whose(self, session_id: str, owner: str | None) -> str:
        """Find the owner of a session that a program names, who may be another one if the program names none.

        Raises:
            UnknownSession: It is another owner's, and could be several ones', or was given out to somebody else.
        """
        named = owner or ""
        if (named, session_id) in self._sessions or (owner is not None and not places.was_given_out(session_id)):
            return named
        if await self._load(named, session_id) is not None:
            return named
        others = [record.owner for record in await self.store.find(session_id)]
        if not others or (owner is None and len(others) == 1):
            return others[0] if others else named
        if owner is None:
            raise UnknownSession(f"{len(others)} owners have a session {session_id!r}: name one with owner=")
        raise unknown(session_id)

    async def _load(self, owner: str, session_id: str) -> SessionRecord | None:
        """Load the record of a session; of one that a sweep has removed, that it has expired."""
        record = await self.store.load(owner, session_id)
        return record if record is not None else self._expired_ids.get((owner, session_id))

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
        place = await self._find_place(owner, wanted, now, adopt=adopt, named=given.session_id)
        if given.clear_session:
            place = place.cleared(now)
        kept = accept(place.session, given, self.rules, at=now, call_id=call_id)
        if admit is not None:
            kept = kept.model_copy(update={"flow": admit(place.session, given)})
        session = place.session.add(kept)
        changes = [SessionChange(record_of(session), (places.entry(kept),), call_id)]
        if place.over is not None:
            state = "expired" if self._expired(place.over) else "cleared"
            changes.insert(0, places.ended(place.over, state, session))
        if place.detour is not None:
            changes.append(places.shortcut(place.detour, session))
        if session.version == 1:
            await self._make_room(owner, place.over)
            self._records += 1
        await self.store.commit(changes)
        self._keep(session)
        return ThoughtResult(session, session.at(len(session)), place.notices)

    async def _clear(self, owner: str, session_id: str) -> Session:
        _, record = await self._follow(owner, session_id)
        if record is None or self._expired(record):
            raise unknown(session_id)
        session = places.fresh(owner, CLOCK.get().now()).changed(version=1)
        await self.store.commit([places.ended(record, "cleared", session), SessionChange(record_of(session))])
        self._records += 1
        self._sessions.pop((owner, record.session_id), None)
        return session

    async def _retried(self, owner: str, change: Callable[[], Awaitable[T]]) -> T:
        """Make a change; when another writer was first, make it again on what the store has now."""
        for _ in range(_TRIES - 1):
            try:
                return await change()
            except SessionConflict:
                self._forget(owner)
        return await change()

    async def _made_before(self, owner: str, call_id: str) -> ThoughtResult | None:
        """Find the answer to a call that has made its thought already."""
        session_id = await self.store.of_call(owner, call_id)
        record = None if session_id is None else await self.store.load(owner, session_id)
        if record is None:
            return None
        session = await self._read(record)
        placed = session.of_call(call_id)
        return None if placed is None else ThoughtResult(session, placed)

    async def _find_place(self, owner: str, wanted: str | None, now: int, *, adopt: bool, named: str | None) -> Place:
        """Find the session that a thought goes to, which may be a new one."""
        if wanted is None:
            return Place(places.fresh(owner, now))
        session = self._sessions.get((owner, wanted))
        if session is not None and not self._expired(session):
            return Place(session)
        first, record = await self._follow(owner, wanted)
        if record is None:
            if adopt:
                return places.begun(owner, now, wanted)
            raise unknown(wanted)
        # A tombstone that leads to another one is turned towards the end, or every clearing would make the way longer.
        detour = first if first is not None and first.successor not in (None, record.session_id) else None
        if self._expired(record):
            return Place(places.fresh(owner, now), record, detour, (places.expired(record.session_id),))
        session = await self._read(record)
        # Who is bound to an id that was cleared need not hear of it; who has named it must.
        if record.session_id == wanted or named != wanted:
            return Place(session, detour=detour)
        return Place(session, detour=detour, notices=(places.cleared(wanted, record.session_id),))

    async def _follow(self, owner: str, session_id: str) -> tuple[SessionRecord | None, SessionRecord | None]:
        """Find the record of that id, and the last one that followed it: the same, if it is open."""
        seen: set[str] = set()
        first = record = await self._load(owner, session_id)
        while record is not None and not is_open(record) and record.session_id not in seen:
            seen.add(record.session_id)
            record = await self._load(owner, record.successor or "")
        return first, record if record is not None and is_open(record) else None

    async def _read(self, record: SessionRecord) -> Session:
        """Read the session of a record: the cached thoughts, and those that came since."""
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
        records = [record for record in await self.store.records(owner) if is_open(record) and record != over]
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
        """Return the one lock of a session and event loop; between loops and processes, versions do the same."""
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
        """Drop an owner's cached sessions, which differ from what the store has."""
        for key in [key for key in list(self._sessions) if key[0] == owner]:
            self._sessions.pop(key, None)
