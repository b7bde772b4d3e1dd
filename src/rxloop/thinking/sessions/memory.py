"""Thinking sessions in memory: for one process, and gone with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

from typing_extensions import override

from rxloop.errors import SessionConflict
from rxloop.pipeline.seams import SessionStore
from rxloop.pipeline.values import SessionChange, SessionRecord

Key = tuple[str, str]


@dataclass(slots=True)
class _Kept:
    record: SessionRecord
    entries: list[bytes] = field(default_factory=list[bytes])
    calls: list[str] = field(default_factory=list[str])


class MemorySessionStore(SessionStore):
    """Keeps thinking sessions in memory; nothing in it waits, so that any number of tasks and threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        # In the order of use: who is used goes to the end.
        self._sessions: dict[str, dict[str, _Kept]] = {}
        self._calls: dict[Key, str] = {}
        self._owners: dict[str, dict[str, None]] = {}

    def __repr__(self) -> str:
        return f"<MemorySessionStore of {sum(map(len, self._sessions.values()))} sessions>"

    @override
    async def load(self, owner: str, session_id: str) -> SessionRecord | None:
        kept = self._find(owner, session_id)
        return None if kept is None else kept.record

    @override
    async def entries(self, owner: str, session_id: str, *, first: int = 0) -> Sequence[bytes]:
        kept = self._find(owner, session_id)
        return () if kept is None else tuple(kept.entries[first:])

    @override
    async def of_call(self, owner: str, call_id: str) -> str | None:
        return self._calls.get((owner, call_id))

    @override
    async def commit(self, changes: Sequence[SessionChange]) -> None:
        with self._lock:
            for change in changes:
                check_version(change.record, self._find(change.record.owner, change.record.session_id))
            for change in changes:
                self._apply(change)

    @override
    async def records(self, owner: str | None = None) -> Sequence[SessionRecord]:
        with self._lock:
            owners = list(self._sessions) if owner is None else [owner]
            found = [kept.record for name in owners for kept in self._sessions.get(name, {}).values()]
        return sorted(found, key=lambda record: record.used)

    @override
    async def find(self, session_id: str) -> Sequence[SessionRecord]:
        with self._lock:
            return [self._sessions[owner][session_id].record for owner in self._owners.get(session_id, ())]

    @override
    async def delete(self, sessions: Sequence[Key]) -> None:
        with self._lock:
            for owner, session_id in sessions:
                of_owner = self._sessions.get(owner, {})
                kept = of_owner.pop(session_id, None)
                if kept is not None:
                    self._forget_calls(owner, kept)
                    self._disown(owner, session_id)
                if not of_owner:
                    self._sessions.pop(owner, None)

    async def aclose(self) -> None:
        """Do nothing: memory needs no closing."""

    def _find(self, owner: str, session_id: str) -> _Kept | None:
        return self._sessions.get(owner, {}).get(session_id)

    def _apply(self, change: SessionChange) -> None:
        record = change.record
        kept = self._sessions.setdefault(record.owner, {}).setdefault(record.session_id, _Kept(record))
        self._owners.setdefault(record.session_id, {})[record.owner] = None
        kept.record = record
        kept.entries.extend(change.entries)
        if record.state in ("cleared", "expired"):
            self._forget_calls(record.owner, kept)
            kept.entries.clear()
        if change.call_id is not None:
            kept.calls.append(change.call_id)
            self._calls[record.owner, change.call_id] = record.session_id

    def _disown(self, owner: str, session_id: str) -> None:
        owners = self._owners[session_id]
        del owners[owner]
        if not owners:
            del self._owners[session_id]

    def _forget_calls(self, owner: str, kept: _Kept) -> None:
        for call_id in kept.calls:
            self._calls.pop((owner, call_id), None)
        kept.calls.clear()


def check_version(record: SessionRecord, held: _Kept | None) -> None:
    """See that a change follows on what is held."""
    version = 0 if held is None else held.record.version
    if record.version != version + 1:
        raise SessionConflict(
            f"session {record.session_id!r} is at version {version}, and the change expects {record.version - 1}: "
            "another writer was first; load it again"
        )
