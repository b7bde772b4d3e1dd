"""Chat changes as chunks of a UI message: one message for each run, over all of its attempts."""

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
from rxloop.server.core import chat_changes as to
from rxloop.server.core.chat_changes import Change
from rxloop.server.ui_messages.frames import Chunk, data_part, parts_beside

log = logging.getLogger("rxloop")

_Emit = Callable[[Chunk], None]

_FINISH = {"length": "length", "content_filter": "content-filter", "tool_calls": "tool-calls", "stop": "stop"}
LIMITS = ("max_iterations", "tool_failures", "tokens", "timeout", "attempts")
"""The reasons with which an attempt ends at a limit: that is an end, and no error."""
_BROKE_OFF = "The stream broke off, and the answer goes on without it: come back in a moment."
_VOIDED = "This call came to nothing, and was not carried out."


def chunks(
    task_id: str, context_id: str, *, client_tools: Collection[str] = (), after: int = 0, known: int = 0
) -> View[Change | Event, Chunk]:
    """Write a chat as the chunks of a UI message stream.

    ::

        source      --S-----T-----R-----N---w|      S StepBegan, T TextDelta, R CallResult, N StepEnded, w the end
        chunks()    s-S-----T-----R---------(Nf)|   s start, N finish-step, f finish, error or abort

    The message has the id of the run, and is the same however often the run pauses and goes on: a client that has its
    first part gets the rest with `after`. A step that is tried again goes on in the step that is open, since no chunk
    takes text back: `data-rxloop-void` says that the text and the reasoning before it in that step do not count.

    Args:
        task_id: The run.
        context_id: Its conversation.
        client_tools: The names of the tools that the client carries out, as far as they are known.
        after: The `seq` of the last event that the client has.
        known: The `seq` of the last event that was there when the client asked. Calls that are for the client, and
            were so before, are not to be carried out once more, unless the run still waits for them.

    Returns:
        A view of the chunks, without the `[DONE]` at the end of the stream. What goes wrong with the source is the
        last chunk, since a stream that just stops looks like one that is complete.
    """

    def write(out: ViewOutput[Chunk]) -> Callable[[Change | Event], None]:
        fold = _Fold(out.emit, task_id, frozenset(client_tools), after, known)

        def break_off(error: Exception) -> None:
            log.warning("a stream of the run %s breaks off: %s", task_id, error)
            out.emit({"type": "error", "errorText": _BROKE_OFF})
            out.complete()

        out.on_end(fold.end)
        out.on_error(break_off)
        place = {"taskId": task_id, "contextId": context_id, "state": "working", "reason": None}
        out.emit({"type": "start", "messageId": task_id, "messageMetadata": {"rxloop": place}})
        return fold.take

    return make_view(write)


class _Fold:
    """What of a message has begun, and which questions of it wait."""

    def __init__(self, emit: _Emit, task_id: str, client_tools: frozenset[str], after: int, known: int) -> None:
        self._out, self._task_id, self._client_tools, self._after = emit, task_id, client_tools, after
        self._known, self._seq = known, 0
        self._held: dict[str, str] = {}
        """Questions for calls of the client's that were put before it asked, and the slots of these calls."""
        self._quiet = False
        """What is told is what the client has."""
        self._step: str | None = None
        self._open = False
        """There is a `start-step` with no `finish-step`."""
        self._text_shown = False
        """Of the try that goes on."""
        self._slots: dict[str, str] = {}
        """By the id of a call, which counts the tries: its slot, which is the same in each of them."""
        self._calls: dict[str, dict[str, Any]] = {}
        """By slot: what is said of each call with every chunk that makes its part."""
        self._client_calls: set[str] = set()
        self._started: set[str] = set()
        self._approvals: dict[str, str] = {}
        """The approvals that wait or were given, and their slots."""
        self._answered: set[str] = set()
        self._asked: dict[str, Chunk] = {}
        """Other questions that wait, as they were told."""
        self._told: set[str] = set()
        """All questions that were."""
        self._artifacts: dict[str, dict[str, Any]] = {}
        self._by_client: list[Chunk] = []
        """The results of the step that goes on which are the client's."""
        self._last: StatusUpdateEvent | None = None

    def take(self, item: Change | Event) -> None:
        """Take the next change, or the next event that is none."""
        event = item if isinstance(item, Event) else item.event
        self._seq = event.seq
        self._quiet = event.seq <= self._after
        self._last = None
        if isinstance(item, Event):
            self._event(item)
        elif event.parent_task_id is None and event.branch is None:
            self._change(item)

    def _emit(self, type: str, **fields: Any) -> None:
        if not self._quiet:
            self._out({"type": type, **fields})

    # -- what happens in a step

    def _change(self, item: Change) -> None:
        match item:
            case to.TextDelta():
                self._emit("text-delta", id=item.id, delta=item.delta)
            case to.StepBegan():
                self._begin(item.event.step)
            case to.StepEnded():
                if item.outcome == "void" and self._text_shown:
                    self._emit("data-rxloop-void", data={"step": item.event.step})
                elif isinstance(item.event, ContentCompleteEvent) and item.outcome == "complete":
                    for part in parts_beside(item.id, item.event):
                        self._emit(**part)
                self._text_shown = False
            case to.TextBegan():
                self._text_shown = True
                self._emit("text-start", id=item.id)
            case to.TextEnded():
                self._emit("text-end", id=item.id)
            case to.ReasoningBegan():
                self._text_shown = True
                self._emit("reasoning-start", id=item.id)
            case to.ReasoningDelta():
                self._emit("reasoning-delta", id=item.id, delta=item.delta)
            case to.ReasoningEnded():
                self._emit("reasoning-end", id=item.id)
            case to.CallBegan():
                self._begin_call(item)
            case _:
                self._call(item, self._slots[item.id])

    def _begin(self, step: str | None) -> None:
        if self._open and self._step == step:
            return
        self._finish_step()
        self._step, self._open = step, True
        self._by_client.clear()
        self._emit("start-step")

    def _finish_step(self) -> None:
        if self._open:
            self._open = False
            self._emit("finish-step")

    def _begin_call(self, item: to.CallBegan) -> None:
        slot = self._slots[item.id] = f"{self._task_id}:{item.event.step}:{item.place}"
        part = self._calls[slot] = {"toolCallId": slot, "toolName": item.name}
        self._started.discard(slot)
        if item.name in self._client_tools:
            self._client_calls.add(slot)
        else:
            # Without this a client takes the call for its own, and posts once it is answered.
            part.update(dynamic=True, providerExecuted=True)
        self._emit("tool-input-start", **part)

    def _call(
        self,
        item: to.CallDelta
        | to.CallEnded
        | to.CallRevised
        | to.CallVoided
        | to.CallStarted
        | to.CallProgress
        | to.CallResult,
        slot: str,
    ) -> None:
        match item:
            case to.CallDelta():
                self._emit("tool-input-delta", toolCallId=slot, inputTextDelta=item.delta)
            case to.CallEnded():
                part, call = self._calls[slot], item.call
                part["input"] = call.arguments
                if call.error is not None:
                    self._emit("tool-input-error", **{**part, "input": call.raw}, errorText=call.error)
                elif slot not in self._client_calls:
                    # The client's own come with the question: only then it is certain that they are to be carried out.
                    self._emit("tool-input-available", **part)
            case to.CallRevised():
                part = self._calls[slot]
                part["input"] = item.call.arguments
                if slot not in self._client_calls:
                    self._emit("tool-input-available", **part)
            case to.CallVoided():
                self._emit("tool-output-error", toolCallId=slot, errorText=_VOIDED)
            case to.CallStarted():
                self._started.add(slot)
                if slot in self._approvals.values():
                    self._emit("tool-input-available", **self._calls[slot])
            case to.CallProgress():
                said = {"toolCallId": slot, "message": item.event.message, "fraction": item.event.fraction}
                self._emit("data-tool-progress", id=slot, transient=True, data=said)
            case to.CallResult():
                self._result(slot, item.event)

    def _result(self, slot: str, event: ToolCompleteEvent) -> None:
        refused = [asked for asked, place in self._approvals.items() if place == slot and asked in self._answered]
        if event.success:
            result: Chunk = {"type": "tool-output-available", "toolCallId": slot, "output": event.result}
        elif refused and slot not in self._started:
            result = {"type": "tool-output-denied", "toolCallId": slot}
        else:
            failed = event.content or event.error or "It failed."
            result = {"type": "tool-output-error", "toolCallId": slot, "errorText": failed}
        if slot in self._client_calls and result["type"] != "tool-output-denied":
            self._by_client.append(result)
            result = {**result, "providerExecuted": False}
        self._emit(**result)

    # -- what happens beside the steps

    def _event(self, event: Event) -> None:
        match event:
            case StatusUpdateEvent():
                if ends_attempt(event):
                    self._rest(event)
            case InputReceivedEvent():
                self._received(event)
            case ArtifactUpdateEvent():
                self._artifact(event)
            case _ if isinstance(event, QuestionEvent):
                self._question(event.input, event.task_id)
            case _:
                part = data_part(event)
                if part is not None:
                    self._emit(**part)

    def _question(self, question: PendingInput, task_id: str) -> None:
        asked = f"{self._task_id}:{question.input_id}"
        slot = f"{question.task_id or task_id}:{question.step}:{question.index}"
        part = self._calls.get(slot) if question.call is not None else None
        if part is not None and question.input_kind == "tool":
            # That it is the client's may not have been known; and what was asked before is as good as answered.
            self._client_calls.add(slot)
            held = self._seq <= self._known and not self._quiet
            if held:
                self._held[asked] = slot
            if held or "providerExecuted" in part:
                part["providerExecuted"] = held
            self._emit("tool-input-available", **part)
        elif part is not None and question.input_kind == "confirmation":
            self._approvals[asked] = slot
            about = {"prompt": question.prompt}
            self._emit("tool-approval-request", approvalId=asked, toolCallId=slot, approvalDescriptor=about)
        else:
            said = question.model_dump(mode="json", by_alias=True, exclude={"hidden"}, exclude_none=True)
            of = {"toolCallId": slot} if part is not None else {}
            self._asked[asked] = {"id": asked, "data": {**said, **of, "waits": True}}
            self._emit("data-input-required", **self._asked[asked])
        self._told.add(asked)

    def _received(self, event: InputReceivedEvent) -> None:
        asked = f"{self._task_id}:{event.input_id}"
        self._answered.add(asked)
        self._waits_no_more(asked)

    def _waits_no_more(self, asked: str) -> None:
        if told := self._asked.pop(asked, None):
            self._emit("data-input-required", id=asked, data={**told["data"], "waits": False})

    def _rest(self, event: StatusUpdateEvent) -> None:
        """Take the end of an attempt, which knows of questions that no event for clients has told."""
        self._last = event
        pending = {f"{self._task_id}:{question.input_id}": question for question in event.pending}
        for asked in [asked for asked in self._asked if asked not in pending]:
            self._waits_no_more(asked)
        for asked, question in pending.items():
            if asked not in self._told:
                self._question(question, self._task_id)
            elif asked in self._held and self._seq >= self._known:
                part = self._calls[self._held.pop(asked)]
                part["providerExecuted"] = False
                self._emit("tool-input-available", **part)
        if event.state in WAITING:
            # For other answers: a client that finds nothing but its own calls complete posts them once more.
            for result in self._by_client:
                self._emit(**result, providerExecuted=True)

    def _artifact(self, event: ArtifactUpdateEvent) -> None:
        named = f"{event.artifact_id}:{event.artifact_version}"
        # The first chunk has the name alone, and a part of the same id takes the place of the one before.
        about = self._artifacts.setdefault(named, {"artifactId": event.artifact_id, "version": event.artifact_version})
        given = {"name": event.name, "mediaType": event.media_type}
        about.update({key: value for key, value in given.items() if value is not None})
        about.update(size=event.offset + event.size, complete=event.last)
        self._emit("data-artifact", id=named, data=dict(about))
        piece = {"index": event.index, "offset": event.offset, "data": event.data, "encoding": event.encoding}
        self._emit("data-artifact-chunk", id=named, transient=True, data=piece)

    # -- the end

    def end(self) -> None:
        """Write the end of the attempt that came last; nothing if the stream ends in the middle of one."""
        event = self._last
        if event is None:
            return
        self._finish_step()
        if self._by_client and event.state not in WAITING:
            # Otherwise the last step is one that the client has completed, and it posts once more, for ever.
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
    """Write usage as the AI SDK names it: what was written to the cache has a name since its version 6 alone."""
    kept = usage.cache_write_tokens
    details = {"cacheReadTokens": usage.cached_tokens, "cacheWriteTokens": kept}
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.total_tokens,
        "cachedInputTokens": usage.cached_tokens,
        "reasoningTokens": usage.reasoning_tokens,
        **({"inputTokenDetails": details} if kept else {}),
    }
