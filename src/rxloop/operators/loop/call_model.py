from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reactivex import Observable, abc

from rxloop.errors import ContextLengthExceeded, MediaRefused, PipelineError
from rxloop.operators.loop.answering import answering
from rxloop.operators.loop.checks import handling
from rxloop.operators.loop.model_exchange import (
    RequestChecks,
    complete_message,
    describe_failure,
    describe_request,
    find_refused_media,
    make_tool_requests,
)
from rxloop.pipeline.requests import ModelRequest, Operator, Signal
from rxloop.protocol.events import ContentCompleteEvent, Event, LLMFailedEvent, ToolCallDeltaEvent
from rxloop.protocol.model import stamp
from rxloop.stream.rx import Cold, connect
from rxloop.stream.sources import emit

_UNSTAMPED: dict[str, Any] = {
    "step": None,
    "branch": None,
    "task_id": "",
    "context_id": "",
    "attempt": 0,
    "timestamp": 0,
}


def call_model() -> Operator[object]:
    """Answer each `ModelRequest`: call the model, and ask for the tools that it wants.

    ::

        in       --M-------------------------|
        model      --delta--delta--complete--|
        out      --L-d------d------(C,T,T)---|

    M `ModelRequest`, L `llm-call` just before the request leaves, d deltas and thoughts as they stream, C
    `content-complete`, T one `ToolRequest` for each tool call of the message.

    Each request that fails is an internal `llm-failed` event. If it was too long for the model, `iterate` sends it once
    more, under pressure; every other failure of the provider is also the error of this operator. A step that an earlier
    attempt of the run has an answer for is answered from the log.

    This is the one place where the messages that operators have made are checked: each call is followed by one result,
    in order; the newest message of the user, pinned messages and the system prompt are there. Anything else is
    repaired; `llm-call` says what it was, and a warning names the loop.
    """
    checks = RequestChecks()

    def answer(request: ModelRequest) -> Observable[Signal]:
        earlier = request.ctx.host.earlier.messages.get(request.step)
        if isinstance(earlier, ContentCompleteEvent):
            offered = request.ctx.host.tools.narrow(request.step, request.tools)
            return emit(earlier, *make_tool_requests(earlier, enumerate(earlier.tool_calls), request.ctx, offered))
        request, problems = checks.prepare(request)
        return Cold(lambda observer, scheduler=None: _Call(request, problems, observer, scheduler))

    operator = answering(ModelRequest, answer)
    operator.__qualname__ = "call_model"
    return handling(operator, ModelRequest, ends=True)


class _Call(abc.DisposableBase):
    """One call of the model. A class and not a closure, because each iteration has one."""

    __slots__ = ("_answer", "_branch", "_ended", "_failures", "_host", "_observer", "_shown", "_step", "request")

    def __init__(
        self,
        request: ModelRequest,
        problems: Sequence[str],
        observer: abc.ObserverBase[Signal],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self.request = request
        self._host = request.ctx.host
        self._observer = observer
        self._step = request.step
        self._branch = request.branch
        self._ended = False
        self._failures = 0
        self._shown: str | None = None
        """The name of the tool that was called last, if it is for clients."""
        observer.on_next(describe_request(request, problems))
        model = request.ctx.model
        if request.branch is None:
            self._host.open_call = self
        self._answer = connect(model.call(request), self._on_next, self._on_error, self._on_completed, scheduler)

    def dispose(self) -> None:
        try:
            self._answer.dispose()
        finally:
            if not self._ended:
                self._over()
                self._host.close_abandoned(self.request.ctx)

    def interrupt(self, ends: Sequence[Event]) -> None:
        """Cut the answer off: what there is of it is the message, and the iteration ends."""
        if self._ended:
            return
        self._over()
        self._answer.dispose()
        for event in ends:
            self._observer.on_next(event)
        self._observer.on_completed()

    def _over(self) -> None:
        self._ended = True
        if self._branch is None:
            self._host.open_call = None

    def _on_next(self, event: Event) -> None:
        try:
            fields = stamp(event)
            published = fields["attempt"]
        except (AttributeError, KeyError):
            raise PipelineError(
                f"the provider {self.request.ctx.model.name} sent {event!r}, of the type {type(event).__qualname__}: "
                "a provider may send nothing but events"
            ) from None
        if published:
            # Published before: the provider sends one object for several requests.
            event = event.model_copy(update=_UNSTAMPED)
            fields = stamp(event)
        if fields["step"] is None:
            fields["step"] = self._step
        if self._branch is not None:
            fields["branch"] = self._branch
        if not event.durable:
            # Not `isinstance`, which takes ten calls for each token.
            if type(event) is ToolCallDeltaEvent and event.name != self._shown and not event.hidden:
                # From here on, everything knows by the call that its tool is not for clients.
                fields["hidden"] = self._host.tools.hides(event.name)
                self._shown = None if event.hidden else event.name
        elif isinstance(event, ContentCompleteEvent):
            self._complete(event)
            return
        elif isinstance(event, LLMFailedEvent):
            self._failures += 1
            fields["tries"] = self._failures
        self._observer.on_next(event)

    def _complete(self, message: ContentCompleteEvent) -> None:
        """Send the message, and ask for the tools that it calls."""
        complete_message(message, self.request)
        self._observer.on_next(message)
        calls = enumerate(message.tool_calls)
        for signal in make_tool_requests(message, calls, self.request.ctx, self.request.tools):
            self._observer.on_next(signal)

    def _on_error(self, error: Exception) -> None:
        self._over()
        refused, notices = find_refused_media(self.request, error) if isinstance(error, MediaRefused) else ({}, [])
        for notice in notices:
            self._observer.on_next(notice)
        try:
            if not isinstance(error, PipelineError):
                self._observer.on_next(describe_failure(self.request, error, refused, self._failures + 1))
        finally:
            if isinstance(error, ContextLengthExceeded) or refused:
                self._observer.on_completed()
            else:
                self._observer.on_error(error)

    def _on_completed(self) -> None:
        self._over()
        self._observer.on_completed()
