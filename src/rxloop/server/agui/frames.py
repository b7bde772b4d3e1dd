"""AG-UI frames, including run outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from rxloop.protocol.events import WAITING, PendingInput, StatusUpdateEvent
from rxloop.server.core.errors import Refused
from rxloop.server.core.stream import FrameWriter

VERSION = "1.0"
"""AG-UI protocol version."""
Data = dict[str, Any]


def frame(type: str, fields: Mapping[str, Any]) -> bytes:
    """Encode an event as a frame, omitting None values because the official client rejects null."""
    data = {name: value for name, value in fields.items() if value is not None}
    return b"data: %b\n\n" % orjson.dumps({"type": type, **data})


def prefix(type: str, name: str, id: str) -> bytes:
    """Encode an event prefix for `add_delta`, once per message instead of once per token."""
    return b"data: %b," % orjson.dumps({"type": type, name: id})[:-1]


def add_delta(start: bytes, delta: str) -> bytes:
    """Append a delta to an event prefix."""
    return b'%b"delta":%b}\n\n' % (start, orjson.dumps(delta))


def encode_error(code: str, message: str) -> bytes:
    """Encode an error event for a failed or refused run."""
    return frame("RUN_ERROR", {"message": message, "code": code})


def encode_refusal(refused: Refused) -> bytes:
    """Encode the error event for a refused request."""
    fields = "; ".join(f"{name}: {text}" for name, text in refused.fields.items()) if refused.fields else ""
    return encode_error(refused.code, f"{refused} ({fields})" if fields else str(refused))


_DRAINING = encode_error("draining", "the server is shutting down; reconnect")
# AG-UI clients ignore `retry:` and do not reconnect automatically.
WRITER = FrameWriter[bytes]("text/event-stream", bytes, draining=_DRAINING)

Slots = Mapping[tuple[str, str | None, int], str]
COUNT_NAMES = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "reasoning_tokens": "reasoningTokens",
    "cached_tokens": "cachedInputTokens",
    "cache_write_tokens": "cacheWriteInputTokens",
}
"""AG-UI names of the token counts in a `usage` event."""


def encode_outcome(
    event: StatusUpdateEvent,
    thread_id: str,
    run_id: str,
    usage: Mapping[str, list[int]],
    slots: Slots,
    *,
    is_legacy: bool,
) -> bytes:
    """Encode the final frame of a run.

    Args:
        event: Final event of the attempt.
        thread_id: Conversation id.
        run_id: Client's id for the attempt.
        usage: Token counts by model, in the order of `COUNT_NAMES`.
        slots: Call ids by run, step and index.
        is_legacy: See `StreamOptions`.
    """
    metadata = {"rxloop": {"taskId": event.task_id, "attempt": event.attempt, "cursor": event.cursor}}
    tokens = list_usage(usage)
    if event.state not in ("completed", "canceled", *WAITING):
        error = event.error
        message = error.message if error is not None else f"the run ended: {event.reason or event.state}"
        code = error.code if error is not None else event.reason or "error"
        return frame("RUN_ERROR", {"metadata": metadata, "message": message, "code": code, "usage": tokens})
    outcome: Data = {"type": "cancelled"} if event.state == "canceled" else {"type": "success"}
    if event.state in WAITING:
        outcome = _describe_pause(event, slots)
    result = event.content if event.state == "completed" else None
    ids = {"threadId": thread_id, "runId": run_id}
    # Legacy clients reject all other outcomes and fields.
    known = outcome if outcome["type"] == "interrupt" or not is_legacy else None
    return frame("RUN_FINISHED", {"metadata": metadata, **ids, "result": result, "outcome": known, "usage": tokens})


def list_usage(usage: Mapping[str, list[int]]) -> list[Data] | None:
    """Return token usage by model, or None."""
    entries: list[Data] = []
    for model, sums in usage.items():
        counts = dict(zip(COUNT_NAMES.values(), sums, strict=True))
        if not counts["cacheWriteInputTokens"]:
            # Omit zeros, because older clients do not know this field.
            del counts["cacheWriteInputTokens"]
        entries.append({**({"model": model} if model else {}), **counts})
    return entries or None


def make_interrupt_id(root: str, question: PendingInput) -> str:
    """Return a thread-wide unique question id."""
    return f"{root}:{question.input_id}"


def find_call(root: str, question: PendingInput, slots: Slots) -> str | None:
    """Return a question's call id, if any."""
    if question.call is None:
        return None
    return slots.get((question.task_id or root, question.step, question.index))


def _describe_pause(event: StatusUpdateEvent, slots: Slots) -> Data:
    root = event.task_id
    questions = [each for each in event.pending if each.input_kind != "tool"]
    if questions:
        return {"type": "interrupt", "interrupts": [_describe_interrupt(root, each, slots) for each in questions]}
    # With an interrupt, clients must answer before sending tool results.
    calls = [find_call(root, each, slots) for each in event.pending]
    return {"type": "success", "pendingToolCallIds": [call for call in calls if call is not None]}


def _describe_interrupt(root: str, question: PendingInput, slots: Slots) -> Data:
    details: dict[str, Any] = {"kind": question.input_kind, "options": question.options}
    reason = "input_required"
    if question.input_kind == "confirmation":
        reason = "confirmation" if question.call is None else "tool_call"
    elif question.input_kind == "credential":
        reason = "rxloop:auth"
        details |= {"provider": question.provider, "url": question.url, "publicKey": question.public_key}
    fields = {
        "subagentRunId": question.task_id,
        "id": make_interrupt_id(root, question),
        "reason": reason,
        "message": question.prompt,
        "toolCallId": find_call(root, question, slots),
        "responseSchema": dict(question.answer_schema) or None,
        "metadata": {"rxloop": {name: value for name, value in details.items() if value is not None}},
    }
    return {name: value for name, value in fields.items() if value is not None}
