"""Postgres leases based on advisory session locks."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import sql

from rxloop.errors import EventLogError
from rxloop.storage.postgres.address import Address, Connection, can_keep
from rxloop.storage.postgres.rows import numbers
from rxloop.storage.postgres.serial_connection import Lane, to_its_end

log = logging.getLogger("rxloop")

_IN_DOUBT = 0.2
"""Interval in seconds between attempts to acquire leases again after a reconnect."""

_ANSWERS_IN = 5.0
"""Minimum timeout in seconds for connecting and for multiple statements, regardless of the lease duration."""

_IDLE = 60.0
"""Time in seconds without leases after which the session is closed."""

_LOCK = "SELECT pg_try_advisory_lock(%s)"

_UNLOCK = "SELECT pg_advisory_unlock(%s)"

_TAKE = """
WITH before AS (
    SELECT task_id FROM $s.turns WHERE context_id = %(context)s
), marked AS (
    UPDATE $s.runs SET holder = CASE WHEN task_id = %(task)s THEN %(me)s END
    WHERE task_id = %(task)s OR task_id IN (SELECT task_id FROM before)
)
INSERT INTO $s.turns (context_id, task_id, holder, key) VALUES (%(context)s, %(task)s, %(me)s, %(key)s)
ON CONFLICT (context_id) DO UPDATE SET task_id = EXCLUDED.task_id, holder = EXCLUDED.holder, key = EXCLUDED.key
"""

_GIVE_BACK = """
WITH gone AS (
    DELETE FROM $s.turns WHERE context_id = %(context)s AND holder = %(me)s AND task_id = %(task)s
), marked AS (
    UPDATE $s.runs SET holder = NULL WHERE task_id = %(task)s AND holder = %(me)s
)
SELECT pg_advisory_unlock(%(key)s)
"""

_MINE = "SELECT context_id, task_id FROM $s.turns WHERE holder = %s AND context_id = ANY (%s)"

_LOCK_AGAIN = "SELECT key, pg_try_advisory_lock(key) FROM unnest(%s::bigint[]) AS k(key)"

_SESSION = "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()"

_END = """
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
class Turn:
    """Conversation lease for a run."""

    context_id: str
    task_id: str
    lost: Callable[[], None]
    key: int
    doubt: bool = False
    """True until the lock is acquired again after reconnecting."""
    leaving: bool = False
    """True while the lease is being released."""


class Turns:
    """Leases of a log object in one event loop, identified by a holder ID.

    An advisory lock shows that the holder is alive, and a row identifies the holder. Appends by a former holder are
    rejected because of the row, even if the holder has not noticed the loss.
    """

    def __init__(
        self,
        address: Address,
        lease: float,
        patience: float,
        check: Callable[[], Awaitable[None]],
        anew: Callable[[], None],
    ) -> None:
        """Create an empty collection.

        Args:
            address: Database address.
            lease: Time in seconds after which the server ends a silent session.
            patience: Maximum time for retries in seconds.
            check: Function that checks the schema.
            anew: Called after a broken session was replaced.
        """
        self._address, self._lease, self._patience, self._check = address, lease, patience, check
        self.me = secrets.token_hex(8)
        self._held: dict[str, Turn] = {}
        self._taking: set[str] = set()
        self._nudge = asyncio.Event()
        self.lane = Lane(
            self._connect, str(address), answers_in=max(lease / 2, _ANSWERS_IN), broke=self._nudge.set, anew=anew
        )
        self._session: tuple[int, str] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[bool]] = set()
        self._later: set[asyncio.Task[None]] = set()
        self._closed = False

    def has(self, context_id: str, task_id: str) -> bool:
        """Return True if this holder believes that it has the lease."""
        turn = self._held.get(context_id)
        return turn is not None and turn.task_id == task_id

    async def take(self, context_id: str, task_id: str, lost: Callable[[], None]) -> bool:
        """Acquire a lease unless another live holder has it."""
        if not can_keep(context_id, task_id):
            said = f"run {task_id!r} in the conversation {context_id!r}: Postgres keeps no such ids"
            raise EventLogError(f"{said}, which have a NUL character or half of a surrogate pair", retryable=False)
        if context_id in self._held or context_id in self._taking:
            # A session can acquire its own advisory lock repeatedly.
            return False
        turn = Turn(context_id, task_id, lost, self._key(context_id))
        self._taking.add(context_id)
        try:
            return await to_its_end(self._take(turn), self._tasks)
        except asyncio.CancelledError:
            # The lease may still be acquired after the cancellation.
            task = asyncio.get_running_loop().create_task(self._give_back_later(turn))
            self._later.add(task)
            task.add_done_callback(self._later.discard)
            raise

    async def _take(self, turn: Turn) -> bool:
        values = {"context": turn.context_id, "task": turn.task_id, "me": self.me, "key": turn.key}

        async def work(connection: Connection) -> bool:
            cursor = await connection.execute(_LOCK.encode(), (turn.key,))
            [[taken]] = await cursor.fetchall()
            if taken:
                try:
                    # Execute this after locking, so that it sees the previous holder's final state.
                    await connection.execute(self._address.sql(_TAKE), values)
                except Exception:
                    # Advisory locks are counted, so an extra lock would remain in the session.
                    with suppress(psycopg.Error):
                        await connection.execute(_UNLOCK.encode(), (turn.key,))
                    raise
                self._held[turn.context_id] = turn
            return taken

        try:
            taken = await self.lane.do(work, patience=self._patience)
        finally:
            self._taking.discard(turn.context_id)
        if taken and self._closed:
            # No heartbeat task is running to keep the lease.
            await self.give_back(turn.context_id, turn.task_id)
            return False
        if taken:
            self._beat()
        return taken

    async def _give_back_later(self, turn: Turn) -> None:
        """Release a lease whose caller was cancelled, as soon as the outcome is known."""
        while turn.context_id in self._taking:
            await asyncio.wait(set(self._tasks))
        if self._held.get(turn.context_id) is turn:
            with suppress(EventLogError):
                await self.give_back(turn.context_id, turn.task_id)

    async def ask(self, context_id: str, task_id: str) -> bool:
        """Ask the server if the lease is still held."""
        turn = self._held.get(context_id)
        if turn is None or turn.task_id != task_id:
            return False

        async def work(connection: Connection) -> bool:
            cursor = await connection.execute(self._address.sql(_MINE), (self.me, [context_id]))
            return (context_id, task_id) in await cursor.fetchall()

        # This replaces a broken session and restores its leases.
        mine = await self.lane.do(work, patience=self._patience)
        return mine and self._held.get(context_id) is turn

    async def give_back(self, context_id: str, task_id: str) -> None:
        """Release a lease, ignoring leases that were lost."""
        turn = self._held.get(context_id)
        if turn is None or turn.task_id != task_id:
            return
        turn.leaving = True
        values = {"context": context_id, "task": task_id, "me": self.me, "key": turn.key}
        try:
            await self.lane.do(
                lambda connection: connection.execute(self._address.sql(_GIVE_BACK), values), patience=self._patience
            )
        finally:
            # On failure, the lock is released when the session ends.
            if self._held.get(context_id) is turn:
                del self._held[context_id]

    async def _connect(self) -> Connection:
        await self._check()
        connection = await self._address.connect(session=True)
        try:
            # Preparing statements would require extra round trips while the lease expires.
            connection.prepare_threshold = None
            cursor = await connection.execute(_SESSION.encode())
            [session] = await cursor.fetchall()
            if session[0] != connection.info.backend_pid:
                await self._see_that_it_is_not_shared(connection)
            milliseconds = max(round(self._lease * 1000), 1)
            await connection.execute(f"SET idle_session_timeout = {milliseconds}; SET tcp_user_timeout = 5000".encode())
            if self._session is not None:
                key = next((turn.key for turn in self._held.values()), self._key(""))
                # The server may still consider the old session alive and keep its locks.
                with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable):
                    await connection.execute(sql.SQL(_END).format(*self._session, key, key))
            self._session = session
            for turn in self._held.values():
                turn.doubt = True
            await self._take_again(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _see_that_it_is_not_shared(self, connection: Connection) -> None:
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
                f"the event log {self._address} is behind a pooler that shares sessions, as PgBouncer does in its "
                "transaction mode, and a turn needs one of its own: name the server itself as session_dsn",
                retryable=False,
            )

    async def _take_again(self, connection: Connection) -> None:
        """Acquire leases again in a new session, and report lost leases."""
        doubtful = [turn for turn in self._held.values() if turn.doubt and not turn.leaving]
        if not doubtful:
            return
        cursor = await connection.execute(_LOCK_AGAIN.encode(), (numbers(turn.key for turn in doubtful),))
        locked = dict(await cursor.fetchall())
        # Queried after locking, so that no other holder can acquire a lease in between.
        cursor = await connection.execute(self._address.sql(_MINE), (self.me, [turn.context_id for turn in doubtful]))
        mine = dict(await cursor.fetchall())
        for turn in doubtful:
            if self._held.get(turn.context_id) is not turn:
                continue
            if mine.get(turn.context_id) == turn.task_id:
                # If the row still names this holder, only its previous session can hold the lock.
                turn.doubt = not locked[turn.key]
            else:
                del self._held[turn.context_id]
                turn.lost()
        # A concurrent task may have reported a lease as lost. Its lock would last as long as the session.
        while free := [turn for turn in doubtful if locked[turn.key] and self._held.get(turn.context_id) is not turn]:
            await connection.execute(_UNLOCK.encode(), (free[0].key,))
            locked[free[0].key] = False
        if any(turn.doubt for turn in doubtful):
            self._nudge.set()

    def _beat(self) -> None:
        if self._beating is None or self._beating.done():
            self._beating = asyncio.get_running_loop().create_task(self._say_alive(), name="rxloop-log-turns")

    async def _say_alive(self) -> None:
        """Send heartbeats, and detect a broken session immediately."""
        loop = asyncio.get_running_loop()
        held_at = loop.time()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lease / 4):
                    await self._nudge.wait()
            self._nudge.clear()
            if self._held:
                held_at = loop.time()
            elif loop.time() > held_at + _IDLE and not self._taking:
                await self.lane.aclose()
                if not self._held and not self._taking:
                    return
            if not self.lane.busy:
                try:
                    async with asyncio.timeout(self._lease / 4):
                        await self.lane.do(self._say, patience=self._lease / 4, answers_in=max(self._lease / 2, 0.5))
                except TimeoutError:
                    log.debug("%s has not answered for %g s", self._address, self.lane.silent)
                except EventLogError as error:
                    # Other holders cannot acquire leases while the server is unavailable.
                    log.warning("the turns of this process cannot be kept: %s", error)
                    await asyncio.sleep(_IN_DOUBT)
                    self._nudge.set()
            await self._lose_what_others_may_have()

    async def _lose_what_others_may_have(self) -> None:
        """Report all leases as lost if the server has not responded for most of the lease duration."""
        if not self._held or self.lane.silent < (silence := self._lease * 3 / 4):
            return
        # After a freeze, an unread response may be available.
        await asyncio.sleep(_IN_DOUBT)
        if self.lane.silent < silence:
            return
        log.warning("%s has not answered for %.1f s: others may have the turns by now", self._address, self.lane.silent)
        for turn in [turn for turn in self._held.values() if not turn.leaving]:
            del self._held[turn.context_id]
            turn.lost()
        # If the server responds again, the session would keep the locks of lost leases.
        self.lane.cut()

    async def _say(self, connection: Connection) -> None:
        if any(turn.doubt for turn in self._held.values()):
            await asyncio.sleep(_IN_DOUBT)
            await self._take_again(connection)
        else:
            await connection.execute(b"SELECT 1")

    async def aclose(self) -> None:
        """Release all leases and close the session."""
        self._closed = True
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
        if under_way := {*self._tasks, *self._later}:
            await asyncio.wait(under_way)
        # Release leases explicitly, so that the next holder finds no trace of them. Stop after the first failure if the
        # server is unavailable.
        with suppress(EventLogError):
            for turn in list(self._held.values()):
                await self.give_back(turn.context_id, turn.task_id)
        self._held.clear()
        await self.lane.aclose()

    def _key(self, context_id: str) -> int:
        text = f"{self._address.schema}\0{context_id}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)


ALIVE = """
SELECT (classid::bigint << 32) | objid::bigint AS key FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
"""Lock keys of live lease holders, across all schemas in the database."""
