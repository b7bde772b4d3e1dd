"""One run at a time in each conversation of a log, in this process."""

from __future__ import annotations

import asyncio
from collections import deque

_TAKEN: dict[tuple[int, str], deque[asyncio.Future[None]]] = {}
"""The conversations that have a run under way, by the identity of their log, which those runs hold; and who waits."""


def take(log: object, context_id: str) -> bool:
    """Take the turn in a conversation, unless a run has it."""
    if (id(log), context_id) in _TAKEN:
        return False
    _TAKEN[id(log), context_id] = deque()
    return True


async def wait(log: object, context_id: str) -> None:
    """Wait for the turn in a conversation in which a run has it; those who wait get it in order."""
    waiting = _TAKEN[id(log), context_id]
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting.append(turn)
    try:
        await turn
    except asyncio.CancelledError:
        if turn.done() and not turn.cancelled():
            give_back(log, context_id)
        else:
            waiting.remove(turn)
        raise


def give_back(log: object, context_id: str) -> None:
    """Give the turn to the one who has waited longest, if there is one."""
    waiting = _TAKEN[id(log), context_id]
    while waiting:
        turn = waiting.popleft()
        if not turn.done():
            turn.set_result(None)
            return
    del _TAKEN[id(log), context_id]
