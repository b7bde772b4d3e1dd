"""The frames of AG-UI: each is one event of the protocol, as a line of JSON, in the order of the official models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from rxloop.server.refusals import Refused
from rxloop.server.streams import Format
from rxloop.stream.sse import HEARTBEAT

VERSION = "1.0"
"""Of the protocol."""
Data = dict[str, Any]
_VOID = "rxloop.void"
"""The type of an activity that stands for a reasoning message on its way out."""
_AUTHORITY = "@ag-ui/client"
"""Where a snapshot says which types of activities it has all of."""


def frame(type: str, fields: Mapping[str, Any]) -> bytes:
    """Write an event; fields without a value are left out, since the official client takes no null there."""
    data = {name: value for name, value in fields.items() if value is not None}
    return b"data: %b\n\n" % orjson.dumps({"type": type, **data})


def head(type: str, name: str, id: str) -> bytes:
    """Write an event up to its `delta`, which `with_delta` adds: once for each message, and not for each token."""
    return b"data: %b," % orjson.dumps({"type": type, name: id})[:-1]


def with_delta(head: bytes, delta: str) -> bytes:
    """Write an event with a delta."""
    return b'%b"delta":%b}\n\n' % (head, orjson.dumps(delta))


def snapshot(messages: list[Data], activities: Iterable[str] = ()) -> bytes:
    """State all messages anew.

    Args:
        messages: All that the client is to have.
        activities: The types of activities of which these messages have all.
    """
    metadata = {_AUTHORITY: {"authoritativeActivityTypes": [_VOID, *activities]}}
    return frame("MESSAGES_SNAPSHOT", {"metadata": metadata, "messages": messages})


def going(reasoning: Iterable[str]) -> list[Data]:
    """Messages for a snapshot, after which the next one takes this reasoning away.

    A client keeps reasoning that a snapshot leaves out, if that has none. So it becomes an activity first, of a type of
    which the next snapshot has none.
    """
    return [{"id": each, "role": "activity", "activityType": _VOID, "content": {}} for each in reasoning]


def failure(code: str, message: str) -> bytes:
    """Write the end of a run that failed, or of one that never began."""
    return frame("RUN_ERROR", {"message": message, "code": code})


def refusal(refused: Refused) -> bytes:
    """Write why there is no run."""
    fields = "; ".join(f"{name}: {text}" for name, text in refused.fields.items()) if refused.fields else ""
    return failure(refused.code, f"{refused} ({fields})" if fields else str(refused))


def _as_it_is(frames: bytes) -> bytes:
    return frames


_encode: Callable[[Any], bytes] = _as_it_is
_GOES_AWAY = failure("draining", "the server goes away; connect again")
# Without a `retry:` line: clients of AG-UI do not read it, and do not come back by themselves.
FORM = Format("text/event-stream", _encode, b"", HEARTBEAT, _GOES_AWAY)
