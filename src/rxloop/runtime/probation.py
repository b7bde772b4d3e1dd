"""Admission of suspect runs, whose last attempt ended with its process.

Such a run may have ended the process itself, or another run did. Executing suspects one at a time finds out which. A
suspect is cleared when it has shown that it does not end this process.
"""

from __future__ import annotations

import asyncio
import logging
import random
from bisect import insort
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from rxloop.agents.definition import AgentDefinition
from rxloop.pipeline.records import Snapshot
from rxloop.protocol.events import Event, TaskEvent
from rxloop.run.handle import Run
from rxloop.state.attempt_counts import is_progress

log = logging.getLogger("rxloop")

_FIRST_DELAY, _MAX_DELAY = 0.5, 30.0
"""Seconds to wait at level 2, doubled for each further level, and their maximum."""

_PROBATION, _MAX_PROBATION = 1.0, 60.0
"""Seconds that a suspect of level 1 has to survive, doubled for each further level, and their maximum."""

_MAX_EXCLUSIVE = 300.0
"""Maximum seconds for which a run with few remaining attempts keeps other suspects waiting."""

_FEW_ATTEMPTS = 2
"""Number of remaining attempts at which a run is protected from other suspects until it makes progress."""

_MAX_TOGETHER = 8
"""Maximum number of suspects of level 1 on probation."""


class Suspicion(NamedTuple):
    """Attempts of a run that ended with their process."""

    tries: int = 0
    """Number of attempts in a row without progress."""
    deaths: int = 0
    """Number of attempts in a row, with or without progress, that ended with their process."""
    limit: int | None = None
    """Maximum number of attempts without progress."""
    attempt: int = 0
    """Number of the last attempt."""

    @classmethod
    def of(cls, snapshot: Snapshot, definition: AgentDefinition) -> Suspicion:
        """Return the suspicion against a run that has no owner."""
        state, task = snapshot.state, snapshot.events[0]
        if state.state != "working":
            return cls(attempt=state.attempt)
        options: dict[str, Any] = (task.options if isinstance(task, TaskEvent) else None) or {}
        recorded: dict[str, Any] = options.get("limits") or {}
        limit: int | None = recorded.get("attempts", definition.limits.attempts)
        if limit is not None and state.tries >= limit:
            # The next attempt only ends the run, without executing user code.
            return cls(attempt=state.attempt)
        return cls(state.tries, state.starts, limit, state.attempt)

    @property
    def level(self) -> int:
        """Level of suspicion, or 0 if the run is not suspect. Progress between the deaths halves it."""
        return max(self.tries, self.deaths // 2)

    @property
    def delay(self) -> float:
        """Seconds to wait before the next attempt."""
        return min(_FIRST_DELAY * 2 ** min(self.level - 2, 20), _MAX_DELAY) if self.level > 1 else 0.0

    @property
    def probation(self) -> float:
        """Seconds that the next attempt has to survive."""
        return min(_PROBATION * 2 ** min(self.level - 1, 20), _MAX_PROBATION)

    @property
    def is_protected(self) -> bool:
        """True if the run has few attempts left, and may be innocent."""
        return self.limit is not None and self.limit - self.tries <= _FEW_ATTEMPTS

    @property
    def is_mild(self) -> bool:
        """True if the run may be tried together with others, because every run of a process dies with it."""
        return self.level == 1 and not self.is_protected

    def describe(self) -> str:
        """Describe the next attempt."""
        number = f"{self.tries + 1}{'' if self.limit is None else f' of {self.limit}'}"
        return f"attempt {number} without progress, {self.deaths} died with their process, next try in {self.delay:g} s"


class Suspect:
    """Suspect run that was admitted. Pass its attempt to `watch`."""

    def __init__(self, probation: Probation, suspicion: Suspicion) -> None:
        self.suspicion = suspicion
        self.rank = suspicion.level, random.random()
        """Order of admission: probably innocent runs come first. Equals are shuffled, so that processes differ."""
        self.admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._probation = probation
        self._has_progress = self._has_survived = False
        self._timers: list[asyncio.TimerHandle] = []

    def watch(self, run: Run[Any]) -> None:
        """Clear the suspect once the attempt has made progress or survived its probation."""
        loop, probation = asyncio.get_running_loop(), self._probation
        self._timers = [
            loop.call_later(self.suspicion.probation, self._survive),
            loop.call_later(_MAX_PROBATION, probation.forget, self),
            loop.call_later(_MAX_EXCLUSIVE, probation.clear, self),
        ]
        # The subscription ends with the attempt.
        run.hold.events().subscribe(self._see, lambda error: None)

    def _see(self, event: Event) -> None:
        if not self._has_progress and is_progress(event):
            self._has_progress = True
            self._check()

    def _survive(self) -> None:
        self._has_survived = True
        self._check()

    def _check(self) -> None:
        suspicion = self.suspicion
        # A run that makes progress in each attempt may still end each process a few steps later.
        is_safe = self._has_survived or (self._has_progress and suspicion.deaths // 2 < max(2, suspicion.level))
        if is_safe and (self._has_progress or not suspicion.is_protected):
            self._probation.clear(self)

    def stop(self) -> None:
        """Stop the timers."""
        for timer in self._timers:
            timer.cancel()


class Probation:
    """Suspects that are waiting, and those on probation. Usually, only one is on probation at a time.

    After its first death, a run is probably innocent. So that many runs soon continue after a crash, the number of such
    suspects on probation grows by one for each that was cleared.
    """

    def __init__(self) -> None:
        self._active: set[Suspect] = set()
        """Suspects on probation."""
        self._known: set[Suspect] = set()
        """Suspects that were cleared, but would still end a protected run with the process."""
        self._waiting: list[Suspect] = []
        self._window = 1

    @asynccontextmanager
    async def admit(self, task_id: str, suspicion: Suspicion) -> AsyncGenerator[Suspect]:
        """Wait until a suspect may be tried. It is cleared at the latest at the end of the block."""
        log.log(
            logging.WARNING if suspicion.level > 1 else logging.INFO,
            "Run %s is suspect: %s",
            task_id,
            suspicion.describe(),
        )
        await asyncio.sleep(suspicion.delay)
        suspect = Suspect(self, suspicion)
        insort(self._waiting, suspect, key=lambda each: each.rank)
        self._admit()
        try:
            await suspect.admitted
            yield suspect
        finally:
            suspect.stop()
            if suspect in self._waiting:
                self._waiting.remove(suspect)
            self.clear(suspect)
            self.forget(suspect)

    def clear(self, suspect: Suspect) -> None:
        """End the probation of a suspect."""
        if suspect in self._active:
            self._active.remove(suspect)
            self._known.add(suspect)
            self._window = min(self._window + suspect.suspicion.is_mild, _MAX_TOGETHER)
        self._admit()

    def forget(self, suspect: Suspect) -> None:
        """Forget a suspect that was cleared."""
        self._known.discard(suspect)
        self._admit()

    def _admit(self) -> None:
        for suspect in list(self._waiting):
            # A crash can leave a thousand suspects, so do not check each of them if none can be admitted.
            if self._is_full():
                return
            if self._has_room(suspect):
                self._waiting.remove(suspect)
                self._active.add(suspect)
                suspect.admitted.set_result(None)

    def _is_full(self) -> bool:
        if len(self._active) < self._window:
            return not all(each.suspicion.is_mild for each in self._active)
        return bool(self._active)

    def _has_room(self, suspect: Suspect) -> bool:
        if suspect.suspicion.is_protected and self._known:
            return False
        return not self._active or suspect.suspicion.is_mild
