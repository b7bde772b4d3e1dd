"""Listener for new events and commands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from rxloop.errors import EventLogError, LogRolledBack
from rxloop.protocol.events import Event
from rxloop.storage.postgres import psycopg
from rxloop.storage.postgres.address import KEEPALIVES, Address, Connection, Row
from rxloop.storage.postgres.rows import to_array
from rxloop.storage.postgres.serial_connection import SerialConnection, release
from rxloop.storage.rules import make_rollback_error, make_unknown_run_error
from rxloop.storage.tail import PAGE_BYTES, Tail, Tails

log = logging.getLogger("rxloop")

POLL_SECONDS = 1.0
"""Polling interval in seconds, as a fallback for lost notifications."""

_RETRY_PAUSES = (0.05, 2.0)

_LISTEN_TIMEOUT = 10.0
"""Timeout in seconds for starting to listen."""

_MAX_EVENTS = 256
"""Maximum number of events per run and query."""

_LISTEN = "DO $$ BEGIN EXECUTE format('LISTEN %I', (SELECT channel FROM $s.version)); END $$"
"""Listen without revealing the secret name of the channel to roles that can see statements."""

_NEW_EVENTS = f"""
SELECT f.run, e.json FROM unnest(%s::bigint[], %s::int[], %s::int[]) AS f(run, seq, sub) CROSS JOIN LATERAL (
    SELECT json FROM (
        SELECT seq, sub, json, sum(octet_length(json)) FILTER (WHERE (seq, sub) > (f.seq, f.sub))
            OVER (ORDER BY seq, sub ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS size_before
        FROM (
            SELECT seq, sub, json FROM $s.events
            WHERE run = f.run AND (seq, sub) >= (f.seq, 0) AND (sub = 0 OR (seq, sub) > (f.seq, f.sub))
            ORDER BY seq, sub LIMIT {_MAX_EVENTS}
        ) AS events
    ) AS sized WHERE size_before IS NULL OR size_before < {PAGE_BYTES} ORDER BY seq, sub
) AS e
"""

# Compared with the last known durable event, because a run number may belong to another run after a log rollback.
_POSITIONS = "SELECT task_id, number, seq FROM $s.runs WHERE task_id = ANY (%s)"

_LAST_COMMANDS = """
SELECT task_id, (SELECT max(number) FROM $s.commands WHERE run = runs.number) FROM $s.runs WHERE task_id = ANY (%s)
"""


class Listener:
    """Listener that feeds new events to the followers in an event loop and notifies command watchers."""

    def __init__(self, address: Address, query_connection: SerialConnection) -> None:
        """Create a listener without connecting.

        Args:
            address: Database address.
            query_connection: Serial connection for queries.
        """
        self._address, self._query_connection = address, query_connection
        self.tails = Tails(self._start_tail)
        self._watchers: dict[str, set[Callable[[], None]]] = {}
        self._last_commands: dict[str, int] = {}
        self._dirty: set[Tail] = set()
        self._changed = asyncio.Event()
        self._poll_due = False
        """True if a poll for lost notifications is due."""
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self._connection: Connection | None = None
        self._fragments: dict[int, list[str]] = {}

    def watch(self, task_id: str, on_command: Callable[[], None]) -> Callable[[], None]:
        """Register a callback for new commands of a run, returning a function to remove it."""
        loop = asyncio.get_running_loop()

        def notify() -> None:
            # Deferred, so that the callback never runs inside the current call.
            loop.call_soon(on_command)

        self._watchers.setdefault(task_id, set()).add(notify)
        self._listen()

        def remove() -> None:
            watchers = self._watchers.get(task_id, set())
            watchers.discard(notify)
            if not watchers:
                self._watchers.pop(task_id, None)
                self._last_commands.pop(task_id, None)

        def stop() -> None:
            # A closed event loop has no watchers left.
            with suppress(RuntimeError):
                remove() if _get_running_loop() is loop else loop.call_soon_threadsafe(remove)

        return stop

    def notify_watchers(self, task_id: str) -> None:
        """Notify watchers of a sent command."""
        for notify in tuple(self._watchers.get(task_id, ())):
            notify()

    def _start_tail(self, tail: Tail) -> None:
        if self._closed:
            self._fail_tail(tail, self._make_closed_error())
            return
        self._listen()
        # Read events that were stored after the initial page.
        self._mark_dirty(tail)

    def _mark_dirty(self, *tails: Tail) -> None:
        self._dirty.update(tails)
        self._changed.set()

    def _listen(self) -> None:
        """Start the listener tasks if they are not running."""
        if self._closed:
            return
        if not any(not task.done() for task in self._tasks):
            loop = asyncio.get_running_loop()
            work = (self._receive_notifications(), self._read_dirty_tails(), self._schedule_polls())
            self._tasks = [loop.create_task(each, name="rxloop-log-tails") for each in work]

    async def _schedule_polls(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self._poll_due = True
            self._changed.set()

    async def _receive_notifications(self) -> None:
        pause, max_pause = _RETRY_PAUSES
        while True:
            try:
                async with asyncio.timeout(_LISTEN_TIMEOUT):
                    self._connection = connection = await self._address.connect(session=True)
                    # The server closes the connection of a frozen process, so that its notification queue does not fill
                    # up.
                    await connection.execute(f"{KEEPALIVES}; SET tcp_user_timeout = 2500".encode())
                    await connection.execute(self._address.sql(_LISTEN))
                pause = _RETRY_PAUSES[0]
                self._refresh_all()
                async for notify in connection.notifies():
                    try:
                        self._handle_notification(notify.payload, notify.pid)
                    except Exception as error:
                        # Notifications are not trusted, because any database client can send them.
                        log.debug("Ignoring notification %r of %s: %s", notify.payload, self._address, error)
            except (psycopg.Error, OSError) as error:
                log.debug("Cannot listen to the event log %s: %s", self._address, error)
            finally:
                if self._connection is not None:
                    await self._connection.close()
                    self._connection = None
            await asyncio.sleep(pause)
            pause = min(2 * pause, max_pause)

    def _refresh_all(self) -> None:
        """Read everything that may have changed before listening started."""
        self._fragments.clear()
        # A different server may lack events after a failover.
        self._poll_due = True
        self._mark_dirty(*self.tails.by_number.values())
        for task_id in tuple(self._watchers):
            self.notify_watchers(task_id)

    def _handle_notification(self, payload: str, pid: int) -> None:
        kind, rest = payload[:1], payload[1:]
        if kind == "c":
            self.notify_watchers(rest)
        elif kind == "e":
            followed = self.tails.by_number
            if followed:
                self._mark_dirty(*(followed[number] for number in map(int, rest.split(",")) if number in followed))
        elif kind == "d":
            self._add_fragment(rest, pid)

    def _add_fragment(self, text: str, pid: int) -> None:
        """Add a fragment of a transient event. Fragments of an event arrive consecutively."""
        number, _, position, count, fragment = text.split(":", 4)
        tail = self.tails.by_number.get(int(number))
        if tail is None:
            return
        fragments = self._fragments.setdefault(pid, [])
        if position == "0":
            fragments.clear()
        fragments.append(fragment)
        if len(fragments) == int(count):
            del self._fragments[pid]
            event = Event.from_json("".join(fragments))
            # Durable events are only read from the tables.
            if not event.durable:
                tail.add_transient(event)

    async def _read_dirty_tails(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            poll_due, self._poll_due = self._poll_due, False
            dirty, self._dirty = self._dirty, set()
            try:
                if poll_due and (self.tails.by_number or self._watchers):
                    dirty |= await self._poll()
                tails = [tail for tail in dirty if tail.readers]
                if tails:
                    await self._query_connection.do(partial(self._feed, tails), retry_seconds=POLL_SECONDS)
            except EventLogError as error:
                # The next poll tries again for all runs.
                if not error.retryable:
                    self.tails.fail(error)
            except Exception as error:
                log.warning("Cannot follow the event log %s", self._address, exc_info=True)
                self.tails.fail(EventLogError(f"Cannot follow the event log {self._address}: {error}"))

    async def _feed(self, tails: Sequence[Tail], connection: Connection) -> None:
        """Read new events for several runs in one query."""
        positions = [tail.position for tail in tails]
        values = [to_array(each) for each in ((tail.number for tail in tails), *zip(*positions, strict=True))]
        cursor = await connection.execute(self._address.sql(_NEW_EVENTS), values, binary=True)
        data: dict[int, list[bytes]] = {}
        for number, json in await cursor.fetchall():
            data.setdefault(number, []).append(json)
        for tail, position in zip(tails, positions, strict=True):
            rows = data.get(tail.number, ())
            try:
                tail.add_page([*map(Event.from_json, rows)], position)
            except LogRolledBack as error:
                self._fail_tail(tail, error)
            except Exception as error:
                message = f"Cannot read an event of the run {tail.task_id}: {error}"
                self._fail_tail(tail, EventLogError(message, retryable=False))
            # The first row is the known event at the position.
            if len(rows) == _MAX_EVENTS or sum(map(len, rows[1:])) >= PAGE_BYTES:
                self._mark_dirty(tail)

    async def _poll(self) -> set[Tail]:
        """Return the runs with new or missing events, and notify command watchers."""
        changed = set[Tail]()
        before = {tail: tail.position[0] for tail in self.tails.by_number.values()}
        followed, watched = [tail.task_id for tail in before], [*self._watchers]

        async def work(connection: Connection) -> tuple[list[Row], list[Row]]:
            runs = await connection.execute(self._address.sql(_POSITIONS), (followed,))
            commands = await connection.execute(self._address.sql(_LAST_COMMANDS), (watched,)) if watched else None
            return await runs.fetchall(), await commands.fetchall() if commands else []

        run_rows, command_rows = await self._query_connection.do(work, retry_seconds=POLL_SECONDS)
        positions = {task_id: (number, seq) for task_id, number, seq in run_rows}
        for tail, seq in before.items():
            number, last_seq = positions.get(tail.task_id, (None, 0))
            if number is None:
                self._fail_tail(tail, make_unknown_run_error(tail.task_id))
            elif number != tail.number or last_seq < seq:
                self._fail_tail(tail, make_rollback_error(tail.task_id, seq))
            elif last_seq > tail.position[0]:
                changed.add(tail)
        for task_id, last_command in command_rows:
            if last_command is not None and last_command != self._last_commands.get(task_id):
                self._last_commands[task_id] = last_command
                self.notify_watchers(task_id)
        return changed

    def _fail_tail(self, tail: Tail, error: EventLogError) -> None:
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
        self.tails.fail(self._make_closed_error())

    def _make_closed_error(self) -> EventLogError:
        return EventLogError(f"The event log {self._address} was closed while the run was being followed.")

    def drop(self, *, forked: bool = False) -> None:
        """Release the connection of a stopped event loop, as in `SerialConnection.drop`."""
        release(self._connection, forked=forked)
        self._connection = None


def _get_running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
