"""Repair of invalid requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import repeat, takewhile
from operator import is_
from typing import Any, cast
from weakref import WeakKeyDictionary

from rxloop.context.layout import Block, split_blocks
from rxloop.pipeline.host import get_host
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import Message, ToolCall
from rxloop.state.history import History
from rxloop.state.run_state import RunState

log = logging.getLogger("rxloop")


class RequestRepair:
    """Checks requests whose messages differ from the history.

    It remembers the last valid messages of each branch. If messages are only appended, only new ones are checked.
    """

    def __init__(self) -> None:
        self._right: WeakKeyDictionary[Any, dict[str | None, tuple[Message, ...]]] = WeakKeyDictionary()
        self._warned: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

    def checked(self, request: ModelRequest) -> tuple[ModelRequest, list[str]]:
        """Return a valid request and a list of problems. A valid request is returned as the same object."""
        host, state = get_host(request.ctx), request.ctx.state
        system, problems = _restore_layers(request.system, host.system)
        messages, errors = self._check_messages(request, state)
        problems += errors
        if not problems:
            return request, problems
        if host not in self._warned:
            self._warned[host] = True
            log.warning(
                "run %s: repaired a request that an operator before call_model in %s had made invalid: %s",
                request.ctx.task_id,
                host.info.describe_loop(),
                "; ".join(problems),
            )
        return request.replace(messages=messages, system=system), problems

    def _check_messages(self, request: ModelRequest, state: RunState) -> tuple[Sequence[Message], list[str]]:
        history = state.messages
        sent = cast("object", request.messages)
        if sent is history:
            return history, []
        if not isinstance(sent, Sequence) or isinstance(sent, str | bytes):
            return history, [f"the messages are {_describe_type(sent)} and not a list: the history was sent"]
        messages = cast("Sequence[Message]", sent)
        known = self._right.setdefault(get_host(request.ctx), {})
        before = known.get(request.branch, ())
        same = sum(takewhile(bool, map(is_, messages, before)))
        error = _find_other_object(messages[same:])
        if error is not None:
            return history, [error]
        problems = pair_problems(messages, same)
        missing = _find_missing(messages, history, state)
        if not (problems or missing):
            known[request.branch] = tuple(messages)
            return messages, []
        problems += [f"message {index} of the history has to be there" for index in missing]
        return _repair(messages, history, missing), problems


def pair_problems(messages: Sequence[Message], same: int = 0) -> list[str]:
    """Describe mismatched calls and results.

    Args:
        messages: Request messages.
        same: Number of previously validated messages at the start.
    """
    start = same
    while start and messages[start - 1].role == "tool":
        start -= 1
    if start and messages[start - 1].tool_calls:
        start -= 1
    # `messages` may be any sequence, so slicing is not guaranteed to be cheap or possible.
    return [
        problem
        for block in split_blocks(messages[index] for index in range(start, len(messages)))
        if (problem := _find_problem(block, start + block.start)) is not None
    ]


def _find_problem(block: Block, index: int) -> str | None:
    first = block.messages[0]
    if first.role == "tool":
        return f"message {index} answers the call {first.tool_call_id!r}, which nothing before it makes"
    calls = [call.id for call in first.tool_calls]
    answered = [message.tool_call_id for message in block.messages[1:]]
    if calls == answered:
        return None
    missing = next((call for call in calls if calls.count(call) > answered.count(call)), None)
    if missing is not None:
        return f"the call {missing!r} of message {index} has no result"
    if len(answered) > len(calls):
        return f"the calls of message {index} have more than one result each"
    return f"the results of message {index} are not in the order of its calls"


def _find_other_object(messages: Sequence[object]) -> str | None:
    """Describe the problem if a list contains an object that is not a message."""
    for item in messages:
        if not isinstance(item, Message):
            return f"something {_describe_type(item)} stands among the messages: the history was sent"
    return None


def _describe_type(value: object) -> str:
    return f"of type {type(value).__qualname__}"


def _restore_layers(sent: object, own: tuple[Message, ...]) -> tuple[tuple[Message, ...], list[str]]:
    """Restore missing layers of the system prompt, unless an operator has added a new layer."""
    if sent is own:
        return own, []
    if not isinstance(sent, Sequence) or not all(isinstance(item, Message) for item in cast("Sequence[object]", sent)):
        return own, [
            f"the system prompt is {_describe_type(cast('object', sent))} and not messages: that of the run was sent"
        ]
    layers = tuple(cast("Sequence[Message]", sent))
    missing = [layer for layer in own if not _holds(layers, layer)]
    if not missing or any(not _holds(own, layer) for layer in layers):
        return layers, []
    return (*own, *(layer for layer in layers if not _holds(own, layer))), ["the system prompt was left out"]


def _holds(messages: Sequence[Message], message: Message) -> bool:
    """Return True if the messages contain this object. Equal messages from a user are both needed."""
    return any(map(is_, messages, repeat(message)))


def _find_missing(messages: Sequence[Message], history: History, state: RunState) -> list[int]:
    """Return indices of missing required messages."""
    indices: list[int] = []
    newest = history.newest_user
    if newest is not None and not _holds(messages, history[newest]):
        last = next((message for message in reversed(messages) if message.role == "user"), None)
        if last is None or _holds(history, last):
            indices.append(newest)
    question = next((message for message in reversed(state.initial_messages) if message.role == "user"), None)
    if question is None or (newest is not None and history[newest] is question):
        pass
    elif not _holds(messages, question) and not _has_foreign_message(messages, history, _is_of_user):
        indices += [index for index, message in enumerate(history) if message is question]
    pinned = [index for index in history.pinned if not _holds(messages, history[index])]
    if pinned and not _has_foreign_message(messages, history, _is_pinned):
        indices += pinned
    return sorted(set(indices))


def _has_foreign_message(messages: Sequence[Message], history: History, kind: Callable[[Message], bool]) -> bool:
    """Return True if there is a matching message that is not in the history."""
    return any(kind(message) and not _holds(history, message) for message in messages)


def _is_of_user(message: Message) -> bool:
    return message.role == "user"


def _is_pinned(message: Message) -> bool:
    return message.pinned


def _repair(messages: Sequence[Message], history: History, missing: Sequence[int]) -> list[Message]:
    """Insert required messages, and remove those a provider would reject."""
    start, newest = _newest_block(history)
    kept: list[Message] = []
    for block in split_blocks(messages):
        first = block.messages[0]
        if first.role == "tool":
            continue
        spare = newest[1:] if newest and first is newest[0] else ()
        results = _sort_results(first.tool_calls, [*block.messages[1:], *spare])
        if results is not None:
            kept += [first, *results]
    inserted = {index: [history[index]] for index in missing}
    torn = any(_holds(messages, message) for message in newest)
    if torn and not (_holds(kept, newest[0]) or any(_holds(kept, message) for message in newest)):
        inserted[start] = newest
    order = {id(message): index for index, message in enumerate(history)}
    for index in sorted(inserted):
        at = _find_position(kept, index, order, last=index == len(history) - len(inserted[index]))
        kept[at:at] = inserted[index]
    return kept or list(history)


def _newest_block(history: History) -> tuple[int, list[Message]]:
    """Return the most recent tool call message with its results, along with the start index."""
    start = len(history) - 1
    while start >= 0 and history[start].role != "assistant":
        start -= 1
    if start < 0 or not history[start].tool_calls:
        return 0, []
    return start, history[start : start + 1 + len(history[start].tool_calls)]


def _sort_results(calls: Sequence[ToolCall], results: list[Message]) -> list[Message] | None:
    """Sort results by call order, or return None for incomplete results."""
    ordered: list[Message] = []
    for call in calls:
        at = next((at for at, message in enumerate(results) if message.tool_call_id == call.id), None)
        if at is None:
            return None
        ordered.append(results.pop(at))
    return ordered


def _find_position(kept: Sequence[Message], index: int, order: dict[int, int], *, last: bool) -> int:
    """Determine the insert position of a history message, preserving message order."""
    before = [at for at, message in enumerate(kept) if order.get(id(message), len(order)) < index]
    later = next((at for at, message in enumerate(kept) if order.get(id(message), -1) > index), None)
    at = before[-1] + 1 if before else later if later is not None else len(kept) if last else 0
    # Calls and results must stay adjacent.
    while at < len(kept) and kept[at].role == "tool" and before:
        at += 1
    while not before and at and at < len(kept) and kept[at].role == "tool":
        at -= 1
    return at
