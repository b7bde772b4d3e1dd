"""Session expiry and session count limits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rxloop.pipeline.artifact_rules import ArtifactRecord
from rxloop.support.misuse import check_argument, check_minimum, check_positive
from rxloop.support.tasks import CLOCK
from rxloop.thinking.sessions.session import Session
from rxloop.thinking.sessions.session_artifacts import Head, SessionArtifacts, StoredSession

_REMEMBERED = 1_000
"""Maximum number of deleted sessions that this process still reports as expired."""

_ROUNDS = 5
"""Maximum number of attempts to delete sessions that other processes use at the same time."""


@dataclass(slots=True)
class _Entry:
    """Session in the list of this process."""

    owner: str
    session_id: str
    record: ArtifactRecord
    complete: bool | None = None
    """True if the session is complete. None if it was not read yet."""


class SessionLimits:
    """Deletion of sessions that have expired or exceed a limit.

    Artifact stores have no index of owners, so the process keeps a list of all sessions. It refreshes the list after
    creating `max_sessions // 10` sessions, because other processes create sessions too.

    Args:
        artifacts: Session artifacts.
        ttl: Lifetime of a session in seconds. None disables expiry.
        ttl_from: Start of the lifetime, either the last thought or the creation of the session.
        max_sessions: Maximum number of sessions per owner.
        max_total: Maximum number of sessions.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    def __init__(
        self,
        artifacts: SessionArtifacts,
        *,
        ttl: float | None,
        ttl_from: Literal["used", "created"],
        max_sessions: int,
        max_total: int,
    ) -> None:
        check_positive(optional=True, ttl=ttl)
        check_minimum(1, max_sessions=max_sessions, max_total=max_total)
        check_argument("ttl_from", ttl_from, ttl_from in ("used", "created"), "'used' or 'created'")
        self._artifacts = artifacts
        self._ttl = ttl
        self._ttl_from = ttl_from
        self._max_sessions = max_sessions
        self._max_total = max_total
        self._swept_at: int | None = None  # In milliseconds since 1970.
        self._entries: dict[str, _Entry] = {}
        self._owners: dict[str, dict[str, _Entry]] = {}
        self._listed = False
        self._created_since_listing = 0  # Since the last listing.
        self._expired: OrderedDict[tuple[str, str], None] = OrderedDict()

    def is_expired(self, session: Session) -> bool:
        """Return True if the session has expired."""
        return self._is_over(session.used if self._ttl_from == "used" else session.created)

    def was_expired(self, owner: str, session_id: str) -> bool:
        """Return True if this process has deleted the session because it had expired."""
        return (owner, session_id) in self._expired

    def note(self, stored: StoredSession) -> None:
        """Update the index after a local write."""
        assert stored.record is not None
        session = stored.session
        if stored.record.artifact_id not in self._entries:
            self._created_since_listing += 1
        self._expired.pop((session.owner, session.session_id), None)
        self._store(_Entry(session.owner, session.session_id, stored.record, session.status == "complete"))

    async def make_room(self, owner: str) -> None:
        """Delete sessions of an owner until one more fits the limit.

        Expired sessions are deleted first, then complete sessions, then the least recently used sessions.
        """
        if not self._listed or self._created_since_listing >= self._max_sessions // 10:
            await self._list()
        for _ in range(_ROUNDS):
            entries = self._owners.get(owner, {})
            excess = len(entries) - self._max_sessions + 1
            if excess <= 0:
                return
            for entry in (await self._in_order(entries.values()))[:excess]:
                if not await self._delete(entry):
                    # Another process has changed or deleted the session, so the list is outdated.
                    await self._list()
                    break

    async def tidy(self) -> None:
        """Sweep if `ttl` has passed since the last sweep or the list exceeds `max_total`."""
        now = CLOCK.get().now()
        if self._swept_at is None:
            self._swept_at = now
        is_due = self._ttl is not None and now - self._swept_at > self._ttl * 1_000
        if is_due or len(self._entries) > self._max_total:
            await self.sweep()

    async def sweep(self) -> int:
        """Delete expired sessions, and more if `max_total` is exceeded. Return the number of deleted sessions."""
        self._swept_at = CLOCK.get().now()
        await self._list()
        entries = list(self._entries.values())
        doomed = [entry for entry in entries if await self._has_expired(entry)]
        expired = {entry.record.artifact_id for entry in doomed}
        remaining = [entry for entry in entries if entry.record.artifact_id not in expired]
        excess = len(remaining) - self._max_total
        if excess > 0:
            # Delete an additional 10 percent to avoid a sweep for every new session.
            doomed += (await self._in_order(remaining))[: excess + self._max_total // 10]
        count = 0
        for entry in doomed:
            if await self._delete(entry):
                count += 1
                if entry.record.artifact_id in expired:
                    self._expired[entry.owner, entry.session_id] = None
        while len(self._expired) > _REMEMBERED:
            self._expired.popitem(last=False)
        return count

    async def delete_all(self, owner: str | None) -> int:
        """Delete all sessions of an owner, or of all owners, and return the deleted count."""
        await self._list()
        count = 0
        entries = self._entries if owner is None else self._owners.get(owner, {})
        for entry in list(entries.values()):
            self._drop(entry.record.artifact_id)
            if await self._artifacts.delete(entry.record, changed=True):
                count += bool(entry.record.size)
        return count

    async def _list(self) -> None:
        before, self._created_since_listing, self._listed = set(self._entries), 0, True
        records = {record.artifact_id: record for record in await self._artifacts.list()}
        for artifact in before - records.keys():
            self._drop(artifact)
        for artifact, record in records.items():
            entry, head = self._entries.get(artifact), Head.of(record)
            if head is not None and (entry is None or entry.record != record):
                self._store(_Entry(head.owner, head.session_id, record))

    async def _in_order(self, entries: Iterable[_Entry]) -> list[_Entry]:
        """Sort sessions in the order of deletion."""
        order = [
            (
                (not await self._has_expired(entry), not await self._is_complete(entry)),
                (entry.record.updated, entry.record.created, entry.session_id, entry.owner),
                entry,
            )
            for entry in list(entries)
        ]
        return [entry for *_, entry in sorted(order, key=lambda place: place[:2])]

    async def _is_complete(self, entry: _Entry) -> bool:
        if entry.complete is None:
            stored = await self._artifacts.read(entry.record)
            entry.complete = stored is not None and stored.session.status == "complete"
        return entry.complete

    async def _has_expired(self, entry: _Entry) -> bool:
        if self._ttl_from == "used":
            return self._is_over(entry.record.updated)
        # The artifact may have been created for an earlier version of the session.
        if not self._is_over(entry.record.created):
            return False
        stored = await self._artifacts.read(entry.record)
        return stored is None or self._is_over(stored.session.created)

    def _is_over(self, start: int) -> bool:
        return self._ttl is not None and CLOCK.get().now() - start > self._ttl * 1_000

    async def _delete(self, entry: _Entry) -> bool:
        deleted = await self._artifacts.delete(entry.record)
        if deleted:
            self._drop(entry.record.artifact_id)
        return deleted

    def _store(self, entry: _Entry) -> None:
        artifact = entry.record.artifact_id
        self._drop(artifact)
        self._entries[artifact] = self._owners.setdefault(entry.owner, {})[artifact] = entry

    def _drop(self, artifact: str) -> None:
        entry = self._entries.pop(artifact, None)
        if entry is not None:
            entries = self._owners[entry.owner]
            del entries[artifact]
            if not entries:
                del self._owners[entry.owner]
