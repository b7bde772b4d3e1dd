from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar, cast

from reactivex import Observable
from reactivex import operators as ops

from rxloop.errors import ConfigurationError, PipelineError
from rxloop.operators.loop.answer_requests import answer_requests
from rxloop.operators.loop.at_end import at_end
from rxloop.pipeline.requests import IterationEnd, Operator, Request, Signal
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import Event
from rxloop.stream.sources import from_async_iter

R = TypeVar("R", bound=Request[Any])
D = TypeVar("D")


def _check_and_copy(signal: Signal, handler: str) -> Signal:
    if isinstance(signal, Request):
        return signal
    if not isinstance(signal, Event):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PipelineError(
            f"handler {handler} must yield requests or events, got {signal!r} of type {type(signal).__qualname__}"
        )
    # The run will modify the event, but a handler may reuse it.
    return signal.model_copy()


def on(request_type: type[R]) -> Callable[[Callable[[R, RunContext[D]], AsyncIterator[Signal]]], Operator[D]]:
    """Create an operator from an async generator function.

    ::

        in       --e--R-------e-----|
        handler       ....R'
        out      --e------R'--e-----|

    The handler is called with each request of the type and the context of the run. The signals it yields replace the
    request: the same request, other requests, events, or nothing. An `IterationEnd` is handled after all other signals
    of the iteration.

    Args:
        request_type: `ToolRequest` for a guard or a cache, or `ModelRequest`, `IterationEnd` or `RunRequest`.

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
        ConfigurationError: The type is not a request class, or the handler is not an async generator function.
    """
    if not (isinstance(cast("Any", request_type), type) and issubclass(cast("Any", request_type), Request)):
        raise ConfigurationError(
            f"op.on() requires ToolRequest, ModelRequest, IterationEnd or RunRequest, got {request_type!r}"
        )

    def decorate(handler: Callable[[R, RunContext[D]], AsyncIterator[Signal]]) -> Operator[D]:
        function: Any = getattr(handler, "__wrapped__", handler)
        if not any(map(inspect.isasyncgenfunction, (function, type(function).__call__))):
            handler_name = getattr(handler, "__name__", repr(handler))
            raise ConfigurationError(
                f"the handler {handler_name} of op.on({request_type.__name__}) must be an async generator function; "
                "use `async def`, and `yield` the signals that replace the request"
            )

        try:
            inspect.signature(handler, follow_wrapped=False).bind(None, None)
        except TypeError:
            handler_name = getattr(handler, "__name__", repr(handler))
            raise ConfigurationError(
                f"the handler {handler_name} of op.on({request_type.__name__}) must have two parameters: "
                f"`async def {handler_name}(request: {request_type.__name__}, ctx: RunContext)`"
            ) from None

        def answer(request: R) -> Observable[Signal]:
            ctx = request.ctx.bind(asked_by=name)
            signals = from_async_iter(lambda: handler(request, ctx), ctx, name=f"rxloop-handler-{name}")
            return signals.pipe(ops.map(lambda signal: _check_and_copy(signal, name)))

        name = getattr(handler, "__name__", "handler")
        answers: Any = answer
        operator = (
            at_end(answers) if request_type is IterationEnd else answer_requests(cast("Any", request_type), answers)
        )
        operator.__qualname__ = name
        operator.__doc__ = handler.__doc__
        return operator

    return decorate
