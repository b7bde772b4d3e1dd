"""Checks of a prompt and the history in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rxloop.errors import ConfigurationError
from rxloop.protocol.messages import Message


def check_history(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Refuse a prompt in which a tool call and its answer do not stand together; vendors do, less clearly.

    Returns:
        The messages, with the answers to the calls of a message in the order of these calls.

    Raises:
        ConfigurationError: A call has no answer right after its message, or an answer has no call before it.
    """
    ordered = list(messages)
    due: dict[int, tuple[str, str]] = {}
    asked = 0
    for place, message in enumerate(messages):
        if message.role == "tool":
            answered = next((key for key, (call_id, _) in due.items() if call_id == message.tool_call_id), None)
            if answered is None:
                raise ConfigurationError(
                    f"prompt[{place}] answers the tool call {message.tool_call_id!r}, but no message of the assistant "
                    "right before it has an open call of that id: put it there, or leave the answer out"
                )
            del due[answered]
            ordered[asked + 1 + answered] = message
            continue
        _check_answered(due, asked)
        asked = place
        due = {key: (call.id, call.name) for key, call in enumerate(message.tool_calls)}
    _check_answered(due, asked)
    return tuple(ordered)


def _check_answered(due: Mapping[int, tuple[str, str]], place: int) -> None:
    for call_id, name in due.values():
        raise ConfigurationError(
            f"prompt[{place}] calls the tool {name!r} ({call_id!r}), and nothing after it answers the call: "
            f"put Message.tool({call_id!r}, ...) right after it, or leave the call out"
        )
