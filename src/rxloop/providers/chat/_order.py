"""The order of messages that endpoints insist on: every call has its result behind it, every result its call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rxloop.protocol.messages import Message
from rxloop.state.history import History

_NO_RESULT = "There is no result of this call."
_UNDERSTOOD = Message.assistant("Understood.")
_GO_ON = Message.user("Please go on.")


def is_paired(messages: Sequence[Message]) -> bool:
    """Whether every call has its result behind it, and every result its call; of a history, only looks at what is new.

    Args:
        messages: A part of a request that begins and ends between turns.
    """
    first = messages.paired if isinstance(messages, History) else 0
    waiting: list[str | None] = []
    for place in range(first, len(messages)):
        message = messages[place]
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                return False
            waiting.remove(message.tool_call_id)
        elif waiting:
            return False
        elif message.tool_calls:
            waiting = [call.id for call in message.tool_calls]
    if isinstance(messages, History) and not waiting:
        messages.paired = len(messages)
    return not waiting


def paired(messages: Iterable[Message], as_text: Callable[[Message], Message]) -> Iterator[Message]:
    """The messages with a result for every call, and without results that no call is there for.

    Args:
        messages: All messages of a request.
        as_text: Makes a message of the user of such a result.
    """
    waiting: list[str | None] = []
    strays: list[Message] = []

    def close() -> Iterator[Message]:
        for call_id in waiting:
            yield Message.tool(call_id or "", _NO_RESULT)
        yield from strays
        waiting.clear()
        strays.clear()

    for message in messages:
        if message.role != "tool":
            yield from close()
            yield message
            waiting += [call.id for call in message.tool_calls]
        elif message.tool_call_id in waiting:
            waiting.remove(message.tool_call_id)
            yield message
        else:
            strays.append(as_text(message))
    yield from close()


def in_turns(messages: Iterable[Message]) -> Iterator[Message]:
    """The messages in an order that an endpoint takes; see `Preset.assistant_after_tool`."""
    last = ""
    for message in messages:
        if last == "tool" and message.role in ("user", "system"):
            yield _UNDERSTOOD
            last = "assistant"
        if last == "assistant" and message.role == "system":
            message = Message.user(message.content)
        yield message
        last = message.role
    if last == "assistant":
        yield _GO_ON
