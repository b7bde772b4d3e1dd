"""What stands beside the texts of a run: its thoughts and its branches, as AG-UI's activities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rxloop.protocol.events import ThoughtStreamEvent
from rxloop.server.agui.frames import Data, frame
from rxloop.server.agui.messages import Messages

THOUGHTS, BRANCHES, PROGRESS = "rxloop.thoughts", "rxloop.branches", "rxloop.tool-progress"


class Activities:
    """The activities that a run has, and the frames that tell of them."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._kept: dict[str, Data] = {}

    def all(self) -> Sequence[bytes]:
        """The frames of all of them, as they stand."""
        return [_activity(name, activity) for name, activity in self._kept.items()]

    def add(self, id: str, owner: str | None, type: str, into: str, key: str, value: Any) -> bytes:
        """Add something to an activity, which is a list, or an object where it has keys; give the frame that tells it.

        Args:
            id: The activity; a new one begins with this.
            owner: The nested agent that it belongs to.
            type: Which kind of activity it is.
            into: The field of its content that grows.
            key: The key in an object, or `-` for the end of a list.
            value: What is added.
        """
        activity = self._kept.get(id)
        if activity is None:
            content = {into: [value] if key == "-" else {key: value}}
            activity = self._messages.put(id, "activity", content, activityType=type, subagentRunId=owner)
            self._kept[id] = activity
            return _activity(id, activity)
        if key == "-":
            activity["content"][into].append(value)
        else:
            activity["content"][into][key] = value
        path = f"/{into}/{key.replace('~', '~0').replace('/', '~1')}"
        patch = [{"op": "add", "path": path, "value": value}]
        fields = {"subagentRunId": owner, "messageId": id, "activityType": type, "patch": patch}
        return frame("ACTIVITY_DELTA", fields)


def thought_of(event: ThoughtStreamEvent) -> Data:
    """A thought as an item of an activity."""
    thought = {
        "id": event.thought_id,
        "type": event.thought_type,
        "content": event.content,
        "source": event.source,
        "confidence": event.confidence,
        "relatedTo": event.related_to,
        "alternatives": list(event.alternatives) or None,
        "branch": event.branch,
    }
    return {name: value for name, value in thought.items() if value is not None}


def _activity(id: str, activity: Data) -> bytes:
    fields = {"messageId": id, "activityType": activity["activityType"], "content": activity["content"]}
    return frame("ACTIVITY_SNAPSHOT", {"subagentRunId": activity.get("subagentRunId"), **fields})
