"""The conversation before a run: the fold of the runs of its context that came earlier."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from rxloop.errors import EventLogError, RxloopError
from rxloop.protocols import EventLog
from rxloop.state import RunState, fold_all

T = TypeVar("T")


async def reading(answer: Awaitable[T]) -> T:
    """What a log answers.

    Raises:
        EventLogError: The log failed, by whatever error.
    """
    try:
        return await answer
    except RxloopError:
        raise
    except Exception as error:
        raise EventLogError(f"the event log could not be read: {error}") from error


async def conversation(log: EventLog, context_id: str, before: str) -> RunState:
    """The state that the runs of a context leave to a run of it.

    Args:
        log: Holds them.
        context_id: The conversation.
        before: The run; only those that came earlier count.
    """
    state = RunState()
    for record in await reading(log.runs(context_id=context_id)):
        if record.task_id == before:
            break
        state = fold_all(await reading(log.read(record.task_id)), state)
    return state
