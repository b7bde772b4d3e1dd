"""Conversation state before a run, with a cache and stored folds."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any

import orjson
from pydantic import TypeAdapter

from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import ConversationPage, Mark, RunEvents
from rxloop.protocol.events import ContextCompressedEvent, Event
from rxloop.protocol.messages import Message
from rxloop.state.fold import fold_all
from rxloop.state.history import StoredMessages
from rxloop.state.run_state import (
    MAX_EARLIER_IDS,
    RequestSize,
    RunFold,
    RunState,
    add_earlier_ids,
    get_final_history,
    initial_state,
)

Cached = tuple[Mark | None, RunState]

_AT_ONCE = 200
"""Maximum number of events to fold before yielding to the event loop."""

_TOGETHER = 64
"""Number of single-run folds that are combined into one stored fold."""

_CONVERSATIONS = 100

_CHARACTERS = 20_000_000
"""Cache limits: number of conversations, and total message text in characters."""


async def conversation(log: EventLog, context_id: str, before: str) -> RunState:
    """Return the conversation state at the start of a run.

    Args:
        log: Event log.
        context_id: Conversation ID.
        before: Run ID. Only earlier runs are included.
    """
    cached = find_cached(log, context_id)
    found = await read_log(log.read_conversation, context_id, before=before, after=cached[0], version=FORMAT)
    return await add_page(log, context_id, before, cached, found)


def find_cached(log: EventLog, context_id: str) -> Cached:
    """Return the cached mark and state of a conversation. The mark is None if nothing is cached.

    The state is valid only if the log confirms that the runs before the mark are unchanged.
    """
    return log.local.get(ConversationCache).get(context_id, (None, initial_state()))


async def add_page(log: EventLog, context_id: str, before: str, cached: Cached, found: ConversationPage) -> RunState:
    """Update the cache with a page of runs, store new folds and return the conversation state.

    Args:
        log: Event log.
        context_id: Conversation ID.
        before: Run ID.
        cached: Result of `find_cached` before the page was read.
        found: Page after the cached mark.
    """
    mark, state = cached
    kept, state = await _add_parts(found.parts, initial_state() if found.whole else state, log.stores_folds)
    folds = _new(kept, found.parts)
    if (
        mark is not None
        and mark.runs // _TOGETHER < found.mark.runs // _TOGETHER
        and log.stores_folds
        and not found.whole
    ):
        # Read all stored folds periodically, so that single-run folds can be combined.
        every = (await read_log(log.read_conversation, context_id, before=before, version=FORMAT)).parts
        kept = [*every[: len(every) - len(kept)], *kept]
    if log.stores_folds and (folds := [*folds, *_together(kept)]):
        log.store_folds(context_id, folds, version=FORMAT)
    _remember(log.local.get(ConversationCache), context_id, found.mark, state)
    return state


async def _add_parts(
    parts: Sequence[RunFold | RunEvents], state: RunState, makes_folds: bool
) -> tuple[list[RunFold | RunEvents], RunState]:
    """Add several runs to a conversation state.

    Args:
        parts: Folds or events of the runs, in order.
        state: Conversation state before these runs.
        makes_folds: Create folds for complete runs that were read as events.

    Returns:
        The parts, with new folds replacing events, and the updated state.
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
        run = await _fold(part.events, initial_state())
        state, folds = add_run(add_kept(state, folds), run), []
        # An incomplete run would soon invalidate its fold.
        kept.append(keep(part.task_id, len(part.events), run) if part.complete and makes_folds else part)
    return kept, add_kept(state, folds)


def _new(kept: Sequence[RunFold | RunEvents], parts: Sequence[RunFold | RunEvents]) -> list[RunFold]:
    """Return the folds created from events."""
    pairs = zip(kept, parts, strict=False)
    return [fold for fold, part in pairs if isinstance(fold, RunFold) and isinstance(part, RunEvents)]


def _together(parts: Sequence[RunFold | RunEvents]) -> list[RunFold]:
    """Combine consecutive single-run folds into larger folds."""
    made: list[RunFold] = []
    single: list[RunFold] = []
    for part in parts:
        single = [*single, part] if isinstance(part, RunFold) and part.runs == 1 else []
        if len(single) == _TOGETHER:
            made.append(put_together(single))
            single = []
    return made


async def _fold(events: Sequence[Event], state: RunState) -> RunState:
    """Fold events, yielding to the event loop between batches."""
    for at in range(0, len(events), _AT_ONCE):
        if at:
            await asyncio.sleep(0)
        state = fold_all(events[at : at + _AT_ONCE], state)
    return state


class ConversationCache(OrderedDict[str, tuple[Mark | None, RunState]]):
    """Last read mark and state of each conversation, in order of use."""


def _remember(folded: ConversationCache, context_id: str, mark: Mark, state: RunState) -> None:
    folded[context_id] = mark, state
    folded.move_to_end(context_id)
    while len(folded) > 1 and (
        len(folded) > _CONVERSATIONS or sum(state.messages.size for _, state in folded.values()) > _CHARACTERS
    ):
        folded.popitem(last=False)


FORMAT = 2
"""Version of the stored fold format. Increment it when folding produces different results."""


def left_behind(state: RunState) -> RunState:
    """Return the part of a final run state that the next run inherits."""
    return RunState(
        messages=get_final_history(state),
        earlier=add_earlier_ids(state.earlier, (*state.thoughts, *state.calls)),
        compressed=state.compressed,
        measured=state.measured,
        refused=state.refused,
    )


def keep(task_id: str, events: int, run: RunState) -> RunFold:
    """Return the storable fold of a run.

    Args:
        task_id: Run ID.
        events: Number of durable events.
        run: State folded from the events of this run only.
    """
    left = left_behind(run)
    messages = list(left.messages)
    summary: dict[str, Any] = {
        "count": len(messages),
        "size": left.messages.size,
        "user": left.messages.newest_user,
        "pinned": left.messages.pinned,
        "ids": [list(left.earlier)] if left.earlier else [],
        "compressed": left.compressed.to_json().decode() if left.compressed is not None else None,
        "measured": left.measured and list(left.measured),
        "refused": dict(left.refused.reasons),
    }
    # Building a list adapter can take longer than starting the run.
    written = b",".join([message.model_dump_json().encode() for message in messages])
    return RunFold(task_id, task_id, 1, events, orjson.dumps(summary), b"[" + written + b"]")


def put_together(folds: Sequence[RunFold]) -> RunFold:
    """Combine the folds of consecutive runs, to reduce the number of rows to read."""
    summaries: list[dict[str, Any]] = [orjson.loads(fold.summary) for fold in folds]
    first, user, pinned = 0, None, list[int]()
    for each in summaries:
        user = user if each["user"] is None else first + each["user"]
        pinned += [first + place for place in each["pinned"]]
        first += each["count"]
    summary: dict[str, Any] = {
        "count": first,
        "size": sum(each["size"] for each in summaries),
        "user": user,
        "pinned": pinned,
        "ids": [names for each in summaries for names in each["ids"]],
        "compressed": _newest(summaries, "compressed"),
        "measured": _newest(summaries, "measured"),
        "refused": _refused(summaries),
    }
    messages = b",".join(inside for fold in folds if (inside := fold.messages[1:-1]))
    return RunFold(
        folds[0].first,
        folds[-1].last,
        sum(fold.runs for fold in folds),
        sum(fold.events for fold in folds),
        orjson.dumps(summary),
        b"[" + messages + b"]",
    )


def add_run(state: RunState, run: RunState) -> RunState:
    """Add a run to the state of its conversation.

    Args:
        state: Conversation state before the run.
        run: State folded from the events of this run only.
    """
    left = left_behind(run)
    return RunState(
        messages=state.messages.append(*left.messages),
        earlier=add_earlier_ids(state.earlier, left.earlier),
        compressed=left.compressed or state.compressed,
        measured=left.measured or state.measured,
        refused=state.refused.add(left.refused.reasons),
    )


def add_kept(state: RunState, folds: Sequence[RunFold]) -> RunState:
    """Add stored folds to a conversation state, in order."""
    summaries: list[dict[str, Any]] = orjson.loads(b"[" + b",".join([fold.summary for fold in folds]) + b"]")
    earlier = state.earlier
    for names in _few([names for summary in summaries for names in summary["ids"]], len(earlier)):
        earlier = add_earlier_ids(earlier, names)
    compressed, measured = _newest(summaries, "compressed"), _newest(summaries, "measured")
    return RunState(
        messages=state.messages.append_stored(_stored(folds, summaries)),
        earlier=earlier,
        compressed=state.compressed if compressed is None else ContextCompressedEvent.model_validate_json(compressed),
        measured=state.measured if measured is None else RequestSize(*measured),
        refused=state.refused.add(_refused(summaries)),
    )


def _few(names: list[list[str]], known: int) -> list[list[str]]:
    """Join the IDs of all runs, unless the result exceeds the limit for remembered IDs."""
    joined = list(chain.from_iterable(names))
    return [joined] if known + len(joined) <= MAX_EARLIER_IDS else names


def _refused(summaries: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {key: reason for each in summaries for key, reason in each["refused"].items()}


def _newest(summaries: Sequence[dict[str, Any]], name: str) -> Any:
    return next((found for each in reversed(summaries) if (found := each[name]) is not None), None)


def _stored(folds: Sequence[RunFold], summaries: Sequence[dict[str, Any]]) -> Iterable[StoredMessages]:
    for fold, summary in zip(folds, summaries, strict=True):
        yield StoredMessages(
            fold.messages, _read, summary["count"], summary["size"], summary["user"], summary["pinned"]
        )


def _read(data: bytes) -> list[Message]:
    return _messages().validate_json(data)


@cache
def _messages() -> TypeAdapter[list[Message]]:
    return TypeAdapter(list[Message])
