"""Conversion of chat changes to AG-UI events."""

from __future__ import annotations

from typing import Any

import orjson

from rxloop.protocol.events import (
    CustomEvent,
    Event,
    GapEvent,
    LLMCallEvent,
    MessageAddedEvent,
    StatusUpdateEvent,
    SubtaskEvent,
    TaskEvent,
    ThoughtStreamEvent,
    UsageEvent,
    ends_attempt,
)
from rxloop.server.agui.frames import COUNTED, VERSION, Data, end_of, frame, going, head, snapshot, with_delta
from rxloop.server.agui.messages import Messages, Telling
from rxloop.server.agui.requests import content_of, text_of, value_of
from rxloop.server.agui.subagents import BRANCHES, PROGRESS, THOUGHTS, Activities, Agents, thought_of
from rxloop.server.core import chat_changes as on
from rxloop.server.core.chat_changes import Change

_SAID_OTHERWISE = ("checkpoint", "input-required", "input-received", "auth-required", "task", "status-update")
"""Event kinds that are not forwarded, or are already represented by other AG-UI events."""


class Writer:
    """Incremental AG-UI writer for a run. `take` returns the next frames."""

    def __init__(self, telling: Telling, messages: Messages) -> None:
        """Initialize the writer for a client."""
        self.over = False
        self._telling, self._messages = telling, messages
        self._begun = False
        self._out: list[bytes] = []
        # Open items in order of their start, as a mapping from end frame to start frame.
        self._open: dict[bytes, bytes] = {}
        self._heads: dict[str, tuple[bytes, list[str]]] = {}
        """Frame prefix and collected deltas of each open text, reasoning or call."""
        self._shown: dict[str, list[str]] = {}
        """Reasoning ids shown per step."""
        self._steps: dict[str, str] = {}
        """Open steps and their runs."""
        self._held: list[MessageAddedEvent] = []
        self._voided: list[str] = []
        """Discarded calls."""
        self._slots: dict[tuple[str, str | None, int], str] = {}
        """Call ids by run, step and index."""
        self._lines: dict[str, list[str]] = {}
        """Text of messages in side branches."""
        self._agents = Agents()
        self._models: dict[tuple[str, str | None], str] = {}
        self._usage: dict[str, list[int]] = {}
        self._activities = Activities(messages)
        self._state: Any = None
        self._has_state = False

    def take(self, item: Change | Event) -> bytes:
        """Return the frames for the next change, if any."""
        if type(item) is on.TextDelta or type(item) is on.ReasoningDelta or type(item) is on.CallDelta:
            return self._delta(item)
        event = item if isinstance(item, Event) else item.event
        if not self._begun and (event.seq > self._telling.after or (event.sub and event.seq == self._telling.after)):
            self._begin(event)
        if isinstance(item, Event):
            self._event(item)
        elif event.branch is not None:
            self._line(item)
        else:
            self._change(item)
        return self._given()

    def reached(self, event: Event) -> bytes:
        """Start with a snapshot of all events so far, if needed."""
        if self._begun or not self._telling.restated or event.seq < self._telling.after:
            return b""
        self._begin(event)
        return self._given()

    def _given(self) -> bytes:
        out = b"".join(self._out)
        self._out.clear()
        return out if self._begun else b""

    def _delta(self, item: on.TextDelta | on.ReasoningDelta | on.CallDelta) -> bytes:
        """Return the frames for a delta. This is the hot path."""
        known = self._heads.get(item.id)
        if known is None:
            # The delta belongs to a side branch.
            if type(item) is on.TextDelta:
                self._lines.setdefault(item.id, []).append(item.delta)
            return b""
        start, pieces = known
        if self._begun:
            pieces.append(item.delta)
            return with_delta(start, item.delta)
        event = item.event
        if event.seq > self._telling.after or (event.sub and event.seq == self._telling.after):
            self._begin(event)
        pieces.append(item.delta)
        if not self._begun:
            return b""
        return self._given() + with_delta(start, item.delta)

    # -- the run

    def _begin(self, event: Event) -> None:
        telling = self._telling
        self._begun = True
        self._out.clear()
        about = {"taskId": event.root_task_id, "attempt": event.attempt, "cursor": event.cursor}
        started = {
            "metadata": {"rxloop": about},
            "threadId": telling.thread_id,
            "runId": telling.run_id,
            "protocolVersion": VERSION,
        }
        self._out.append(frame("RUN_STARTED", started))
        if telling.restated:
            self._restate()
        self._out += self._open.values()

    def _restate(self) -> None:
        """Send a snapshot of messages, activities and state."""
        telling = self._telling
        owned = (THOUGHTS, BRANCHES, PROGRESS) if telling.activities else ()
        if self._messages.had:
            # Clients append new messages to existing ones, so clear the existing messages first.
            self._out += [snapshot(going(telling.reasoning), owned), snapshot([], owned)]
        self._out.append(snapshot(self._messages.all(activities=telling.activities), owned))
        if not telling.activities:
            self._out += self._activities.all()
        if self._has_state:
            self._out.append(self._state_frame())

    def _state_frame(self) -> bytes:
        return b"data: %b\n\n" % orjson.dumps({"type": "STATE_SNAPSHOT", "snapshot": self._state})

    def _snapshot(self, stale: list[str]) -> None:
        """Send a message snapshot that excludes stale reasoning."""
        if not self._begun:
            return
        messages = self._messages.all(activities=False)
        if stale:
            self._out.append(snapshot([*messages, *going(stale)]))
        self._out.append(snapshot(messages))

    def _final(self, event: StatusUpdateEvent) -> None:
        """End the attempt and close all open items."""
        for task_id in list(self._agents.going):
            self._agent_over(task_id, event, event)
        self._out += self._open
        self._open.clear()
        self._heads.clear()
        self._steps.clear()
        self._say_held(None)
        if self._begun:
            if event.pending:
                self._snapshot([])
                if self._has_state:
                    self._out.append(self._state_frame())
            self._out.append(end_of(event, self._telling.thread_id, self._telling.run_id, self._usage, self._slots))
            self.over = True
        self._usage.clear()
        self._agents.forget()

    # -- events outside of steps

    def _event(self, event: Event) -> None:
        match event:
            case StatusUpdateEvent() if ends_attempt(event):
                self._final(event)
            case StatusUpdateEvent() if event.final:
                self._agent_over(event.task_id, event, event)
            case TaskEvent() if not event.agent_path:
                self._questions(event)
            case MessageAddedEvent() if event.branch is None:
                self._said(event)
            case SubtaskEvent():
                self._agent(event)
            case ThoughtStreamEvent():
                self._thought(event)
            case UsageEvent():
                self._count(event)
            case GapEvent():
                self._snapshot([])
                self._custom(event, "rxloop.gap", orjson.Fragment(event.to_json(public=True)))
            case CustomEvent() if event.name == self._telling.state:
                self._state, self._has_state = event.model_dump(mode="json", include={"data"})["data"], True
                self._out.append(self._state_frame())
            case CustomEvent():
                self._custom(event, event.name, event.model_dump(mode="json", include={"data"})["data"])
            case _ if event.kind not in _SAID_OTHERWISE:
                self._custom(event, f"rxloop.{event.kind}", orjson.Fragment(event.to_json(public=True)))
            case _:
                pass

    def _custom(self, event: Event, name: str, value: Any) -> None:
        owner = self._owner(event)
        fields = {"type": "CUSTOM", **({"subagentRunId": owner} if owner else {}), "name": name, "value": value}
        self._out.append(b"data: %b\n\n" % orjson.dumps(fields))

    def _questions(self, event: TaskEvent) -> None:
        """Add the prompt messages, already known to the client."""
        for place, message in enumerate(event.messages):
            if message.role in ("user", "assistant"):
                name = message.message_id or f"{event.task_id}:input:{place}"
                if name not in self._messages:
                    self._messages.put(name, message.role, content_of(message))

    def _said(self, event: MessageAddedEvent) -> None:
        """Show a user message after the currently open message, as in the conversation."""
        if any(event.task_id == task_id for task_id in self._steps.values()):
            self._held.append(event)
            return
        name = event.message_id or f"{event.task_id}:{event.seq}"
        owner, text = self._owner(event), text_of(event.content)
        if name not in self._messages:
            self._messages.put(name, "user", text, subagentRunId=owner)
            tag = {"subagentRunId": owner}
            self._out.append(frame("TEXT_MESSAGE_START", {**tag, "messageId": name, "role": "user"}))
            self._out.append(with_delta(head("TEXT_MESSAGE_CONTENT", "messageId", name), text))
            self._out.append(frame("TEXT_MESSAGE_END", {"messageId": name}))

    def _say_held(self, task_id: str | None) -> None:
        """Show user messages deferred during a step, for a single run or for all runs (None)."""
        held, self._held = self._held, []
        for event in held:
            if task_id is None or event.task_id == task_id:
                self._said(event)
            else:
                self._held.append(event)

    def _count(self, event: UsageEvent) -> None:
        """Add token usage to a model's totals."""
        model = self._models.get((event.task_id, event.step), "")
        sums = self._usage.setdefault(model, [0] * len(COUNTED))
        found = (getattr(event, name) for name in COUNTED)
        sums[:] = [before + more for before, more in zip(sums, found, strict=True)]

    def _thought(self, event: ThoughtStreamEvent) -> None:
        self._add(event, f"{event.task_id}:thoughts", THOUGHTS, "thoughts", "-", thought_of(event))

    def _add(self, event: Event, id: str, type: str, into: str, key: str, value: Any) -> None:
        self._out.append(self._activities.add(id, self._owner(event), type, into, key, value))

    # -- nested agents

    def _owner(self, event: Event) -> str | None:
        return self._agents.owner(event)

    def _agent(self, event: SubtaskEvent) -> None:
        if event.state != "working":
            self._agent_over(event.subtask_id, event, None)
        elif event.subtask_id not in self._agents.going:
            begun = self._agents.begin(event, self._slots.get((event.task_id, event.step, event.index)))
            self._open[f"agent {event.subtask_id}".encode()] = begun
            self._out.append(begun)

    def _agent_over(self, task_id: str, event: Event, final: StatusUpdateEvent | None) -> None:
        if task_id in self._agents.going:
            self._open.pop(f"agent {task_id}".encode(), None)
            self._out.append(self._agents.end(task_id, event, final))

    # -- steps

    def _line(self, item: Change) -> None:
        """Report a side branch's result as an activity, without its chat."""
        match item:
            case on.StepBegan(event, _) if isinstance(event, LLMCallEvent):
                self._models[event.task_id, event.step] = event.model
            case on.StepEnded(event, id, outcome):
                text = "".join(self._lines.pop(id, ()))
                if outcome == "complete":
                    said = {"step": event.step, "text": text}
                    self._add(event, f"{event.task_id}:branches", BRANCHES, "branches", str(event.branch), said)
            case _:
                pass

    def _change(self, item: Change) -> None:
        match item:
            case on.StepBegan(event, id):
                if isinstance(event, LLMCallEvent):
                    self._models[event.task_id, event.step] = event.model
                self._shown[id] = []
                self._steps[id] = event.task_id
                name = event.step or "answer"
                self._starts("STEP_STARTED", "STEP_FINISHED", {**self._tag(event), "stepName": name})
            case on.StepEnded(event, id, outcome):
                name = event.step or "answer"
                self._ends(frame("STEP_FINISHED", {**self._tag(event), "stepName": name}))
                self._take_back(id, outcome == "void")
                self._steps.pop(id, None)
                if outcome != "void":
                    self._say_held(event.task_id)
            case on.TextBegan(event, id):
                self._writes("TEXT_MESSAGE", event, id, "assistant")
            case on.TextEnded(_, id) | on.ReasoningEnded(_, id):
                self._written(id)
            case on.ReasoningBegan(event, id):
                self._shown.setdefault(id.rpartition(":reasoning")[0], []).append(id)
                self._writes("REASONING_MESSAGE", event, id, "reasoning")
            case on.CallBegan(event, id, name, message, place):
                self._slots[event.task_id, event.step, place] = id
                owner = self._owner(event)
                self._heads[id] = (
                    head("TOOL_CALL_ARGS", "toolCallId", id),
                    self._messages.begin_call(id, name, message, owner),
                )
                more = {"toolCallName": name, "parentMessageId": message}
                begun = frame("TOOL_CALL_START", {**self._tag(event), "toolCallId": id, **more})
                self._out.append(begun)
                self._open[frame("TOOL_CALL_END", {"toolCallId": id})] = begun
            case on.CallEnded(_, id, _):
                self._call_over(id)
            case on.CallRevised(event, id, call):
                # Clients execute their own tools with the arguments in snapshots.
                self._messages.revise_call(id, orjson.dumps(call.arguments).decode())
                revised = {"toolCallId": id, "toolCallName": call.name, "arguments": call.arguments}
                self._custom(event, "rxloop.tool-call-revised", revised)
            case on.CallVoided(_, id):
                self._call_over(id)
                self._voided.append(id)
            case on.CallProgress(event, id):
                content = {"message": event.message, "fraction": event.fraction}
                content = {name: value for name, value in content.items() if value is not None}
                fields = {"messageId": f"{id}:progress", "activityType": PROGRESS, "content": content, "replace": True}
                self._out.append(frame("ACTIVITY_SNAPSHOT", {**self._tag(event), **fields}))
            case on.CallResult(event, id):
                self._answered(event, id)
            case _:
                pass

    def _tag(self, event: Event) -> Data:
        return {"subagentRunId": self._owner(event)}

    def _starts(self, begin: str, end: str, fields: Data) -> None:
        begun = frame(begin, fields)
        self._out.append(begun)
        self._open[frame(end, fields)] = begun

    def _ends(self, end: bytes) -> None:
        if self._open.pop(end, None) is not None:
            self._out.append(end)

    def _writes(self, kind: str, event: Event, id: str, role: str) -> None:
        """Start a text or reasoning message, including the reasoning span."""
        owner = self._owner(event)
        self._heads[id] = head(f"{kind}_CONTENT", "messageId", id), self._messages.open(id, role, owner)
        tag = {"subagentRunId": owner, "messageId": id}
        begun, end = frame(f"{kind}_START", {**tag, "role": role}), frame(f"{kind}_END", {"messageId": id})
        if role == "reasoning":
            begun = frame("REASONING_START", tag) + begun
            end += frame("REASONING_END", {"messageId": id})
        self._out.append(begun)
        self._open[end] = begun

    def _written(self, id: str) -> None:
        self._heads.pop(id, None)
        end = frame("TEXT_MESSAGE_END", {"messageId": id})
        if end in self._open:
            self._ends(end)
        else:
            self._ends(frame("REASONING_MESSAGE_END", {"messageId": id}) + frame("REASONING_END", {"messageId": id}))

    def _call_over(self, id: str) -> None:
        self._heads.pop(id, None)
        self._ends(frame("TOOL_CALL_END", {"toolCallId": id}))

    def _take_back(self, step: str, void: bool) -> None:
        """Remove a step's discarded calls and content."""
        thoughts = self._shown.pop(step, [])
        calls, self._voided = self._voided, []
        shown = step in self._messages or bool(thoughts)
        for each in calls:
            self._messages.drop_call(each)
        if void:
            self._messages.drop([step, *thoughts])
        if (void and shown) or calls:
            self._snapshot(thoughts if void else [])

    def _answered(self, event: Any, id: str) -> None:
        result = f"{id}:result"
        owner = self._owner(event)
        self._messages.answer(result, id, event.content, owner)
        answered = self._messages.answered
        if id in answered:
            # A client already has its own tool's result.
            if answered[id] != value_of(event.content):
                self._snapshot([])
        else:
            fields = {"messageId": result, "toolCallId": id, "content": event.content, "role": "tool"}
            self._out.append(frame("TOOL_CALL_RESULT", {"subagentRunId": owner, **fields}))
