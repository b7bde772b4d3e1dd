from __future__ import annotations

from collections.abc import Sequence

from reactivex import Observable, abc

from rxloop.errors import ContextLengthExceeded, MediaRefused, PipelineError
from rxloop.operators.exchange.model_exchange import (
    DeltaTimes,
    RequestChecks,
    complete_message,
    copy_unstamped,
    describe_failure,
    find_refused_media,
    make_event_error,
    make_tool_requests,
)
from rxloop.operators.loop.answer_requests import answer_requests
from rxloop.operators.loop.checks import declare_handler
from rxloop.pipeline.budget import Budget
from rxloop.pipeline.host import Host, get_host
from rxloop.pipeline.requests import ModelRequest, Operator, Signal
from rxloop.protocol.events import ContentCompleteEvent, Event, LLMCallEvent, LLMFailedEvent, ToolCallDeltaEvent
from rxloop.protocol.model import mutable_fields
from rxloop.stream.rx import ColdObservable, connect
from rxloop.stream.sources import emit


def call_model() -> Operator[object]:
    """Answer each `ModelRequest` with a model call, and request the tools that the model calls.

    ::

        in       --M-------------------------|
        model      --delta--delta--complete--|
        out      --L-d------d------(C,T,T)---|

    M is a `ModelRequest`, L the `llm-call` before the request is sent, d a delta or thought, C a `content-complete` and
    T a `ToolRequest` for each tool call of the message.

    Each failed request is published as an internal `llm-failed` event. `iterate` retries a request that was too long
    with a higher pressure. After any other provider failure, the operator fails. If an earlier attempt of the run has
    completed the step, its message is read from the log.

    If operators have changed the messages, they are checked before the call: each tool call must be followed by one
    result, in order, and the newest user message, pinned messages and the system prompt must be present. Invalid
    requests are repaired. Their `llm-call` lists the problems, and a warning names the loop.
    """
    checks = RequestChecks()

    def answer(request: ModelRequest) -> Observable[Signal]:
        host, budget = get_host(request.ctx), request.ctx.info.budget
        earlier = host.earlier.messages.get(request.step)
        if isinstance(earlier, ContentCompleteEvent):
            offered = host.tools.narrow(request.step, request.tools)
            calls = make_tool_requests(earlier, enumerate(earlier.tool_calls), request.ctx, offered)
            return budget.replay(emit(earlier, *calls))

        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            announcement, checked = checks.prepare(request, host)
            return _Call(checked, announcement, host, budget, observer, scheduler)

        return budget.send(ColdObservable(subscribe), request.step, request.branch)

    operator = answer_requests(ModelRequest, answer)
    operator.__qualname__ = "call_model"
    return declare_handler(operator, ModelRequest, ends=True)


class _Call(abc.DisposableBase):
    """Single model call. Implemented as a class to avoid creating closures per iteration."""

    __slots__ = (
        "_answer",
        "_branch",
        "_budget",
        "_ended",
        "_failures",
        "_host",
        "_observer",
        "_step",
        "_times",
        "_visible_name",
        "request",
    )

    def __init__(
        self,
        request: ModelRequest,
        announcement: LLMCallEvent,
        host: Host,
        budget: Budget,
        observer: abc.ObserverBase[Signal],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self.request = request
        self._host = host
        self._budget = budget
        self._observer = observer
        self._step = request.step
        self._branch = request.branch
        self._ended = False
        self._failures = 0
        self._visible_name: str | None = None
        """Name of the most recently called tool, or None for hidden tools."""
        observer.on_next(announcement)
        if host.sent_requests.pending is not None:
            host.sent_requests.confirm(announcement)
        self._times = DeltaTimes(announcement.timestamp)
        # Publishing sets the attempt.
        if not announcement.attempt:
            self._budget.note_unpublished(announcement)
        model = request.ctx.model
        if request.branch is None:
            host.open_call = self
        self._answer = connect(model.call(request), self._on_next, self._on_error, self._on_completed, scheduler)

    def dispose(self) -> None:
        try:
            self._answer.dispose()
        finally:
            if not self._ended:
                self._mark_ended()
                self._host.close_abandoned(self.request.ctx)

    def interrupt(self, ends: Sequence[Event]) -> None:
        """Interrupt the call and end the iteration.

        Args:
            ends: Events that close the message.
        """
        if self._ended:
            return
        self._mark_ended()
        self._answer.dispose()
        for event in ends:
            if isinstance(event, ContentCompleteEvent):
                self._times.apply(event)
            self._observer.on_next(event)
        self._observer.on_completed()

    def _mark_ended(self) -> None:
        self._ended = True
        if self._branch is None:
            self._host.open_call = None

    def _on_next(self, event: Event) -> None:
        try:
            fields = mutable_fields(event)
            published = fields["attempt"]
        except (AttributeError, KeyError):
            raise make_event_error(event, self.request) from None
        if published:
            # Providers may emit the same event object for multiple requests.
            event = copy_unstamped(event)
            fields = mutable_fields(event)
        if fields["step"] is None:
            fields["step"] = self._step
        if self._branch is not None:
            fields["branch"] = self._branch
        durable = event.durable
        if not durable:
            # Checking the type with `isinstance` would require ten calls per token.
            if type(event) is ToolCallDeltaEvent and event.name != self._visible_name and not event.hidden:
                # Subscribers hide the call by this field.
                fields["hidden"] = self._host.tools.hides(event.name)
                self._visible_name = None if event.hidden else event.name
        elif isinstance(event, ContentCompleteEvent):
            self._complete(event)
            return
        elif isinstance(event, LLMFailedEvent):
            self._failures += 1
            fields["tries"] = self._failures
            self._times.reset()
        self._observer.on_next(event)
        if not durable:
            # Publishing has set the timestamp, so reading the clock is not necessary.
            times, timestamp = self._times, fields["timestamp"]
            if timestamp - times.newest > times.silence:
                times.add(timestamp)
            times.newest = timestamp
        if not fields["attempt"]:
            self._budget.note_unpublished(event)

    def _emit(self, event: Event) -> None:
        self._observer.on_next(event)
        if not event.attempt:
            self._budget.note_unpublished(event)

    def _complete(self, message: ContentCompleteEvent) -> None:
        """Emit the complete message and its tool requests."""
        complete_message(message, self.request)
        self._times.apply(message)
        self._observer.on_next(message)
        if not message.attempt:
            self._budget.note_unpublished(message)
        calls = enumerate(message.tool_calls)
        for signal in make_tool_requests(message, calls, self.request.ctx, self.request.tools):
            self._observer.on_next(signal)

    def _on_error(self, error: Exception) -> None:
        self._mark_ended()
        refused, notices = find_refused_media(self.request, error) if isinstance(error, MediaRefused) else ({}, [])
        for notice in notices:
            self._emit(notice)
        try:
            if not isinstance(error, PipelineError):
                self._emit(describe_failure(self.request, error, refused, self._failures + 1))
        finally:
            if isinstance(error, ContextLengthExceeded) or refused:
                self._observer.on_completed()
            else:
                self._observer.on_error(error)

    def _on_completed(self) -> None:
        self._mark_ended()
        self._observer.on_completed()
