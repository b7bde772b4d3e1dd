from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reactivex import Observable, abc

from rxloop.errors import ContextLengthExceeded, MediaRefused, PipelineError, ProviderError
from rxloop.operators.loop.answering import answering
from rxloop.operators.loop.checks import handling
from rxloop.operators.loop.tool_requests import tool_requests
from rxloop.pipeline.requests import ModelRequest, Operator, Signal, marked, offer_of
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    LLMCallEvent,
    LLMFailedEvent,
    LLMNoticeEvent,
    ToolCallDeltaEvent,
    normalise,
)
from rxloop.protocol.json_data import LARGEST, readable, settled_model
from rxloop.protocol.messages import ErrorInfo, Message
from rxloop.protocol.model import FrozenList, stamp, unchecked
from rxloop.state.history import History
from rxloop.state.refused_media import select_refused, vendor_reason
from rxloop.stream.rx import Cold, connect
from rxloop.stream.sources import emit

if TYPE_CHECKING:
    from rxloop.context.repair import RequestRepair

CHARACTERS_PER_TOKEN = 4
_UNSTAMPED: dict[str, Any] = {
    "step": None,
    "branch": None,
    "task_id": "",
    "context_id": "",
    "attempt": 0,
    "timestamp": 0,
}
_llm_call = unchecked(LLMCallEvent, settled=True)


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
    repair: RequestRepair | None = None

    def checked(request: ModelRequest) -> tuple[ModelRequest, Sequence[str]]:
        nonlocal repair
        request = _up_to_date(request)
        ctx = request.ctx
        if request.messages is ctx.state.messages and request.system is ctx.host.system:
            return request, ()
        if repair is None:
            # Imported once an operator has changed something: most programs do not need it.
            from rxloop.context.repair import RequestRepair

            repair = RequestRepair()
        return repair.checked(request)

    def answer(request: ModelRequest) -> Observable[Signal]:
        earlier = request.ctx.host.earlier.messages.get(request.step)
        if isinstance(earlier, ContentCompleteEvent):
            offered = request.ctx.host.tools.narrow(request.step, request.tools)
            return emit(earlier, *tool_requests(earlier, enumerate(earlier.tool_calls), request.ctx, offered))
        request, problems = checked(request)
        if request.ctx.state.refused:
            request = _without_refused(request)
        return _call(request, problems)

    operator = answering(ModelRequest, answer)
    operator.__qualname__ = "call_model"
    return handling(operator, ModelRequest, ends=True)


def _up_to_date(request: ModelRequest) -> ModelRequest:
    """Add what the history gained since the request was made: a message that an operator put on the stream."""
    history = request.ctx.state.messages
    if request.history is None or len(history) == request.history:
        return request
    messages: Sequence[Message] = request.messages
    if history.extends(messages):
        return request.replace(messages=history, history=len(history))
    if not isinstance(messages, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        return request
    gained = history[request.history :]
    return request.replace(messages=[*messages, *gained], history=len(history))


def _without_refused(request: ModelRequest) -> ModelRequest:
    """Leave out the images and files that a vendor has refused before."""
    omit = request.ctx.state.refused.omit_from
    return request.replace(
        messages=omit(request.messages), system=tuple(omit(request.system)), tail=tuple(omit(request.tail))
    )


def _call(request: ModelRequest, problems: Sequence[str]) -> Observable[Signal]:
    def subscribe(observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        return _Call(request, problems, observer, scheduler)

    return Cold(subscribe)


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
        observer.on_next(_about(request, problems))
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
        if message.tool_calls:
            name = "content-complete: tool_calls"
            tools = self._host.tools
            calls = [settled_model(marked(call, tools), name) for call in message.tool_calls]
            offered = offer_of(self.request.tools, calls, tools)
            stamp(message).update(tool_calls=FrozenList(calls), offered=offered)
        if message.finish_reason == "length" and message.max_tokens is None:
            stamp(message)["max_tokens"] = self.request.settings.max_tokens
        # Before anybody sees its calls, so that the tools get what the log has.
        normalise(message)
        self._observer.on_next(message)
        calls = enumerate(message.tool_calls)
        for signal in tool_requests(message, calls, self.request.ctx, self.request.tools):
            self._observer.on_next(signal)

    def _on_error(self, error: Exception) -> None:
        self._over()
        refused = self._refused(error) if isinstance(error, MediaRefused) else {}
        try:
            if not isinstance(error, PipelineError):
                self._observer.on_next(self._failed(error, refused))
        finally:
            if isinstance(error, ContextLengthExceeded) or refused:
                self._observer.on_completed()
            else:
                self._observer.on_error(error)

    def _refused(self, error: MediaRefused) -> dict[str, str]:
        """Find the images and files that the vendor refused, and tell which they are."""
        request, reason = self.request, vendor_reason(readable(str(error)))
        found = select_refused((*request.system, *request.tail), request.messages, error.media, error.scope)
        if found:
            names = ", ".join(found.values())
            text = readable(f"{request.ctx.model.name} refused {names}, which is omitted from now on: {reason}")
            self._observer.on_next(LLMNoticeEvent(code="left_out", message=text, step=self._step, branch=self._branch))
        return dict.fromkeys(found, reason)

    def _failed(self, error: Exception, refused: dict[str, str]) -> LLMFailedEvent:
        """Make the event of the last request of the call; those that were tried again have had theirs."""
        known = error if isinstance(error, ProviderError) else None
        code = known.code if known else "error"
        return LLMFailedEvent(
            error=ErrorInfo(code=code, message=readable(str(error))),
            retryable=isinstance(error, ContextLengthExceeded)
            or bool(refused)
            or (known is not None and known.retryable),
            status=known and known.status,
            tries=self._failures + 1,
            refused=refused,
            step=self._step,
            branch=self._branch,
        )

    def _on_completed(self) -> None:
        self._over()
        self._observer.on_completed()


def _about(request: ModelRequest, problems: Sequence[str]) -> LLMCallEvent:
    layers = (*request.system, *request.tail)
    repairs: dict[str, Any] = {"problems": list(problems)} if problems else {}
    name, iteration = request.ctx.model.name, request.iteration
    estimate = _estimate(request, layers) if request.estimate is None else request.estimate
    # A provider, a strategy or a counter of the user's own may give something else than it should.
    numbers = iteration.__class__ is int and estimate.__class__ is int and 0 <= estimate <= LARGEST
    make = _llm_call if numbers and name.__class__ is str and name.isascii() and not problems else LLMCallEvent
    return make(
        step=request.step,
        branch=request.branch,
        iteration=iteration,
        model=name,
        message_count=len(layers) + len(request.messages),
        tool_count=len(request.tools),
        estimated_input_tokens=estimate,
        **repairs,
    )


def _estimate(request: ModelRequest, layers: Sequence[Message]) -> int:
    messages = request.messages if isinstance(request.messages, History) else History(request.messages)
    size = messages.size + sum(len(message.text) for message in layers) + sum(tool.size for tool in request.tools)
    return size // CHARACTERS_PER_TOKEN
