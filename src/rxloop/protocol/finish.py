"""Finish reasons of model messages: classify them and explain them to models and people."""

from __future__ import annotations

from rxloop.protocol.step_events import ContentCompleteEvent

COMPLETE = frozenset(("stop", "tool_calls", "pause"))
"""Finish reasons of complete messages. An unknown reason never means success."""
CUT_OFF = frozenset(("canceled", "interrupted"))
"""Finish reasons of messages that the run canceled or interrupted. The history has no slots for their calls."""
KNOWN = COMPLETE | CUT_OFF | {"length", "content_filter"}
UNKNOWN = "unknown"
"""Finish reason for messages whose provider reported no reason or an unknown reason."""
REFUSAL = "refusal"
"""Raw finish reason of refusals by the model itself, if the vendor reports them by a finish reason."""
MALFORMED_REASON = "malformed_call"
"""Metadata key used if the vendor could not parse the model's tool call."""
_REFUSALS = frozenset((REFUSAL, "stop", "completed", "tool_calls", "end_turn", "eos"))
"""Raw reasons of refusals. Some vendors mark a refusal elsewhere and report a normal end."""


def is_complete(message: ContentCompleteEvent) -> bool:
    """Return True if the message ended normally. Only complete messages may call tools or answer."""
    return message.finish_reason in COMPLETE


def is_filtered(message: ContentCompleteEvent) -> bool:
    """Return True if the model refused or a content filter ended the message.

    The run ends, because a retry would not help.
    """
    return message.finish_reason == "content_filter"


def is_refusal(message: ContentCompleteEvent) -> bool:
    """Return True if the model itself refused to answer."""
    return is_filtered(message) and (message.raw_finish_reason or "").lower() in _REFUSALS


def explain_end(message: ContentCompleteEvent) -> str:
    """Return a clause that describes the end of an incomplete message, such as "it was truncated at ..."."""
    reason, raw, max_tokens = message.finish_reason, message.raw_finish_reason, message.max_tokens
    vendor = f" (finish reason {raw!r})" if raw and raw.lower() != reason else ""
    if reason == "length":
        if raw and "context" in raw.lower():
            return f"it was truncated because the context window of the model is full{vendor}"
        limit = " of the model" if max_tokens is None else f" of {max_tokens} tokens (max_tokens={max_tokens})"
        return f"it was truncated at the output limit{limit}{vendor}"
    if reason == "content_filter":
        if raw and raw.lower() in _REFUSALS:
            return "it is a refusal of the model"
        return f"it was ended by a content filter{vendor}"
    if raw or reason != UNKNOWN:
        return f"it did not end normally (finish reason {raw or reason!r})"
    return "the provider did not report that it was complete"


def explain_incomplete(message: ContentCompleteEvent | None) -> str | None:
    """Return a clause that explains why the message is an incomplete answer, or None if the message is complete."""
    if message is None or is_complete(message) or message.finish_reason in CUT_OFF:
        return None
    return explain_end(message)


def explain_refused_call(message: ContentCompleteEvent, name: str) -> str:
    """Return the text that replaces the result of a tool call in an incomplete message."""
    text = f"{name} was not executed, because your message is incomplete: {explain_end(message)}."
    if is_filtered(message):
        return text
    if message.finish_reason == "length":
        return f"{text} Call {name} again with shorter arguments, or split the work into several calls."
    return f"{text} Call {name} again."
