"""Request sender for strategy functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxloop.errors import Paused
from rxloop.operators.loop.answer_requests import answer_requests
from rxloop.operators.loop.checks import make_signal_error, make_thread_error
from rxloop.operators.loop.compose import compose
from rxloop.operators.loop.iterate import iterate
from rxloop.pipeline.host import get_host
from rxloop.pipeline.requests import ModelRequest, Operator, Request, RunRequest, Signal
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import Event
from rxloop.state.run_state import check_limits
from rxloop.stream.rx import connect
from rxloop.stream.sources import emit

OnEvent = Callable[[Event], None]

_MAX_SYNC_SENDS = 20


class Sender:
    """Request sender with immediate event publishing."""

    def __init__(
        self,
        pipeline: Operator,
        ctx: RunContext[Any],
        observer: abc.ObserverBase[Signal],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self.pipeline = pipeline
        self.pending = CompositeDisposable()
        """Pending requests. Disposing it closes them all."""
        self.owner: asyncio.Task[Any] | None = None
        """Task of the strategy."""
        self._ctx = ctx
        self._observer = observer
        self._scheduler = scheduler
        self._steps: set[str] = set()
        self._sync_sends = 0
        """Number of consecutive requests that were answered immediately."""

    @property
    def calls(self) -> int:
        """Total number of model calls across all branches."""
        return len(self._steps)

    def publish(self, event: Event) -> None:
        """Publish an event unless the run has already ended."""
        self._observer.on_next(event)

    async def iterate(
        self,
        ctx: RunContext[Any],
        transform: Callable[[ModelRequest], ModelRequest],
        on_event: OnEvent | None = None,
        max_calls: int | None = None,
    ) -> None:
        """Run the default loop on the branch of `ctx` until the model has answered.

        Args:
            ctx: Context of the branch.
            transform: Transforms each model request before it is sent.
            on_event: Called with each event after it was published.
            max_calls: Maximum number of model calls.
        """

        def answer(request: ModelRequest) -> Observable[Signal]:
            # Model calls count as iterations on every branch, except for repeated requests.
            if request.step not in self._steps:
                state = request.ctx.state.replace(iteration=self.calls)
                limit = check_limits(state, self._ctx.info.limits, self._ctx.info.thought_limit)
                if limit is not None:
                    raise limit
                self._steps.add(request.step)
            return emit(transform(request))

        loop = iterate(compose(answer_requests(ModelRequest, answer), self.pipeline), max_calls)
        await self.send(loop, emit(RunRequest(ctx)), ctx, on_event)

    async def send(
        self, operator: Operator, source: Observable[Signal], ctx: RunContext[Any], on_event: OnEvent | None = None
    ) -> None:
        """Send requests through an operator and wait for completion."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Exception | None] = loop.create_future()
        thread = threading.get_ident()

        def on_next(signal: Signal) -> None:
            if isinstance(signal, Event):
                self.publish(signal)
                if on_event is not None:
                    on_event(signal)
            elif not isinstance(signal, Request):  # pyright: ignore[reportUnnecessaryIsInstance]
                end(make_signal_error(signal, operator))

        def end(error: Exception | None = None) -> None:
            if threading.get_ident() != thread:
                loop.call_soon_threadsafe(end, make_thread_error(operator, error))
            elif not ended.done():
                ended.set_result(error)

        def stop_waiting() -> None:
            # A task that does not belong to the run would otherwise wait forever.
            ended.cancel()

        subscription = connect(operator(source), on_next, end, end, self._scheduler)
        registration = CompositeDisposable(subscription, Disposable(stop_waiting))
        self.pending.add(registration)
        try:
            self._sync_sends = self._sync_sends + 1 if ended.done() else 0
            if self._sync_sends > _MAX_SYNC_SENDS:
                # Awaiting a completed future does not give the event loop a turn.
                self._sync_sends = 0
                await asyncio.sleep(0)
            # Neither the strategy nor this task can advance the pending requests.
            with self._ctx.info.scope.mark_waiting(self.owner, asyncio.current_task()):
                error = await ended
        finally:
            self.pending.remove(registration)
        if error is not None:
            _close(ctx)
            raise error
        if get_host(ctx).is_waiting(ctx.state):
            raise Paused


def _close(ctx: RunContext[Any]) -> None:
    """Close the model and tool calls that a failure left open on a branch, because the strategy may continue."""
    state = ctx.state
    if state.open_step is not None:
        get_host(ctx).close_abandoned(ctx.bind(step=state.open_step, call=None))
    if state.batch is not None:
        for index in state.batch.open:
            get_host(ctx).close_abandoned(ctx.bind(step=state.batch.step, call=state.batch.calls[index], index=index))
