"""Requests of a strategy through the pipeline."""

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

Seen = Callable[[Event], None]


class Sender:
    """Sends requests through the pipeline; what comes out goes onto the stream at once, whoever waits for it."""

    def __init__(
        self,
        pipeline: Operator,
        ctx: RunContext[Any],
        observer: abc.ObserverBase[Signal],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self.pipeline = pipeline
        self.open = CompositeDisposable()
        """What is under way; disposing it closes all of that at once."""
        self.owner: asyncio.Task[Any] | None = None
        """The task of the strategy."""
        self._ctx = ctx
        self._observer = observer
        self._scheduler = scheduler
        self._steps: set[str] = set()

    @property
    def calls(self) -> int:
        """The model calls so far, of all lines."""
        return len(self._steps)

    def publish(self, event: Event) -> None:
        """Put an event on the stream, unless the run is over."""
        self._observer.on_next(event)

    async def iterate(
        self,
        ctx: RunContext[Any],
        shaped: Callable[[ModelRequest], ModelRequest],
        seen: Seen | None = None,
        times: int | None = None,
    ) -> None:
        """Ask the model on the line of `ctx`, as the usual loop does on the main line.

        Args:
            ctx: Names the line.
            shaped: Makes of each request the one that is sent.
            seen: Called with each event, when it is on the stream.
            times: Stop after so many model calls.
        """

        def answer(request: ModelRequest) -> Observable[Signal]:
            # Each model call is an iteration of the run, whatever its line; a request that is sent again is the same.
            if request.step not in self._steps:
                state = request.ctx.state.replace(iteration=self.calls)
                limit = check_limits(state, self._ctx.info.limits, self._ctx.info.thought_limit)
                if limit is not None:
                    raise limit
                self._steps.add(request.step)
            return emit(shaped(request))

        loop = iterate(compose(answer_requests(ModelRequest, answer), self.pipeline), times)
        await self.send(loop, emit(RunRequest(ctx)), ctx, seen)

    async def send(
        self, operator: Operator, source: Observable[Signal], ctx: RunContext[Any], seen: Seen | None = None
    ) -> None:
        """Wait until an operator has answered the requests of a source."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Exception | None] = loop.create_future()
        thread = threading.get_ident()

        def on_next(signal: Signal) -> None:
            if isinstance(signal, Event):
                self.publish(signal)
                if seen is not None:
                    seen(signal)
            elif not isinstance(signal, Request):  # pyright: ignore[reportUnnecessaryIsInstance]
                end(make_signal_error(signal, operator))

        def end(error: Exception | None = None) -> None:
            if threading.get_ident() != thread:
                loop.call_soon_threadsafe(end, make_thread_error(operator, error))
            elif not ended.done():
                ended.set_result(error)

        def leave() -> None:
            # A waiter in a task that is not the run's would otherwise wait for ever.
            ended.cancel()

        subscription = connect(operator(source), on_next, end, end, self._scheduler)
        under_way = CompositeDisposable(subscription, Disposable(leave))
        self.open.add(under_way)
        try:
            # The strategy cannot bring its own requests on, and neither can the task that waits here.
            with self._ctx.info.scope.mark_waiting(self.owner, asyncio.current_task()):
                error = await ended
        finally:
            self.open.remove(under_way)
        if error is not None:
            _close(ctx)
            raise error
        if ctx.state.pending:
            raise Paused


def _close(ctx: RunContext[Any]) -> None:
    """Close what a failure has left open on a line: the strategy may go on without it."""
    state = ctx.state
    if state.open_step is not None:
        get_host(ctx).close_abandoned(ctx.bind(step=state.open_step, call=None))
    if state.batch is not None:
        for index in state.batch.open:
            get_host(ctx).close_abandoned(ctx.bind(step=state.batch.step, call=state.batch.calls[index], index=index))
