"""One run at a time in each conversation of a log, in this process.

Any number of event loops may share a log, each in a thread of its own; and two log objects that keep one file are one
log. Other processes are not seen from here.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Hashable
from contextlib import suppress

from rxloop.pipeline.logs import HasIdentity

Place = asyncio.Future[None]
"""Of one who waits."""

_TAKEN: dict[tuple[Hashable, str], deque[Place]] = {}
"""The conversations that have a run under way, and who waits for the turn in each."""
_LOCK = threading.Lock()


class Turn:
    """The turn of one run in its conversation, from `take` or `wait` to `give_back`."""

    def __init__(self, log: object, key: tuple[Hashable, str]) -> None:
        # Held, so that no other log has its identity meanwhile.
        self._log = log
        self._key = key

    def give_back(self) -> None:
        """Give the turn to the one who has waited longest, if there is one; from any thread."""
        with _LOCK:
            waiting = _TAKEN[self._key]
            while waiting:
                place = waiting.popleft()
                # An event loop that is closed has nobody who waits.
                with suppress(RuntimeError):
                    place.get_loop().call_soon_threadsafe(_call_up, place)
                    return
            del _TAKEN[self._key]


def take(log: object, context_id: str) -> Turn | None:
    """Take the turn in a conversation, unless a run has it."""
    key = _key(log, context_id)
    with _LOCK:
        if key in _TAKEN:
            return None
        _TAKEN[key] = deque()
        return Turn(log, key)


async def wait(log: object, context_id: str) -> Turn:
    """Wait for the turn in a conversation; those who wait get it in order."""
    key = _key(log, context_id)
    place: Place = asyncio.get_running_loop().create_future()
    turn = Turn(log, key)
    with _LOCK:
        if key not in _TAKEN:
            # The run that had it has ended since.
            _TAKEN[key] = deque()
            return turn
        _TAKEN[key].append(place)
    try:
        await place
    except asyncio.CancelledError:
        with _LOCK:
            given = place not in _TAKEN[key]
            if not given:
                _TAKEN[key].remove(place)
        if given:
            turn.give_back()
        raise
    return turn


def _forget() -> None:
    """A forked process has none of the runs of its parent."""
    _TAKEN.clear()
    _LOCK.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_forget)


def _call_up(place: Place) -> None:
    if not place.done():
        place.set_result(None)


def _key(log: object, context_id: str) -> tuple[Hashable, str]:
    return log.identity if isinstance(log, HasIdentity) else id(log), context_id
