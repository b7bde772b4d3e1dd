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
from rxloop.server.agui.frames import COUNT_NAMES, VERSION, Data, add_delta, encode_outcome, frame, prefix
from rxloop.server.agui.messages import Messages, StreamOptions
from rxloop.server.agui.requests import convert_content, extract_text
from rxloop.server.agui.snapshots import restore_messages, update_messages
from rxloop.server.agui.subagents import BRANCHES, PROGRESS, THOUGHTS, Activities, NestedRuns, convert_thought
from rxloop.server.core import chat_changes as changes
from rxloop.server.core.bodies import parse_text
from rxloop.server.core.chat_changes import Change

_OMITTED_KINDS = ("checkpoint", "input-required", "input-received", "auth-required", "task", "status-update")
"""Event kinds that are not forwarded, or are already represented by other AG-UI events."""


class Writer:
    """Incremental AG-UI writer for a run."""

    def __init__(self, options: StreamOptions, messages: Messages) -> None:
        """Initialize the writer for a client."""
        self.is_complete = False
        self._options, self._messages = options, messages
        self._started = False
        self._out: list[bytes] = []
        # Open items in order of their start, as a mapping from end frame to start frame.
        self._open: dict[bytes, bytes] = {}
        self._heads: dict[str, tuple[bytes, list[str]]] = {}
        """Frame prefix and collected deltas of each open text, reasoning or call."""
        self._shown: dict[str, list[str]] = {}
        """Reasoning ids shown per step."""
        self._steps: dict[str, str] = {}
        """Open steps and their runs."""
        self._deferred: list[MessageAddedEvent] = []
        self._discarded_calls: list[str] = []
        self._slots: dict[tuple[str, str | None, int], str] = {}
        """Call ids by run, step and index."""
        self._branch_texts: dict[str, list[str]] = {}
        self._agents = NestedRuns()
        self._models: dict[tuple[str, str | None], str] = {}
        self._usage: dict[str, list[int]] = {}
        self._activities = Activities(messages)
        self._state: Any = None
        self._has_state = False

    def take(self, item: Change | Event) -> bytes:
        """Return the frames for the next change, if any."""
        if type(item) is changes.TextDelta or type(item) is changes.ReasoningDelta or type(item) is changes.CallDelta:
            return self._encode_delta(item)
        event = item if isinstance(item, Event) else item.event
        if not self._started and (event.seq > self._options.after or (event.sub and event.seq == self._options.after)):
            self._start(event)
        if isinstance(item, Event):
            self._event(item)
        elif event.branch is not None:
            self._report_branch(item)
        else:
            self._change(item)
        return self._flush()

    def send_snapshot(self, event: Event) -> bytes:
        """Return the initial snapshot if `event` is the last event that it covers."""
        if self._started or not self._options.snapshot or event.seq < self._options.after:
            return b""
        self._start(event)
        return self._flush()

    def _flush(self) -> bytes:
        frames = b"".join(self._out)
        self._out.clear()
        return frames if self._started else b""

    def _encode_delta(self, item: changes.TextDelta | changes.ReasoningDelta | changes.CallDelta) -> bytes:
        """Return the frames for a delta. This is the hot path."""
        stream = self._heads.get(item.id)
        if stream is None:
            # The delta belongs to a side branch.
            if type(item) is changes.TextDelta:
                self._branch_texts.setdefault(item.id, []).append(item.delta)
            return b""
        start, deltas = stream
        if self._started:
            deltas.append(item.delta)
            return add_delta(start, item.delta)
        event = item.event
        if event.seq > self._options.after or (event.sub and event.seq == self._options.after):
            self._start(event)
        deltas.append(item.delta)
        if not self._started:
            return b""
        return self._flush() + add_delta(start, item.delta)

    # -- the run

    def _start(self, event: Event) -> None:
        options = self._options
        self._started = True
        self._out.clear()
        position = {"taskId": event.root_task_id, "attempt": event.attempt, "cursor": event.cursor}
        started = {
            "metadata": {"rxloop": position},
            "threadId": options.thread_id,
            "runId": options.run_id,
            "protocolVersion": None if options.is_legacy else VERSION,
        }
        self._out.append(frame("RUN_STARTED", started))
        if options.snapshot:
            self._send_snapshot()
        self._out += self._open.values()

    def _send_snapshot(self) -> None:
        """Send a snapshot of messages, activities and state."""
        options = self._options
        authoritative = (THOUGHTS, BRANCHES, PROGRESS) if options.activities else ()
        messages = self._messages.all(activities=options.activities)
        reasoning = options.reasoning if self._messages.has_client_messages else None
        self._out.append(restore_messages(messages, authoritative, reasoning, is_legacy=options.is_legacy))
        if not options.activities:
            self._out += self._activities.all()
        if self._has_state:
            self._out.append(self._encode_state())

    def _encode_state(self) -> bytes:
        return b"data: %b\n\n" % orjson.dumps({"type": "STATE_SNAPSHOT", "snapshot": self._state})

    def _update_snapshot(self, stale: list[str]) -> None:
        """Send a message snapshot that excludes stale reasoning."""
        if not self._started:
            return
        messages = self._messages.all(activities=False)
        self._out.append(update_messages(messages, stale, is_legacy=self._options.is_legacy))

    def _end_attempt(self, event: StatusUpdateEvent) -> None:
        """End the attempt and close all open items."""
        for task_id in list(self._agents.active):
            self._end_agent(task_id, event, event)
        self._out += self._open
        self._open.clear()
        self._heads.clear()
        self._steps.clear()
        self._show_deferred(None)
        if self._started:
            if event.pending:
                self._update_snapshot([])
                if self._has_state:
                    self._out.append(self._encode_state())
            options = self._options
            data = options.thread_id, options.run_id, self._usage, self._slots
            self._out.append(encode_outcome(event, *data, is_legacy=options.is_legacy))
            self.is_complete = True
        self._usage.clear()
        self._agents.reset()

    # -- events outside of steps

    def _event(self, event: Event) -> None:
        match event:
            case StatusUpdateEvent() if ends_attempt(event):
                self._end_attempt(event)
            case StatusUpdateEvent() if event.final:
                self._end_agent(event.task_id, event, event)
            case TaskEvent() if not event.agent_path:
                self._add_prompt(event)
            case MessageAddedEvent() if event.branch is None:
                self._show_user_message(event)
            case SubtaskEvent():
                self._change_agent(event)
            case ThoughtStreamEvent():
                self._add_thought(event)
            case UsageEvent():
                self._add_usage(event)
            case GapEvent():
                self._update_snapshot([])
                self._send_custom(event, "rxloop.gap", orjson.Fragment(event.to_json(public=True)))
            case CustomEvent() if event.name == self._options.state:
                self._state, self._has_state = event.model_dump(mode="json", include={"data"})["data"], True
                self._out.append(self._encode_state())
            case CustomEvent():
                self._send_custom(event, event.name, event.model_dump(mode="json", include={"data"})["data"])
            case _ if event.kind not in _OMITTED_KINDS:
                self._send_custom(event, f"rxloop.{event.kind}", orjson.Fragment(event.to_json(public=True)))
            case _:
                pass

    def _send_custom(self, event: Event, name: str, value: Any) -> None:
        owner = self._get_owner(event)
        fields = {"type": "CUSTOM", **({"subagentRunId": owner} if owner else {}), "name": name, "value": value}
        self._out.append(b"data: %b\n\n" % orjson.dumps(fields))

    def _add_prompt(self, event: TaskEvent) -> None:
        """Add the prompt messages, already known to the client."""
        for index, message in enumerate(event.messages):
            if message.role in ("user", "assistant"):
                name = message.message_id or f"{event.task_id}:input:{index}"
                if name not in self._messages:
                    self._messages.add(name, message.role, convert_content(message))

    def _show_user_message(self, event: MessageAddedEvent) -> None:
        """Show a user message after the currently open message, as in the conversation."""
        if any(event.task_id == task_id for task_id in self._steps.values()):
            self._deferred.append(event)
            return
        name = event.message_id or f"{event.task_id}:{event.seq}"
        owner, text = self._get_owner(event), extract_text(event.content)
        if name not in self._messages:
            self._messages.add(name, "user", text, subagentRunId=owner)
            tag = {"subagentRunId": owner}
            self._out.append(frame("TEXT_MESSAGE_START", {**tag, "messageId": name, "role": "user"}))
            self._out.append(add_delta(prefix("TEXT_MESSAGE_CONTENT", "messageId", name), text))
            self._out.append(frame("TEXT_MESSAGE_END", {"messageId": name}))

    def _show_deferred(self, task_id: str | None) -> None:
        """Show user messages deferred during a step, for a single run or for all runs (None)."""
        deferred, self._deferred = self._deferred, []
        for event in deferred:
            if task_id is None or event.task_id == task_id:
                self._show_user_message(event)
            else:
                self._deferred.append(event)

    def _add_usage(self, event: UsageEvent) -> None:
        """Add token usage to a model's totals."""
        model = self._models.get((event.task_id, event.step), "")
        sums = self._usage.setdefault(model, [0] * len(COUNT_NAMES))
        counts = (getattr(event, name) for name in COUNT_NAMES)
        sums[:] = [total + count for total, count in zip(sums, counts, strict=True)]

    def _add_thought(self, event: ThoughtStreamEvent) -> None:
        self._add_activity(event, f"{event.task_id}:thoughts", THOUGHTS, "thoughts", "-", convert_thought(event))

    def _add_activity(self, event: Event, id: str, type: str, into: str, key: str, value: Any) -> None:
        self._out.append(self._activities.add(id, self._get_owner(event), type, into, key, value))

    # -- nested agents

    def _get_owner(self, event: Event) -> str | None:
        return self._agents.owner(event)

    def _change_agent(self, event: SubtaskEvent) -> None:
        if event.state != "working":
            self._end_agent(event.subtask_id, event, None)
        elif event.subtask_id not in self._agents.active:
            started = self._agents.start(event, self._slots.get((event.task_id, event.step, event.index)))
            self._open[f"agent {event.subtask_id}".encode()] = started
            self._out.append(started)

    def _end_agent(self, task_id: str, event: Event, final: StatusUpdateEvent | None) -> None:
        if task_id in self._agents.active:
            self._open.pop(f"agent {task_id}".encode(), None)
            self._out.append(self._agents.end(task_id, event, final))

    # -- steps

    def _report_branch(self, item: Change) -> None:
        """Report the result of a side branch as an activity."""
        match item:
            case changes.StepBegan(event, _) if isinstance(event, LLMCallEvent):
                self._models[event.task_id, event.step] = event.model
            case changes.StepEnded(event, id, outcome):
                text = "".join(self._branch_texts.pop(id, ()))
                if outcome == "complete":
                    result = {"step": event.step, "text": text}
                    name = f"{event.task_id}:branches"
                    self._add_activity(event, name, BRANCHES, "branches", str(event.branch), result)
            case _:
                pass

    def _change(self, item: Change) -> None:
        match item:
            case changes.StepBegan(event, id):
                if isinstance(event, LLMCallEvent):
                    self._models[event.task_id, event.step] = event.model
                self._shown[id] = []
                self._steps[id] = event.task_id
                name = event.step or "answer"
                self._start_step("STEP_STARTED", "STEP_FINISHED", {**self._make_tag(event), "stepName": name})
            case changes.StepEnded(event, id, outcome):
                self._close(frame("STEP_FINISHED", {**self._make_tag(event), "stepName": event.step or "answer"}))
                self._discard(id, outcome == "discarded")
                self._steps.pop(id, None)
                if outcome != "discarded":
                    self._show_deferred(event.task_id)
            case changes.TextBegan(event, id):
                self._open_message("TEXT_MESSAGE", event, id, "assistant")
            case changes.TextEnded(_, id) | changes.ReasoningEnded(_, id):
                self._close_message(id)
            case changes.ReasoningBegan(event, id):
                self._shown.setdefault(id.rpartition(":reasoning")[0], []).append(id)
                self._open_message("REASONING_MESSAGE", event, id, "reasoning")
            case changes.CallBegan(event, id, name, message, index):
                self._slots[event.task_id, event.step, index] = id
                owner = self._get_owner(event)
                self._heads[id] = (
                    prefix("TOOL_CALL_ARGS", "toolCallId", id),
                    self._messages.start_call(id, name, message, owner),
                )
                fields = {"toolCallId": id, "toolCallName": name, "parentMessageId": message}
                started = frame("TOOL_CALL_START", {**self._make_tag(event), **fields})
                self._out.append(started)
                self._open[frame("TOOL_CALL_END", {"toolCallId": id})] = started
            case changes.CallEnded(_, id, _):
                self._close_call(id)
            case changes.CallRevised(event, id, call):
                # Clients run their tools with the arguments from the snapshot.
                self._messages.revise_call(id, orjson.dumps(call.arguments).decode())
                revised = {"toolCallId": id, "toolCallName": call.name, "arguments": call.arguments}
                self._send_custom(event, "rxloop.tool-call-revised", revised)
            case changes.CallDiscarded(_, id):
                self._close_call(id)
                self._discarded_calls.append(id)
            case changes.CallProgress(event, id):
                content = {"message": event.message, "fraction": event.fraction}
                content = {name: value for name, value in content.items() if value is not None}
                fields = {"messageId": f"{id}:progress", "activityType": PROGRESS, "content": content, "replace": True}
                self._out.append(frame("ACTIVITY_SNAPSHOT", {**self._make_tag(event), **fields}))
            case changes.CallResult(event, id):
                self._add_result(event, id)
            case _:
                pass

    def _make_tag(self, event: Event) -> Data:
        return {"subagentRunId": self._get_owner(event)}

    def _start_step(self, start: str, end: str, fields: Data) -> None:
        started = frame(start, fields)
        self._out.append(started)
        self._open[frame(end, fields)] = started

    def _close(self, end: bytes) -> None:
        if self._open.pop(end, None) is not None:
            self._out.append(end)

    def _open_message(self, kind: str, event: Event, id: str, role: str) -> None:
        """Start a text or reasoning message, including the reasoning span."""
        owner = self._get_owner(event)
        self._heads[id] = prefix(f"{kind}_CONTENT", "messageId", id), self._messages.open(id, role, owner)
        tag = {"subagentRunId": owner, "messageId": id}
        started, end = frame(f"{kind}_START", {**tag, "role": role}), frame(f"{kind}_END", {"messageId": id})
        if role == "reasoning":
            started = frame("REASONING_START", tag) + started
            end += frame("REASONING_END", {"messageId": id})
        self._out.append(started)
        self._open[end] = started

    def _close_message(self, id: str) -> None:
        self._heads.pop(id, None)
        self._messages.close(id)
        end = frame("TEXT_MESSAGE_END", {"messageId": id})
        if end in self._open:
            self._close(end)
        else:
            self._close(frame("REASONING_MESSAGE_END", {"messageId": id}) + frame("REASONING_END", {"messageId": id}))

    def _close_call(self, id: str) -> None:
        self._heads.pop(id, None)
        self._messages.close_call(id)
        self._close(frame("TOOL_CALL_END", {"toolCallId": id}))

    def _discard(self, step: str, is_discarded: bool) -> None:
        """Remove a step's discarded calls and content."""
        thoughts = self._shown.pop(step, [])
        calls, self._discarded_calls = self._discarded_calls, []
        is_shown = step in self._messages or bool(thoughts)
        for each in calls:
            self._messages.drop_call(each)
        if is_discarded:
            self._messages.drop([step, *thoughts])
        if (is_discarded and is_shown) or calls:
            self._update_snapshot(thoughts if is_discarded else [])

    def _add_result(self, event: Any, id: str) -> None:
        result = f"{id}:result"
        owner = self._get_owner(event)
        self._messages.answer(result, id, event.content, owner)
        client_results = self._messages.client_results
        if id in client_results:
            # Clients already have the results of their own tools.
            if client_results[id] != parse_text(event.content):
                self._update_snapshot([])
        else:
            fields = {"messageId": result, "toolCallId": id, "content": event.content, "role": "tool"}
            self._out.append(frame("TOOL_CALL_RESULT", {"subagentRunId": owner, **fields}))
