"""Delivery of events to subscribers, which pauses while this process may have lost its run."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rxloop.protocol.events import Event
from rxloop.support.tasks import Clock

log = logging.getLogger("rxloop")


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
