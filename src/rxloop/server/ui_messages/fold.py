"""Conversion of chat changes to UI message chunks, with one message per run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from rxloop.operators.views import View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import (
    WAITING,
    ArtifactUpdateEvent,
    ContentCompleteEvent,
    Event,
    InputReceivedEvent,
    PendingInput,
    QuestionEvent,
    StatusUpdateEvent,
    ToolCompleteEvent,
    ends_attempt,
)
from rxloop.protocol.messages import Usage
from rxloop.server.core import chat_changes as changes
from rxloop.server.core.chat_changes import Change
from rxloop.server.ui_messages.frames import Chunk, list_sources_and_files, to_data_part

log = logging.getLogger("rxloop")

_Emit = Callable[[Chunk], None]

_FINISH = {"length": "length", "content_filter": "content-filter", "tool_calls": "tool-calls", "stop": "stop"}
LIMITS = ("max_iterations", "tool_failures", "tokens", "timeout", "attempts")
"""Reasons for ending an attempt at a limit without an error."""
_INTERRUPTED_TEXT = "The stream was interrupted. The answer continues; please reconnect."
_DISCARDED_TEXT = "The call was discarded and not executed."


def chunks(
    task_id: str, context_id: str, *, client_tools: Collection[str] = (), after: int = 0, known: int = 0
) -> View[Change | Event, Chunk]:
    """Convert a chat to UI message stream chunks.

    ::

        source      --S-----T-----R-----N---w|      S StepBegan, T TextDelta, R CallResult, N StepEnded, w the end
        chunks()    s-S-----T-----R---------(Nf)|   s start, N finish-step, f finish, error or abort

    The message id is the run id, and the message continues across pauses. A client that has its first part can request
    the rest with `after`. A retried step continues in the open step, because no chunk can remove text. Instead,
    `data-rxloop-void` marks the preceding text and reasoning of the step as discarded.

    Args:
        task_id: Run id.
        context_id: Conversation id.
        client_tools: Known names of the client's tools.
        after: Sequence number of the last event that the client has.
        known: Sequence number of the last event at the time of the request. Earlier calls of client tools must not be
            executed again, unless the run still waits for them.

    Returns:
        A view of chunks, without the final `[DONE]`. An error of the source becomes the last chunk, because clients
        interpret a plain end as success.
    """

    def write(out: ViewOutput[Chunk]) -> Callable[[Change | Event], None]:
        fold = _Fold(out.emit, task_id, frozenset(client_tools), after, known)

        def fail(error: Exception) -> None:
            log.warning("Stream of run %s failed: %s", task_id, error)
            out.emit({"type": "error", "errorText": _INTERRUPTED_TEXT})
            out.complete()

        out.on_end(fold.end)
        out.on_error(fail)
        run = {"taskId": task_id, "contextId": context_id, "state": "working", "reason": None}
        out.emit({"type": "start", "messageId": task_id, "messageMetadata": {"rxloop": run}})
        return fold.take

    return make_view(write)


class _Fold:
    """Message state and open questions."""

    def __init__(self, emit: _Emit, task_id: str, client_tools: frozenset[str], after: int, known: int) -> None:
        self._out, self._task_id, self._client_tools, self._after = emit, task_id, client_tools, after
        self._known, self._seq = known, 0
        self._early: dict[str, str] = {}
        """Call slots by question id, for client tool questions before the request."""
        self._is_replaying = False
        """True while processing events that the client already has."""
        self._step: str | None = None
        self._open = False
        """True after `start-step` until `finish-step`."""
        self._text_shown = False
        """True if the current step attempt has emitted text or reasoning."""
        self._slots: dict[str, str] = {}
        """Slot by call id. Call ids differ between step attempts, but the slot is constant."""
        self._calls: dict[str, dict[str, Any]] = {}
        """Common call fields by slot."""
        self._client_calls: set[str] = set()
        self._started: set[str] = set()
        self._approvals: dict[str, str] = {}
        """Slots of pending and answered approvals, by approval id."""
        self._answered: set[str] = set()
        self._open_questions: dict[str, Chunk] = {}
        """Other pending questions as sent."""
        self._sent_questions: set[str] = set()
        """Ids of sent questions."""
        self._artifacts: dict[str, dict[str, Any]] = {}
        self._client_results: list[Chunk] = []
        """Results of client tools in the current step."""
        self._last: StatusUpdateEvent | None = None

    def take(self, item: Change | Event) -> None:
        """Process the next change or event."""
        event = item if isinstance(item, Event) else item.event
        self._seq = event.seq
        self._is_replaying = event.seq <= self._after
        self._last = None
        if isinstance(item, Event):
            self._take_event(item)
        elif event.parent_task_id is None and event.branch is None:
            self._take_change(item)

    def _emit(self, type: str, **fields: Any) -> None:
        if not self._is_replaying:
            self._out({"type": type, **fields})

    # -- steps

    def _take_change(self, item: Change) -> None:
        match item:
            case changes.TextDelta():
                self._emit("text-delta", id=item.id, delta=item.delta)
            case changes.StepBegan():
                self._start_step(item.event.step)
            case changes.StepEnded():
                if item.outcome == "discarded" and self._text_shown:
                    self._emit("data-rxloop-void", data={"step": item.event.step})
                elif isinstance(item.event, ContentCompleteEvent) and item.outcome == "complete":
                    for part in list_sources_and_files(item.id, item.event):
                        self._emit(**part)
                self._text_shown = False
            case changes.TextBegan():
                self._text_shown = True
                self._emit("text-start", id=item.id)
            case changes.TextEnded():
                self._emit("text-end", id=item.id)
            case changes.ReasoningBegan():
                self._text_shown = True
                self._emit("reasoning-start", id=item.id)
            case changes.ReasoningDelta():
                self._emit("reasoning-delta", id=item.id, delta=item.delta)
            case changes.ReasoningEnded():
                self._emit("reasoning-end", id=item.id)
            case changes.CallBegan():
                self._begin_call(item)
            case _:
                self._call(item, self._slots[item.id])

    def _start_step(self, step: str | None) -> None:
        if self._open and self._step == step:
            return
        self._finish_step()
        self._step, self._open = step, True
        self._client_results.clear()
        self._emit("start-step")

    def _finish_step(self) -> None:
        if self._open:
            self._open = False
            self._emit("finish-step")

    def _begin_call(self, item: changes.CallBegan) -> None:
        slot = self._slots[item.id] = f"{self._task_id}:{item.event.step}:{item.call_index}"
        part = self._calls[slot] = {"toolCallId": slot, "toolName": item.name}
        self._started.discard(slot)
        if item.name in self._client_tools:
            self._client_calls.add(slot)
        else:
            # Without these fields, clients consider the call their own and post again after the result.
            part.update(dynamic=True, providerExecuted=True)
        self._emit("tool-input-start", **part)

    def _call(
        self,
        item: changes.CallDelta
        | changes.CallEnded
        | changes.CallRevised
        | changes.CallDiscarded
        | changes.CallStarted
        | changes.CallProgress
        | changes.CallResult,
        slot: str,
    ) -> None:
        match item:
            case changes.CallDelta():
                self._emit("tool-input-delta", toolCallId=slot, inputTextDelta=item.delta)
            case changes.CallEnded():
                part, call = self._calls[slot], item.call
                part["input"] = call.arguments
                if call.error is not None:
                    self._emit("tool-input-error", **{**part, "input": call.raw}, errorText=call.error)
                elif slot not in self._client_calls:
                    # Client tool calls become available with their question, because only then they must be executed.
                    self._emit("tool-input-available", **part)
            case changes.CallRevised():
                part = self._calls[slot]
                part["input"] = item.call.arguments
                if slot not in self._client_calls:
                    self._emit("tool-input-available", **part)
            case changes.CallDiscarded():
                self._emit("tool-output-error", toolCallId=slot, errorText=_DISCARDED_TEXT)
            case changes.CallStarted():
                self._started.add(slot)
                if slot in self._approvals.values():
                    self._emit("tool-input-available", **self._calls[slot])
            case changes.CallProgress():
                data = {"toolCallId": slot, "message": item.event.message, "fraction": item.event.fraction}
                self._emit("data-tool-progress", id=slot, transient=True, data=data)
            case changes.CallResult():
                self._emit_result(slot, item.event)

    def _emit_result(self, slot: str, event: ToolCompleteEvent) -> None:
        denied = [each for each in self._answered if self._approvals.get(each) == slot]
        if event.success:
            result: Chunk = {"type": "tool-output-available", "toolCallId": slot, "output": event.result}
        elif denied and slot not in self._started:
            result = {"type": "tool-output-denied", "toolCallId": slot}
        else:
            failed = event.content or event.error or "It failed."
            result = {"type": "tool-output-error", "toolCallId": slot, "errorText": failed}
        if slot in self._client_calls and result["type"] != "tool-output-denied":
            self._client_results.append(result)
            result = {**result, "providerExecuted": False}
        self._emit(**result)

    # -- events outside of steps

    def _take_event(self, event: Event) -> None:
        match event:
            case StatusUpdateEvent():
                if ends_attempt(event):
                    self._end_attempt(event)
            case InputReceivedEvent():
                self._add_answer(event)
            case ArtifactUpdateEvent():
                self._emit_artifact(event)
            case _ if isinstance(event, QuestionEvent):
                self._ask(event.input, event.task_id)
            case _:
                part = to_data_part(event)
                if part is not None:
                    self._emit(**part)

    def _ask(self, question: PendingInput, task_id: str) -> None:
        question_id = f"{self._task_id}:{question.input_id}"
        slot = f"{question.task_id or task_id}:{question.step}:{question.index}"
        part = self._calls.get(slot) if question.call is not None else None
        if part is not None and question.input_kind == "tool":
            # The question shows that this is a client tool. Questions before the request count as answered.
            self._client_calls.add(slot)
            is_early = self._seq <= self._known and not self._is_replaying
            if is_early:
                self._early[question_id] = slot
            if is_early or "providerExecuted" in part:
                part["providerExecuted"] = is_early
            self._emit("tool-input-available", **part)
        elif part is not None and question.input_kind == "confirmation":
            self._approvals[question_id] = slot
            about = {"prompt": question.prompt}
            self._emit("tool-approval-request", approvalId=question_id, toolCallId=slot, approvalDescriptor=about)
        else:
            data = question.model_dump(mode="json", by_alias=True, exclude={"hidden"}, exclude_none=True)
            call = {"toolCallId": slot} if part is not None else {}
            self._open_questions[question_id] = {"id": question_id, "data": {**data, **call, "waits": True}}
            self._emit("data-input-required", **self._open_questions[question_id])
        self._sent_questions.add(question_id)

    def _add_answer(self, event: InputReceivedEvent) -> None:
        question_id = f"{self._task_id}:{event.input_id}"
        self._answered.add(question_id)
        self._close_question(question_id)

    def _close_question(self, question_id: str) -> None:
        if sent := self._open_questions.pop(question_id, None):
            self._emit("data-input-required", id=question_id, data={**sent["data"], "waits": False})

    def _end_attempt(self, event: StatusUpdateEvent) -> None:
        """End an attempt, emitting questions without a public event."""
        self._last = event
        pending = {f"{self._task_id}:{question.input_id}": question for question in event.pending}
        for question_id in [question_id for question_id in self._open_questions if question_id not in pending]:
            self._close_question(question_id)
        for question_id, question in pending.items():
            if question_id not in self._sent_questions:
                self._ask(question, self._task_id)
            elif question_id in self._early and self._seq >= self._known:
                part = self._calls[self._early.pop(question_id)]
                part["providerExecuted"] = False
                self._emit("tool-input-available", **part)
        if event.state in WAITING:
            # The run needs other answers. Clients would post again if all calls looked complete.
            for result in self._client_results:
                self._emit(**result, providerExecuted=True)

    def _emit_artifact(self, event: ArtifactUpdateEvent) -> None:
        artifact_id = f"{event.artifact_id}:{event.artifact_version}"
        # Only the name is in the first chunk. Later parts with this id replace earlier parts.
        initial = {"artifactId": event.artifact_id, "version": event.artifact_version}
        about = self._artifacts.setdefault(artifact_id, initial)
        fields = {"name": event.name, "mediaType": event.media_type, "url": event.url}
        about.update({key: value for key, value in fields.items() if value is not None})
        about.update(size=event.offset + event.size, complete=event.last)
        self._emit("data-artifact", id=artifact_id, data=dict(about))
        if event.url is not None:
            return
        chunk = {"index": event.index, "offset": event.offset, "data": event.data, "encoding": event.encoding}
        self._emit("data-artifact-chunk", id=artifact_id, transient=True, data=chunk)

    # -- stream end

    def end(self) -> None:
        """Emit the end of the last attempt if the stream reached it."""
        event = self._last
        if event is None:
            return
        self._finish_step()
        if self._client_results and event.state not in WAITING:
            # Otherwise clients see their own completed step last and post again in an endless loop.
            self._emit("start-step")
            self._emit("finish-step")
        state = {"state": event.state, "reason": event.reason, "cursor": event.cursor}
        metadata: dict[str, Any] = {"rxloop": state}
        if event.usage is not None:
            metadata["usage"] = _usage(event.usage)
        if event.state == "failed" and event.reason not in LIMITS:
            self._emit("message-metadata", messageMetadata=metadata)
            self._emit("error", errorText=event.error.message if event.error is not None else "The run failed.")
        elif event.state == "canceled":
            self._emit("message-metadata", messageMetadata=metadata)
            self._emit("abort", reason=event.error.message if event.error is not None else "The run was cancelled.")
        else:
            reason = "tool-calls" if event.state in WAITING else "other"
            if event.state == "completed":
                reason = _FINISH.get(event.finish_reason or "stop", "other")
            self._emit("finish", finishReason=reason, messageMetadata=metadata)


def _usage(usage: Usage) -> Chunk:
    """Convert usage to the AI SDK format. Cache write tokens are only supported since version 6."""
    written = usage.cache_write_tokens
    details = {"cacheReadTokens": usage.cached_tokens, "cacheWriteTokens": written}
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.total_tokens,
        "cachedInputTokens": usage.cached_tokens,
        "reasoningTokens": usage.reasoning_tokens,
        **({"inputTokenDetails": details} if written else {}),
    }
