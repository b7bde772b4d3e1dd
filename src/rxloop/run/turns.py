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

from rxloop.pipeline.seams import HasIdentity

Turn = asyncio.Future[None]

_TAKEN: dict[tuple[Hashable, str], deque[Turn]] = {}
"""The conversations that have a run under way, and who waits for the turn in each."""
_LOCK = threading.Lock()


def take(log: object, context_id: str) -> bool:
    """Take the turn in a conversation, unless a run has it."""
    key = _key(log, context_id)
    with _LOCK:
        if key in _TAKEN:
            return False
        _TAKEN[key] = deque()
        return True


async def wait(log: object, context_id: str) -> None:
    """Wait for the turn in a conversation; those who wait get it in order."""
    key = _key(log, context_id)
    turn: Turn = asyncio.get_running_loop().create_future()
    with _LOCK:
        if key not in _TAKEN:
            # The run that had it has ended since.
            _TAKEN[key] = deque()
            return
        _TAKEN[key].append(turn)
    try:
        await turn
    except asyncio.CancelledError:
        with _LOCK:
            given = turn not in _TAKEN[key]
            if not given:
                _TAKEN[key].remove(turn)
        if given:
            give_back(log, context_id)
        raise


def give_back(log: object, context_id: str) -> None:
    """Give the turn to the one who has waited longest, if there is one; from any thread."""
    key = _key(log, context_id)
    with _LOCK:
        waiting = _TAKEN[key]
        while waiting:
            turn = waiting.popleft()
            # An event loop that is closed has nobody who waits.
            with suppress(RuntimeError):
                turn.get_loop().call_soon_threadsafe(_tell, turn)
                return
        del _TAKEN[key]


def _forget() -> None:
    """A forked process has none of the runs of its parent."""
    _TAKEN.clear()
    _LOCK.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_forget)


def _tell(turn: Turn) -> None:
    if not turn.done():
        turn.set_result(None)


def _key(log: object, context_id: str) -> tuple[Hashable, str]:
    # The runs hold their log: no other object has its identity meanwhile.
    return log.identity if isinstance(log, HasIdentity) else id(log), context_id
