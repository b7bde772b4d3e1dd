"""Cancellation of a call without progress; imported at the first model call."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Any, Self

import anyio

LOOKS = 10
"""Turns of the event loop to wait for what lies in a socket already, if somebody has held the loop."""


class Watch:
    """Ends the block around which it stands when no event comes for too long, when time is up, or when it is cancelled.

    An event costs no more than a note of the time; one timer looks at that note when it is due. A watch may be used for
    one block after another.

    Args:
        seconds: How long no event may come; None is for ever.
        shielded: Whether the block has to be ended by a cancel scope of anyio, and not by cancelling its task. A scope
            waits until the task waits, which it never does where more is always there.
        until: The time of the event loop at which the block has to be over.
    """

    __slots__ = (
        "_held",
        "_loop",
        "_requests",
        "_scope",
        "_shielded",
        "_stopped",
        "_task",
        "_timer",
        "_until",
        "expired",
        "last",
        "late",
        "seconds",
    )

    def __init__(self, seconds: float | None, shielded: bool, until: float = math.inf) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self.expired = False
        """Whether the block was ended because no event came."""
        self.late = False
        """Whether it was ended because its time was over, or its time was over when it began."""
        self._until = until
        self._shielded = shielded
        self.last = 0.0
        """When the last event came, by the time of the event loop; whoever reads the events writes it."""
        self._held = False
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None
        self._scope: anyio.CancelScope | None = None
        self._task: asyncio.Task[Any] | None = None
        self._requests = 0
        """How often the task was asked to end before."""

    def __enter__(self) -> Self:
        self._loop = loop = asyncio.get_running_loop()
        self.last = now = loop.time()
        self.expired = self._held = self._stopped = False
        self.late = now >= self._until
        due = min(now + self.seconds, self._until)
        if due < math.inf:
            self._timer = loop.call_at(due, self._look)
        if self._shielded:
            self._scope = scope = anyio.CancelScope()
            scope.__enter__()
        elif (task := asyncio.current_task(loop)) is not None:
            self._task, self._requests = task, task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        scope, task = self._scope, self._task
        # They know this object, and it must not outlive them.
        self._timer = self._scope = self._task = self._loop = None
        if scope is not None:
            return scope.__exit__(kind, error, traceback)
        if task is None or not (self.expired or self.late):
            return False
        # A cancellation that somebody else has asked for must go on.
        return task.uncancel() <= self._requests and kind is asyncio.CancelledError

    def cancel(self) -> None:
        """End the block at once."""
        if self._scope is not None:
            self._scope.cancel()
        elif self._task is not None:
            self._task.cancel()

    def hold(self) -> None:
        """Stop counting until `go_on`: the reader is held back, so that no event can come."""
        self._held = True

    def go_on(self) -> None:
        """Count again: the reader is no longer held back."""
        self._held = False
        if self._loop is not None:
            self.last = self._loop.time()

    def stop(self) -> None:
        """Stop watching: the answer is over, and what is left to do has bounds of its own."""
        self._stopped = True

    def _look(self, times: int = LOOKS) -> None:
        loop = self._loop
        if loop is None or self._stopped:
            return
        now = loop.time()
        due = min(self._until, (now if self._held else self.last) + self.seconds)
        if due > now:
            self._timer = loop.call_at(due, self._look)
        elif times:
            self._timer = loop.call_soon(self._look, times - 1)
        else:
            self.late = now >= self._until
            self.expired = not self.late
            self.cancel()
