"""Frames of AG-UI, each one event of the protocol, and how a run ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from rxloop.protocol.events import WAITING, PendingInput, StatusUpdateEvent
from rxloop.server.core.errors import Refused
from rxloop.server.core.stream import FrameWriter

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


_GOES_AWAY = failure("draining", "the server goes away; connect again")
# Without a `retry:` line: clients of AG-UI do not read it, and do not come back by themselves.
WRITER = FrameWriter[bytes]("text/event-stream", bytes, draining=_GOES_AWAY)

Slots = Mapping[tuple[str, str | None, int], str]
COUNTED = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "reasoning_tokens": "reasoningTokens",
    "cached_tokens": "cachedInputTokens",
    "cache_write_tokens": "cacheWriteInputTokens",
}
"""The counts of a `usage` event, and what they are called in AG-UI."""


def end_of(
    event: StatusUpdateEvent, thread_id: str, run_id: str, usage: Mapping[str, list[int]], slots: Slots
) -> bytes:
    """Write the last frame of a run.

    Args:
        event: The end of the attempt.
        thread_id: The conversation.
        run_id: What the client calls the attempt.
        usage: By model: what was counted, in the order of `COUNTED`.
        slots: By run, step and place: the call.
    """
    about = {"rxloop": {"taskId": event.task_id, "attempt": event.attempt, "cursor": event.cursor}}
    tokens = usage_of(usage)
    if event.state not in ("completed", "canceled", *WAITING):
        error = event.error
        message = error.message if error is not None else f"the run has ended: {event.reason or event.state}"
        code = error.code if error is not None else event.reason or "error"
        return frame("RUN_ERROR", {"metadata": about, "message": message, "code": code, "usage": tokens})
    outcome: Data = {"type": "cancelled"} if event.state == "canceled" else {"type": "success"}
    if event.state in WAITING:
        outcome = _waits(event, slots)
    result = event.content if event.state == "completed" else None
    ids = {"threadId": thread_id, "runId": run_id}
    return frame("RUN_FINISHED", {"metadata": about, **ids, "result": result, "outcome": outcome, "usage": tokens})


def usage_of(usage: Mapping[str, list[int]]) -> list[Data] | None:
    """The tokens, by model."""
    found: list[Data] = []
    for model, sums in usage.items():
        counts = dict(zip(COUNTED.values(), sums, strict=True))
        if not counts["cacheWriteInputTokens"]:
            # Younger than the others, and clients that do not know it have no use for a zero.
            del counts["cacheWriteInputTokens"]
        found.append({**({"model": model} if model else {}), **counts})
    return found or None


def interrupt_id(root: str, question: PendingInput) -> str:
    """What a question is called: its own id is only that of one run, and a thread has many."""
    return f"{root}:{question.input_id}"


def call_of(root: str, question: PendingInput, slots: Slots) -> str | None:
    """The call that a question is about."""
    if question.call is None:
        return None
    return slots.get((question.task_id or root, question.step, question.index))


def _waits(event: StatusUpdateEvent, slots: Slots) -> Data:
    root = event.task_id
    asked = [each for each in event.pending if each.input_kind != "tool"]
    if asked:
        return {"type": "interrupt", "interrupts": [_interrupt(root, each, slots) for each in asked]}
    # An interrupt would have the client demand an answer to it before it sends the results.
    calls = [call_of(root, each, slots) for each in event.pending]
    return {"type": "success", "pendingToolCallIds": [call for call in calls if call is not None]}


def _interrupt(root: str, question: PendingInput, slots: Slots) -> Data:
    more: dict[str, Any] = {"kind": question.input_kind, "options": question.options}
    reason = "input_required"
    if question.input_kind == "confirmation":
        reason = "confirmation" if question.call is None else "tool_call"
    elif question.input_kind == "credential":
        reason = "rxloop:auth"
        more |= {"provider": question.provider, "url": question.url, "publicKey": question.public_key}
    made = {
        "subagentRunId": question.task_id,
        "id": interrupt_id(root, question),
        "reason": reason,
        "message": question.prompt,
        "toolCallId": call_of(root, question, slots),
        "responseSchema": dict(question.answer_schema) or None,
        "metadata": {"rxloop": {name: value for name, value in more.items() if value is not None}},
    }
    return {name: value for name, value in made.items() if value is not None}
