"""How a run ends, in AG-UI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rxloop.protocol.events import PendingInput, StatusUpdateEvent
from rxloop.server.agui.frames import Data, frame

Slots = Mapping[tuple[str, str | None, int], str]
COUNTED = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "reasoning_tokens": "reasoningTokens",
    "cached_tokens": "cachedInputTokens",
    "cache_write_tokens": "cacheWriteInputTokens",
}
"""The counts of a `usage` event, and what they are called in AG-UI."""
_WAITING = ("input-required", "auth-required")


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
    if event.state not in ("completed", "canceled", *_WAITING):
        error = event.error
        message = error.message if error is not None else f"the run has ended: {event.reason or event.state}"
        code = error.code if error is not None else event.reason or "error"
        return frame("RUN_ERROR", {"metadata": about, "message": message, "code": code, "usage": tokens})
    outcome: Data = {"type": "cancelled"} if event.state == "canceled" else {"type": "success"}
    if event.state in _WAITING:
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
