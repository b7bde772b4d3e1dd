"""Sees that a model call gets on, whatever bytes come, and ends. Nothing imports this file before a model is called."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType

import anyio

LOOKS = 10
"""How many turns of the event loop are left to what lies in a socket already, because somebody held the loop."""


class Watch:
    """Ends the block that it is put around when no event comes for too long, or when its time is over.

    Each event takes no more than a note of the time: there is one timer, which looks at it when it is due.

    Args:
        seconds: How long no event may come; None is for ever.
        shielded: Whether the block has to be ended by a cancel scope of anyio, and not by cancelling its task. A scope
            waits until the task waits, which it never does where more is always there.
        until: The time of the event loop at which the block has to be over.
    """

    __slots__ = (
        "_held",
        "_last",
        "_loop",
        "_scope",
        "_shielded",
        "_stopped",
        "_timer",
        "_until",
        "expired",
        "late",
        "seconds",
    )

    def __init__(self, seconds: float | None, shielded: bool, until: float = math.inf) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self.expired = False
        """Whether the block was ended because no event came."""
        self.late = False
        """Whether it was ended because its time was over."""
        self._until = until
        self._shielded = shielded
        self._last = 0.0
        self._held = False
        self._stopped = False
        self._timer: asyncio.Handle | None = None
        self._scope: anyio.CancelScope | asyncio.Timeout | None = None

    async def __aenter__(self) -> Watch:
        if self.seconds < math.inf or self._until < math.inf:
            self._loop = asyncio.get_running_loop()
            self._last = self._loop.time()
            if self._shielded:
                self._scope = anyio.CancelScope()
                self._scope.__enter__()
            else:
                self._scope = asyncio.timeout(None)
                await self._scope.__aenter__()
            self._timer = self._loop.call_at(min(self._last + self.seconds, self._until), self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if self._timer is not None:
            self._timer.cancel()
            # It knows this object by its callback.
            self._timer = None
        scope, self._scope = self._scope, None
        if scope is None:
            return None
        if isinstance(scope, anyio.CancelScope):
            return scope.__exit__(kind, error, traceback)
        try:
            return await scope.__aexit__(kind, error, traceback)
        except TimeoutError:
            return True

    def seen(self) -> None:
        """There is an event."""
        if self._scope is not None:
            self._last = self._loop.time()

    def hold(self) -> None:
        """The reader is held back, so that no event can come; until `go_on`."""
        self._held = True

    def go_on(self) -> None:
        """The reader goes on."""
        self._held = False
        self.seen()

    def stop(self) -> None:
        """The answer has come to its end: what is left to do has bounds of its own."""
        self._stopped = True

    def _look(self, times: int = LOOKS) -> None:
        if self._scope is None or self._stopped:
            return
        now = self._loop.time()
        due = min(self._until, (now if self._held else self._last) + self.seconds)
        if due > now:
            self._timer = self._loop.call_at(due, self._look)
        elif times:
            self._timer = self._loop.call_soon(self._look, times - 1)
        else:
            self.late = now >= self._until
            self.expired = not self.late
            if isinstance(self._scope, anyio.CancelScope):
                self._scope.cancel()
            else:
                self._scope.reschedule(0)
