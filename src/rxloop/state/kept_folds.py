"""Folds of earlier runs of a conversation, as a log stores them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import orjson
from pydantic import TypeAdapter

from rxloop.protocol.events import ContextCompressedEvent
from rxloop.protocol.messages import Message
from rxloop.state.history import Stored
from rxloop.state.run_state import EARLIER, Measured, RunState, earlier_with, left_to_the_next


@dataclass(frozen=True, slots=True)
class RunFold:
    """What runs of a conversation that follow one another add to it, as whoever folded them wrote it down.

    A log need not understand it.
    """

    first: str
    """The id of the first of these runs."""
    last: str
    """The id of the last one."""
    runs: int
    """How many they are."""
    events: int
    """How many durable events they have."""
    summary: bytes
    """What has to be known at once; JSON."""
    messages: bytes
    """The messages; JSON."""


FORMAT = 2
"""The version of the form: a fold of another one is made anew. Change it with what the fold of events comes to."""


def left_behind(state: RunState) -> RunState:
    """Reduce the state after a run to what the next one of the conversation begins with."""
    return RunState(
        messages=left_to_the_next(state),
        earlier=earlier_with(state.earlier, (*state.thoughts, *state.calls)),
        compressed=state.compressed,
        measured=state.measured,
        refused=state.refused,
    )


def keep(task_id: str, events: int, run: RunState) -> RunFold:
    """Write down what a run adds.

    Args:
        task_id: The run.
        events: How many durable events it has.
        run: The fold of them, and of no others.
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
    # Not by the adapter of the list, which takes longer to make than a turn may take to begin.
    written = b",".join([message.model_dump_json().encode() for message in messages])
    return RunFold(task_id, task_id, 1, events, orjson.dumps(summary), b"[" + written + b"]")


def put_together(folds: Sequence[RunFold]) -> RunFold:
    """Make one fold of several that follow one another, so that there are few to read."""
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
    """Add what a run has added to the state that the earlier ones of the conversation left.

    Args:
        state: What they left.
        run: The fold of its events, and of no others.
    """
    left = left_behind(run)
    return RunState(
        messages=state.messages.append(*left.messages),
        earlier=earlier_with(state.earlier, left.earlier),
        compressed=left.compressed or state.compressed,
        measured=left.measured or state.measured,
        refused=state.refused.add(left.refused.reasons),
    )


def add_kept(state: RunState, folds: Sequence[RunFold]) -> RunState:
    """Add what runs have added, in their order, to the state that the earlier ones of the conversation left."""
    summaries: list[dict[str, Any]] = orjson.loads(b"[" + b",".join([fold.summary for fold in folds]) + b"]")
    earlier = state.earlier
    for names in _few([names for summary in summaries for names in summary["ids"]], len(earlier)):
        earlier = earlier_with(earlier, names)
    compressed, measured = _newest(summaries, "compressed"), _newest(summaries, "measured")
    return RunState(
        messages=state.messages.append_stored(_stored(folds, summaries)),
        earlier=earlier,
        compressed=state.compressed if compressed is None else ContextCompressedEvent.model_validate_json(compressed),
        measured=state.measured if measured is None else Measured(*measured),
        refused=state.refused.add(_refused(summaries)),
    )


def _few(names: list[list[str]], known: int) -> list[list[str]]:
    """Join the ids of all runs, if none of them is forgotten on the way."""
    joined = list(chain.from_iterable(names))
    return [joined] if known + len(joined) <= EARLIER else names


def _refused(summaries: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {key: reason for each in summaries for key, reason in each["refused"].items()}


def _newest(summaries: Sequence[dict[str, Any]], name: str) -> Any:
    return next((found for each in reversed(summaries) if (found := each[name]) is not None), None)


def _stored(folds: Sequence[RunFold], summaries: Sequence[dict[str, Any]]) -> Iterable[Stored]:
    for fold, summary in zip(folds, summaries, strict=True):
        yield Stored(fold.messages, _read, summary["count"], summary["size"], summary["user"], summary["pinned"])


def _read(data: bytes) -> list[Message]:
    return _messages().validate_json(data)


@cache
def _messages() -> TypeAdapter[list[Message]]:
    return TypeAdapter(list[Message])
