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
from rxloop.pipeline.logs import EventLog, KeepsFolds, ReadsConversations
from rxloop.pipeline.values import Histories, KeptFold, Mark, RunEvents, RunRecord
from rxloop.state.fold import fold_all
from rxloop.state.kept_folds import FORMAT, add_kept, add_run, keep, left_behind, put_together
from rxloop.state.run_state import RunState, no_run

if TYPE_CHECKING:
    from rxloop.protocol.events import Event

P = ParamSpec("P")
T = TypeVar("T")

_AT_ONCE = 200
"""Events that are folded before the rest of the event loop has a turn."""
_TOGETHER = 64
"""Runs whose folds are kept as one: a turn writes what is new, and each of so many writes what these were."""
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
    """Fold the runs of a context that come before a run of it, into what that run begins with.

    Args:
        log: Holds them.
        context_id: The conversation.
        before: The run; only those that came earlier count.
    """
    folded = _folded(log)
    mark, state = folded.get(context_id, (None, no_run()))
    # What is remembered holds where the log says that the part which it is the fold of is as it was.
    if isinstance(log, KeepsFolds):
        found = await read_log(log.parts, context_id, before=before, after=mark, version=FORMAT)
        kept, state = await _add_parts(found.parts, no_run() if found.whole else state)
        folds = _new(kept, found.parts)
        if mark is not None and mark.runs // _TOGETHER < found.mark.runs // _TOGETHER and not found.whole:
            # It is time to see what can be put together, which the newest part alone does not show.
            every = (await read_log(log.parts, context_id, before=before, version=FORMAT)).parts
            kept = [*every[: len(every) - len(kept)], *kept]
        if folds := [*folds, *_together(kept)]:
            log.keep_folds(context_id, folds, version=FORMAT)
    else:
        found = await _histories(log, context_id, before, mark)
        state = left_behind(await _fold(found.events, no_run() if found.whole else state))
    _remember(folded, context_id, found.mark, state)
    return state


async def _add_parts(
    parts: Sequence[KeptFold | RunEvents], state: RunState
) -> tuple[list[KeptFold | RunEvents], RunState]:
    """Add part after part to a state; give the parts, with what had to be folded in place of its events, and it."""
    kept: list[KeptFold | RunEvents] = []
    folds: list[KeptFold] = []
    folded = 0
    for part in parts:
        if isinstance(part, KeptFold):
            folds.append(part)
            kept.append(part)
            continue
        folded += len(part.events)
        if folded > _AT_ONCE:
            await asyncio.sleep(0)
            folded = 0
        run = await _fold(part.events, no_run())
        state, folds = add_run(add_kept(state, folds), run), []
        # What one adds that goes on would not be true for long.
        kept.append(keep(part.task_id, len(part.events), run) if part.complete else part)
    return kept, add_kept(state, folds)


def _new(kept: Sequence[KeptFold | RunEvents], parts: Sequence[KeptFold | RunEvents]) -> list[KeptFold]:
    """Find what was folded just now."""
    pairs = zip(kept, parts, strict=False)
    return [fold for fold, part in pairs if isinstance(fold, KeptFold) and isinstance(part, RunEvents)]


def _together(parts: Sequence[KeptFold | RunEvents]) -> list[KeptFold]:
    """Put the folds of single runs together, where there are enough of them side by side."""
    made: list[KeptFold] = []
    single: list[KeptFold] = []
    for part in parts:
        single = [*single, part] if isinstance(part, KeptFold) and part.runs == 1 else []
        if len(single) == _TOGETHER:
            made.append(put_together(single))
            single = []
    return made


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
    events, updated = sum(record.seq for record in records), sum(record.updated for record in records)
    return Mark(len(records), events, updated, records[-1].task_id if records else "")


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
