"""State of a conversation before a run: read, cached, stored as folds."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import ConversationPage, Mark, RunEvents
from rxloop.state.fold import fold_all
from rxloop.state.kept_folds import FORMAT, RunFold, add_kept, add_run, keep, put_together
from rxloop.state.run_state import RunState, no_run

if TYPE_CHECKING:
    from rxloop.protocol.events import Event

Cached = tuple[Mark | None, RunState]

_AT_ONCE = 200
"""Events that are folded before the rest of the event loop has a turn."""

_TOGETHER = 64
"""Runs whose folds are kept as one: a turn writes what is new, and each of so many writes what these were."""

_CONVERSATIONS = 100

_CHARACTERS = 20_000_000
"""How many conversations of a log are remembered, and how much text they may have in all."""


async def conversation(log: EventLog, context_id: str, before: str) -> RunState:
    """Fold the runs of a context that come before a run of it, into what that run begins with.

    Args:
        log: Holds them.
        context_id: The conversation.
        before: The run; only those that came earlier count.
    """
    cached = find_cached(log, context_id)
    found = await read_log(log.read_conversation, context_id, before=before, after=cached[0], version=FORMAT)
    return await add_page(log, context_id, before, cached, found)


def find_cached(log: EventLog, context_id: str) -> Cached:
    """Return the cached state of a conversation, and its mark: None if there is none.

    The state is valid if the log finds that the runs before the mark are unchanged.
    """
    return log.local.get(ConversationCache).get(context_id, (None, no_run()))


async def add_page(log: EventLog, context_id: str, before: str, cached: Cached, found: ConversationPage) -> RunState:
    """Return the state of a conversation before a run; cache it, and store the folds of its runs.

    Args:
        log: Holds them.
        context_id: The conversation.
        before: The run.
        cached: What `find_cached` returned before the page was read.
        found: The page after the mark of the cached state.
    """
    mark, state = cached
    kept, state = await _add_parts(found.parts, no_run() if found.whole else state, log.stores_folds)
    folds = _new(kept, found.parts)
    if (
        mark is not None
        and mark.runs // _TOGETHER < found.mark.runs // _TOGETHER
        and log.stores_folds
        and not found.whole
    ):
        # Every so many runs, the stored folds of all runs are read, to combine those of single runs.
        every = (await read_log(log.read_conversation, context_id, before=before, version=FORMAT)).parts
        kept = [*every[: len(every) - len(kept)], *kept]
    if log.stores_folds and (folds := [*folds, *_together(kept)]):
        log.store_folds(context_id, folds, version=FORMAT)
    _remember(log.local.get(ConversationCache), context_id, found.mark, state)
    return state


async def _add_parts(
    parts: Sequence[RunFold | RunEvents], state: RunState, makes_folds: bool
) -> tuple[list[RunFold | RunEvents], RunState]:
    """Add the runs of a conversation to a state.

    Args:
        parts: Folds or events of the runs, in order.
        state: State of the conversation before them.
        makes_folds: Make the folds of complete runs whose events were read.

    Returns:
        The parts, with the folds that were made in place of events; and the state.
    """
    kept: list[RunFold | RunEvents] = []
    folds: list[RunFold] = []
    folded = 0
    for part in parts:
        if isinstance(part, RunFold):
            folds.append(part)
            kept.append(part)
            continue
        folded += len(part.events)
        if folded > _AT_ONCE:
            await asyncio.sleep(0)
            folded = len(part.events)
        run = await _fold(part.events, no_run())
        state, folds = add_run(add_kept(state, folds), run), []
        # What one adds that goes on would not be true for long.
        kept.append(keep(part.task_id, len(part.events), run) if part.complete and makes_folds else part)
    return kept, add_kept(state, folds)


def _new(kept: Sequence[RunFold | RunEvents], parts: Sequence[RunFold | RunEvents]) -> list[RunFold]:
    """Find what was folded just now."""
    pairs = zip(kept, parts, strict=False)
    return [fold for fold, part in pairs if isinstance(fold, RunFold) and isinstance(part, RunEvents)]


def _together(parts: Sequence[RunFold | RunEvents]) -> list[RunFold]:
    """Put the folds of single runs together, where there are enough of them side by side."""
    made: list[RunFold] = []
    single: list[RunFold] = []
    for part in parts:
        single = [*single, part] if isinstance(part, RunFold) and part.runs == 1 else []
        if len(single) == _TOGETHER:
            made.append(put_together(single))
            single = []
    return made


async def _fold(events: Sequence[Event], state: RunState) -> RunState:
    """Fold these events; with many of them the rest of the event loop has its turns."""
    for at in range(0, len(events), _AT_ONCE):
        if at:
            await asyncio.sleep(0)
        state = fold_all(events[at : at + _AT_ONCE], state)
    return state


class ConversationCache(OrderedDict[str, tuple[Mark | None, RunState]]):
    """States of the conversations of a log object when they were last read, with their marks, the newest last."""


def _remember(folded: ConversationCache, context_id: str, mark: Mark, state: RunState) -> None:
    folded[context_id] = mark, state
    folded.move_to_end(context_id)
    while len(folded) > 1 and (
        len(folded) > _CONVERSATIONS or sum(state.messages.size for _, state in folded.values()) > _CHARACTERS
    ):
        folded.popitem(last=False)
