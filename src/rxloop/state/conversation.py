"""The conversation before a run: the fold of the runs of its context that came earlier."""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from rxloop.errors import EventLogError, LogUnreachable, RxloopError
from rxloop.pipeline.log_retry import may_pass, patiently
from rxloop.pipeline.logs import EventLog, ReadsConversations
from rxloop.pipeline.values import Histories, Mark, RunRecord
from rxloop.state.run_state import RunState, fold_all

if TYPE_CHECKING:
    from rxloop.protocol.events import Event

P = ParamSpec("P")
T = TypeVar("T")

_AT_ONCE = 200
"""Events that are folded before the rest of the event loop has a turn."""
_CONVERSATIONS = 100
_CHARACTERS = 20_000_000
"""How many conversations of a log are remembered, and how much text they may have in all."""


async def read_log(read: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
    """Read from a log; one that fails for a moment is asked again, as for what is appended.

    Raises:
        LogUnreachable: The log failed for longer than `PATIENCE`.
        EventLogError: It failed by what another try would not change.
    """
    try:
        return await patiently(lambda: read(*args, **options), "the event log cannot be read")
    except Exception as error:
        if may_pass(error):
            raise LogUnreachable(f"the event log could not be read: {error}") from error
        if isinstance(error, RxloopError):
            raise
        raise EventLogError(f"the event log could not be read: {error}") from error


def check_whole(task_id: str, events: Sequence[Event], until: int) -> None:
    """Refuse to go on after an event that a log could not read and has left out.

    Args:
        task_id: The run.
        events: What the log gives of it.
        until: The last event that is to be there.

    Raises:
        EventLogError: One up to there is missing.
    """
    for seq in range(1, until + 1):
        if seq > len(events) or events[seq - 1].seq != seq:
            before = f"; agent.fork({task_id!r}, at={seq - 1}) goes on before it" if seq > 1 else ""
            raise EventLogError(
                f"the event {seq} of the run {task_id} cannot be read: a run that goes on after it may repeat what was "
                f"done{before}",
                retryable=False,
            )


async def conversation(log: EventLog, context_id: str, before: str) -> RunState:
    """Fold the runs of a context that come before a run of it.

    Args:
        log: Holds them.
        context_id: The conversation.
        before: The run; only those that came earlier count.
    """
    folded = _folded(log)
    mark, state = folded.get(context_id, (None, RunState()))
    found = await _histories(log, context_id, before, mark)
    # What is remembered holds where the log says that the part which it is the fold of is as it was.
    state = await _fold(found.events, RunState() if found.whole else state)
    _remember(folded, context_id, found.mark, state)
    return state


async def _histories(log: EventLog, context_id: str, before: str, after: Mark | None) -> Histories:
    """Read what a log has of a conversation after a mark, run by run where the log cannot give it in one go."""
    if isinstance(log, ReadsConversations):
        return await read_log(log.histories, context_id, before=before, after=after)
    every = await read_log(log.runs, context_id=context_id)
    records = list(takewhile(lambda record: record.task_id != before, every))
    known = after.runs if after is not None and _mark(records[: after.runs]) == after else 0
    events = [event for record in records[known:] for event in await read_log(log.read, record.task_id)]
    return Histories(events, _mark(records), whole=not known)


def _mark(records: Sequence[RunRecord]) -> Mark:
    return Mark(len(records), sum(record.seq for record in records), records[-1].task_id if records else "")


async def _fold(events: Sequence[Event], state: RunState) -> RunState:
    """Fold these events; with many of them the rest of the event loop has its turns."""
    for at in range(0, len(events), _AT_ONCE):
        if at:
            await asyncio.sleep(0)
        state = fold_all(events[at : at + _AT_ONCE], state)
    return state


Folded = OrderedDict[str, tuple["Mark", RunState]]
_FOLDED: dict[int, Folded] = {}
"""By the identity of a log: what its conversations came to when they were last read, the newest last."""


def _folded(log: object) -> Folded:
    if id(log) not in _FOLDED:
        folded: Folded = OrderedDict()
        try:
            weakref.finalize(log, _FOLDED.pop, id(log), None)
        except TypeError:
            # It cannot tell when it is gone, and another one may have its identity then.
            return folded
        _FOLDED[id(log)] = folded
    return _FOLDED[id(log)]


def _remember(folded: Folded, context_id: str, mark: Mark, state: RunState) -> None:
    folded[context_id] = mark, state
    folded.move_to_end(context_id)
    while len(folded) > 1 and (
        len(folded) > _CONVERSATIONS or sum(state.messages.size for _, state in folded.values()) > _CHARACTERS
    ):
        folded.popitem(last=False)
