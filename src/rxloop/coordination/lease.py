"""Conversation leases, which let only one attempt write to a conversation at a time.

A lease consists of two locks. The process lock separates runs sharing a log object, even across event loops in
different threads. The log lease separates processes. It expires when its holder dies, so that another process can
resume the run. While the lease is in doubt, the delivery gate holds events back.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from rxloop.errors import EventLogError, Fenced
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import APPEND_TIMEOUT, read_log
from rxloop.protocol.events import Event
from rxloop.protocol.ids import split_conversation_key
from rxloop.support.tasks import Clock

log = logging.getLogger("rxloop")

Waiter = asyncio.Future[None]
"""Future for an attempt waiting on the process lock."""


class ConversationLocks:
    """Process-wide locks, one per conversation and run, with their queues of waiting attempts. Thread-safe."""

    def __init__(self) -> None:
        self._waiters: dict[str, deque[Waiter]] = {}
        self._ending: set[str] = set()
        self._lock = threading.Lock()

    def acquire(self, conversation: str) -> bool:
        """Try to lock a conversation. Return False if it is already locked."""
        with self._lock:
            if conversation in self._waiters:
                return False
            self._waiters[conversation] = deque()
            return True

    async def wait(self, conversation: str) -> None:
        """Lock a conversation, waiting in first-in first-out order."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        with self._lock:
            if conversation not in self._waiters:
                self._waiters[conversation] = deque()
                return
            self._waiters[conversation].append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            with self._lock:
                acquired = waiter not in self._waiters[conversation]
                if not acquired:
                    self._waiters[conversation].remove(waiter)
            if acquired:
                self.release(conversation)
            raise

    def announce_release(self, conversation: str) -> None:
        """Announce that the holder is writing its last event and will release the lock soon."""
        self._ending.add(conversation)

    def is_working(self, conversation: str) -> bool:
        """Return True if the lock is held and its release hasn't been announced."""
        return conversation in self._waiters and conversation not in self._ending

    def release(self, conversation: str) -> None:
        """Release the lock, handing it to the next waiting attempt if any. Can be called from any thread."""
        with self._lock:
            waiters = self._waiters[conversation]
            self._ending.discard(conversation)
            while waiters:
                waiter = waiters.popleft()
                # Attempts in a closed event loop are no longer waiting.
                with suppress(RuntimeError):
                    waiter.get_loop().call_soon_threadsafe(_wake, waiter)
                    return
            del self._waiters[conversation]


def _wake(waiter: Waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Lease:
    """Conversation lease for one attempt. It can be reacquired after being released."""

    __slots__ = (
        "_checking",
        "_conversation",
        "_has_run",
        "_is_acquired",
        "_locks",
        "_log",
        "_on_lost",
        "_run_key",
        "_task_id",
        "is_locked",
        "lost",
    )

    def __init__(self, event_log: EventLog, conversation: str, task_id: str, on_lost: Callable[[Fenced], None]) -> None:
        """Create a lease without acquiring it.

        Args:
            event_log: Event log for the conversation.
            conversation: Key of the conversation.
            task_id: Id of the run.
            on_lost: Called after losing the lease to another process. Must end the attempt.
        """
        self._log, self._conversation, self._task_id, self._on_lost = event_log, conversation, task_id, on_lost
        self._locks = event_log.local.get(ConversationLocks)
        # Ids of conversations cannot contain control characters.
        self._run_key = f"\0{task_id}"
        self._is_acquired = self._has_run = False
        """True if the log may have granted the lease, and if this attempt holds the lock of its run."""
        self._checking: asyncio.Task[None] | None = None
        self.is_locked = False
        """True while holding the process lock."""
        self.lost: Fenced | None = None
        """Error set when the lease is lost. No more events may be written then."""

    @property
    def _context_id(self) -> str:
        return split_conversation_key(self._conversation)[0]

    async def try_acquire(self) -> bool:
        """Try to acquire the lease. Return False if it is held by another attempt in any process."""
        if not self.is_locked:
            if not self._locks.acquire(self._conversation):
                return False
            self.is_locked = True
        # If cancelled while waiting for the log, the lease may still have been granted.
        self._is_acquired = True
        self._is_acquired = await read_log(self._log.acquire_lease, self._conversation, self._task_id, self._lose)
        if self._is_acquired and not self._has_run:
            await self._locks.wait(self._run_key)
            self._has_run = True
        return self._is_acquired

    async def wait_for_lock(self) -> None:
        """Wait for the process lock, after which `try_acquire` only needs the log lease."""
        if not self.is_locked:
            await self._locks.wait(self._conversation)
            self.is_locked = True

    def try_lock_run(self) -> bool:
        """Lock the run without its conversation, for an attempt that only ends the run.

        An attempt that has acquired the lease holds this lock too, so that only one of them reads and ends the run.

        Returns:
            False if another attempt of the run in this process holds the lock.
        """
        self._has_run = self._has_run or self._locks.acquire(self._run_key)
        return self._has_run

    @property
    def is_busy_here(self) -> bool:
        """True if another attempt in this process is holding the lock and hasn't announced its release."""
        return not self.is_locked and self._locks.is_working(self._conversation)

    def _lose(self) -> None:
        error = self.lost = Fenced(
            f"this process has lost its lease for conversation {self._context_id} to another process"
        )
        log.warning("Ending the attempt of run %s: %s", self._task_id, error)
        self._on_lost(error)

    def check(self, on_confirmed: Callable[[], None], on_error: Callable[[EventLogError], None]) -> None:
        """Start a task checking that this process still holds the lease.

        Call this after a silence during which the process may have been frozen. If the lease was lost, `on_lost` is
        called instead.

        Args:
            on_confirmed: Called if the lease is still held.
            on_error: Called if reading the log fails.
        """
        checking = self._check(on_confirmed, on_error)
        self._checking = asyncio.get_running_loop().create_task(checking, name=f"rxloop-lease-{self._task_id}")

    async def _check(self, on_confirmed: Callable[[], None], on_error: Callable[[EventLogError], None]) -> None:
        try:
            is_ours = await read_log(self._log.has_lease, self._conversation, self._task_id)
        except EventLogError as error:
            on_error(error)
            return
        if is_ours:
            on_confirmed()
        else:
            self._lose()

    async def wait_checked(self) -> None:
        """Wait for any running `check` to finish."""
        if self._checking is not None:
            await asyncio.wait([self._checking])

    def announce_release(self) -> None:
        """Announce that the attempt is writing its last event, so that other runs may wait for the release."""
        if self.is_locked:
            self._locks.announce_release(self._conversation)

    async def release(self) -> None:
        """Release the lease. If the log doesn't respond, the lease expires on its own.

        Can be called again, because a closing event loop may interrupt it.
        """
        was_locked, self.is_locked = self.is_locked, False
        had_run, self._has_run = self._has_run, False
        try:
            if self._checking is not None:
                self._checking.cancel()
            if self._is_acquired:
                async with asyncio.timeout(APPEND_TIMEOUT):
                    await self._log.release_lease(self._conversation, self._task_id)
            self._is_acquired = False
        except Exception as error:
            self._is_acquired = False
            log.warning("Failed to release the lease for conversation %s: %s", self._context_id, error)
        finally:
            if had_run:
                self._locks.release(self._run_key)
            if was_locked:
                self._locks.release(self._conversation)


class DeliveryGate:
    """Gate holding events back while the lease is in doubt, and dropping them once it is lost.

    While frozen, a process may lose its runs to another process. A long gap between event timestamps means it may have
    been frozen. Slow tools cause the same gap, so events are delivered as soon as the log confirms the lease.
    """

    __slots__ = ("_clock", "_held", "_last", "_max_silence", "_on_doubt", "_publish", "deliver")

    def __init__(self, publish: Callable[[Event], None], clock: Clock) -> None:
        """Create an open gate.

        Args:
            publish: Called with each delivered event.
            clock: Clock used for the run.
        """
        self.deliver = publish
        """Deliver, hold or drop an event. Stored as an attribute to save a function call per event."""
        self._publish = publish
        self._clock = clock
        self._held: list[Event] | None = None
        """Events being held, or None if the lease isn't in doubt."""
        self._last = self._max_silence = 0
        self._on_doubt: Callable[[], None] | None = None

    def guard(self, max_silence: int, on_doubt: Callable[[], None]) -> Callable[[], int]:
        """Start holding events after a long silence.

        Args:
            max_silence: Maximum gap between events in milliseconds.
            on_doubt: Called when exceeding the gap. It must arrange for `open` or `drop` to be called.

        Returns:
            Clock for event timestamps that detects such gaps.
        """
        self._last, self._max_silence, self._on_doubt = self._clock.now(), max_silence, on_doubt
        return self._now

    def stop_guarding(self) -> None:
        """Clear the `guard` callback to avoid a reference cycle."""
        self._on_doubt = None

    def open(self) -> None:
        """Deliver all held events and return to normal delivery, after confirming the lease."""
        while self._held:
            self._publish(self._held.pop(0))
        if self._held is not None:
            self._held = None
            self.deliver = self._publish

    def drop(self) -> None:
        """Drop held and future events, because the run was lost or recording it has failed."""
        self._held = None
        self.deliver = _drop

    def _now(self) -> int:
        now = self._clock.now()
        if now - self._last > self._max_silence and self.deliver == self._publish and self._on_doubt is not None:
            self._held = []
            self.deliver = self._held.append
            self._on_doubt()
        self._last = now
        return now


def _drop(event: Event) -> None:
    log.debug("Dropping %r, because this process no longer owns the run", event)
