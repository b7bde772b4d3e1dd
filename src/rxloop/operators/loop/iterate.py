from __future__ import annotations

import threading
from functools import partial
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import SerialDisposable

from rxloop.errors import PipelineError
from rxloop.operators.exchange.model_exchange import make_tool_requests
from rxloop.operators.loop.answer_requests import answer_requests
from rxloop.operators.loop.checks import (
    Retries,
    check_answer,
    check_iteration_end,
    declare_handler,
    find_retry,
    lacks_calls,
    lost_calls_note,
    make_unanswered_error,
    repeats_step,
)
from rxloop.operators.loop.compose import check_loop_operator, describe
from rxloop.pipeline.host import get_host
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
from rxloop.protocol.events import MessageAddedEvent
from rxloop.state.history import Batch
from rxloop.state.run_state import RunState, check_limits
from rxloop.stream.rx import ColdObservable, choose, connect
from rxloop.stream.sources import Push, emit, from_task
from rxloop.support.foreign_errors import leave_to_loop, to_error
from rxloop.support.misuse import check_minimum


def iterate(pipeline: Operator[OperatorDeps], limit: int | None = None) -> Operator[OperatorDeps]:
    """Answer the `RunRequest` with model requests, until the model has answered.

    The default strategy. Each iteration subscribes the pipeline to a new `ModelRequest` and an `IterationEnd`.

    ::

        in      --R--|
        1st       (M,E)--e--e--|
        2nd                    (M,E)--e--e--e--|
        out     ---------e--e---------e--e--e--|

    Between iterations, only the state of the run is checked: it may have an answer, wait for input, or have reached a
    limit. A request that was too long is retried under the same step, with a higher `pressure` for compressors, and
    once without images and files if the vendor refused them. After the finish reason `pause`, the model continues.

    Args:
        pipeline: Pipeline of one iteration, for example `op.compose(op.call_model(), op.run_tools())`.
        limit: Maximum number of iterations. Unlimited by default.
    """
    check_loop_operator("pipeline", pipeline)
    check_minimum(0, optional=True, limit=limit)

    def answer(request: RunRequest) -> Observable[Signal]:
        return ColdObservable(lambda out, scheduler=None: _Iterations(pipeline, request.ctx, limit, out, scheduler))

    operator = answer_requests(RunRequest, answer)
    operator.__qualname__ = f"iterate({describe(pipeline)})"
    return declare_handler(operator, RunRequest, ends=True, pipeline=pipeline)


class _Iterations(abc.DisposableBase):
    """Iteration loop with a trampoline to limit stack depth."""

    def __init__(
        self,
        pipeline: Operator,
        ctx: RunContext[Any],
        limit: int | None,
        observer: abc.ObserverBase[Signal],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._pipeline = pipeline
        self._ctx = ctx
        self._host = get_host(ctx)
        self._info = ctx.info
        self._budget = self._info.budget
        self._remaining = limit
        self._iteration = 0
        """Newest iteration. Messages without an `llm-call` are not counted by the state."""
        self._observer = observer
        self._scheduler = scheduler
        self._current = SerialDisposable()
        self._retries = Retries()
        self._current_step: str | None = None
        """Current step. None before the first iteration."""
        self._due = False
        self._running = False
        self._stopped = False
        self._thread = threading.get_ident()
        self._advance()

    def dispose(self) -> None:
        self._stopped = True
        self._current.dispose()

    def _advance(self) -> None:
        """Start the next iteration, or have the active loop start it."""
        if threading.get_ident() != self._thread:
            # The run also detects this and reports the details.
            self._fail(PipelineError("an iteration ended in another thread"))
            return
        self._due = True
        if self._running:
            return
        self._running = True
        try:
            while self._due and not self._stopped:
                self._due = False
                self._start_next()
        except BaseException as error:
            if self._stopped:
                # Disposal after an earlier error raised an additional exception.
                raise
            self._fail(error if isinstance(error, Exception) else to_error(error))
            leave_to_loop(error)
        finally:
            self._running = False

    def _start_next(self) -> None:
        if self._host.is_ending:
            # Nothing may follow, so the loop neither continues nor ends.
            self._stopped = True
            return
        source = self._next_source()
        if source is None:
            self._stopped = True
            self._observer.on_completed()
            return
        source = choose(partial(self._budget.start, source))
        connection = connect(self._pipeline(source), self._emit, self._fail, self._advance, self._scheduler)
        # Each iteration has a new disposable, so that finished iterations are not retained.
        self._current.disposable = connection

    def _emit(self, signal: Signal) -> None:
        if not isinstance(signal, Request):
            self._observer.on_next(signal)
        elif isinstance(signal, ModelRequest | ToolRequest):
            self._fail(make_unanswered_error(signal, self._pipeline))

    def _fail(self, error: Exception) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._observer.on_error(error)

    def _next_source(self) -> Observable[Signal] | None:
        """Return the next iteration source, or None for completed and waiting runs."""
        state = self._ctx.state
        if self._current_step is not None:
            lost = self._budget.find_lost_events(self._ctx.branch)
            if lost is None and self._host.is_waiting(state):
                return None
            failure = find_retry(state)
            if failure is None:
                check_iteration_end(state, self._current_step, self._pipeline)
            if lost is not None:
                raise lost
            if failure is not None:
                self._retries.add(failure)
            if self._is_last(state):
                return None
        if state.batch is not None:
            return self._open_calls(state, state.batch)
        if state.done:
            if self._current_step is None:
                return self._end_only(state)
            if not lacks_calls(state):
                check_answer(state)
                return None
            note = lost_calls_note(state)
            self._observer.on_next(MessageAddedEvent(content=note, cause="retry", branch=self._ctx.branch))
            state = self._ctx.state
        iteration = max(state.iteration, self._iteration)
        if find_retry(state) is None and not (self._current_step is None and repeats_step(state)):
            if iteration > state.iteration:
                state = state.replace(iteration=iteration)
            limit = check_limits(state, self._info.limits, self._info.thought_limit)
            if limit is not None:
                raise limit
            iteration += 1
            self._retries = Retries()
        return self._model_request(iteration)

    def _is_last(self, state: RunState) -> bool:
        """Count a finished iteration, and return True if it was the last one."""
        if self._remaining is None or find_retry(state) is not None or lacks_calls(state) or state.is_partial:
            return False
        self._remaining -= 1
        return self._remaining <= 0

    def _model_request(self, iteration: int) -> Observable[Signal]:
        step = str(iteration) if self._ctx.branch is None else f"{self._ctx.branch}/{iteration}"
        self._current_step = step
        self._iteration = iteration
        ctx = self._ctx.bind(step=step)
        end = IterationEnd(iteration, ctx)
        request = self._host.build_request(ctx, iteration, self._retries.pressure)
        if isinstance(request, ModelRequest):
            return emit(request, end)
        pending = request

        async def send(push: Push[Signal]) -> None:
            push(await pending)
            push(end)

        return from_task(send, ctx, name="rxloop-request")

    def _end_only(self, state: RunState) -> Observable[Signal]:
        """Emit only the `IterationEnd`, because later operators missed the recorded answer after a resume."""
        self._current_step = state.last.step if state.last is not None else None
        return emit(IterationEnd(state.iteration, self._ctx.bind(step=self._current_step)))

    def _open_calls(self, state: RunState, batch: Batch) -> Observable[Signal]:
        self._current_step = batch.step
        ctx = self._ctx.bind(step=batch.step)
        offered = self._host.tools.narrow(batch.step)
        calls = [(index, batch.calls[index]) for index in batch.open]
        assert state.last is not None
        return emit(*make_tool_requests(state.last, calls, ctx, offered), IterationEnd(state.iteration, ctx))
