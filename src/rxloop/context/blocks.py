"""Indivisible parts of a history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rxloop.protocol.messages import Message


@dataclass(frozen=True, slots=True)
class Block:
    """Messages that are kept or dropped together.

    An assistant message with tool calls, its reasoning and all their results is one block; any other message is one by
    itself.
    """

    start: int
    """The place of the first message in the history."""
    messages: tuple[Message, ...]

    @property
    def places(self) -> range:
        """The places of the messages in the history."""
        return range(self.start, self.start + len(self.messages))

    @property
    def calls(self) -> bool:
        """Whether the block begins with a message that calls tools."""
        return bool(self.messages[0].tool_calls)

    @property
    def open(self) -> bool:
        """Whether a call in it has no result yet."""
        return bool(_unanswered(self.messages))


def blocks_of(messages: Iterable[Message]) -> list[Block]:
    """Cut a history into its blocks, in order."""
    blocks: list[Block] = []
    current: list[Message] = []
    start = place = 0
    for place, message in enumerate(messages):
        if message.role == "tool" and current and current[0].tool_calls:
            current.append(message)
            continue
        if current:
            blocks.append(Block(start, tuple(current)))
        current, start = [message], place
    if current:
        blocks.append(Block(start, tuple(current)))
    return blocks


def problems_of(messages: Sequence[Message], *, open_tail: bool = True) -> list[str]:
    """Describe what a provider would refuse in a list of messages; empty if all is well.

    Args:
        messages: The messages, without the system prompt.
        open_tail: Whether calls of the last block may still be without results.
    """
    found: list[str] = []
    blocks = blocks_of(messages)
    for block in blocks:
        first = block.messages[0]
        if first.role == "tool":
            found.append(
                f"message {block.start} answers the call {first.tool_call_id!r}, which nothing before it makes"
            )
            continue
        missing, strangers = _unanswered(block.messages), _strangers(block.messages)
        if missing and not (open_tail and block is blocks[-1]):
            found.append(f"the call {missing[0]!r} of message {block.start} has no result")
        if strangers:
            call_id = block.messages[strangers[0]].tool_call_id
            found.append(
                f"message {block.start + strangers[0]} answers the call {call_id!r}, which is answered already"
            )
    return found


def repaired(messages: Sequence[Message], *, open_tail: bool = True) -> list[Message]:
    """Remove what a provider would refuse: results without a call, and calls without their results.

    A block with an unanswered call goes whole, so that no message is changed; only at the end of the list, where the
    results are still to come, it stays. A list without problems comes back with the same objects.
    """
    kept: list[Message] = []
    blocks = blocks_of(messages)
    for block in blocks:
        if block.messages[0].role == "tool":
            continue
        if block.open and not (open_tail and block is blocks[-1]):
            continue
        strangers = set(_strangers(block.messages))
        kept += [message for place, message in enumerate(block.messages) if place not in strangers]
    return kept


def _unanswered(messages: Sequence[Message]) -> list[str]:
    missing = [call.id for call in messages[0].tool_calls]
    for message in messages[1:]:
        if message.tool_call_id in missing:
            missing.remove(message.tool_call_id)
    return missing


def _strangers(messages: Sequence[Message]) -> list[int]:
    """Find the places in the block of results that no call has asked for."""
    missing = [call.id for call in messages[0].tool_calls]
    found: list[int] = []
    for place, message in enumerate(messages[1:], 1):
        if message.tool_call_id in missing:
            missing.remove(message.tool_call_id)
        else:
            found.append(place)
    return found
