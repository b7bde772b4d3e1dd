from __future__ import annotations

import threading
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import Disposable, SerialDisposable

from rxloop.errors import ContextLengthExceeded, MediaRefused, PipelineError, ProviderProtocolError
from rxloop.operators.loop.answering import answering
from rxloop.operators.loop.checks import handling
from rxloop.operators.loop.compose import describe
from rxloop.operators.loop.tool_requests import tool_requests
from rxloop.pipeline.requests import (
    IterationEnd,
    ModelRequest,
    Operator,
    OperatorDeps,
    Request,
    RunRequest,
    Signal,
    ToolRequest,
)
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import LLMFailedEvent, MessageAddedEvent
from rxloop.protocol.finish import KNOWN, explain_end
from rxloop.protocol.step_events import MALFORMED_REASON
from rxloop.state.history import Batch
from rxloop.state.run_state import RunState, check_limits
from rxloop.stream.rx import Cold, connect
from rxloop.stream.sources import Push, emit, from_task
from rxloop.support.foreign_errors import leave_to_loop, to_error

MOST_PRESSURE = 3
_ANSWERS: dict[type[Request], str] = {ModelRequest: "op.call_model()", ToolRequest: "op.run_tools()"}
NO_CALL = "Your message ended as if it called tools, but no usable call arrived. Call the tool again, or answer."


def iterate(pipeline: Operator[OperatorDeps], times: int | None = None) -> Operator[OperatorDeps]:
    """Answer the `RunRequest`: send one model request after another through a pipeline, until the model has answered.

    The usual strategy. Each iteration subscribes the pipeline anew to a `ModelRequest` and an `IterationEnd`.

    ::

        in      --R--|
        1st       (M,E)--e--e--|
        2nd                    (M,E)--e--e--e--|
        out     ---------e--e---------e--e--e--|

    Between iterations it reads the state of the run, and nothing else, to see whether the model has answered, the run
    waits for input, or a limit is reached. A request that was too long for the model is sent again under the same step,
    with more `pressure`, for compressors to read. A request whose images or files the vendor refused is sent once more
    without them. A message that ends with the finish reason `pause` is a piece of an
    answer: the next iteration sends the history with it, and the model goes on.

    Args:
        pipeline: What carries out one iteration: `op.compose(op.call_model(), op.run_tools(), ...)`.
        times: Stop after this many iterations, with or without an answer: for strategies that go step by step.
    """
    operator = answering(RunRequest, lambda request: _iterations(pipeline, request.ctx, times))
    operator.__qualname__ = f"iterate({describe(pipeline)})"
    return handling(operator, RunRequest, ends=True, pipeline=pipeline)


def _iterations(pipeline: Operator, ctx: RunContext[Any], times: int | None) -> Observable[Signal]:
    def subscribe(observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        iterations = _Iterations(pipeline, ctx, times, observer, scheduler)
        iterations.advance()
        return Disposable(iterations.stop)

    return Cold(subscribe)


class _Iterations:
    """The iterations of one run: a trampoline, so that the stack stays flat however many there are."""

    def __init__(
        self,
        pipeline: Operator,
        ctx: RunContext[Any],
        times: int | None,
        observer: abc.ObserverBase[Signal],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._pipeline = pipeline
        self._ctx = ctx
        self._times = times
        self._observer = observer
        self._scheduler = scheduler
        self._current = SerialDisposable()
        self._pressure = 0
        self._refusal: str | None = None
        """Why the vendor refused images or files of this iteration, after which the request is sent once more."""
        self._fed: str | None = None
        self._due = False
        self._running = False
        self._stopped = False
        self._thread = threading.get_ident()

    def stop(self) -> None:
        """End the iteration that is under way, and begin no other."""
        self._stopped = True
        self._current.dispose()

    def advance(self) -> None:
        """Begin the next iteration: now, or as soon as the caller has unwound, if that is an iteration."""
        if threading.get_ident() != self._thread:
            # The run knows its thread as well, and says what is wrong with that.
            self._fail(PipelineError("an iteration ended in another thread"))
            return
        self._due = True
        if self._running:
            return
        self._running = True
        try:
            while self._due and not self._stopped:
                self._due = False
                self._begin()
        except BaseException as error:
            if self._stopped:
                # An error was sent already: this one came while the rest was disposed.
                raise
            self._fail(error if isinstance(error, Exception) else to_error(error))
            leave_to_loop(error)
        finally:
            self._running = False

    def _begin(self) -> None:
        source = self._next()
        if source is None:
            self._stopped = True
            self._observer.on_completed()
            return
        connection = connect(self._pipeline(source), self._pass, self._fail, self.advance, self._scheduler)
        # A new disposable for each iteration, so that those that are over are not kept.
        self._current.disposable = connection

    def _pass(self, signal: Signal) -> None:
        if not isinstance(signal, Request):
            self._observer.on_next(signal)
        elif isinstance(signal, ModelRequest | ToolRequest):
            self._fail(
                PipelineError(
                    f"nothing answered a {type(signal).__name__} of step {signal.ctx.step}: "
                    f"the pipeline is {describe(self._pipeline)}; put {_ANSWERS[type(signal)]} after what sends it"
                )
            )

    def _fail(self, error: Exception) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._observer.on_error(error)

    def _next(self) -> Observable[Signal] | None:
        """Make the source of the next iteration; None when the run has an answer or waits for one."""
        state = self._ctx.state
        if self._fed is not None:
            if state.pending:
                return None
            self._check(state)
            if self._enough(state):
                return None
        if state.batch is not None:
            return self._open_calls(state, state.batch)
        if state.done:
            if self._fed is None:
                return self._end_only(state)
            if not _lacks_calls(state):
                _check_end(state)
                return None
            state = self._ask_again(state)
        retry = _to_be_sent_again(state) is not None
        iteration = state.iteration
        if not retry and not (self._fed is None and state.open_step is not None):
            limit = check_limits(state, self._ctx.limits, self._ctx.host.thought_limit)
            if limit is not None:
                raise limit
            iteration += 1
            self._pressure = 0
            self._refusal = None
        return self._model_request(iteration)

    def _ask_again(self, state: RunState) -> RunState:
        """Tell the model that its tool calls did not arrive. The second time in a row is an error, so that it ends."""
        raw = state.last.raw_finish_reason if state.last is not None else None
        why = f" (finish reason {raw!r})" if raw and raw != "tool_calls" else ""
        said = state.last.metadata.get(MALFORMED_REASON) if state.last is not None else None
        if isinstance(said, str) and said:
            why = f"{why}: {said}"
        before = state.messages[-2] if len(state.messages) > 1 else None
        if before is not None and before.role == "user" and before.text.startswith(NO_CALL):
            raise ProviderProtocolError(
                f"the model says that it calls tools, but its messages hold no usable call{why}"
            )
        self._observer.on_next(MessageAddedEvent(content=f"{NO_CALL}{why}", cause="retry", branch=self._ctx.branch))
        return self._ctx.state

    def _check(self, state: RunState) -> None:
        """Check that the iteration did what an iteration must do."""
        failure = _to_be_sent_again(state)
        if failure is not None and failure.refused:
            if self._refusal is not None:
                raise MediaRefused(self._refusal)
            self._refusal = failure.error.message
            return
        if failure is not None:
            self._pressure += 1
            if self._pressure > MOST_PRESSURE:
                raise ContextLengthExceeded(failure.error.message)
            return
        if state.last is None or state.last.step != self._fed:
            raise PipelineError(
                f"iteration {self._fed} ended without a content-complete: the pipeline is {describe(self._pipeline)}"
            )
        if state.batch is not None:
            names = ", ".join(state.batch.calls[index].name for index in state.batch.open)
            raise PipelineError(
                f"iteration {self._fed} left tool calls unanswered ({names}): "
                f"the pipeline is {describe(self._pipeline)}"
            )

    def _enough(self, state: RunState) -> bool:
        """Count the iteration that has just ended; True if it was the last that was asked for."""
        if self._times is None or _to_be_sent_again(state) is not None or _lacks_calls(state) or state.to_be_continued:
            return False
        self._times -= 1
        return self._times <= 0

    def _model_request(self, iteration: int) -> Observable[Signal]:
        step = str(iteration) if self._ctx.branch is None else f"{self._ctx.branch}/{iteration}"
        self._fed = step
        ctx = self._ctx.bind(step=step)
        end = IterationEnd(iteration, ctx)
        request = ctx.host.build_request(ctx, iteration, self._pressure)
        if isinstance(request, ModelRequest):
            return emit(request, end)
        pending = request

        async def send(push: Push[Signal]) -> None:
            push(await pending)
            push(end)

        return from_task(send, ctx, name="rxloop-request")

    def _end_only(self, state: RunState) -> Observable[Signal]:
        """After a resume, send the end alone: the operators at the end have not seen the answer that is in the log."""
        self._fed = state.last.step if state.last is not None else None
        return emit(IterationEnd(state.iteration, self._ctx.bind(step=self._fed)))

    def _open_calls(self, state: RunState, batch: Batch) -> Observable[Signal]:
        self._fed = batch.step
        ctx = self._ctx.bind(step=batch.step)
        offered = ctx.host.tools.narrow(batch.step)
        calls = [(index, batch.calls[index]) for index in batch.open]
        assert state.last is not None
        return emit(*tool_requests(state.last, calls, ctx, offered), IterationEnd(state.iteration, ctx))


def _lacks_calls(state: RunState) -> bool:
    return state.last is not None and state.last.finish_reason == "tool_calls" and not state.last.tool_calls


def _check_end(state: RunState) -> None:
    """Refuse an empty answer whose finish reason is not known: nothing says that it is one.

    Raises:
        ProviderProtocolError: The newest message is such an answer.
    """
    last = state.last
    if last is None or state.content or state.files or last.finish_reason in KNOWN:
        return
    raise ProviderProtocolError(f"the model gave no answer: its message is empty, and {explain_end(last)}")


def _to_be_sent_again(state: RunState) -> LLMFailedEvent | None:
    """Find the failure of a model call that was too long, or had media that the vendor refused.

    Other failures are the business of the provider.
    """
    failure = state.failure
    if failure is None or state.open_step is None:
        return None
    return failure if failure.refused or failure.error.code == ContextLengthExceeded.code else None
