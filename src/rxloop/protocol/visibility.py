"""What clients get of fields that are public in part, and of errors.

`Event.for_clients()` makes the public form of an event by the `public_fields` and `public_parts` of its class; what is
in neither does not leave. Server-sent events, `to_json(public=True)`, `op.public()`, `repr(event)` and exports all take
that form. `hidden` is false wherever clients see it: what is hidden does not leave at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rxloop.protocol.messages import ErrorInfo, Message, PendingInput, ToolCall, public_question

ROOT = "root_task_id"
"""In the metadata of an event of a run that is nested more than once: the outermost run, which numbers the event."""

HIDDEN = "hidden_run"
"""In the metadata of an event of a run that is nested in a hidden call: nothing of it is for clients."""

PUBLIC_METADATA = "public"
"""The key of metadata under which stands what is for clients."""

Part = Callable[[Any], Any]
"""Gives of an event the part of one field that is for clients; the identical value where that is all of it."""


def public_metadata(event: Any) -> dict[str, Any]:
    """Return what stands in the metadata for clients, and the root of a nested run, which cursors need."""
    metadata = event.metadata
    kept = {PUBLIC_METADATA: metadata[PUBLIC_METADATA]} if PUBLIC_METADATA in metadata else {}
    if event.parent_task_id is not None and isinstance(root := metadata.get(ROOT), str):
        kept[ROOT] = root
    return metadata if len(kept) == len(metadata) else kept


def public_messages(event: Any) -> Sequence[Message]:
    """Return the messages of an event as clients may see them."""
    return messages_for_clients(event.messages)


def messages_for_clients(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages without those of the system, without hidden calls and their answers."""
    shown: list[Message] = []
    # The calls of the newest message that has any, each with one answer; ids of vendors occur twice.
    asked: list[ToolCall] = []
    for message in messages:
        if message.role == "assistant":
            asked = list(message.tool_calls)
            message = _without_hidden(message)
            if message.content or message.reasoning or message.tool_calls:
                shown.append(message)
        elif message.role == "tool":
            answered = next((call for call in asked if call.id == message.tool_call_id), None)
            # Whose answer it is has to be known: otherwise it may be that of a hidden call.
            if answered is not None:
                asked.remove(answered)
                if not answered.hidden:
                    shown.append(_cleared(message))
        elif message.role == "user":
            shown.append(_cleared(message))
    same = len(shown) == len(messages) and all(map(lambda one, other: one is other, shown, messages))
    return messages if same else shown


def _without_hidden(message: Message) -> Message:
    calls = tuple(call for call in message.tool_calls if not call.hidden)
    if len(calls) < len(message.tool_calls):
        message = message.model_copy(update={"tool_calls": calls})
    return _cleared(message)


def shown_calls(event: Any) -> list[ToolCall]:
    """Return the tool calls that are not hidden."""
    calls: list[ToolCall] = event.tool_calls
    return [call for call in calls if not call.hidden] if any(call.hidden for call in calls) else calls


def hidden_places(event: Any) -> list[int]:
    """Return the places of the hidden calls in their message."""
    return event.left_out or [place for place, call in enumerate(event.tool_calls) if call.hidden]


def id_unless_hidden(name: str) -> Part:
    """Return the id of a call in the field of that name; None where the call is not for clients."""

    def part(event: Any) -> str | None:
        value = getattr(event, name)
        return None if value in event.hidden_calls else value

    return part


def public_questions(event: Any) -> list[PendingInput]:
    """Return the questions that wait, as clients may see them."""
    pending: list[PendingInput] = event.pending
    shown = [public_question(waiting) for waiting in pending]
    return shown if any(map(lambda one, other: one is not other, shown, pending)) else pending


def public_error_of(event: Any) -> ErrorInfo | None:
    """Return the error that ended an attempt, as clients may see it."""
    return None if event.error is None else public_error(event.error, event.reason)


def _cleared(message: Message) -> Message:
    """Remove the state of the provider, the only field of a message that is not public."""
    return message if message.provider_state is None else message.model_copy(update={"provider_state": None})


def public_error(error: ErrorInfo, reason: str | None) -> ErrorInfo:
    """Show an error as clients may see it: the words of vendors, tools and programs are not for them.

    Args:
        error: As it is in the log.
        reason: Why the attempt ended. The sentences of limits, and what a run was cancelled with, stay as they are.
    """
    if reason == error.code and error.code in _PRECISE:
        return error
    message = _SENTENCES.get(error.code, _FAILED)
    return error if error.message == message else error.model_copy(update={"message": message})


_PRECISE = frozenset({"max_iterations", "tool_failures", "tokens", "timeout", "attempts", "canceled"})
_FAILED = "The run failed."
_SENTENCES = {
    "authentication": "The model's provider refused the key.",
    "permission": "The model's provider refused the access.",
    "unknown_model": "The model's provider does not know the model.",
    "bad_request": "The model's provider refused the request.",
    "context_length": "The conversation is too long for the model.",
    "media_refused": "The model's provider refused an image or a file of the request.",
    "content_filter": "The content filter of the model's provider refused the request or the answer.",
    "rate_limited": "The model's provider is asked too often at the moment.",
    "overloaded": "The model's provider has no room at the moment.",
    "server": "The model's provider failed.",
    "timeout": "The model's provider took too long.",
    "connection": "The connection to the model's provider broke.",
    "protocol": "The model's provider gave an answer that cannot be read.",
    "provider": "The model call failed.",
    "log": "The run could not be recorded.",
    "conflict": "Another process goes on with the run.",
    "pipeline": "The loop of the agent is not in order.",
    "refused": "The model refused to answer.",
    "truncated": "The answer of the model was truncated at its token limit.",
    "incomplete": "The answer of the model did not end normally.",
    "output": "The answer of the model does not have the form that was asked for.",
    "canceled": "The run was cancelled.",
    "superseded": "A later run of the conversation dropped the questions of this run.",
}
"""What clients read of an error, by its code."""
