"""Snapshots that change or replace the messages of an AG-UI client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rxloop.server.agui.frames import Data, frame

_REMOVED_ACTIVITY = "rxloop.void"
_PLACEHOLDER: Data = {"role": "activity", "activityType": _REMOVED_ACTIVITY, "content": {}}
"""Activity that replaces a reasoning message before its removal."""
_EMPTY_MESSAGES: dict[str, Data] = {"reasoning": {"role": "reasoning", "content": ""}, "activity": _PLACEHOLDER}
_COMPLETE_TYPES = "@ag-ui/client"
"""Metadata key for activity types that are complete in a snapshot."""


def update_messages(messages: list[Data], stale: Sequence[str], *, is_legacy: bool) -> bytes:
    """Replace a client's messages, without changing their order.

    Args:
        messages: All messages of the client except activities.
        stale: Ids of discarded reasoning messages.
        is_legacy: See `StreamOptions`.
    """
    if is_legacy:
        # These clients replace all reasoning messages, but only with a snapshot that contains one.
        has_reasoning = any(each["role"] == "reasoning" for each in messages)
        empty = [] if has_reasoning else [{"id": each, "role": "reasoning", "content": ""} for each in stale[:1]]
        return frame("MESSAGES_SNAPSHOT", {"messages": [*messages, *empty]})
    return (_encode(messages, placeholders=stale) if stale else b"") + _encode(messages)


def restore_messages(
    messages: list[Data], activities: Iterable[str], reasoning: Iterable[str] | None, *, is_legacy: bool
) -> bytes:
    """Replace all messages of a client.

    Clients append the new messages of a snapshot to existing ones, so existing messages are removed first.

    Args:
        messages: All messages of the client.
        activities: Activity types of which `messages` contains all activities.
        reasoning: Ids of the client's reasoning messages. None if the client has no messages.
        is_legacy: See `StreamOptions`.
    """
    if reasoning is None:
        return _encode(messages, activities)
    if is_legacy:
        # These clients replace all reasoning messages and activities if a snapshot contains at least one.
        roles = {each["role"] for each in messages} | ({"reasoning"} if [*reasoning] else set[str]())
        empty = [{"id": f"rxloop:{role}", **_EMPTY_MESSAGES[role]} for role in _EMPTY_MESSAGES if role in roles]
        return frame("MESSAGES_SNAPSHOT", {"messages": empty}) + _encode(messages, activities)
    return _encode([], activities, reasoning) + _encode([], activities) + _encode(messages, activities)


def _encode(messages: list[Data], activities: Iterable[str] = (), placeholders: Iterable[str] = ()) -> bytes:
    """Encode a snapshot of all messages.

    Clients keep reasoning messages that are missing in a snapshot without reasoning. A snapshot that replaces them with
    placeholders, which are activities of an authoritative type, allows the next snapshot to remove them.

    Args:
        messages: All messages of the client.
        activities: Activity types that are complete in this snapshot.
        placeholders: Ids of reasoning messages to remove in the next snapshot.
    """
    messages = [*messages, *({"id": each, **_PLACEHOLDER} for each in placeholders)]
    metadata = {_COMPLETE_TYPES: {"authoritativeActivityTypes": [_REMOVED_ACTIVITY, *activities]}}
    return frame("MESSAGES_SNAPSHOT", {"metadata": metadata, "messages": messages})
