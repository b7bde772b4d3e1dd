"""AG-UI representation of nested agents and activities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rxloop.protocol.events import WAITING, Event, StatusUpdateEvent, SubtaskEvent, ThoughtStreamEvent
from rxloop.server.agui.frames import Data, frame
from rxloop.server.agui.messages import Messages


class NestedRuns:
    """Nested runs within an attempt."""

    def __init__(self) -> None:
        self.active: dict[str, str] = {}
        """Subagent ids of active nested runs, unique within this attempt."""
        self._finished: dict[str, int] = {}

    def owner(self, event: Event) -> str | None:
        """Return the subagent id of an event, or None for the root run."""
        return self.active.get(event.task_id, event.task_id) if event.agent_path else None

    def start(self, event: SubtaskEvent, call: str | None) -> bytes:
        """Start or restart a nested run below the tool call `call`."""
        task_id = event.subtask_id
        count = self._finished.get(task_id, 0)
        handle = self.active[task_id] = f"{task_id}:{count + 1}" if count else task_id
        parent = self.active.get(event.task_id) if event.agent_path else None
        fields = {"name": event.agent_name, "parentSubagentRunId": parent, "parentToolCallId": call}
        return frame("SUBAGENT_STARTED", {"subagentRunId": handle, **fields})

    def end(self, task_id: str, event: Event, final: StatusUpdateEvent | None) -> bytes:
        """End an active nested run.

        Args:
            task_id: Id of the nested run.
            event: Event that ended the nested run.
            final: Final event of its attempt, or of an enclosing attempt.
        """
        handle = self.active.pop(task_id)
        self._finished[task_id] = self._finished.get(task_id, 0) + 1
        state = final.state if final is not None else getattr(event, "state", "canceled")
        end = final if final is not None and final.task_id == task_id else None
        if state in WAITING:
            questions = [f"{event.root_task_id}:{each.input_id}" for each in end.pending] if end else []
            outcome = {"type": "suspended", **({"interruptIds": questions} if questions else {})}
            return frame("SUBAGENT_FINISHED", {"subagentRunId": handle, "outcome": outcome})
        if state == "completed":
            result = end.content if end else None
            return frame(
                "SUBAGENT_FINISHED", {"subagentRunId": handle, "result": result, "outcome": {"type": "success"}}
            )
        code = end.error.code if end and end.error else (end.reason if end else None) or state
        message = end.error.message if end and end.error else f"the agent run ended: {state}"
        return frame("SUBAGENT_ERROR", {"subagentRunId": handle, "message": message, "code": code})

    def reset(self) -> None:
        """Reset the numbering for a new attempt."""
        self._finished.clear()


THOUGHTS, BRANCHES, PROGRESS = "rxloop.thoughts", "rxloop.branches", "rxloop.tool-progress"


class Activities:
    """A run's activities, encoded as frames."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._activities: dict[str, Data] = {}

    def all(self) -> Sequence[bytes]:
        """Return snapshot frames for all current activities."""
        return [_encode_activity(name, activity) for name, activity in self._activities.items()]

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
        activity = self._activities.get(id)
        if activity is None:
            content = {into: [value] if key == "-" else {key: value}}
            activity = self._messages.add(id, "activity", content, activityType=type, subagentRunId=owner)
            self._activities[id] = activity
            return _encode_activity(id, activity)
        if key == "-":
            activity["content"][into].append(value)
        else:
            activity["content"][into][key] = value
        path = f"/{into}/{key.replace('~', '~0').replace('/', '~1')}"
        patch = [{"op": "add", "path": path, "value": value}]
        fields = {"subagentRunId": owner, "messageId": id, "activityType": type, "patch": patch}
        return frame("ACTIVITY_DELTA", fields)


def convert_thought(event: ThoughtStreamEvent) -> Data:
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


def _encode_activity(id: str, activity: Data) -> bytes:
    fields = {"messageId": id, "activityType": activity["activityType"], "content": activity["content"]}
    return frame("ACTIVITY_SNAPSHOT", {"subagentRunId": activity.get("subagentRunId"), **fields})
