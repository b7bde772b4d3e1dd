"""Turns, which give each principal its share of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar

SHARE = 2
"""Maximum number of requests of a principal that are processed at the same time while others are active."""
ACTIVE_SECONDS = 1.0
"""Seconds for which a principal counts as active after its last turn."""


class Turns:
    """Requests that are being processed, by principal.

    A process has one event loop. A principal with 60 requests at once would delay each request of another principal by
    the work of all 60. Therefore, while several principals are active, only `SHARE` requests of each are processed at
    the same time, and the others wait in order. A principal that is alone does not wait.
    """

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()
        self._ended: dict[str, float] = {}
        """Time of the last end of a turn by principal, in order."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def take(self, principal_id: str) -> AsyncGenerator[None]:
        """Wait for a turn, and hold it until the block exits or calls `end_turn`."""
        if principal_id not in self._waiting and self._may_start(principal_id):
            self._running[principal_id] += 1
        else:
            await self._wait(principal_id)
        turn = _Turn(self, principal_id)
        token = _TURN.set(turn)
        try:
            yield
        finally:
            _TURN.reset(token)
            turn.end()

    def end(self, principal_id: str) -> None:
        """End a turn, and start requests that wait."""
        now = asyncio.get_running_loop().time()
        self._ended.pop(principal_id, None)
        self._ended[principal_id] = now
        while self._ended[oldest := next(iter(self._ended))] + ACTIVE_SECONDS < now:
            del self._ended[oldest]
        self._running[principal_id] -= 1
        if not self._running[principal_id]:
            del self._running[principal_id]
        for waiting_id, queue in [*self._waiting.items()]:
            while queue and self._may_start(waiting_id):
                self._running[waiting_id] += 1
                queue.popleft().set_result(None)
            if not queue:
                del self._waiting[waiting_id]

    def _may_start(self, principal_id: str) -> bool:
        return self._running[principal_id] < SHARE or self._is_alone(principal_id)

    def _is_alone(self, principal_id: str) -> bool:
        if not self._running.keys() <= {principal_id}:
            return False
        other = next((each for each in reversed(self._ended) if each != principal_id), None)
        return other is None or self._ended[other] + ACTIVE_SECONDS < asyncio.get_running_loop().time()

    async def _wait(self, principal_id: str) -> None:
        queue = self._waiting.setdefault(principal_id, deque())
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(started)
        try:
            await asyncio.shield(started)
        except asyncio.CancelledError:
            if started.done():
                self.end(principal_id)
            else:
                queue.remove(started)
                if not queue:
                    del self._waiting[principal_id]
            raise


class _Turn:
    def __init__(self, turns: Turns, principal_id: str) -> None:
        self._turns: Turns | None = turns
        self._principal_id = principal_id

    def end(self) -> None:
        """End the turn. This method is idempotent."""
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.end(self._principal_id)


_TURN: ContextVar[_Turn | None] = ContextVar("rxloop_turn", default=None)
"""Turn of the current request."""


def end_turn() -> None:
    """End the turn of the current request before it waits for a run or a client."""
    turn = _TURN.get()
    if turn is not None:
        turn.end()
