"""What clients get to see of a run: one list, field by field. What is not in it does not leave.

`Event.for_clients()` makes the public form of an event by this list. Server-sent events, `to_json(public=True)`,
`op.public()`, `repr(event)` and exports all take that form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pydantic import BaseModel

from rxloop.protocol.frozen import EMPTY_DICT, FrozenDict, FrozenList
from rxloop.protocol.messages import ErrorInfo, Message, ToolCall

if TYPE_CHECKING:
    from rxloop.protocol.envelope import Event
    from rxloop.protocol.events import PendingInput

ROOT = "root_task_id"
"""In the metadata of an event of a run that is nested more than once: the outermost run, which numbers the event."""

PUBLIC_METADATA = "public"
"""The key of metadata under which stands what is for clients."""

QUESTION = "A decision is needed before the agent can go on."
"""What clients read in the place of a question that a hidden tool asks."""

Shape = Callable[[Any], Any]
"""Gives of an event the part of one field that is for clients; the identical value where that is all of it."""


def _metadata(event: Event) -> dict[str, Any]:
    metadata = event.metadata
    kept = {PUBLIC_METADATA: metadata[PUBLIC_METADATA]} if PUBLIC_METADATA in metadata else {}
    if event.parent_task_id is not None and isinstance(root := metadata.get(ROOT), str):
        kept[ROOT] = root
    return metadata if len(kept) == len(metadata) else kept


def _messages(event: Any) -> Sequence[Message]:
    """The messages without those of the system, without hidden calls and their answers."""
    messages: Sequence[Message] = event.messages
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


def _yes(event: Any) -> bool:
    return True


def _without_hidden(message: Message) -> Message:
    calls = tuple(call for call in message.tool_calls if not call.hidden)
    if len(calls) < len(message.tool_calls):
        message = message.model_copy(update={"tool_calls": calls})
    return _cleared(message)


def _tool_calls(event: Any) -> list[ToolCall]:
    calls: list[ToolCall] = event.tool_calls
    return [call for call in calls if not call.hidden] if any(call.hidden for call in calls) else calls


def _left_out(event: Any) -> list[int]:
    return event.left_out or [place for place, call in enumerate(event.tool_calls) if call.hidden]


def _unless_hidden(name: str) -> Shape:
    """The id of a call, or None where the call is not for clients."""

    def shape(event: Any) -> str | None:
        value = getattr(event, name)
        return None if value in event.hidden_calls else value

    return shape


def _input(event: Any) -> PendingInput:
    return public_question(event.input)


def _pending(event: Any) -> list[PendingInput]:
    pending: list[PendingInput] = event.pending
    shown = [public_question(question) for question in pending]
    return shown if any(map(lambda one, other: one is not other, shown, pending)) else pending


def _error(event: Any) -> ErrorInfo | None:
    return None if event.error is None else public_error(event.error, event.reason)


def _thinking_failed(event: Any) -> str:
    return _THINKING_FAILED


_THINKING_FAILED = "the thinking phase failed"


def public_question(question: PendingInput) -> PendingInput:
    """A question as clients may see it: of one that a hidden tool asks, what it takes to answer it, and no words."""
    if question.call is None or not question.call.hidden:
        return question
    return question.model_copy(update={"prompt": QUESTION, "options": None, "answer_schema": EMPTY_DICT, "call": None})


def public_error(error: ErrorInfo, reason: str | None) -> ErrorInfo:
    """An error as clients may see it: the words of vendors, tools and programs are not for them.

    Args:
        error: As it is in the log.
        reason: Why the attempt ended. The sentences of limits, and what a run was cancelled with, stay as they are.
    """
    if reason == error.code and error.code in _PRECISE:
        return error
    message = _SENTENCES.get(error.code, _FAILED)
    return error if error.message == message else error.model_copy(update={"message": message})


_PRECISE = frozenset({"max_iterations", "tool_failures", "tokens", "timeout", "canceled"})
_FAILED = "The run failed."
_SENTENCES = {
    "authentication": "The model's provider refused the key.",
    "permission": "The model's provider refused the access.",
    "unknown_model": "The model's provider does not know the model.",
    "bad_request": "The model's provider refused the request.",
    "context_length": "The conversation is too long for the model.",
    "content_filter": "The content filter of the model's provider refused the request.",
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
    "output": "The answer of the model does not have the form that was asked for.",
    "canceled": "The run was cancelled.",
}
"""What clients read of an error, by its code."""


def _fields(plain: str, **shaped: Shape) -> dict[str, Shape | None]:
    return {**dict.fromkeys(plain.split()), **shaped}


ENVELOPE = _fields(
    "version kind context_id task_id seq sub attempt timestamp parent_task_id agent_path step branch",
    metadata=_metadata,
)
"""The public fields of every event."""

PUBLIC: dict[str, dict[str, Shape | None]] = {
    "task": _fields("initiator model agent_name strategy fork_of fork_seq", messages=_messages, public_form=_yes),
    "status-update": _fields(
        "state final reason content finish_reason usage resumed after_seq", error=_error, pending=_pending
    ),
    "llm-call": _fields("iteration model message_count tool_count estimated_input_tokens"),
    "content-delta": _fields("delta index"),
    "content-complete": _fields(
        "content reasoning finish_reason raw_finish_reason", tool_calls=_tool_calls, left_out=_left_out
    ),
    "tool-call-delta": _fields("index tool_call_id name fragment hidden"),
    "thought-delta": _fields("delta index"),
    "thought-stream": _fields(
        "thought_id thought_type content index verbosity confidence alternatives source incomplete session",
        related_to=_unless_hidden("related_to"),
        tool_call_id=_unless_hidden("tool_call_id"),
    ),
    "tool-start": _fields("call index hidden idempotency_key"),
    "tool-progress": _fields("call index hidden message fraction"),
    "tool-complete": _fields("call index hidden success result error content duration answer"),
    "usage": _fields("input_tokens output_tokens cached_tokens reasoning_tokens"),
    "message-added": _fields("role content cause message_id"),
    "checkpoint": _fields("iteration message_count usage durable_seq"),
    "context-compressed": _fields(
        "tokens_before tokens_after folded reason dropped shortened stable_tokens budget_unmet thinking_model thinking "
        "seconds"
    ),
    "thinking-failed": _fields("tokens_before", reason=_thinking_failed),
    "input-required": _fields("", input=_input),
    "input-received": _fields("input_id"),
    "stage": _fields("strategy from_stage to_stage accepted reason thought_id session_id"),
    "llm-failed": _fields(""),
    "auth-required": _fields("input_id provider url public_key"),
    "artifact-update": _fields("artifact_id index data name last"),
    "subtask": _fields("subtask_id agent_name", tool_call_id=_unless_hidden("tool_call_id")),
    "custom": _fields("name data"),
    "gap": _fields("reason count after"),
    "Message": _fields("role content reasoning tool_calls tool_call_id pinned message_id"),
    "TextPart": _fields("type text"),
    "ImagePart": _fields("type url data media_type"),
    "FilePart": _fields("type url data media_type filename"),
    "ToolCall": _fields("id name arguments raw error hidden"),
    "Usage": _fields("input_tokens output_tokens cached_tokens reasoning_tokens"),
    "PendingInput": _fields("input_id prompt input_kind options answer_schema call index step"),
    "ErrorInfo": _fields("code message retryable"),
    "SessionLink": _fields(
        "session_id number total next_thought_needed revises revises_id branch_id branch_from merges merges_id stage"
    ),
}
"""What is public: of an event by its kind, beside the envelope; of what stands in events by the name of its model.

`hidden` is false wherever clients see it: what is hidden does not leave at all.
"""

PRIVATE: dict[str, str] = {
    "llm-call": "problems",
    "content-complete": "provider_state",
    "thought-stream": "hidden_calls",
    "context-compressed": "summary problems view",
    "input-received": "value",
    "llm-failed": "error retryable retry_in status tries",
    "subtask": "hidden_calls",
    "Message": "provider_state",
}
"""What is not. Nothing reads this list but a test, so that nobody forgets to decide about a new field."""


class Form(NamedTuple):
    """How the public form of a class of events is made."""

    plain: bool
    """Nothing has to be done but for metadata."""
    private: dict[str, Any]
    """The fields that are not public, with what stands in their place."""
    shaped: dict[str, Shape]
    """The fields that are public in part."""
    left_out: frozenset[str] | None
    """The fields that the public JSON does not have, if there are any."""


@cache
def form_of(cls: type[Event]) -> Form:
    """How the public form of a class of events is made; a class of one's own adds its `public_fields`."""
    listed: dict[str, Shape | None] = dict(ENVELOPE)
    for base in reversed(cls.__mro__):
        kind = getattr(base, "model_fields", {}).get("kind")
        listed.update(PUBLIC.get(kind.default, {}) if kind is not None and isinstance(kind.default, str) else {})
    listed.update(dict.fromkeys(cls.public_fields))
    private = _private(cls, listed)
    shaped = {name: shape for name, shape in listed.items() if shape is not None and name in cls.model_fields}
    plain = not private and not (shaped.keys() - {"metadata"}) and cls.model_config.get("extra") != "allow"
    return Form(plain, private, shaped, frozenset(private) or None)


def _private(cls: type[BaseModel], listed: dict[str, Shape | None]) -> dict[str, Any]:
    return {
        name: None if field.is_required() else field.get_default(call_default_factory=True)
        for name, field in cls.model_fields.items()
        if name not in listed
    }


_MESSAGE = _private(Message, PUBLIC["Message"])


def _cleared(message: Message) -> Message:
    """A message without the fields that are not public."""
    fields = vars(message)
    changes = {name: value for name, value in _MESSAGE.items() if fields[name] != value}
    return message.model_copy(update=changes) if changes else message


def public_form(event: Event) -> Event:
    """An event of which something is public, as clients may see it: itself where there is nothing to hide."""
    form = form_of(type(event))
    fields = vars(event)
    changes = {name: _frozen(value) for name, value in form.private.items() if fields[name] != value}
    for name, shape in form.shaped.items():
        value = shape(event)
        if value is not fields[name] and value != fields[name]:
            changes[name] = _frozen(value)
    extra = event.__pydantic_extra__
    if not changes and not extra:
        return event
    shown = event.model_copy(update=changes)
    if extra:
        object.__setattr__(shown, "__pydantic_extra__", {})
    return shown


def _frozen(value: Any) -> Any:
    """The value so that nobody can change what all clients share; what stands in it is frozen already."""
    if isinstance(value, list):
        return FrozenList(cast("list[Any]", value))
    return FrozenDict(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
