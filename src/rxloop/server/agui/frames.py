"""AG-UI frames, including run outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from rxloop.protocol.events import WAITING, PendingInput, StatusUpdateEvent
from rxloop.server.core.errors import Refused
from rxloop.server.core.stream import FrameWriter

VERSION = "1.0"
"""AG-UI protocol version."""
Data = dict[str, Any]
_VOID = "rxloop.void"
"""Activity type that replaces a reasoning message before its removal."""
_AUTHORITY = "@ag-ui/client"
"""Metadata key for activity types that are complete in a snapshot."""


def frame(type: str, fields: Mapping[str, Any]) -> bytes:
    """Encode an event as a frame, omitting None values because the official client rejects null."""
    data = {name: value for name, value in fields.items() if value is not None}
    return b"data: %b\n\n" % orjson.dumps({"type": type, **data})


def head(type: str, name: str, id: str) -> bytes:
    """Encode an event prefix for `with_delta`, once per message instead of once per token."""
    return b"data: %b," % orjson.dumps({"type": type, name: id})[:-1]


def with_delta(head: bytes, delta: str) -> bytes:
    """Append a delta to an event prefix."""
    return b'%b"delta":%b}\n\n' % (head, orjson.dumps(delta))


def snapshot(messages: list[Data], activities: Iterable[str] = ()) -> bytes:
    """Encode a snapshot of all messages.

    Args:
        messages: All messages of the client.
        activities: Activity types that are complete in this snapshot.
    """
    metadata = {_AUTHORITY: {"authoritativeActivityTypes": [_VOID, *activities]}}
    return frame("MESSAGES_SNAPSHOT", {"metadata": metadata, "messages": messages})


def going(reasoning: Iterable[str]) -> list[Data]:
    """Return placeholder messages that let the next snapshot remove reasoning.

    Clients keep reasoning messages that are missing in a snapshot without reasoning. Replacing them with an activity of
    an authoritative type allows the next snapshot to remove them.
    """
    return [{"id": each, "role": "activity", "activityType": _VOID, "content": {}} for each in reasoning]


def failure(code: str, message: str) -> bytes:
    """Encode an error event for a failed or refused run."""
    return frame("RUN_ERROR", {"message": message, "code": code})


def refusal(refused: Refused) -> bytes:
    """Encode the error event for a refused request."""
    fields = "; ".join(f"{name}: {text}" for name, text in refused.fields.items()) if refused.fields else ""
    return failure(refused.code, f"{refused} ({fields})" if fields else str(refused))


_GOES_AWAY = failure("draining", "the server goes away; connect again")
# AG-UI clients ignore `retry:` and do not reconnect automatically.
WRITER = FrameWriter[bytes]("text/event-stream", bytes, draining=_GOES_AWAY)

Slots = Mapping[tuple[str, str | None, int], str]
COUNTED = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "reasoning_tokens": "reasoningTokens",
    "cached_tokens": "cachedInputTokens",
    "cache_write_tokens": "cacheWriteInputTokens",
}
"""AG-UI names of the token counts in a `usage` event."""


def end_of(
    event: StatusUpdateEvent, thread_id: str, run_id: str, usage: Mapping[str, list[int]], slots: Slots
) -> bytes:
    """Encode the final frame of a run.

    Args:
        event: Final event of the attempt.
        thread_id: Conversation id.
        run_id: Client's id for the attempt.
        usage: Token counts by model, in the order of `COUNTED`.
        slots: Call ids by run, step and index.
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
    """Return token usage by model, or None."""
    found: list[Data] = []
    for model, sums in usage.items():
        counts = dict(zip(COUNTED.values(), sums, strict=True))
        if not counts["cacheWriteInputTokens"]:
            # Omit zeros, because older clients do not know this field.
            del counts["cacheWriteInputTokens"]
        found.append({**({"model": model} if model else {}), **counts})
    return found or None


def interrupt_id(root: str, question: PendingInput) -> str:
    """Return a thread-wide unique question id."""
    return f"{root}:{question.input_id}"


def call_of(root: str, question: PendingInput, slots: Slots) -> str | None:
    """Return the call id for a question, or None."""
    if question.call is None:
        return None
    return slots.get((question.task_id or root, question.step, question.index))


def _waits(event: StatusUpdateEvent, slots: Slots) -> Data:
    root = event.task_id
    asked = [each for each in event.pending if each.input_kind != "tool"]
    if asked:
        return {"type": "interrupt", "interrupts": [_interrupt(root, each, slots) for each in asked]}
    # With an interrupt, clients must answer before sending tool results.
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
