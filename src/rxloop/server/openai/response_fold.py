"""Conversion of a run to OpenAI responses and their events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rxloop.operators.views import View
from rxloop.protocol.events import ContentCompleteEvent, Event, StatusUpdateEvent, TaskEvent, ends_attempt
from rxloop.protocol.messages import ErrorInfo, PendingInput, Usage
from rxloop.server.core import chat_changes as changes
from rxloop.server.core.chat_changes import Change
from rxloop.server.core.chat_fold import make_protocol_view
from rxloop.server.openai import response_items as items
from rxloop.server.openai.response_items import Item, Json, ResponseId, Writer, make_approval_id, make_item_id
from rxloop.tools.output import FINAL_ANSWER

# OpenAI has no value for an unknown finish reason, so report an incomplete answer.
_REASONS = {
    **dict.fromkeys(("length", "tokens", "unknown"), "max_output_tokens"),
    "content_filter": "content_filter",
}
_ERROR_CODES = {
    "rate_limited": "rate_limit_exceeded",
    "bad_request": "invalid_prompt",
    "media_refused": "invalid_prompt",
    "context_length": "invalid_prompt",
}
"""OpenAI codes for rxloop error codes. All other errors become `server_error`."""
_CALL_CHANGES = changes.CallBegan, changes.CallDelta, changes.CallEnded, changes.CallRevised, changes.CallDiscarded


@dataclass(frozen=True, slots=True)
class ResponseInfo:
    """Response metadata that is not derived from events."""

    model: str
    context_id: str
    created: int
    background: bool = False
    previous: str | None = None
    """Previous response of the run's first response."""
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    tools: list[Json] = field(default_factory=list[Json])
    """Definitions of client tools sent with the request."""
    client: frozenset[str] = frozenset()
    """Names of client tools defined by the agent."""
    text: Json = field(default_factory=lambda: {"format": {"type": "text"}})


@dataclass(frozen=True, slots=True)
class Pause:
    """Final response state."""

    pending: dict[str, PendingInput]
    """Pending questions by the id that clients use in their answer."""
    usage: Usage
    """Cumulative token usage of the run."""
    cursor: str


class ResponseFold:
    """Fold of a single response. Pass all chat changes to `take`, starting with the first event.

    A run has several responses if it pauses. Each response starts with the run or with an answer, and ends when the run
    is idle.
    """

    def __init__(self, info: ResponseInfo, id: ResponseId, emit: Callable[[Json], None]) -> None:
        """Initialize the fold with a callback for response events."""
        self.pauses: list[Pause] = []
        """Final states of this response and all earlier responses."""
        self._info, self._id = info, id
        self._writer = Writer(emit)
        self._created = info.created
        self._status = ""
        self._ended: Json = {}
        """Final response fields."""
        self._open_item: Item | None = None
        self._unfinished: Item | None = None
        """Message with completed text but undetermined status."""
        self._part_counts: Counter[str] = Counter()
        """Number of messages per step."""
        self._last_text: tuple[str, str] = "", ""
        """Id and text of the latest step with text."""
        self._calls: dict[str, Item] = {}
        self._arguments: dict[str, str] = {}
        self._started_calls: set[str] = set()
        """Calls with started tools."""
        self._completed_calls: set[str] = set()
        """Calls with completed items."""
        self._slots: dict[tuple[str | None, int], str] = {}
        self._approvals: dict[tuple[str | None, int], str] = {}
        """Approval ids by call step and index."""
        self._client = {
            *(each["name"] for each in info.tools if each["type"] == "function"),
            *info.client,
            FINAL_ANSWER,
        }
        """Tool names excluded from agent tool calls."""

    @property
    def is_complete(self) -> bool:
        """True if the response is complete."""
        return len(self.pauses) >= self._id.turn

    @property
    def exists(self) -> bool:
        """True if this response exists, based on the events processed so far."""
        earlier = len(self.pauses) - self._id.turn + 1
        return earlier > 0 or self._id.turn == 1 or (earlier == 0 and bool(self.pauses[-1].pending))

    def response(self) -> Json:
        """Return the current response object."""
        info, own_id = self._info, self._id
        previous = info.previous if own_id.turn == 1 else str(ResponseId(own_id.task_id, own_id.turn - 1))
        return {
            "id": str(own_id),
            "object": "response",
            "created_at": self._created // 1000,
            "status": self._status or "queued",
            "background": info.background,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": info.metadata,
            "model": info.model,
            "output": self._writer.output,
            "parallel_tool_calls": True,
            "previous_response_id": previous,
            "conversation": {"id": info.context_id},
            "temperature": None,
            "top_p": None,
            "text": info.text,
            "tool_choice": "auto",
            "tools": info.tools,
            "truncation": "disabled",
            "usage": None,
            **self._ended,
        }

    def take(self, change: Change | Event) -> None:
        """Process the next change or event."""
        event = change if isinstance(change, Event) else change.event
        # Nested runs and side branches are not part of the response.
        if self.is_complete or event.parent_task_id is not None or event.branch is not None:
            return
        match change:
            case changes.CallBegan():
                self._slots[event.step, change.call_index] = change.id
            case changes.CallEnded() | changes.CallRevised():
                self._arguments[change.id] = items.encode_arguments(change.call)
            case changes.CallStarted():
                self._started_calls.add(change.id)
            case _:
                pass
        if len(self.pauses) + 1 == self._id.turn:
            self._begin(event)
            self._close(change)
            self._show(change)
        if isinstance(change, StatusUpdateEvent) and ends_attempt(change) and change.state != "working":
            self._pause(change)

    def _begin(self, event: Event) -> None:
        if self._status == "in_progress":
            return
        if not self._status:
            self._status = "queued"
            self._created = event.timestamp if self._id.turn > 1 else self._created
            self._writer.emit("response.created", response=self.response())
        if not isinstance(event, TaskEvent):
            self._status = "in_progress"
            self._writer.emit("response.in_progress", response=self.response())

    def _close(self, change: Change | Event) -> None:
        if isinstance(change, _CALL_CHANGES):
            # These changes do not start an item, so the end of the step may still add citations to the text.
            return
        item, self._unfinished = self._unfinished, None
        if item is not None:
            lost = isinstance(change, changes.StepEnded) and change.outcome != "complete"
            if isinstance(event := getattr(change, "event", None), ContentCompleteEvent) and not lost:
                # Citations cannot be assigned to segments if a message has several.
                self._writer.annotate(item, event)
            self._writer.complete(item, "incomplete" if lost else "completed")

    def _show(self, change: Change | Event) -> None:
        writer, item = self._writer, self._open_item
        match change:
            case changes.TextBegan():
                self._part_counts[change.id] += 1
                count = self._part_counts[change.id]
                suffix = f":part:{count}" if count > 1 else ""
                self._open_item = writer.start_message(f"msg_{change.id}{suffix}", change.id)
            case changes.TextDelta() if item is not None:
                writer.add_text(item, change.delta)
            case changes.TextEnded() if item is not None:
                step, text = self._last_text
                self._last_text = change.id, (text if step == change.id else "") + writer.complete_text(item)
                self._unfinished = item
            case changes.ReasoningBegan():
                self._open_item = writer.start_reasoning(f"rs_{change.id}", change.id.partition(":reasoning")[0])
            case changes.ReasoningDelta() if item is not None:
                writer.add_thought(item, change.delta)
            case changes.ReasoningEnded() if item is not None:
                writer.complete_reasoning(item)
            case changes.CallStarted() | changes.CallResult() if change.event.name not in self._client:
                self._show_call(change)
            case changes.CallDiscarded() if change.id in self._calls:
                writer.complete(self._calls.pop(change.id), "incomplete", keep=False)
            case changes.StepEnded(outcome="discarded"):
                writer.drop_step(change.id)
            case StatusUpdateEvent() if ends_attempt(change) and change.state != "working":
                self._end(change)
            case _:
                pass

    def _show_call(self, change: changes.CallStarted | changes.CallResult) -> None:
        event, call = change.event, self._calls.get(change.id)
        if change.id in self._completed_calls:
            # This call is repeated after a discarded step, but its item is already complete.
            return
        if call is None:
            name = self._make_id(f"mcp_{change.id}")
            arguments = self._arguments.get(change.id) or items.encode_arguments(event.call)
            data = items.make_mcp_call(name, event.name, self._approvals.get((event.step, event.index)))
            call = self._calls[change.id] = self._writer.start_mcp_call(data, arguments)
        if isinstance(change, changes.CallResult):
            del self._calls[change.id]
            self._completed_calls.add(change.id)
            self._writer.complete_mcp_call(call, items.add_result(call.data, change.event))

    def _make_id(self, id: str) -> str:
        """Return a unique item id across a run's responses."""
        return make_item_id(id, self._id.turn)

    # -- response end

    def _end(self, event: StatusUpdateEvent) -> None:
        for call in self._calls.values():
            self._writer.complete(call, "incomplete")
        if event.state == "completed" and event.content and event.content != self._last_text[1]:
            # A tool or strategy returned the final answer instead of a message.
            self._writer.add_message(self._make_id(f"msg_{event.task_id}:answer"), event.content)
        for question_id, question in self._list_pending(event).items():
            self._show_question(question_id, question)
        before = self.pauses[-1].usage if self.pauses else None
        self._ended = {"usage": items.subtract_usage(event.usage or Usage(), before)}
        incomplete = _REASONS.get((event.finish_reason if event.state == "completed" else event.reason) or "")
        match event.state:
            case "canceled":
                # OpenAI has no separate event for a cancelled response.
                self._finish("incomplete", "cancelled")
            case "completed" | "failed" if incomplete is not None:
                self._finish("incomplete", "incomplete", incomplete_details={"reason": incomplete})
            case "failed":
                self._finish("failed", "failed", error=_convert_error(event.error))
            case _:
                self._finish("completed", "completed", completed_at=event.timestamp // 1000)

    def _finish(self, event: str, status: str, **fields: object) -> None:
        self._status = status
        self._ended |= fields
        self._writer.emit(f"response.{event}", response=self.response())

    def _show_question(self, id: str, question: PendingInput) -> None:
        if question.input_kind == "tool":
            self._writer.add_function_call(items.make_function_call(id, question))
            return
        call_id = self._slots.get((question.step, question.index))
        # Unlike questions from a tool, questions about the call itself add no information.
        is_own = question.call is not None and not question.agent_path and call_id not in self._started_calls
        if question.input_kind != "confirmation" or not is_own:
            # Questions can be repeated, such as a request for lost credentials.
            self._writer.add_message(self._make_id(f"msg_{id}"), items.format_question(question))
        if question.input_kind == "confirmation":
            self._writer.complete(self._writer.start(items.make_approval_request(id, question)))

    def _list_pending(self, event: StatusUpdateEvent) -> dict[str, PendingInput]:
        return {self._find_question_id(event.task_id, question): question for question in event.pending}

    def _find_question_id(self, task_id: str, question: PendingInput) -> str:
        if question.input_kind != "tool":
            return make_approval_id(task_id, question.input_id)
        slot = None if question.agent_path else self._slots.get((question.step, question.index))
        return slot or f"{task_id}:{question.input_id}"

    def _pause(self, event: StatusUpdateEvent) -> None:
        pending = self._list_pending(event)
        self.pauses.append(Pause(pending, event.usage or Usage(), event.cursor))
        for question_id, question in pending.items():
            if question.input_kind == "confirmation" and not question.agent_path:
                self._approvals[question.step, question.index] = question_id


def _convert_error(error: ErrorInfo | None) -> Json:
    if error is None:
        return {"code": "server_error", "message": "The run failed."}
    return {"code": _ERROR_CODES.get(error.code, "server_error"), "message": error.message}


def response_events(info: ResponseInfo, id: ResponseId, *, after: int = -1) -> View[Event, Json]:
    """Convert a response of a run to Responses API events, from `response.created` to its end.

    ::

        source               --t--w--l--d(He)--d(y)--c--w--      t task, w status-update, d content-delta
        response_events()    --C--P-----(A,D)--D-----E--(F|)     C created, P in_progress, A output_item.added, D delta,
                                                                 E output_item.done, F completed

    Args:
        info: Response metadata.
        id: Response id.
        after: `sequence_number` of the last event that the client has.
    """

    def fold(emit: Callable[[Json], None]) -> ResponseFold:
        return ResponseFold(info, id, lambda event: emit(event) if event["sequence_number"] > after else None)

    return make_protocol_view(fold)
