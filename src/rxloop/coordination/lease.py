"""Lease of a conversation: the right of one attempt to write the runs of the conversation.

A lease consists of two locks. The lock of the process keeps apart the runs that share a log object; any number of
event loops may share it, each in a thread of its own. The lease of the log keeps processes apart, and it becomes free
when its holder dies, so that another process can continue the run. The delivery gate holds events back while the
lease is in doubt.
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
from rxloop.pipeline.log_retry import ANSWERS_IN, read_log
from rxloop.protocol.events import Event
from rxloop.support.tasks import Clock

log = logging.getLogger("rxloop")

Waiter = asyncio.Future[None]
"""Future of an attempt that waits for the lock of the process."""


class ConversationLocks:
    """Conversations that are locked in this process, and the attempts that wait for them, in order. Thread-safe."""

    def __init__(self) -> None:
        self._waiters: dict[str, deque[Waiter]] = {}
        self._ending: set[str] = set()
        self._lock = threading.Lock()

    def acquire(self, context_id: str) -> bool:
        """Lock a conversation; False if an attempt holds the lock."""
        with self._lock:
            if context_id in self._waiters:
                return False
            self._waiters[context_id] = deque()
            return True

    async def wait(self, context_id: str) -> None:
        """Lock a conversation. Waiting attempts get the lock in order."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        with self._lock:
            if context_id not in self._waiters:
                self._waiters[context_id] = deque()
                return
            self._waiters[context_id].append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            with self._lock:
                acquired = waiter not in self._waiters[context_id]
                if not acquired:
                    self._waiters[context_id].remove(waiter)
            if acquired:
                self.release(context_id)
            raise

    def announce_release(self, context_id: str) -> None:
        """Announce that the holder writes its last event and releases the lock soon."""
        self._ending.add(context_id)

    def is_working(self, context_id: str) -> bool:
        """Return True if an attempt holds the lock and has not announced its release."""
        return context_id in self._waiters and context_id not in self._ending

    def release(self, context_id: str) -> None:
        """Pass the lock to the attempt that has waited longest, if there is one; from any thread."""
        with self._lock:
            waiters = self._waiters[context_id]
            self._ending.discard(context_id)
            while waiters:
                waiter = waiters.popleft()
                # A closed event loop raises RuntimeError; its attempts wait no longer.
                with suppress(RuntimeError):
                    waiter.get_loop().call_soon_threadsafe(_wake, waiter)
                    return
            del self._waiters[context_id]


def _wake(waiter: Waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Lease:
    """Lease of a conversation for one attempt. It can be acquired again after its release."""

    __slots__ = (
        "_checking",
        "_context_id",
        "_is_acquired",
        "_locks",
        "_log",
        "_on_lost",
        "_task_id",
        "is_locked",
        "lost",
    )

    def __init__(self, event_log: EventLog, context_id: str, task_id: str, on_lost: Callable[[Fenced], None]) -> None:
        """Create a lease that is not held.

        Args:
            event_log: The log of the conversation.
            context_id: Id of the conversation.
            task_id: Id of the run.
            on_lost: Called when the log has given the lease to another process. It must end the attempt.
        """
        self._log, self._context_id, self._task_id, self._on_lost = event_log, context_id, task_id, on_lost
        self._locks = event_log.local.get(ConversationLocks)
        self._is_acquired = False
        """True if the log may have granted the lease."""
        self._checking: asyncio.Task[None] | None = None
        self.is_locked = False
        """True if the attempt holds the lock of the process."""
        self.lost: Fenced | None = None
        """Error after which no event of the attempt may be written."""

    async def try_acquire(self) -> bool:
        """Acquire the lease; False if another attempt holds it, here or in another process."""
        if not self.is_locked:
            if not self._locks.acquire(self._context_id):
                return False
            self.is_locked = True
        # If the task is cancelled during the call, the log may have granted the lease.
        self._is_acquired = True
        self._is_acquired = await read_log(self._log.acquire_lease, self._context_id, self._task_id, self._lose)
        return self._is_acquired

    async def wait_for_lock(self) -> None:
        """Wait for the lock of the process. `try_acquire` then only needs the lease of the log."""
        if not self.is_locked:
            await self._locks.wait(self._context_id)
            self.is_locked = True

    @property
    def is_busy_here(self) -> bool:
        """True if another attempt of this process holds the lock and has not announced its release."""
        return not self.is_locked and self._locks.is_working(self._context_id)

    def _lose(self) -> None:
        error = self.lost = Fenced(
            f"this process has lost the turn of the conversation {self._context_id}: others may go on there"
        )
        log.warning("%s: the attempt of the run %s ends here", error, self._task_id)
        self._on_lost(error)

    def check(self, on_confirmed: Callable[[], None], on_error: Callable[[EventLogError], None]) -> None:
        """Ask the log whether this process still holds the lease, in a task.

        Call it after a silence in which the process may have been frozen. If the lease is lost, `on_lost` is called.

        Args:
            on_confirmed: Called if the process holds the lease.
            on_error: Called if the log cannot be read.
        """
        checking = self._check(on_confirmed, on_error)
        self._checking = asyncio.get_running_loop().create_task(checking, name=f"rxloop-lease-{self._task_id}")

    async def _check(self, on_confirmed: Callable[[], None], on_error: Callable[[EventLogError], None]) -> None:
        try:
            is_ours = await read_log(self._log.has_lease, self._context_id, self._task_id)
        except EventLogError as error:
            on_error(error)
            return
        if is_ours:
            on_confirmed()
        else:
            self._lose()

    async def wait_checked(self) -> None:
        """Wait for the result of the last `check`, if there was one."""
        if self._checking is not None:
            await asyncio.wait([self._checking])

    def announce_release(self) -> None:
        """Announce that the attempt writes its last event, and that the next run may wait for the release."""
        if self.is_locked:
            self._locks.announce_release(self._context_id)

    async def release(self) -> None:
        """Release the lease. If the log does not answer, it notices the release by itself.

        A closing event loop can interrupt this call, so it may be called again.
        """
        was_locked, self.is_locked = self.is_locked, False
        try:
            if self._checking is not None:
                self._checking.cancel()
            if self._is_acquired:
                async with asyncio.timeout(ANSWERS_IN):
                    await self._log.release_lease(self._context_id, self._task_id)
            self._is_acquired = False
        except Exception as error:
            self._is_acquired = False
            log.warning("the turn of the conversation %s could not be given back: %s", self._context_id, error)
        finally:
            if was_locked:
                self._locks.release(self._context_id)


class DeliveryGate:
    """Delivers events. It holds them while the lease is in doubt, and drops them once the lease is lost.

    While a process is frozen, another process can take over its run. A long gap between the timestamps of two events
    shows that the process may have been frozen. A slow tool causes the same gap, and its next event is delivered as
    soon as the log confirms the lease.
    """

    __slots__ = ("_clock", "_held", "_last", "_max_silence", "_on_doubt", "_publish", "deliver")

    def __init__(self, publish: Callable[[Event], None], clock: Clock) -> None:
        """Create a gate that delivers every event.

        Args:
            publish: Called with each delivered event.
            clock: Clock of the run.
        """
        self.deliver = publish
        """Deliver, hold or drop an event. An attribute, so that delivery is a single call."""
        self._publish = publish
        self._clock = clock
        self._held: list[Event] | None = None
        """Held events, or None if the lease is not in doubt."""
        self._last = self._max_silence = 0
        self._on_doubt: Callable[[], None] | None = None

    def guard(self, max_silence: int, on_doubt: Callable[[], None]) -> Callable[[], int]:
        """Hold events after a long silence.

        Args:
            max_silence: Longest accepted gap between two events, in milliseconds.
            on_doubt: Called after a longer gap. The callee must call `open` or `drop` later.

        Returns:
            Clock for the timestamps of events, which detects the gaps.
        """
        self._last, self._max_silence, self._on_doubt = self._clock.now(), max_silence, on_doubt
        return self._now

    def stop_guarding(self) -> None:
        """Forget the callback of `guard`, which refers to the gate: no cycle is left to the garbage collector."""
        self._on_doubt = None

    def open(self) -> None:
        """Deliver the held events and all later ones, because the lease is confirmed."""
        while self._held:
            self._publish(self._held.pop(0))
        if self._held is not None:
            self._held = None
            self.deliver = self._publish

    def drop(self) -> None:
        """Drop the held events and all later ones, because this process no longer owns the run or cannot record it."""
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
