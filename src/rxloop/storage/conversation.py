"""Conversation state before a run, with a cache and stored folds."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any

import orjson
from pydantic import TypeAdapter

from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import ConversationPage, Mark, RunEvents
from rxloop.protocol.events import ContextCompressedEvent
from rxloop.protocol.messages import Message, is_private, mark_private
from rxloop.protocol.model import share_field_names
from rxloop.protocol.tool_events import Goal
from rxloop.state.fold import fold_all
from rxloop.state.history import History, StoredMessages
from rxloop.state.run_state import (
    MAX_EARLIER_IDS,
    RequestSize,
    RunFold,
    RunState,
    add_earlier_ids,
    get_final_history,
    initial_state,
)
from rxloop.support.threads import compute, free_in_thread

Cached = tuple[Mark | None, RunState]

_EVENTS_PER_BATCH = 200
"""Maximum number of events to fold before yielding to the event loop."""

_RUNS_PER_FOLD = 64
"""Number of single-run folds that are combined into one stored fold."""

_MESSAGES_PER_GROUP = 200
"""Maximum number of stored messages per parsing step."""

_SEPARATOR = b",\n"
"""Separator between stored messages. Encoded messages never contain it."""

_MAX_CONVERSATIONS = 100

_MAX_CHARACTERS = 20_000_000

_MAX_MESSAGES = 20_000
"""Cache limits: number of conversations, total message text in characters, and total number of messages. A full garbage
collection takes one millisecond per thousand messages."""


async def conversation(log: EventLog, key: str, before: str) -> RunState:
    """Return the conversation state at the start of a run.

    Args:
        log: Event log.
        key: Conversation key, see `RunRecord.conversation`.
        before: Run ID. Only earlier runs are included.
    """
    cached = find_cached(log, key)
    return await add_page(
        *(log, key, before, cached),
        await read_log(log.read_conversation, key, before=before, after=cached[0], version=FORMAT),
    )


def find_cached(log: EventLog, key: str) -> Cached:
    """Return the cached mark and state of a conversation. The mark is None if nothing is cached.

    The state is valid only if the log confirms that the runs before the mark are unchanged.
    """
    return log.local.get(ConversationCache).get(key, (None, initial_state()))


async def add_page(log: EventLog, key: str, before: str, cached: Cached, page: ConversationPage) -> RunState:
    """Update the cache with a page of runs, store new folds and return the conversation state.

    Args:
        log: Event log.
        key: Conversation key.
        before: Run ID.
        cached: Result of `find_cached` before the page was read.
        page: Page after the cached mark.
    """
    mark, state = cached
    kept, state = await _add_parts(page.parts, initial_state() if page.from_start else state, log.stores_folds)
    folds = _select_new_folds(kept, page.parts)
    if (
        mark is not None
        and mark.runs // _RUNS_PER_FOLD < page.mark.runs // _RUNS_PER_FOLD
        and log.stores_folds
        and not page.from_start
    ):
        # Read all stored folds periodically, so that single-run folds can be combined.
        all_parts = (await read_log(log.read_conversation, key, before=before, version=FORMAT)).parts
        kept = [*all_parts[: len(all_parts) - len(kept)], *kept]
    if log.stores_folds and (folds := [*folds, *_combine_single_folds(kept)]):
        log.store_folds(key, folds, version=FORMAT)
    _remember(log.local.get(ConversationCache), key, page.mark, state)
    events = [[event for part in page.parts if isinstance(part, RunEvents) for event in part.events]]
    del page, kept
    free_in_thread(events)
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
        if folded > _EVENTS_PER_BATCH:
            await asyncio.sleep(0)
            folded = len(part.events)
        add = partial(_add_events, add_folds(state, folds), part, makes_folds)
        state, fold = await compute(add, steps=len(part.events))
        folds = []
        kept.append(fold or part)
    return kept, add_folds(state, folds)


def _select_new_folds(kept: Sequence[RunFold | RunEvents], parts: Sequence[RunFold | RunEvents]) -> list[RunFold]:
    """Return the folds created from events."""
    pairs = zip(kept, parts, strict=False)
    return [fold for fold, part in pairs if isinstance(fold, RunFold) and isinstance(part, RunEvents)]


def _combine_single_folds(parts: Sequence[RunFold | RunEvents]) -> list[RunFold]:
    """Combine consecutive single-run folds into larger folds."""
    combined: list[RunFold] = []
    single: list[RunFold] = []
    for part in parts:
        single = [*single, part] if isinstance(part, RunFold) and part.runs == 1 else []
        if len(single) == _RUNS_PER_FOLD:
            combined.append(combine_folds(single))
            single = []
    return combined


def _add_events(state: RunState, part: RunEvents, makes_folds: bool) -> tuple[RunState, RunFold | None]:
    run = fold_all(part.events, initial_state())
    # An incomplete run would soon invalidate its fold.
    fold = make_fold(part.task_id, len(part.events), run) if part.complete and makes_folds else None
    return add_run(state, run), fold


class ConversationCache(OrderedDict[str, tuple[Mark | None, RunState]]):
    """Last read mark and state of each conversation, in order of use."""


def _remember(folded: ConversationCache, key: str, mark: Mark, state: RunState) -> None:
    folded[key] = mark, state
    folded.move_to_end(key)
    while len(folded) > 1 and _is_full([state.messages for _, state in folded.values()]):
        folded.popitem(last=False)


def _is_full(histories: Sequence[History]) -> bool:
    size, count = sum(each.size for each in histories), sum(map(len, histories))
    return len(histories) > _MAX_CONVERSATIONS or size > _MAX_CHARACTERS or count > _MAX_MESSAGES


FORMAT = 4
"""Version of the stored fold format. Increment it when folding produces different results."""


def get_inherited_state(state: RunState) -> RunState:
    """Return the part of a final run state that the next run inherits."""
    return RunState(
        messages=get_final_history(state),
        earlier=add_earlier_ids(state.earlier, (*state.thoughts, *state.calls)),
        compressed=state.compressed,
        measured=state.measured,
        refused=state.refused,
        goals=state.goals,
    )


def make_fold(task_id: str, events: int, run: RunState) -> RunFold:
    """Return the storable fold of a run.

    Args:
        task_id: Run ID.
        events: Number of durable events.
        run: State folded from the events of this run only.
    """
    inherited = get_inherited_state(run)
    messages = list(inherited.messages)
    summary: dict[str, Any] = {
        "count": len(messages),
        "size": inherited.messages.size,
        "user": inherited.messages.newest_user,
        "pinned": inherited.messages.pinned,
        "private": [index for index, message in enumerate(messages) if is_private(message)],
        "ids": [list(inherited.earlier)] if inherited.earlier else [],
        "compressed": inherited.compressed.to_json().decode() if inherited.compressed is not None else None,
        "measured": inherited.measured and list(inherited.measured),
        "refused": dict(inherited.refused.reasons),
        "goals": None if inherited.goals is None else [goal.model_dump(mode="json") for goal in inherited.goals],
    }
    # Building a list adapter can take longer than starting the run.
    encoded = _SEPARATOR.join([message.model_dump_json().encode() for message in messages])
    return RunFold(task_id, task_id, 1, events, orjson.dumps(summary), b"[" + encoded + b"]")


def combine_folds(folds: Sequence[RunFold]) -> RunFold:
    """Combine the folds of consecutive runs, to reduce the number of rows to read."""
    summaries: list[dict[str, Any]] = [orjson.loads(fold.summary) for fold in folds]
    first, user, pinned, private = 0, None, list[int](), list[int]()
    for each in summaries:
        user = user if each["user"] is None else first + each["user"]
        pinned += [first + index for index in each["pinned"]]
        private += [first + index for index in each["private"]]
        first += each["count"]
    summary: dict[str, Any] = {
        "count": first,
        "size": sum(each["size"] for each in summaries),
        "user": user,
        "pinned": pinned,
        "private": private,
        "ids": [names for each in summaries for names in each["ids"]],
        "compressed": _find_newest(summaries, "compressed"),
        "measured": _find_newest(summaries, "measured"),
        "refused": _merge_refusals(summaries),
        "goals": _find_newest(summaries, "goals"),
    }
    messages = _SEPARATOR.join(inside for fold in folds if (inside := fold.messages[1:-1]))
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
    inherited = get_inherited_state(run)
    return RunState(
        messages=state.messages.append(*inherited.messages),
        earlier=add_earlier_ids(state.earlier, inherited.earlier),
        compressed=inherited.compressed or state.compressed,
        measured=inherited.measured or state.measured,
        refused=state.refused.add(inherited.refused.reasons),
        goals=state.goals if inherited.goals is None else inherited.goals,
    )


def add_folds(state: RunState, folds: Sequence[RunFold]) -> RunState:
    """Add stored folds to a conversation state, in order."""
    summaries: list[dict[str, Any]] = orjson.loads(b"[" + b",".join([fold.summary for fold in folds]) + b"]")
    earlier = state.earlier
    for names in _join_ids([names for summary in summaries for names in summary["ids"]], len(earlier)):
        earlier = add_earlier_ids(earlier, names)
    compressed, measured, goals = (_find_newest(summaries, name) for name in ("compressed", "measured", "goals"))
    return RunState(
        messages=state.messages.append_stored(_to_stored_messages(folds, summaries)),
        earlier=earlier,
        compressed=state.compressed if compressed is None else ContextCompressedEvent.model_validate_json(compressed),
        measured=state.measured if measured is None else RequestSize(*measured),
        refused=state.refused.add(_merge_refusals(summaries)),
        goals=state.goals if goals is None else tuple(map(Goal.model_validate, goals)),
    )


def _join_ids(names: list[list[str]], known: int) -> list[list[str]]:
    """Join the IDs of all runs, unless the result exceeds the limit for remembered IDs."""
    joined = list(chain.from_iterable(names))
    return [joined] if known + len(joined) <= MAX_EARLIER_IDS else names


def _merge_refusals(summaries: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {key: reason for each in summaries for key, reason in each["refused"].items()}


def _find_newest(summaries: Sequence[dict[str, Any]], name: str) -> Any:
    return next((page for each in reversed(summaries) if (page := each[name]) is not None), None)


def _to_stored_messages(folds: Sequence[RunFold], summaries: Sequence[dict[str, Any]]) -> Iterable[StoredMessages]:
    for fold, summary in zip(folds, summaries, strict=True):
        count, private, size, user, pinned = (summary[name] for name in ("count", "private", "size", "user", "pinned"))
        encoded = fold.messages[1:-1].split(_SEPARATOR)
        # Do not split folds from earlier versions, which use a different separator. Splitting empty text returns one
        # item.
        length = _MESSAGES_PER_GROUP if len(encoded) == count else max(count, 1)
        for first in range(0, count, length):
            group = encoded[first : first + length]
            hidden = private[bisect_left(private, first) : bisect_left(private, first + length)]
            read = partial(_parse_messages, private=[index - first for index in hidden])
            # Add the metadata of the whole fold to the first group.
            yield StoredMessages(b"[%b]" % b",".join(group), read, min(length, count - first), size, user, pinned)
            size, user, pinned = 0, None, ()


def _parse_messages(data: bytes, private: Sequence[int]) -> list[Message]:
    messages = _make_message_adapter().validate_json(data)
    for message in messages:
        share_field_names(message)
    for index in private:
        mark_private(messages[index])
    return messages


@cache
def _make_message_adapter() -> TypeAdapter[list[Message]]:
    return TypeAdapter(list[Message])
