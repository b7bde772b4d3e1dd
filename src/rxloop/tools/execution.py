"""Function signatures and execution of sync functions, async functions and generators."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
import time
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import aclosing, suppress
from typing import Any, TypeVar, cast

from rxloop.errors import InvalidEvent, ToolError
from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import Event
from rxloop.protocol.json_data import replace_surrogates
from rxloop.protocol.model import thaw
from rxloop.state.history import FIND_OUT, UNKNOWN_EFFECT
from rxloop.stream.scope import TimeScope
from rxloop.support.tasks import is_cancelled
from rxloop.tools.result import MAX_RESULT_CHARS, encode_result, explain_error, failure_fields, make_failure
from rxloop.tools.result_parts import TooLarge

_PARTIAL_DOC = functools.partial.__doc__


def iterate_layers(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Iterate over a callable and its wrapped callables, ending with the innermost function or class."""
    visited: set[int] = set()
    layer = function
    while layer is not None and id(layer) not in visited:
        yield layer
        visited.add(id(layer))
        layer = _get_inner(layer)


def find_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside partials, methods, decorators and objects with `__call__`."""
    return list(iterate_layers(function))[-1]


def read_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a callable, excluding bound arguments.

    Unlike `inspect.signature`, arguments bound by keyword are removed instead of being converted to defaults. Partials
    with a `__wrapped__` attribute are supported.

    Raises:
        TypeError: Callable without a signature.
        ValueError: Unavailable signature or invalid partial arguments.
        NameError: Unresolved annotation in an explicit signature.
    """
    try:
        full_signature = inspect.signature(_unwrap(function))
    except ValueError as error:
        if any(_get_partial(layer) is not None for layer in iterate_layers(function)):
            # The original message contains the bound values.
            raise ValueError("its bound arguments do not match the function") from None
        raise error
    bound_values, explicit = _collect_bound_keywords(function)
    parameters = [
        parameter
        for parameter in full_signature.parameters.values()
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY
        or not (
            parameter.name in bound_values
            # Explicit signatures may reuse a bound argument name.
            and (not explicit or any(parameter.default is value for value in bound_values[parameter.name]))
        )
    ]
    return full_signature.replace(parameters=parameters)


def list_parameters(function: Callable[..., Any]) -> set[str]:
    """Return the names of all parameters of a callable, including bound arguments and `self`."""
    names: set[str] = {"self", "cls"}
    for layer in iterate_layers(function):
        partial = _get_partial(layer)
        names.update(() if partial is None else partial.keywords)
        with suppress(TypeError, ValueError, NameError):
            names.update(inspect.signature(layer).parameters)
    return names


def read_docstring(function: Callable[..., Any]) -> str | None:
    """Return the docstring of a callable or of the function inside a partial or an object."""
    for layer in iterate_layers(function):
        # Partials and callable objects inherit the docstring of their class.
        is_documented = inspect.isroutine(layer) or hasattr(layer, "__wrapped__")
        if is_documented and layer.__doc__ not in (None, _PARTIAL_DOC):
            return layer.__doc__
    plain = find_function(function)
    text = plain.__doc__
    if isinstance(plain, type) and text is not None and text.startswith(f"{plain.__name__}("):
        # `dataclass` and `NamedTuple` generate this text. It lists all fields, including bound arguments.
        return None
    return text


def describe(function: Any) -> str:
    """Return a name for error messages, without bound arguments and fields of objects."""
    if isinstance(function, functools.partial):
        inner = find_function(cast("functools.partial[Any]", function))
        return f"a functools.partial of {getattr(inner, '__qualname__', type(inner).__qualname__)}"
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else f"an object of type {type(function).__qualname__}"


def _get_inner(function: Any) -> Callable[..., Any] | None:
    """Return the callable that a callable calls, or None for a plain function, a builtin or a class."""
    partial = _get_partial(function)
    if partial is not None:
        return partial.func
    if hasattr(function, "__func__"):
        return function.__func__
    if hasattr(function, "__wrapped__"):
        return function.__wrapped__
    call: Any = getattr(cast("type[Any]", type(function)), "__call__", None)  # noqa: B004
    return call if not inspect.isroutine(function) and inspect.isfunction(call) else None


def _unwrap(function: Any) -> Callable[..., Any]:
    """Return an equivalent callable without `__wrapped__`, which would make `inspect` ignore partials."""
    if hasattr(function, "__signature__"):
        return function
    if isinstance(function, functools.partial):
        partial = cast("functools.partial[Any]", function)
        return functools.partial(_unwrap(partial.func), *partial.args, **partial.keywords)
    if inspect.ismethod(function):
        return types.MethodType(_unwrap(function.__func__), function.__self__)
    return _unwrap(function.__wrapped__) if hasattr(function, "__wrapped__") else function


def _collect_bound_keywords(function: Callable[..., Any]) -> tuple[dict[str, list[Any]], bool]:
    """Collect keyword values bound by partials, and detect explicit signatures outside the partials."""
    bound_values: dict[str, list[Any]] = {}
    explicit = False
    for layer in iterate_layers(function):
        explicit = explicit or (hasattr(layer, "__signature__") and not bound_values)
        partial = _get_partial(layer)
        keywords: dict[str, Any] = {} if partial is None else partial.keywords
        for name, value in keywords.items():
            bound_values.setdefault(name, []).append(value)
    return bound_values, explicit


def _get_partial(function: Any) -> functools.partial[Any] | functools.partialmethod[Any] | None:
    """Return the partial or the `partialmethod` behind a callable, or None."""
    if isinstance(function, functools.partial):
        return cast("functools.partial[Any]", function)
    # Python 3.13 renamed the attribute.
    for name in ("__partialmethod__", "_partialmethod"):
        candidate = getattr(function, name, None)
        if isinstance(candidate, functools.partialmethod):
            return cast("functools.partialmethod[Any]", candidate)
    return None


Call = Callable[[list[Any], dict[str, Any], RunContext[Any]], Awaitable[Any]]

T = TypeVar("T")

log = logging.getLogger("rxloop")


def make_caller(function: Callable[..., Any], name: str) -> Call:
    """Create an execution function for a sync function, async function or generator."""
    inner = find_function(function)

    async def call_on_loop(args: list[Any], kwargs: dict[str, Any], ctx: RunContext[Any]) -> Any:
        return await function(*args, **kwargs)

    async def run_async_generator(args: list[Any], kwargs: dict[str, Any], ctx: RunContext[Any]) -> Any:
        return await _drain_async(function(*args, **kwargs), ctx)

    async def run_generator(args: list[Any], kwargs: dict[str, Any], ctx: RunContext[Any]) -> Any:
        return await _run_in_thread(lambda stop: _drain(function(*args, **kwargs), ctx, stop), name)

    async def call_in_thread(args: list[Any], kwargs: dict[str, Any], ctx: RunContext[Any]) -> Any:
        value = await _run_in_thread(lambda stop: function(*args, **kwargs), name)
        # Decorators may hide an async function.
        if inspect.isasyncgen(value):
            return await _drain_async(value, ctx)
        return await value if inspect.isawaitable(value) else value

    if inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(inner):
        return run_async_generator
    if inspect.iscoroutinefunction(function):
        return call_on_loop
    if inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(inner):
        return run_generator
    return call_on_loop if inspect.iscoroutinefunction(inner) else call_in_thread


_MISSING: Any = object()


class _Report:
    """Progress reporter for generators. The last value becomes the result."""

    def __init__(self, ctx: RunContext[Any]) -> None:
        self._ctx = ctx
        self._pending: Any = _MISSING
        self.last: Any = None

    def take(self, value: Any) -> None:
        """Handle a yielded value."""
        if isinstance(value, Event):
            self._ctx.emit(value)
            return
        self.flush()
        self.last = value
        if isinstance(value, str):
            self._ctx.progress(replace_surrogates(value))
        else:
            self._pending = value

    def flush(self) -> None:
        """Publish the pending value as progress after another value arrives."""
        if self._pending is not _MISSING:
            self._ctx.progress(_text(self._pending))
            self._pending = _MISSING


def _text(value: Any) -> str:
    try:
        return encode_result(value)[1]
    except TooLarge as error:
        return str(error)
    except ToolError:
        return replace_surrogates(repr(value))


async def _drain_async(generator: AsyncGenerator[Any, Any], ctx: RunContext[Any]) -> Any:
    report = _Report(ctx)
    async with aclosing(generator) as values:
        async for value in values:
            report.take(value)
    return report.last


def _drain(generator: Generator[Any, None, Any], ctx: RunContext[Any], stop: threading.Event) -> Any:
    report = _Report(ctx)
    try:
        while not stop.is_set():
            try:
                value = next(generator)
            except StopIteration as end:
                if end.value is None:
                    return report.last
                report.flush()
                return end.value
            if not stop.is_set():
                report.take(value)
    finally:
        generator.close()
    return None


async def _run_in_thread(work: Callable[[threading.Event], T], name: str) -> T:
    """Run work in a thread. On cancellation, the event passed to `work` is set."""
    # Imported lazily, because creating a tool does not need it.
    from rxloop.support.threads import run_in_thread

    stop = threading.Event()

    def warn_abandoned() -> None:
        log.warning("Function of tool %r still runs in its thread; its result will be discarded", name)

    try:
        return await run_in_thread(lambda: work(stop), on_abandoned=warn_abandoned)
    finally:
        stop.set()


async def call_with_limit(tool: Tool, seconds: float, deadline: asyncio.Timeout, ctx: RunContext[Any]) -> Any:
    """Call a tool with a time limit, which does not count the time of questions to a person.

    Args:
        tool: The tool.
        seconds: Time limit in seconds.
        deadline: Timeout without a deadline. It is rescheduled to expire when the limit is reached.
        ctx: Context of the call.
    """
    call = ctx.call
    assert call is not None
    scope = TimeScope(ctx.time_scope or ctx.info.time_scope)
    ctx = ctx.bind(time_scope=scope)
    now = asyncio.get_running_loop().time
    async with deadline:
        with scope.start_limit(seconds, lambda: deadline.reschedule(now())), scope.enter():
            return await watch_steps(tool.call(thaw(call.arguments), ctx), call.name)


_NO_DEPS = " (the run has no deps; a tool that uses ctx.deps needs agent.run(..., deps=...))"


def to_failure(error: BaseException, tool: Tool, ctx: RunContext[Any], *, timed_out: bool) -> dict[str, Any] | None:
    """Return the fields of the failed result for an exception, or None if the exception must be raised.

    Args:
        error: Exception raised by the call.
        tool: The tool.
        ctx: Context of the call.
        timed_out: True if the time limit of the tool was exceeded.
    """
    name = tool.definition.name if ctx.call is None else ctx.call.name
    if isinstance(error, ToolError):
        return failure_fields(error, getattr(tool, "max_result", MAX_RESULT_CHARS))
    if isinstance(error, InvalidEvent):
        return make_failure(str(error))
    if isinstance(error, TimeoutError):
        if not timed_out:
            return make_failure(explain_error(error))
        text = f"{name} timed out after {tool.timeout} s."
        explanation = text if tool.idempotent else f"{text} It was cut off, {UNKNOWN_EFFECT}. {FIND_OUT}"
        return make_failure(explanation, "timeout")
    if isinstance(error, asyncio.CancelledError):
        return None if is_cancelled(error) else make_failure(f"{name} waited for something that was cancelled.")
    if isinstance(error, SystemExit):
        return make_failure(f"{name} tried to exit the process with status {error.code}.")
    if not isinstance(error, Exception):
        return None
    # Tracebacks are logged instead of sent to the model.
    hint = _NO_DEPS if ctx.deps is None and "NoneType" in explain_error(error) else ""
    log.warning("Tool %s failed%s", public_name(ctx), hint, exc_info=error, extra=log_fields(ctx))
    return make_failure(explain_error(error))


def public_name(ctx: RunContext[Any]) -> str:
    """Return a name of the tool for logs and clients. Hidden tools are named by their slot."""
    return f"{ctx.step}/{ctx.index}" if ctx.call is None or ctx.call.hidden else ctx.call.name


def log_fields(ctx: RunContext[Any]) -> dict[str, str]:
    """Return the ids of the run for log records, with the names that the records of ended runs have."""
    return {"task": ctx.task_id, "context": ctx.context_id}


MAX_STEP_SECONDS = 0.5
"""Threshold for reporting blocking steps, in seconds."""


@types.coroutine
def watch_steps(work: Awaitable[T], tool: str) -> Generator[Any, Any, T]:
    """Await an awaitable, and log one warning if one of its steps blocks the event loop.

    Works like `yield from`, but measures the duration of each step.

    Args:
        work: Awaitable of the tool call.
        tool: Name of the tool for the warning.
    """
    steps = work.__await__()
    limit = MAX_STEP_SECONDS
    value: Any = None
    exception: BaseException | None = None
    while True:
        started_at = time.perf_counter()
        try:
            awaited = steps.throw(exception) if exception is not None else steps.send(value)
        except StopIteration as end:
            return end.value
        finally:
            # Its traceback refers to this frame.
            exception = None
            duration = time.perf_counter() - started_at
            if duration > limit:
                limit = float("inf")
                log.warning(
                    "Tool %s blocked the event loop and all runs of the process for %.1f s; "
                    "await the slow operation, or use a function without `async`, which runs in a thread",
                    tool,
                    duration,
                )
        value = None
        try:
            value = yield awaited
        except BaseException as error:
            exception = error
