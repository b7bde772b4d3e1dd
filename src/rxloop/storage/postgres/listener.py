"""Listener for new events and commands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import psycopg

from rxloop.errors import EventLogError, LogRolledBack
from rxloop.protocol.events import Event
from rxloop.storage.postgres.address import KEEPALIVES, Address, Connection, Row
from rxloop.storage.postgres.rows import numbers
from rxloop.storage.postgres.serial_connection import Lane, release
from rxloop.storage.rules import unknown_run, went_back
from rxloop.storage.tail import Tail, Tails

log = logging.getLogger("rxloop")

POLL_SECONDS = 1.0
"""Polling interval in seconds, as a fallback for lost notifications."""

_AGAIN_SECONDS = (0.05, 2.0)

_LISTENS_IN = 10.0
"""Timeout in seconds for starting to listen."""

_AT_ONCE = 256
"""Maximum number of events per run and query."""

_NEW = f"""
SELECT f.run, e.json FROM unnest(%s::bigint[], %s::int[], %s::int[]) AS f(run, seq, sub) CROSS JOIN LATERAL (
    SELECT json FROM $s.events
    WHERE run = f.run AND (seq, sub) >= (f.seq, 0) AND (sub = 0 OR (seq, sub) > (f.seq, f.sub))
    ORDER BY seq, sub LIMIT {_AT_ONCE}
) AS e
"""

# Compared with the last known durable event, because a run number may belong to another run after a log rollback.
_STANDINGS = "SELECT task_id, number, seq FROM $s.runs WHERE task_id = ANY (%s)"

_MAILED = """
SELECT task_id, (SELECT max(number) FROM $s.mail WHERE run = runs.number) FROM $s.runs WHERE task_id = ANY (%s)
"""


class Hearing:
    """Listener that updates the shared tails of an event loop and notifies command watchers."""

    def __init__(self, address: Address, lane: Lane) -> None:
        """Create a listener without connecting.

        Args:
            address: Database address.
            lane: Serial connection for queries.
        """
        self._address, self._lane = address, lane
        self.tails = Tails(self._begun)
        self._watchers: dict[str, set[Callable[[], None]]] = {}
        self._letters: dict[str, int] = {}
        self._dirty: set[Tail] = set()
        self._new = asyncio.Event()
        self._due = False
        """True if a poll for lost notifications is due."""
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self._connection: Connection | None = None
        self._pieces: dict[int, list[str]] = {}

    def watch(self, task_id: str, arrived: Callable[[], None]) -> Callable[[], None]:
        """Register a callback for new commands of a run, returning a function to remove it."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            # Deferred, so that the callback never runs inside the current call.
            loop.call_soon(arrived)

        self._watchers.setdefault(task_id, set()).add(tell)
        self._listen()

        def leave() -> None:
            watchers = self._watchers.get(task_id, set())
            watchers.discard(tell)
            if not watchers:
                self._watchers.pop(task_id, None)
                self._letters.pop(task_id, None)

        def stop() -> None:
            # A closed event loop has no watchers left.
            with suppress(RuntimeError):
                leave() if _here() is loop else loop.call_soon_threadsafe(leave)

        return stop

    def sent(self, task_id: str) -> None:
        """Notify watchers of a sent command."""
        for tell in tuple(self._watchers.get(task_id, ())):
            tell()

    def _begun(self, tail: Tail) -> None:
        if self._closed:
            self._gone(tail, self._was_closed())
            return
        self._listen()
        # Read events that were stored after the initial page.
        self._look(tail)

    def _look(self, *tails: Tail) -> None:
        self._dirty.update(tails)
        self._new.set()

    def _listen(self) -> None:
        """Start the listener tasks if they are not running."""
        if self._closed:
            return
        if not any(not task.done() for task in self._tasks):
            loop = asyncio.get_running_loop()
            work = (self._hear(), self._fetch(), self._tick())
            self._tasks = [loop.create_task(each, name="rxloop-log-tails") for each in work]

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self._due = True
            self._new.set()

    async def _hear(self) -> None:
        pause, longest = _AGAIN_SECONDS
        while True:
            try:
                async with asyncio.timeout(_LISTENS_IN):
                    self._connection = connection = await self._address.connect(session=True)
                    # The server closes the connection of a frozen process, so that its notification queue does not fill
                    # up.
                    await connection.execute(f"{KEEPALIVES}; SET tcp_user_timeout = 2500".encode())
                    await connection.execute(f'LISTEN "{self._address.channel}"'.encode())
                pause = _AGAIN_SECONDS[0]
                self._missed()
                async for notify in connection.notifies():
                    try:
                        self._told(notify.payload, notify.pid)
                    except Exception as error:
                        # Notifications are not trusted, because any database client can send them.
                        log.debug("%r was told of the event log %s: %s", notify.payload, self._address, error)
            except (psycopg.Error, OSError) as error:
                log.debug("the event log %s cannot be listened to: %s", self._address, error)
            finally:
                if self._connection is not None:
                    await self._connection.close()
                    self._connection = None
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    def _missed(self) -> None:
        """Read everything that may have changed before listening started."""
        self._pieces.clear()
        # A different server may lack events after a failover.
        self._due = True
        self._look(*self.tails.of_number.values())
        for task_id in tuple(self._watchers):
            self.sent(task_id)

    def _told(self, payload: str, pid: int) -> None:
        kind, rest = payload[:1], payload[1:]
        if kind == "m":
            self.sent(rest)
        elif kind == "e":
            following = self.tails.of_number
            if following:
                self._look(*(following[number] for number in map(int, rest.split(",")) if number in following))
        elif kind == "d":
            self._said(rest, pid)

    def _said(self, text: str, pid: int) -> None:
        """Add a fragment of a transient event. Fragments of an event arrive consecutively."""
        number, _, place, count, piece = text.split(":", 4)
        tail = self.tails.of_number.get(int(number))
        if tail is None:
            return
        pieces = self._pieces.setdefault(pid, [])
        if place == "0":
            pieces.clear()
        pieces.append(piece)
        if len(pieces) == int(count):
            del self._pieces[pid]
            tail.told(Event.from_json("".join(pieces)))

    async def _fetch(self) -> None:
        while True:
            await self._new.wait()
            self._new.clear()
            due, self._due = self._due, False
            dirty, self._dirty = self._dirty, set()
            try:
                if due and (self.tails.of_number or self._watchers):
                    dirty |= await self._look_at_all()
                tails = [tail for tail in dirty if tail.readers]
                if tails:
                    await self._lane.do(partial(self._feed, tails), patience=POLL_SECONDS)
            except EventLogError as error:
                # The next poll tries again for all runs.
                if not error.retryable:
                    self.tails.fail(error)
            except Exception as error:
                log.warning("the event log %s cannot be followed", self._address, exc_info=True)
                self.tails.fail(EventLogError(f"the event log {self._address} cannot be followed: {error}"))

    async def _feed(self, tails: Sequence[Tail], connection: Connection) -> None:
        """Read new events for several runs in one query."""
        places = [tail.place for tail in tails]
        values = [numbers(each) for each in ((tail.number for tail in tails), *zip(*places, strict=True))]
        cursor = await connection.execute(self._address.sql(_NEW), values, binary=True)
        found: dict[int, list[bytes]] = {}
        for number, json in await cursor.fetchall():
            found.setdefault(number, []).append(json)
        for tail, place in zip(tails, places, strict=True):
            rows = found.get(tail.number, ())
            try:
                tail.grow([*map(Event.from_json, rows)], place)
            except LogRolledBack as error:
                self._gone(tail, error)
            except Exception as error:
                said = f"an event of the run {tail.task_id} cannot be read: {error}"
                self._gone(tail, EventLogError(said, retryable=False))
            if len(rows) == _AT_ONCE:
                self._look(tail)

    async def _look_at_all(self) -> set[Tail]:
        """Return the runs with new or missing events, and notify command watchers."""
        grown = set[Tail]()
        before = {tail: tail.place[0] for tail in self.tails.of_number.values()}
        following, watched = [tail.task_id for tail in before], [*self._watchers]

        async def work(connection: Connection) -> tuple[list[Row], list[Row]]:
            runs = await connection.execute(self._address.sql(_STANDINGS), (following,))
            mail = await connection.execute(self._address.sql(_MAILED), (watched,)) if watched else None
            return await runs.fetchall(), await mail.fetchall() if mail else []

        standings, letters = await self._lane.do(work, patience=POLL_SECONDS)
        standing = {task_id: (number, seq) for task_id, number, seq in standings}
        for tail, seq in before.items():
            number, found = standing.get(tail.task_id, (None, 0))
            if number is None:
                self._gone(tail, unknown_run(tail.task_id))
            elif number != tail.number or found < seq:
                self._gone(tail, went_back(tail.task_id, seq))
            elif found > tail.place[0]:
                grown.add(tail)
        for task_id, letter in letters:
            known = self._letters.get(task_id)
            if letter is not None and letter != known:
                self._letters[task_id] = letter
                self.sent(task_id)
        return grown

    def _gone(self, tail: Tail, error: EventLogError) -> None:
        self.tails.forget(tail)
        tail.fail(error)

    async def aclose(self) -> None:
        """Stop listening. Followers receive an error."""
        self._closed = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self.tails.fail(self._was_closed())

    def _was_closed(self) -> EventLogError:
        return EventLogError(f"the event log {self._address} was closed while the run was followed")

    def drop(self, *, forked: bool = False) -> None:
        """Release the connection of a stopped event loop, as in `Lane.drop`."""
        release(self._connection, forked=forked)
        self._connection = None


def _here() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
