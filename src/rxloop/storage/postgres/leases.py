"""Postgres leases based on advisory session locks."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from rxloop.errors import EventLogError
from rxloop.storage.postgres import psycopg, sql
from rxloop.storage.postgres.address import Address, Connection, can_store
from rxloop.storage.postgres.rows import to_array
from rxloop.storage.postgres.serial_connection import SerialConnection, complete

log = logging.getLogger("rxloop")

_REACQUIRE_PAUSE = 0.2
"""Interval in seconds between attempts to acquire leases again after a reconnect."""

_MIN_TIMEOUT = 5.0
"""Minimum timeout in seconds for connecting and for multiple statements, regardless of the lease duration."""

_IDLE_SECONDS = 60.0
"""Time in seconds without leases after which the session is closed."""

_LOCK = "SELECT pg_try_advisory_lock(%s)"

_UNLOCK = "SELECT pg_advisory_unlock(%s)"

_ACQUIRE = """
WITH previous AS (
    SELECT task_id FROM $s.leases WHERE context_id = %(context)s
), updated AS (
    UPDATE $s.runs SET holder_id = CASE WHEN task_id = %(task)s THEN %(holder)s END
    WHERE task_id = %(task)s OR task_id IN (SELECT task_id FROM previous)
)
INSERT INTO $s.leases (context_id, task_id, holder_id, lock_key) VALUES (%(context)s, %(task)s, %(holder)s, %(key)s)
ON CONFLICT (context_id) DO UPDATE
SET task_id = EXCLUDED.task_id, holder_id = EXCLUDED.holder_id, lock_key = EXCLUDED.lock_key
"""

_RELEASE = """
WITH deleted AS (
    DELETE FROM $s.leases WHERE context_id = %(context)s AND holder_id = %(holder)s AND task_id = %(task)s
), updated AS (
    UPDATE $s.runs SET holder_id = NULL WHERE task_id = %(task)s AND holder_id = %(holder)s
)
SELECT pg_advisory_unlock(%(key)s)
"""

_OWN_LEASES = "SELECT context_id, task_id FROM $s.leases WHERE holder_id = %s AND context_id = ANY (%s)"

_LOCK_ALL = "SELECT key, pg_try_advisory_lock(key) FROM unnest(%s::bigint[]) AS k(key)"

_SESSION = "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()"

_END_SESSION = """
SET LOCAL lock_timeout = 1000;
WITH ended AS MATERIALIZED (
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = {} AND backend_start::text = {}
), free AS MATERIALIZED (
    SELECT pg_advisory_lock({}) FROM ended
) SELECT pg_advisory_unlock({}) FROM free
"""
"""Terminate a session and wait for one of its locks. A caller that only tried to acquire the lock could be
overtaken."""


@dataclass(slots=True, eq=False)
class Lease:
    """Conversation lease for a run."""

    conversation: str
    task_id: str
    on_lost: Callable[[], None]
    key: int
    unconfirmed: bool = False
    """True until the lock is acquired again after reconnecting."""
    releasing: bool = False
    """True while the lease is being released."""


class Leases:
    """Leases of a log object in one event loop, identified by a holder ID.

    An advisory lock shows that the holder is alive, and a row identifies the holder. Appends by a former holder are
    rejected because of the row, even if the holder has not noticed the loss.
    """

    def __init__(
        self,
        address: Address,
        lease: float,
        retry_seconds: float,
        check: Callable[[], Awaitable[None]],
        on_reconnect: Callable[[], None],
    ) -> None:
        """Create the collection without leases or a session.

        Args:
            address: Database address.
            lease: Time in seconds after which the server ends a silent session.
            retry_seconds: Maximum time for retries in seconds.
            check: Function that checks the schema.
            on_reconnect: Called after a broken session was replaced.
        """
        self._address, self._seconds, self._retry_seconds, self._check = address, lease, retry_seconds, check
        self.holder_id = secrets.token_hex(8)
        self._leases: dict[str, Lease] = {}
        self._by_task = Counter[str]()
        self._acquiring: set[str] = set()
        self._check_now = asyncio.Event()
        timeout = max(lease / 2, _MIN_TIMEOUT)
        self.connection = SerialConnection(
            self._connect, str(address), timeout=timeout, on_broken=self._check_now.set, on_reconnect=on_reconnect
        )
        self._session: tuple[int, str] | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[bool]] = set()
        self._releases: set[asyncio.Task[None]] = set()
        self._closed = False

    def has(self, task_id: str) -> bool:
        """Return True if this holder believes that it has the lease of a run."""
        return self._by_task[task_id] > 0

    async def acquire(self, conversation: str, task_id: str, on_lost: Callable[[], None]) -> bool:
        """Acquire a lease unless another live holder has it."""
        if not can_store(conversation, task_id):
            message = f"Postgres cannot store the run ID {task_id!r} and the conversation ID {conversation!r}"
            raise EventLogError(f"{message}, because of a NUL character or an unpaired surrogate.", retryable=False)
        if conversation in self._leases or conversation in self._acquiring:
            # A session can acquire its own advisory lock repeatedly.
            return False
        lease = Lease(conversation, task_id, on_lost, self._lock_key(conversation))
        self._acquiring.add(conversation)
        try:
            return await complete(self._acquire(lease), self._tasks)
        except asyncio.CancelledError:
            # The lease may still be acquired after the cancellation.
            task = asyncio.get_running_loop().create_task(self._release_later(lease))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)
            raise

    async def _acquire(self, lease: Lease) -> bool:
        values = {"context": lease.conversation, "task": lease.task_id, "holder": self.holder_id, "key": lease.key}

        async def work(connection: Connection) -> bool:
            cursor = await connection.execute(_LOCK.encode(), (lease.key,))
            [[acquired]] = await cursor.fetchall()
            if acquired:
                try:
                    # Execute this after locking, so that it sees the previous holder's final state.
                    await connection.execute(self._address.sql(_ACQUIRE), values)
                except Exception:
                    # Advisory locks are counted, so an extra lock would remain in the session.
                    with suppress(psycopg.Error):
                        await connection.execute(_UNLOCK.encode(), (lease.key,))
                    raise
                self._leases[lease.conversation] = lease
                self._by_task[lease.task_id] += 1
            return acquired

        try:
            acquired = await self.connection.do(work, retry_seconds=self._retry_seconds)
        finally:
            self._acquiring.discard(lease.conversation)
        if acquired and self._closed:
            # No heartbeat task is running to keep the lease.
            await self.release(lease.conversation, lease.task_id)
            return False
        if acquired:
            self._start_heartbeats()
        return acquired

    async def _release_later(self, lease: Lease) -> None:
        """Release a lease whose caller was cancelled, as soon as the outcome is known."""
        while lease.conversation in self._acquiring:
            await asyncio.wait(set(self._tasks))
        if self._leases.get(lease.conversation) is lease:
            with suppress(EventLogError):
                await self.release(lease.conversation, lease.task_id)

    async def verify(self, conversation: str, task_id: str) -> bool:
        """Ask the server if the lease is still held."""
        lease = self._leases.get(conversation)
        if lease is None or lease.task_id != task_id:
            return False

        async def work(connection: Connection) -> bool:
            cursor = await connection.execute(self._address.sql(_OWN_LEASES), (self.holder_id, [conversation]))
            return (conversation, task_id) in await cursor.fetchall()

        # This replaces a broken session and restores its leases.
        is_owner = await self.connection.do(work, retry_seconds=self._retry_seconds)
        return is_owner and self._leases.get(conversation) is lease

    async def release(self, conversation: str, task_id: str) -> None:
        """Release a lease, ignoring leases that were lost."""
        lease = self._leases.get(conversation)
        if lease is None or lease.task_id != task_id:
            return
        lease.releasing = True
        values = {"context": conversation, "task": task_id, "holder": self.holder_id, "key": lease.key}
        try:
            statement = self._address.sql(_RELEASE)
            await self.connection.do(lambda each: each.execute(statement, values), retry_seconds=self._retry_seconds)
        finally:
            # On failure, the lock is released when the session ends.
            if self._leases.get(conversation) is lease:
                self._remove(lease)

    def _remove(self, lease: Lease) -> None:
        del self._leases[lease.conversation]
        self._by_task[lease.task_id] -= 1
        if not self._by_task[lease.task_id]:
            del self._by_task[lease.task_id]

    async def _connect(self) -> Connection:
        await self._check()
        connection = await self._address.connect(session=True)
        try:
            # Preparing statements would require extra round trips while the lease expires.
            connection.prepare_threshold = None
            cursor = await connection.execute(_SESSION.encode())
            [session] = await cursor.fetchall()
            if session[0] != connection.info.backend_pid:
                await self._check_session(connection)
            milliseconds = max(round(self._seconds * 1000), 1)
            await connection.execute(f"SET idle_session_timeout = {milliseconds}; SET tcp_user_timeout = 5000".encode())
            if self._session is not None:
                key = next((lease.key for lease in self._leases.values()), self._lock_key(""))
                # The server may still consider the old session alive and keep its locks.
                with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable):
                    await connection.execute(sql.SQL(_END_SESSION).format(*self._session, key, key))
            self._session = session
            for lease in self._leases.values():
                lease.unconfirmed = True
            await self._reacquire(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _check_session(self, connection: Connection) -> None:
        """Check that a pooler does not share the session.

        Clients in a shared session could acquire each other's leases.

        Raises:
            EventLogError: If the session is shared.
        """
        lock = (secrets.randbits(62),)
        await connection.execute(_LOCK.encode(), lock)
        async with await self._address.connect(session=True) as other:
            cursor = await other.execute(_LOCK.encode(), lock)
            [[shared]] = await cursor.fetchall()
            if shared:
                await other.execute(_UNLOCK.encode(), lock)
        await connection.execute(_UNLOCK.encode(), lock)
        if shared:
            raise EventLogError(
                f"The event log {self._address} is behind a pooler that shares sessions, such as PgBouncer in "
                "transaction mode. Leases need their own session. Pass the URL of the server as session_dsn.",
                retryable=False,
            )

    async def _reacquire(self, connection: Connection) -> None:
        """Acquire leases again in a new session, and report lost leases."""
        pending = [lease for lease in self._leases.values() if lease.unconfirmed and not lease.releasing]
        if not pending:
            return
        cursor = await connection.execute(_LOCK_ALL.encode(), (to_array(lease.key for lease in pending),))
        locked = dict(await cursor.fetchall())
        # Queried after locking, so that no other holder can acquire a lease in between.
        conversations = [lease.conversation for lease in pending]
        cursor = await connection.execute(self._address.sql(_OWN_LEASES), (self.holder_id, conversations))
        own_leases = dict(await cursor.fetchall())
        for lease in pending:
            if self._leases.get(lease.conversation) is not lease:
                continue
            if own_leases.get(lease.conversation) == lease.task_id:
                # If the row still names this holder, only its previous session can hold the lock.
                lease.unconfirmed = not locked[lease.key]
            else:
                self._remove(lease)
                lease.on_lost()
        # A concurrent task may have reported a lease as lost. Its lock would last as long as the session.
        while extra := [
            each for each in pending if locked[each.key] and self._leases.get(each.conversation) is not each
        ]:
            await connection.execute(_UNLOCK.encode(), (extra[0].key,))
            locked[extra[0].key] = False
        if any(lease.unconfirmed for lease in pending):
            self._check_now.set()

    def _start_heartbeats(self) -> None:
        if self._heartbeat_task is None or self._heartbeat_task.done():
            loop = asyncio.get_running_loop()
            self._heartbeat_task = loop.create_task(self._send_heartbeats(), name="rxloop-log-leases")

    async def _send_heartbeats(self) -> None:
        """Send heartbeats, and detect a broken session immediately."""
        loop = asyncio.get_running_loop()
        used_at = loop.time()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds / 4):
                    await self._check_now.wait()
            self._check_now.clear()
            if self._leases:
                used_at = loop.time()
            elif loop.time() > used_at + _IDLE_SECONDS and not self._acquiring:
                await self.connection.aclose()
                if not self._leases and not self._acquiring:
                    return
            if not self.connection.is_busy:
                try:
                    async with asyncio.timeout(self._seconds / 4):
                        limit = max(self._seconds / 2, 0.5)
                        await self.connection.do(self._ping, retry_seconds=self._seconds / 4, time_limit=limit)
                except TimeoutError:
                    log.debug("%s has not responded for %g s", self._address, self.connection.silence)
                except EventLogError as error:
                    # Other holders cannot acquire leases while the server is unavailable.
                    log.warning("Cannot renew the leases of this process: %s", error)
                    await asyncio.sleep(_REACQUIRE_PAUSE)
                    self._check_now.set()
            await self._report_possible_losses()

    async def _report_possible_losses(self) -> None:
        """Report all leases as lost if the server has not responded for most of the lease duration."""
        if not self._leases or self.connection.silence < (silence := self._seconds * 3 / 4):
            return
        # After a freeze, an unread response may be available.
        await asyncio.sleep(_REACQUIRE_PAUSE)
        if self.connection.silence < silence:
            return
        log.warning("%s has not responded for %.1f s, its leases may be lost", self._address, self.connection.silence)
        for lease in [lease for lease in self._leases.values() if not lease.releasing]:
            self._remove(lease)
            lease.on_lost()
        # If the server responds again, the session would keep the locks of lost leases.
        self.connection.disconnect()

    async def _ping(self, connection: Connection) -> None:
        if any(lease.unconfirmed for lease in self._leases.values()):
            await asyncio.sleep(_REACQUIRE_PAUSE)
            await self._reacquire(connection)
        else:
            await connection.execute(b"SELECT 1")

    async def aclose(self) -> None:
        """Release all leases and close the session."""
        self._closed = True
        if self._heartbeat_task is not None:
            self._heartbeat_task.cancel()
            await asyncio.wait([self._heartbeat_task])
        if pending_tasks := {*self._tasks, *self._releases}:
            await asyncio.wait(pending_tasks)
        # Release leases explicitly, so that the next holder finds no trace of them. Stop after the first failure if the
        # server is unavailable.
        with suppress(EventLogError):
            for lease in list(self._leases.values()):
                await self.release(lease.conversation, lease.task_id)
        self._leases.clear()
        self._by_task.clear()
        await self.connection.aclose()

    def _lock_key(self, conversation: str) -> int:
        text = f"{self._address.schema}\0{conversation}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)


ALIVE = """
SELECT (classid::bigint << 32) | objid::bigint AS lock_key FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
"""Lock keys of live lease holders, across all schemas in the database."""
