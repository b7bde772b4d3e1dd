"""What a run adds to its conversation, in a form that a log keeps beside the events.

It does not depend on the runs before it, so a conversation is made of those of its runs, each of which is made anew
from the events where the log has none that fits. Messages stay JSON until somebody looks at them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any

import orjson
from pydantic import TypeAdapter

from rxloop.pipeline.values import KeptFold
from rxloop.protocol.events import ContextCompressedEvent
from rxloop.protocol.messages import Message
from rxloop.state.history import Stored
from rxloop.state.run_state import EARLIER, Measured, RunState, earlier_with, left_to_the_next

FORMAT = 1
"""The version of the form: a fold of another one is made anew. Change it with what the fold of events comes to."""


def left_behind(state: RunState) -> RunState:
    """Reduce the state after a run to what the next one of the conversation begins with."""
    return RunState(
        messages=left_to_the_next(state),
        earlier=earlier_with(state.earlier, (*state.thoughts, *state.calls)),
        compressed=state.compressed,
        measured=state.measured,
    )


def keep(task_id: str, events: int, run: RunState) -> KeptFold:
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
    }
    # Not by the adapter of the list, which takes longer to make than a turn may take to begin.
    written = b",".join([message.model_dump_json().encode() for message in messages])
    return KeptFold(task_id, task_id, 1, events, orjson.dumps(summary), b"[" + written + b"]")


def put_together(folds: Sequence[KeptFold]) -> KeptFold:
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
    }
    messages = b",".join(inside for fold in folds if (inside := fold.messages[1:-1]))
    return KeptFold(
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
    )


def add_kept(state: RunState, folds: Sequence[KeptFold]) -> RunState:
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
    )


def _few(names: list[list[str]], known: int) -> list[list[str]]:
    """Join the ids of all runs, if none of them is forgotten on the way."""
    joined = list(chain.from_iterable(names))
    return [joined] if known + len(joined) <= EARLIER else names


def _newest(summaries: Sequence[dict[str, Any]], name: str) -> Any:
    return next((found for each in reversed(summaries) if (found := each[name]) is not None), None)


def _stored(folds: Sequence[KeptFold], summaries: Sequence[dict[str, Any]]) -> Iterable[Stored]:
    for fold, summary in zip(folds, summaries, strict=True):
        yield Stored(fold.messages, _read, summary["count"], summary["size"], summary["user"], summary["pinned"])


def _read(data: bytes) -> list[Message]:
    return _messages().validate_json(data)


@cache
def _messages() -> TypeAdapter[list[Message]]:
    return TypeAdapter(list[Message])
