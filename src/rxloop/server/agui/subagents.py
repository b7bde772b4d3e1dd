"""AG-UI representation of nested agents and activities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rxloop.protocol.events import WAITING, Event, StatusUpdateEvent, SubtaskEvent, ThoughtStreamEvent
from rxloop.server.agui.frames import Data, frame
from rxloop.server.agui.messages import Messages


class Agents:
    """Nested runs within an attempt."""

    def __init__(self) -> None:
        self.going: dict[str, str] = {}
        """Subagent ids of active nested runs, unique within this attempt."""
        self._over: dict[str, int] = {}

    def owner(self, event: Event) -> str | None:
        """Return the subagent id that an event belongs to, or None for the root run."""
        return self.going.get(event.task_id, event.task_id) if event.agent_path else None

    def begin(self, event: SubtaskEvent, call: str | None) -> bytes:
        """Start or restart a nested run below the tool call `call`."""
        task_id = event.subtask_id
        times = self._over.get(task_id, 0)
        handle = self.going[task_id] = f"{task_id}:{times + 1}" if times else task_id
        parent = self.going.get(event.task_id) if event.agent_path else None
        fields = {"name": event.agent_name, "parentSubagentRunId": parent, "parentToolCallId": call}
        return frame("SUBAGENT_STARTED", {"subagentRunId": handle, **fields})

    def end(self, task_id: str, event: Event, final: StatusUpdateEvent | None) -> bytes:
        """End an active nested run.

        Args:
            task_id: Id of the nested run.
            event: Event that ended the nested run.
            final: Final event of its attempt, or of an enclosing attempt.
        """
        handle = self.going.pop(task_id)
        self._over[task_id] = self._over.get(task_id, 0) + 1
        state = final.state if final is not None else getattr(event, "state", "canceled")
        own = final if final is not None and final.task_id == task_id else None
        if state in WAITING:
            asked = [f"{event.root_task_id}:{each.input_id}" for each in own.pending] if own else []
            outcome = {"type": "suspended", **({"interruptIds": asked} if asked else {})}
            return frame("SUBAGENT_FINISHED", {"subagentRunId": handle, "outcome": outcome})
        if state == "completed":
            result = own.content if own else None
            return frame(
                "SUBAGENT_FINISHED", {"subagentRunId": handle, "result": result, "outcome": {"type": "success"}}
            )
        code = own.error.code if own and own.error else (own.reason if own else None) or state
        message = own.error.message if own and own.error else f"the agent is {state}"
        return frame("SUBAGENT_ERROR", {"subagentRunId": handle, "message": message, "code": code})

    def forget(self) -> None:
        """Reset the numbering for a new attempt."""
        self._over.clear()


THOUGHTS, BRANCHES, PROGRESS = "rxloop.thoughts", "rxloop.branches", "rxloop.tool-progress"


class Activities:
    """A run's activities, encoded as frames."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._kept: dict[str, Data] = {}

    def all(self) -> Sequence[bytes]:
        """Return snapshot frames for all current activities."""
        return [_activity(name, activity) for name, activity in self._kept.items()]

    def add(self, id: str, owner: str | None, type: str, into: str, key: str, value: Any) -> bytes:
        """Append to an activity's list or object and return the resulting frame.

        Args:
            id: Activity id. If it is unknown, a new activity is created.
            owner: Subagent that owns the activity.
            type: Activity type.
            into: Content field to extend.
            key: Key in an object, or `-` to append to a list.
            value: Value to add.
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
    """Convert a thought to an activity item."""
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
