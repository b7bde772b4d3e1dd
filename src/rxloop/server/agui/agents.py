"""Nested agents, as AG-UI's subagents: what each is called, and the frames around its work."""

from __future__ import annotations

from rxloop.protocol.events import Event, StatusUpdateEvent, SubtaskEvent
from rxloop.server.agui.frames import frame


class Agents:
    """The nested runs of an attempt."""

    def __init__(self) -> None:
        self.going: dict[str, str] = {}
        """By nested run that goes on: what it is called in this attempt."""
        self._over: dict[str, int] = {}

    def owner(self, event: Event) -> str | None:
        """Whose work an event is: that of a nested run, or, as None, of the run itself."""
        return self.going.get(event.task_id, event.task_id) if event.agent_path else None

    def begin(self, event: SubtaskEvent, call: str | None) -> bytes:
        """Begin a nested run, which may have gone on before; `call` is the call that it belongs to."""
        task_id = event.subtask_id
        times = self._over.get(task_id, 0)
        handle = self.going[task_id] = f"{task_id}:{times + 1}" if times else task_id
        parent = self.going.get(event.task_id) if event.agent_path else None
        fields = {"name": event.agent_name, "parentSubagentRunId": parent, "parentToolCallId": call}
        return frame("SUBAGENT_STARTED", {"subagentRunId": handle, **fields})

    def end(self, task_id: str, event: Event, final: StatusUpdateEvent | None) -> bytes:
        """End a nested run that goes on.

        Args:
            task_id: The nested run.
            event: What ends it.
            final: The last event of its attempt, or of one that it is nested in.
        """
        handle = self.going.pop(task_id)
        self._over[task_id] = self._over.get(task_id, 0) + 1
        state = final.state if final is not None else getattr(event, "state", "canceled")
        own = final if final is not None and final.task_id == task_id else None
        if state in ("input-required", "auth-required"):
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
        """Begin an attempt, in which names count anew."""
        self._over.clear()
