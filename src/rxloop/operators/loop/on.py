from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar, cast

from reactivex import Observable
from reactivex import operators as ops

from rxloop.errors import ConfigurationError, PipelineError
from rxloop.operators.loop.answering import answering
from rxloop.operators.loop.at_end import at_end
from rxloop.pipeline.requests import IterationEnd, Operator, Request, Signal
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import Event
from rxloop.stream.sources import from_async_iter

R = TypeVar("R", bound=Request[Any])
D = TypeVar("D")


def _checked_copy(signal: Signal, handler: str) -> Signal:
    if isinstance(signal, Request):
        return signal
    if not isinstance(signal, Event):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PipelineError(
            f"the handler {handler} yielded {signal!r}, of the type {type(signal).__qualname__}: "
            "it may yield requests and events"
        )
    # A copy of an event, since the run stamps what it publishes: the handler may keep its own as a constant.
    return signal.model_copy()


def on(request_type: type[R]) -> Callable[[Callable[[R, RunContext[D]], AsyncIterator[Signal]]], Operator[D]]:
    """Make an operator of an async generator function, without any Rx.

    ::

        in       --e--R-------e-----|
        handler       ....R'
        out      --e------R'--e-----|

    The handler is called with each request of the type and the context of the run. What it yields takes the request's
    place: the request itself, which lets it through, another one, several, events, or nothing. The end of an iteration
    reaches its handler when everything before it is done.

    Args:
        request_type: `ToolRequest` for a guard or a cache, `ModelRequest`, `IterationEnd` or `RunRequest`.

    Example:
        ```
        @op.on(ToolRequest)
        async def no_deletes(request: ToolRequest, ctx: RunContext[None]) -> AsyncIterator[Signal]:
            if request.call.name == "delete":
                yield request.refuse("Deleting is not allowed here.")
            else:
                yield request
        ```

    Raises:
        ConfigurationError: It is not a class of requests, or the handler is not an async generator function.
    """
    if not (isinstance(cast("Any", request_type), type) and issubclass(cast("Any", request_type), Request)):
        raise ConfigurationError(
            f"op.on({request_type!r}) cannot be used: give ToolRequest, ModelRequest, IterationEnd or RunRequest"
        )

    def decorate(handler: Callable[[R, RunContext[D]], AsyncIterator[Signal]]) -> Operator[D]:
        called: Any = getattr(handler, "__wrapped__", handler)
        if not any(map(inspect.isasyncgenfunction, (called, type(called).__call__))):
            named = getattr(handler, "__name__", repr(handler))
            raise ConfigurationError(
                f"the handler {named} of op.on({request_type.__name__}) is not an async generator function: "
                "write `async def`, and `yield` what takes the request's place"
            )

        def answer(request: R) -> Observable[Signal]:
            ctx = request.ctx.bind(asked_by=name)
            signals = from_async_iter(lambda: handler(request, ctx), ctx, name=f"rxloop-handler-{name}")
            return signals.pipe(ops.map(lambda signal: _checked_copy(signal, name)))

        name = getattr(handler, "__name__", "handler")
        answers: Any = answer
        operator = at_end(answers) if request_type is IterationEnd else answering(cast("Any", request_type), answers)
        operator.__qualname__ = name
        operator.__doc__ = handler.__doc__
        return operator

    return decorate
