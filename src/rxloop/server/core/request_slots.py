"""Fair scheduling of requests, and the end of requests whose clients have disconnected."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from starlette.requests import Request

from rxloop.server.core.errors import Refused

SHARE = 2
"""Maximum number of concurrently processed requests per principal if other principals are active."""
ACTIVE_SECONDS = 1.0
"""Time in seconds after the last request during which a principal is considered active."""
LARGE_BODY = 2**14
"""Size in bytes from which a body requires all slots of its principal, because processing it takes longer."""
MAX_PAUSES = 4
"""Maximum duration of the pause after a request with queued successors, as a multiple of the request's duration."""
MAX_PAUSE = 0.25
"""Maximum duration of this pause in seconds, because a request may also have waited for the event log."""
ABANDONED_PAUSE = 0.025
"""Minimum duration of this pause in seconds after an abandoned request, whose own duration is close to zero."""
BODY_RATE = 4 * 2**20
"""Number of body bytes per second that are read for a principal if other principals are active."""
BODY_BURST = 2**20
"""Number of body bytes that are read without a pause. A single body is usually smaller."""


class RequestSlots:
    """Scheduler for the requests of all principals.

    Requests share one event loop, so 60 concurrent requests of one principal would slow down all other principals. If
    several principals are active, the scheduler processes at most `SHARE` requests per principal concurrently. Further
    requests are queued. A single active principal is not limited.

    Requests with a large body require all slots of their principal. So do all requests in the second after a client has
    abandoned a request, because the run that the request started may still be executed.

    If a principal has queued requests, its slots pause after each request. The pause is the duration of the request
    times the number of other active principals, up to `MAX_PAUSES`, so that a principal that always has queued requests
    does not occupy the event loop. In the second after an abandoned request, the pause is at least `ABANDONED_PAUSE`,
    because a client could abandon requests much faster than others can finish them. Principals with at most `SHARE`
    concurrent requests never wait.
    """

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()
        self._released: dict[str, float] = {}
        """Time of the last released slot per principal, oldest first."""
        self._abandoned: dict[str, float] = {}
        """Time of the last abandoned request per principal, oldest first."""
        self._waiting: dict[str, deque[_Waiting]] = {}
        self._read_until: dict[str, float] = {}
        """Time at which the bytes read so far conform to `BODY_RATE`, per principal, oldest first."""

    @asynccontextmanager
    async def acquire(self, principal_id: str, body_size: int = 0) -> AsyncGenerator[bool]:
        """Acquire slots for the duration of the block, or until `release_slot` is called.

        Args:
            principal_id: Id of the principal.
            body_size: Size of the request body in bytes.

        Yields:
            True if the request was queued.
        """
        count = SHARE if body_size >= LARGE_BODY or self.has_abandoned(principal_id) else 1
        is_queued = principal_id in self._waiting or not self._may_start(principal_id, count)
        if is_queued:
            await self._wait(principal_id, count)
        else:
            self._running[principal_id] += count
        slot = _Slot(self, principal_id, count)
        token = _SLOT.set(slot)
        try:
            yield is_queued
        finally:
            _SLOT.reset(token)
            slot.release()

    def note_abandoned(self, principal_id: str) -> None:
        """Note that a client of the principal disconnected before the end of its request."""
        self._abandoned.pop(principal_id, None)
        self._abandoned[principal_id] = asyncio.get_running_loop().time()

    async def pace_body(self, principal_id: str, size: int) -> None:
        """Wait after reading `size` bytes of a body, so that `BODY_RATE` is not exceeded.

        A client that sends large bodies over many connections would otherwise occupy the event loop with reading.
        """
        now = asyncio.get_running_loop().time()
        _drop_old(self._read_until, now)
        until = max(self._read_until.pop(principal_id, now), now) + size / BODY_RATE
        self._read_until[principal_id] = until
        pause = until - now - BODY_BURST / BODY_RATE
        if pause > 0 and not self._is_alone(principal_id):
            await asyncio.sleep(pause)

    def release(self, principal_id: str, count: int, seconds: float) -> None:
        """Release slots of a request that held them for `seconds`, and start queued requests."""
        loop = asyncio.get_running_loop()
        self._released.pop(principal_id, None)
        self._released[principal_id] = now = loop.time()
        _drop_old(self._released, now - ACTIVE_SECONDS)
        others = len(self._released.keys() | self._running.keys()) - 1
        pause = min(seconds * min(others, MAX_PAUSES), MAX_PAUSE)
        if others and self.has_abandoned(principal_id):
            pause = max(pause, ABANDONED_PAUSE)
        if pause and principal_id in self._waiting:
            loop.call_later(pause, self._free, principal_id, count)
        else:
            self._free(principal_id, count)

    def _free(self, principal_id: str, count: int) -> None:
        self._running[principal_id] -= count
        if not self._running[principal_id]:
            del self._running[principal_id]
        for waiting_id, queue in [*self._waiting.items()]:
            while queue and self._may_start(waiting_id, queue[0].count):
                self._running[waiting_id] += queue[0].count
                queue.popleft().started.set_result(None)
            if not queue:
                del self._waiting[waiting_id]

    def _may_start(self, principal_id: str, count: int) -> bool:
        return self._running[principal_id] + count <= SHARE or self._is_alone(principal_id)

    def has_abandoned(self, principal_id: str) -> bool:
        """Return True if a client of the principal abandoned a request in the last second."""
        now = asyncio.get_running_loop().time()
        _drop_old(self._abandoned, now - ACTIVE_SECONDS)
        return principal_id in self._abandoned

    def _is_alone(self, principal_id: str) -> bool:
        if not self._running.keys() <= {principal_id}:
            return False
        other = next((each for each in reversed(self._released) if each != principal_id), None)
        return other is None or self._released[other] + ACTIVE_SECONDS < asyncio.get_running_loop().time()

    async def _wait(self, principal_id: str, count: int) -> None:
        queue = self._waiting.setdefault(principal_id, deque())
        waiting = _Waiting(asyncio.get_running_loop().create_future(), count)
        queue.append(waiting)
        try:
            await asyncio.shield(waiting.started)
        except asyncio.CancelledError:
            if waiting.started.done():
                self.release(principal_id, count, 0)
            else:
                queue.remove(waiting)
                if not queue:
                    del self._waiting[principal_id]
            raise


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    started: asyncio.Future[None]
    count: int


class _Slot:
    def __init__(self, slots: RequestSlots, principal_id: str, count: int) -> None:
        self._slots: RequestSlots | None = slots
        self._principal_id, self._count = principal_id, count
        self._since = asyncio.get_running_loop().time()

    def release(self) -> None:
        """Release the slots. This method is idempotent."""
        slots, self._slots = self._slots, None
        if slots is not None:
            seconds = asyncio.get_running_loop().time() - self._since
            slots.release(self._principal_id, self._count, seconds)


_SLOT: ContextVar[_Slot | None] = ContextVar("rxloop_request_slot", default=None)
"""Slot of the current request."""


def release_slot() -> None:
    """Release the slot of the current request, because it only waits for a run or a client from now on."""
    make_slot_release()()


def make_slot_release() -> Callable[[], None]:
    """Return a function that other tasks can call instead of `release_slot`."""
    slot = _SLOT.get()
    return slot.release if slot is not None else lambda: None


# -- disconnected clients

_REQUEST: ContextVar[Request | None] = ContextVar("rxloop_request", default=None)


@contextmanager
def use_request(request: Request) -> Generator[None]:
    """Let `check_connected` check the client of a request inside the block.

    Args:
        request: Request without a body, or whose body was read.
    """
    token = _REQUEST.set(request)
    try:
        yield
    finally:
        _REQUEST.reset(token)


async def check_connected() -> None:
    """Check that the client of the current request still waits for the response. Call it between parts of long work.

    Raises:
        Refused: If the client has disconnected.
    """
    request = _REQUEST.get()
    if request is not None and await request.is_disconnected():
        raise Refused(499, "disconnected", "the client disconnected before its request was processed")


def _drop_old(times: dict[str, float], before: float) -> None:
    """Remove expired entries. The dictionary is sorted by time."""
    while times:
        oldest = next(iter(times))
        if times[oldest] >= before:
            return
        del times[oldest]
