"""Conversion of a run to OpenAI responses and their events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rxloop.operators.views import View
from rxloop.protocol.events import ContentCompleteEvent, Event, StatusUpdateEvent, TaskEvent, ends_attempt
from rxloop.protocol.messages import ErrorInfo, PendingInput, Usage
from rxloop.server.core import chat_changes as to
from rxloop.server.core.chat_changes import Change
from rxloop.server.core.chat_fold import make_protocol_view
from rxloop.server.openai import response_items as items
from rxloop.server.openai.response_items import Item, Json, ResponseId, Writer, approval_id, later
from rxloop.tools.output import FINAL_ANSWER

# OpenAI has no value for an unknown finish reason, so report an incomplete answer.
_INCOMPLETE = {
    **dict.fromkeys(("length", "tokens", "unknown"), "max_output_tokens"),
    "content_filter": "content_filter",
}
_CODES = {
    "rate_limited": "rate_limit_exceeded",
    "bad_request": "invalid_prompt",
    "media_refused": "invalid_prompt",
    "context_length": "invalid_prompt",
}
"""OpenAI codes for rxloop error codes. All other errors become `server_error`."""


@dataclass(frozen=True, slots=True)
class About:
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

    waiting: dict[str, PendingInput]
    """Pending questions by the id that clients use in their answer."""
    usage: Usage
    """Cumulative token usage of the run."""
    cursor: str


class ResponseFold:
    """Fold of a single response. Pass all chat changes to `take`, starting with the first event.

    A run has several responses if it pauses. Each response starts with the run or with an answer, and ends when the run
    is idle.
    """

    def __init__(self, about: About, id: ResponseId, emit: Callable[[Json], None]) -> None:
        """Initialize the fold with a callback for response events."""
        self.pauses: list[Pause] = []
        """Final states of this response and all earlier responses."""
        self._about, self._id = about, id
        self._writer = Writer(emit)
        self._created = about.created
        self._status = ""
        self._ended: Json = {}
        """Final response fields."""
        self._writing: Item | None = None
        self._closing: Item | None = None
        """Message with completed text but undetermined status."""
        self._pieces: Counter[str] = Counter()
        """Number of messages per step."""
        self._said: tuple[str, str] = "", ""
        """Id and text of the latest step with text."""
        self._calls: dict[str, Item] = {}
        self._arguments: dict[str, str] = {}
        self._worked: set[str] = set()
        """Calls with started tools."""
        self._answered: set[str] = set()
        """Calls with completed items."""
        self._slots: dict[tuple[str | None, int], str] = {}
        self._approvals: dict[tuple[str | None, int], str] = {}
        """Approval ids by call step and index."""
        self._client = {*(each["name"] for each in about.tools), *about.client, FINAL_ANSWER}
        """Tool names excluded from agent tool calls."""

    @property
    def over(self) -> bool:
        """True if the response is complete."""
        return len(self.pauses) >= self._id.turn

    @property
    def exists(self) -> bool:
        """True if this response exists, based on the events processed so far."""
        earlier = len(self.pauses) - self._id.turn + 1
        return earlier > 0 or self._id.turn == 1 or (earlier == 0 and bool(self.pauses[-1].waiting))

    def response(self) -> Json:
        """Return the current response object."""
        about, which = self._about, self._id
        previous = about.previous if which.turn == 1 else str(ResponseId(which.task_id, which.turn - 1))
        return {
            "id": str(which),
            "object": "response",
            "created_at": self._created // 1000,
            "status": self._status or "queued",
            "background": about.background,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": about.metadata,
            "model": about.model,
            "output": self._writer.output,
            "parallel_tool_calls": True,
            "previous_response_id": previous,
            "conversation": {"id": about.context_id},
            "temperature": None,
            "top_p": None,
            "text": about.text,
            "tool_choice": "auto",
            "tools": about.tools,
            "truncation": "disabled",
            "usage": None,
            **self._ended,
        }

    def take(self, change: Change | Event) -> None:
        """Process the next change or event."""
        event = change if isinstance(change, Event) else change.event
        # Nested runs and side branches are not part of the response.
        if self.over or event.parent_task_id is not None or event.branch is not None:
            return
        match change:
            case to.CallBegan():
                self._slots[event.step, change.place] = change.id
            case to.CallEnded() | to.CallRevised():
                self._arguments[change.id] = items.arguments_of(change.call)
            case to.CallStarted():
                self._worked.add(change.id)
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
        if isinstance(change, to.CallBegan | to.CallDelta | to.CallEnded | to.CallRevised | to.CallVoided):
            # These changes do not start an item, so the end of the step may still add citations to the text.
            return
        item, self._closing = self._closing, None
        if item is not None:
            lost = isinstance(change, to.StepEnded) and change.outcome != "complete"
            if isinstance(event := getattr(change, "event", None), ContentCompleteEvent) and not lost:
                # Citations cannot be assigned to segments if a message has several.
                self._writer.annotate(item, event)
            self._writer.done(item, "incomplete" if lost else "completed")

    def _show(self, change: Change | Event) -> None:
        writer, writing = self._writer, self._writing
        match change:
            case to.TextBegan():
                self._pieces[change.id] += 1
                count = self._pieces[change.id]
                self._writing = writer.message(f"msg_{change.id}" + (f":part:{count}" if count > 1 else ""), change.id)
            case to.TextDelta() if writing is not None:
                writer.text(writing, change.delta)
            case to.TextEnded() if writing is not None:
                step, said = self._said
                self._said = change.id, (said if step == change.id else "") + writer.text_done(writing)
                self._closing = writing
            case to.ReasoningBegan():
                self._writing = writer.reasoning(f"rs_{change.id}", change.id.partition(":reasoning")[0])
            case to.ReasoningDelta() if writing is not None:
                writer.thought(writing, change.delta)
            case to.ReasoningEnded() if writing is not None:
                writer.reasoning_done(writing)
            case to.CallStarted() | to.CallResult() if change.event.name not in self._client:
                self._work(change)
            case to.CallVoided() if change.id in self._calls:
                writer.done(self._calls.pop(change.id), "incomplete", kept=False)
            case to.StepEnded(outcome="void"):
                writer.forget(change.id)
            case StatusUpdateEvent() if ends_attempt(change) and change.state != "working":
                self._end(change)
            case _:
                pass

    def _work(self, change: to.CallStarted | to.CallResult) -> None:
        event, call = change.event, self._calls.get(change.id)
        if change.id in self._answered:
            # This call is repeated after a discarded step, but its item is already complete.
            return
        if call is None:
            name = self._later(f"mcp_{change.id}")
            arguments = self._arguments.get(change.id) or items.arguments_of(event.call)
            data = items.mcp_call(name, event.name, self._approvals.get((event.step, event.index)))
            call = self._calls[change.id] = self._writer.mcp_call(data, arguments)
        if isinstance(change, to.CallResult):
            del self._calls[change.id]
            self._answered.add(change.id)
            self._writer.mcp_call_done(call, items.answered(call.data, change.event))

    def _later(self, id: str) -> str:
        """Return a unique item id across a run's responses."""
        return later(id, self._id.turn)

    # -- response end

    def _end(self, event: StatusUpdateEvent) -> None:
        for call in self._calls.values():
            self._writer.done(call, "incomplete")
        if event.state == "completed" and event.content and event.content != self._said[1]:
            # A tool or strategy returned the final answer instead of a message.
            self._writer.say(self._later(f"msg_{event.task_id}:answer"), event.content)
        for asked, question in self._waiting(event).items():
            self._ask(asked, question)
        self._ended = {"usage": items.usage_of(event.usage or Usage(), self.pauses[-1].usage if self.pauses else None)}
        cut = _INCOMPLETE.get((event.finish_reason if event.state == "completed" else event.reason) or "")
        match event.state:
            case "canceled":
                # OpenAI has no separate event for a cancelled response.
                self._over("incomplete", "cancelled")
            case "completed" | "failed" if cut is not None:
                self._over("incomplete", "incomplete", incomplete_details={"reason": cut})
            case "failed":
                self._over("failed", "failed", error=_error(event.error))
            case _:
                self._over("completed", "completed", completed_at=event.timestamp // 1000)

    def _over(self, event: str, status: str, **said: object) -> None:
        self._status = status
        self._ended |= said
        self._writer.emit(f"response.{event}", response=self.response())

    def _ask(self, id: str, question: PendingInput) -> None:
        if question.input_kind == "tool":
            self._writer.function_call(items.function_call(id, question))
            return
        asked = self._slots.get((question.step, question.index))
        # Unlike questions from a tool, questions about the call itself add no information.
        plain = question.call is not None and not question.agent_path and asked not in self._worked
        if question.input_kind != "confirmation" or not plain:
            # Questions can be repeated, such as a request for lost credentials.
            self._writer.say(self._later(f"msg_{id}"), items.asking(question))
        if question.input_kind == "confirmation":
            self._writer.done(self._writer.add(items.approval_request(id, question)))

    def _waiting(self, event: StatusUpdateEvent) -> dict[str, PendingInput]:
        return {self._named(event.task_id, question): question for question in event.pending}

    def _named(self, task_id: str, question: PendingInput) -> str:
        if question.input_kind != "tool":
            return approval_id(task_id, question.input_id)
        slot = None if question.agent_path else self._slots.get((question.step, question.index))
        return slot or f"{task_id}:{question.input_id}"

    def _pause(self, event: StatusUpdateEvent) -> None:
        waiting = self._waiting(event)
        self.pauses.append(Pause(waiting, event.usage or Usage(), event.cursor))
        for asked, question in waiting.items():
            if question.input_kind == "confirmation" and not question.agent_path:
                self._approvals[question.step, question.index] = asked


def _error(error: ErrorInfo | None) -> Json:
    if error is None:
        return {"code": "server_error", "message": "The run failed."}
    return {"code": _CODES.get(error.code, "server_error"), "message": error.message}


def response_events(about: About, id: ResponseId, *, after: int = -1) -> View[Event, Json]:
    """Convert a response of a run to Responses API events, from `response.created` to its end.

    ::

        source               --t--w--l--d(He)--d(y)--c--w--      t task, w status-update, d content-delta
        response_events()    --C--P-----(A,D)--D-----E--(F|)     C created, P in_progress, A output_item.added, D delta,
                                                                 E output_item.done, F completed

    Args:
        about: Response metadata.
        id: Response id.
        after: `sequence_number` of the last event that the client has.
    """

    def fold(emit: Callable[[Json], None]) -> ResponseFold:
        return ResponseFold(about, id, lambda event: emit(event) if event["sequence_number"] > after else None)

    return make_protocol_view(fold)
