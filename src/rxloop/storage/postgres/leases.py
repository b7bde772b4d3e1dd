"""Leases: advisory locks of a session."""

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
"""Seconds between two tries to take turns again whose lock is not free yet."""

_ANSWERS_IN = 5.0
"""Seconds in which the session is there, or does what takes more than one answer, however short the lease."""

_IDLE = 60.0
"""Seconds without a turn after which the session is closed."""

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
"""Ends a session, and waits for one of its locks: who only tries while it ends may see others come first."""


@dataclass(slots=True, eq=False)
class Turn:
    """The turn of a run in its conversation."""

    context_id: str
    task_id: str
    lost: Callable[[], None]
    key: int
    doubt: bool = False
    """The session was made anew, and its lock is not taken again yet."""
    leaving: bool = False
    """It is being given back."""


class Turns:
    """The turns of one log object in one event loop, which is one holder.

    A lock says that the holder lives, and a row says who it is: what a holder appends that has lost its turn is refused
    by that, though it does not know of it yet.
    """

    def __init__(
        self,
        address: Address,
        lease: float,
        patience: float,
        check: Callable[[], Awaitable[None]],
        anew: Callable[[], None],
    ) -> None:
        """Hold nothing.

        Args:
            address: The database.
            lease: Seconds after which the server ends a session that is silent.
            patience: Seconds for which a server is asked again that does not answer.
            check: Sees that the tables are there.
            anew: Called when there is a session in the place of one that broke.
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
        """Whether this holder thinks that it has a turn."""
        turn = self._held.get(context_id)
        return turn is not None and turn.task_id == task_id

    async def take(self, context_id: str, task_id: str, lost: Callable[[], None]) -> bool:
        """Take a turn, unless somebody alive has it."""
        if not can_keep(context_id, task_id):
            said = f"run {task_id!r} in the conversation {context_id!r}: Postgres keeps no such ids"
            raise EventLogError(f"{said}, which have a NUL character or half of a surrogate pair", retryable=False)
        if context_id in self._held or context_id in self._taking:
            # The session would get its own lock a second time.
            return False
        turn = Turn(context_id, task_id, lost, self._key(context_id))
        self._taking.add(context_id)
        try:
            return await to_its_end(self._take(turn), self._tasks)
        except asyncio.CancelledError:
            # It may be taken all the same.
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
                    # After the lock, so that it sees what the last holder has left.
                    await connection.execute(self._address.sql(_TAKE), values)
                except Exception:
                    # The session counts how often it has a lock, and goes on.
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
            # Nobody would say any more that it is alive.
            await self.give_back(turn.context_id, turn.task_id)
            return False
        if taken:
            self._beat()
        return taken

    async def _give_back_later(self, turn: Turn) -> None:
        """Give a turn back for which nobody has waited, once it is known whether it was taken."""
        while turn.context_id in self._taking:
            await asyncio.wait(set(self._tasks))
        if self._held.get(turn.context_id) is turn:
            with suppress(EventLogError):
                await self.give_back(turn.context_id, turn.task_id)

    async def ask(self, context_id: str, task_id: str) -> bool:
        """Ask the server whether a turn is still here."""
        turn = self._held.get(context_id)
        if turn is None or turn.task_id != task_id:
            return False

        async def work(connection: Connection) -> bool:
            cursor = await connection.execute(self._address.sql(_MINE), (self.me, [context_id]))
            return (context_id, task_id) in await cursor.fetchall()

        # Should the session be over, this makes another one, and takes the turns again.
        mine = await self.lane.do(work, patience=self._patience)
        return mine and self._held.get(context_id) is turn

    async def give_back(self, context_id: str, task_id: str) -> None:
        """Give a turn back; one that is lost already is passed over."""
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
            # Free when the session ends, at the latest.
            if self._held.get(context_id) is turn:
                del self._held[context_id]

    # -- the session

    async def _connect(self) -> Connection:
        await self._check()
        connection = await self._address.connect(session=True)
        try:
            # Each statement is a way there and back, while the lease runs out; and to prepare one is another.
            connection.prepare_threshold = None
            cursor = await connection.execute(_SESSION.encode())
            [session] = await cursor.fetchall()
            if session[0] != connection.info.backend_pid:
                await self._see_that_it_is_not_shared(connection)
            milliseconds = max(round(self._lease * 1000), 1)
            await connection.execute(f"SET idle_session_timeout = {milliseconds}; SET tcp_user_timeout = 5000".encode())
            if self._session is not None:
                key = next((turn.key for turn in self._held.values()), self._key(""))
                # The server may not know yet that it is over, and keep its locks for it.
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
        """See that a pooler gives the session to one client at a time: else others would be given the turns we have.

        Raises:
            EventLogError: It is shared.
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
        """Take the turns in a new session, as far as they are free; those that somebody else has had are lost."""
        doubtful = [turn for turn in self._held.values() if turn.doubt and not turn.leaving]
        if not doubtful:
            return
        cursor = await connection.execute(_LOCK_AGAIN.encode(), (numbers(turn.key for turn in doubtful),))
        locked = dict(await cursor.fetchall())
        # After the locks: nobody can take one of them by now.
        cursor = await connection.execute(self._address.sql(_MINE), (self.me, [turn.context_id for turn in doubtful]))
        mine = dict(await cursor.fetchall())
        for turn in doubtful:
            if self._held.get(turn.context_id) is not turn:
                continue
            if mine.get(turn.context_id) == turn.task_id:
                # While the row is ours, only our own session can have the lock, which the server still takes for alive.
                turn.doubt = not locked[turn.key]
            else:
                del self._held[turn.context_id]
                turn.lost()
        # One may be counted as lost at any moment: its lock would be ours as long as the session.
        while free := [turn for turn in doubtful if locked[turn.key] and self._held.get(turn.context_id) is not turn]:
            await connection.execute(_UNLOCK.encode(), (free[0].key,))
            locked[free[0].key] = False
        if any(turn.doubt for turn in doubtful):
            self._nudge.set()

    def _beat(self) -> None:
        if self._beating is None or self._beating.done():
            self._beating = asyncio.get_running_loop().create_task(self._say_alive(), name="rxloop-log-turns")

    async def _say_alive(self) -> None:
        """Say that the session is alive, and find out at once when it is not."""
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
                    # Nobody can take a turn of a server that is not there.
                    log.warning("the turns of this process cannot be kept: %s", error)
                    await asyncio.sleep(_IN_DOUBT)
                    self._nudge.set()
            await self._lose_what_others_may_have()

    async def _lose_what_others_may_have(self) -> None:
        """Count the turns as lost once the server has heard nothing for the lease, as far as can be known here."""
        if not self._held or self.lane.silent < (silence := self._lease * 3 / 4):
            return
        # After a freeze there may be an answer that nobody has read yet.
        await asyncio.sleep(_IN_DOUBT)
        if self.lane.silent < silence:
            return
        log.warning("%s has not answered for %.1f s: others may have the turns by now", self._address, self.lane.silent)
        for turn in [turn for turn in self._held.values() if not turn.leaving]:
            del self._held[turn.context_id]
            turn.lost()
        # Should the server answer again after all, the session would have their locks for good.
        self.lane.cut()

    async def _say(self, connection: Connection) -> None:
        if any(turn.doubt for turn in self._held.values()):
            await asyncio.sleep(_IN_DOUBT)
            await self._take_again(connection)
        else:
            await connection.execute(b"SELECT 1")

    async def aclose(self) -> None:
        """End the session, and so give all turns back."""
        self._closed = True
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
        if under_way := {*self._tasks, *self._later}:
            await asyncio.wait(under_way)
        # Said, and not left to the end of the session, so that the next one finds no trace of it; but once is enough to
        # hear that the server is away.
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
"""The turns that somebody alive has, of any database object: their keys."""
