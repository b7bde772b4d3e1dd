"""Public form of fields and errors.

`Event.to_public()` selects data with the `public_fields` and `public_parts` of the event class. All other data stay on
the server. Server-sent events, `to_json(public=True)`, `op.public()`, `repr(event)` and exports use this form. The
field `hidden` is always false in public events, because hidden events are not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rxloop.protocol.messages import ErrorInfo, Message, PendingInput, ToolCall, is_private, public_question

IMPORTED_RUN = "imported_run"
"""Metadata key in the first event of a run whose events were imported from a file. Memories ignore these runs."""

PREDICTED = "predicted"
"""Metadata key of a message whose tool calls were made by `op.predict_context`, not by the model."""

ROOT = "root_task_id"
"""Metadata key for the id of the outermost run, which numbers the event. Set if runs are nested more than once."""

HIDDEN = "hidden_run"
"""Metadata key of events that clients must not receive because their run is nested in a hidden call."""

PUBLIC_METADATA = "public"
"""Metadata key for public data."""

Part = Callable[[Any], Any]
"""Function used to extract the public part of a field. It returns the same object if everything is public."""


def public_metadata(event: Any) -> dict[str, Any]:
    """Return an event's public metadata, including the root run id that nested runs need for cursors."""
    metadata = event.metadata
    public = {PUBLIC_METADATA: metadata[PUBLIC_METADATA]} if PUBLIC_METADATA in metadata else {}
    if event.parent_task_id is not None and isinstance(root := metadata.get(ROOT), str):
        public[ROOT] = root
    return metadata if len(public) == len(metadata) else public


def public_messages(event: Any) -> Sequence[Message]:
    """Return an event's messages in their public form."""
    return select_public_messages(event.messages)


def select_public_messages(messages: Sequence[Message]) -> Sequence[Message]:
    """Remove system messages, notes to the model, and hidden tool calls including their results."""
    public = [message for message in list_public_forms(messages) if message is not None]
    unchanged = len(public) == len(messages) and all(map(lambda one, other: one is other, public, messages))
    return messages if unchanged else public


def list_public_forms(messages: Sequence[Message]) -> list[Message | None]:
    """Return the public form of each message, or None for messages that clients must not receive."""
    public: list[Message | None] = []
    # Unanswered calls of the last assistant message. Vendors may reuse call ids, so remove each call once answered.
    calls: list[ToolCall] = []
    for message in messages:
        if message.role == "assistant":
            calls = list(message.tool_calls)
            message = _remove_hidden_calls(message)
            public.append(message if message.content or message.reasoning or message.tool_calls else None)
        elif message.role == "tool":
            answered = next((call for call in calls if call.id == message.tool_call_id), None)
            # Results without a matching call might belong to a hidden call.
            if answered is not None:
                calls.remove(answered)
            is_visible = answered is not None and not answered.hidden
            public.append(_remove_provider_state(message) if is_visible else None)
        else:
            is_visible = message.role == "user" and not is_private(message)
            public.append(_remove_provider_state(message) if is_visible else None)
    return public


def _remove_hidden_calls(message: Message) -> Message:
    calls = tuple(call for call in message.tool_calls if not call.hidden)
    if len(calls) < len(message.tool_calls):
        message = message.model_copy(update={"tool_calls": calls})
    return _remove_provider_state(message)


def public_calls(event: Any) -> list[ToolCall]:
    """Return tool calls, excluding hidden calls."""
    calls: list[ToolCall] = event.tool_calls
    return [call for call in calls if not call.hidden] if any(call.hidden for call in calls) else calls


def hidden_indexes(event: Any) -> list[int]:
    """Return hidden call indexes."""
    return event.left_out or [index for index, call in enumerate(event.tool_calls) if call.hidden]


def visible_id(name: str) -> Part:
    """Return a function that reads a call id from the named field, or returns None if the call is hidden."""

    def part(event: Any) -> str | None:
        value = getattr(event, name)
        return None if value in event.hidden_calls else value

    return part


def public_questions(event: Any) -> list[PendingInput]:
    """Return an event's pending questions in their public form."""
    pending: list[PendingInput] = event.pending
    public = [public_question(question) for question in pending]
    return public if any(map(lambda one, other: one is not other, public, pending)) else pending


def public_error(event: Any) -> ErrorInfo | None:
    """Return the attempt's redacted error."""
    return None if event.error is None else redact_error(event.error, event.reason)


def _remove_provider_state(message: Message) -> Message:
    """Remove the provider state. All other message fields are public."""
    return message if message.provider_state is None else message.model_copy(update={"provider_state": None})


def redact_error(error: ErrorInfo, reason: str | None) -> ErrorInfo:
    """Replace the message of an error by a generic one, because it may quote vendors, tools or programs.

    Args:
        error: Recorded error.
        reason: Reason for the end of the attempt. Messages about limits and cancellation are kept.
    """
    if reason == error.code and error.code in _PUBLIC_CODES:
        return error
    message = _PUBLIC_MESSAGES.get(error.code, _DEFAULT_MESSAGE)
    return error if error.message == message else error.model_copy(update={"message": message})


_PUBLIC_CODES = frozenset({"max_iterations", "tool_failures", "tokens", "timeout", "attempts", "canceled"})
_DEFAULT_MESSAGE = "The run failed."
_PUBLIC_MESSAGES = {
    "authentication": "The model provider rejected the API key.",
    "permission": "The model provider denied access.",
    "unknown_model": "The model provider does not know the model.",
    "bad_request": "The model provider rejected the request.",
    "context_length": "The conversation is too long for the model.",
    "media_refused": "The model provider rejected an image or file in the request.",
    "content_filter": "The model provider's content filter blocked the request or the answer.",
    "rate_limited": "The model provider is receiving too many requests.",
    "overloaded": "The model provider is overloaded.",
    "server": "The model provider failed.",
    "timeout": "The model provider timed out.",
    "connection": "The connection to the model provider failed.",
    "protocol": "The model provider sent an invalid response.",
    "provider": "The model call failed.",
    "log": "The run could not be recorded.",
    "conflict": "Another process continues the run.",
    "pipeline": "The agent's loop is invalid.",
    "refused": "The model refused to answer.",
    "truncated": "The model's answer was truncated at its token limit.",
    "incomplete": "The model's answer did not end normally.",
    "output": "The model's answer does not have the requested format.",
    "canceled": "The run was canceled.",
    "superseded": "A later run of the conversation dropped this run's questions.",
}
"""Public error messages by error code."""
