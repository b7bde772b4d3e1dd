"""One run at a time in each conversation of a log object, in this process.

Any number of event loops may share a log, each in a thread of its own. Other processes, and other log objects on the
same store, are excluded by the lease of the log.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress

from rxloop.pipeline.event_log import EventLog

Place = asyncio.Future[None]
"""The future of a run that waits."""


class ConversationLocks:
    """Conversations in which a run is executed, and the runs that wait there, in order. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Place]] = {}
        self._ending: set[str] = set()
        self._lock = threading.Lock()

    def acquire(self, context_id: str) -> bool:
        """Acquire the lock of a conversation; False if a run holds it."""
        with self._lock:
            if context_id in self._waiting:
                return False
            self._waiting[context_id] = deque()
            return True

    async def wait(self, context_id: str) -> None:
        """Acquire the lock of a conversation; the runs that wait get it in order."""
        place: Place = asyncio.get_running_loop().create_future()
        with self._lock:
            if context_id not in self._waiting:
                # The run that held it has ended meanwhile.
                self._waiting[context_id] = deque()
                return
            self._waiting[context_id].append(place)
        try:
            await place
        except asyncio.CancelledError:
            with self._lock:
                acquired = place not in self._waiting[context_id]
                if not acquired:
                    self._waiting[context_id].remove(place)
            if acquired:
                self.release(context_id)
            raise

    def end(self, context_id: str) -> None:
        """Tell that the run which holds the lock writes its last event, and releases the lock soon."""
        self._ending.add(context_id)

    def is_working(self, context_id: str) -> bool:
        """Whether a run holds the lock that has not come to its last event."""
        return context_id in self._waiting and context_id not in self._ending

    def release(self, context_id: str) -> None:
        """Pass the lock to the run that has waited longest, if there is one; from any thread."""
        with self._lock:
            waiting = self._waiting[context_id]
            self._ending.discard(context_id)
            while waiting:
                place = waiting.popleft()
                # The runs of an event loop that is closed wait no more.
                with suppress(RuntimeError):
                    place.get_loop().call_soon_threadsafe(_wake, place)
                    return
            del self._waiting[context_id]


class ConversationLock:
    """The lock of a conversation that a run holds, from `acquire` or `wait` to `release`."""

    def __init__(self, locks: ConversationLocks, context_id: str) -> None:
        self._locks, self._context_id = locks, context_id

    def end(self) -> None:
        """Tell that the run writes its last event; after it only `release` follows."""
        self._locks.end(self._context_id)

    def release(self) -> None:
        """Release the lock; from any thread."""
        self._locks.release(self._context_id)


def acquire(log: EventLog, context_id: str) -> ConversationLock | None:
    """Acquire the lock of a conversation, unless a run holds it."""
    locks = log.local.get(ConversationLocks)
    return ConversationLock(locks, context_id) if locks.acquire(context_id) else None


async def wait(log: EventLog, context_id: str) -> ConversationLock:
    """Wait for the lock of a conversation; the runs that wait get it in order."""
    locks = log.local.get(ConversationLocks)
    await locks.wait(context_id)
    return ConversationLock(locks, context_id)


def is_working(log: EventLog, context_id: str) -> bool:
    """Whether a run of this process holds the lock of a conversation and has not come to its last event."""
    return log.local.get(ConversationLocks).is_working(context_id)


def _wake(place: Place) -> None:
    if not place.done():
        place.set_result(None)
