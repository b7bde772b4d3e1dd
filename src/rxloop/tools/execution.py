"""Execution of a function on the loop, in a thread, or as a generator, whatever wraps it."""

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
from rxloop.tools.result import MAX_RESULT, encode_result, explain_error, failure_fields, make_failure
from rxloop.tools.result_parts import TooLarge

_PARTIAL_DOC = functools.partial.__doc__


def layers(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield a callable and each callable inside it; the last one is the plain function or class."""
    seen: set[int] = set()
    layer = function
    while layer is not None and id(layer) not in seen:
        yield layer
        seen.add(id(layer))
        layer = _inside(layer)


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Find the function inside partials, methods, decorators and objects with `__call__`."""
    return list(layers(function))[-1]


def signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a callable without bound arguments.

    `inspect.signature` turns keyword arguments of a partial into defaults. It also skips a partial if
    `functools.update_wrapper` has set its `__wrapped__`.

    Raises:
        TypeError: The callable has no signature.
        ValueError: The signature is not available, or a partial binds arguments that do not fit.
        NameError: An annotation in an explicit signature cannot be resolved.
    """
    try:
        found = inspect.signature(_unwrap(function))
    except ValueError as error:
        if any(_partial_of(layer) is not None for layer in layers(function)):
            # The original message contains the bound values.
            raise ValueError("its bound arguments do not match the function") from None
        raise error
    bound, explicit = _bound_by_keyword(function)
    parameters = [
        parameter
        for parameter in found.parameters.values()
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY
        or not (
            parameter.name in bound
            # An explicit signature may reuse the name of a bound argument.
            and (not explicit or any(parameter.default is value for value in bound[parameter.name]))
        )
    ]
    return found.replace(parameters=parameters)


def parameter_names(function: Callable[..., Any]) -> set[str]:
    """Return the names of all parameters of a callable, including bound arguments and `self`."""
    names: set[str] = {"self", "cls"}
    for layer in layers(function):
        holder = _partial_of(layer)
        names.update(() if holder is None else holder.keywords)
        with suppress(TypeError, ValueError, NameError):
            names.update(inspect.signature(layer).parameters)
    return names


def documentation(function: Callable[..., Any]) -> str | None:
    """Return the docstring of a callable: its own, or that of the function inside a partial or an object."""
    for layer in layers(function):
        # Partials and callable objects inherit the docstring of their class.
        is_documented = inspect.isroutine(layer) or hasattr(layer, "__wrapped__")
        if is_documented and layer.__doc__ not in (None, _PARTIAL_DOC):
            return layer.__doc__
    plain = plain_function(function)
    text = plain.__doc__
    if isinstance(plain, type) and text is not None and text.startswith(f"{plain.__name__}("):
        # `dataclass` and `NamedTuple` generate this text. It lists all fields, including bound arguments.
        return None
    return text


def label(function: Any) -> str:
    """Return a name for error messages. It contains no bound arguments and no object fields."""
    if isinstance(function, functools.partial):
        inside = plain_function(cast("functools.partial[Any]", function))
        return f"a functools.partial of {getattr(inside, '__qualname__', type(inside).__qualname__)}"
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else f"an object of type {type(function).__qualname__}"


def _inside(function: Any) -> Callable[..., Any] | None:
    """Return the callable that a callable calls, or None for a plain function, a builtin or a class."""
    holder = _partial_of(function)
    if holder is not None:
        return holder.func
    if hasattr(function, "__func__"):
        return function.__func__
    if hasattr(function, "__wrapped__"):
        return function.__wrapped__
    call: Any = getattr(cast("type[Any]", type(function)), "__call__", None)  # noqa: B004
    return call if not inspect.isroutine(function) and inspect.isfunction(call) else None


def _unwrap(function: Any) -> Callable[..., Any]:
    """Return an equivalent callable, in which no partial is hidden by a `__wrapped__`."""
    if hasattr(function, "__signature__"):
        return function
    if isinstance(function, functools.partial):
        partial = cast("functools.partial[Any]", function)
        return functools.partial(_unwrap(partial.func), *partial.args, **partial.keywords)
    if inspect.ismethod(function):
        return types.MethodType(_unwrap(function.__func__), function.__self__)
    return _unwrap(function.__wrapped__) if hasattr(function, "__wrapped__") else function


def _bound_by_keyword(function: Callable[..., Any]) -> tuple[dict[str, list[Any]], bool]:
    """Collect the values that partials bind by keyword, and tell if a signature outside of them is explicit."""
    bound: dict[str, list[Any]] = {}
    explicit = False
    for layer in layers(function):
        explicit = explicit or (hasattr(layer, "__signature__") and not bound)
        holder = _partial_of(layer)
        keywords: dict[str, Any] = {} if holder is None else holder.keywords
        for name, value in keywords.items():
            bound.setdefault(name, []).append(value)
    return bound, explicit


def _partial_of(function: Any) -> functools.partial[Any] | functools.partialmethod[Any] | None:
    """Return the partial or the `partialmethod` behind a callable, or None."""
    if isinstance(function, functools.partial):
        return cast("functools.partial[Any]", function)
    # Python 3.13 renamed the attribute.
    for name in ("__partialmethod__", "_partialmethod"):
        found = getattr(function, name, None)
        if isinstance(found, functools.partialmethod):
            return cast("functools.partialmethod[Any]", found)
    return None


Call = Callable[[list[Any], dict[str, Any], RunContext[Any]], Awaitable[Any]]

T = TypeVar("T")

log = logging.getLogger("rxloop")


def caller_of(function: Callable[..., Any], name: str) -> Call:
    """Choose what carries out a call of that function, by its kind."""
    inner = plain_function(function)

    async def on_the_loop(args: list[Any], kwargs: dict[str, Any], ctx: RunContext[Any]) -> Any:
        return await function(*args, **kwargs)

    async def as_async_generator(args: list[Any], kwargs: dict[str, Any], ctx: RunContext[Any]) -> Any:
        return await _drain_async(function(*args, **kwargs), ctx)

    async def as_generator(args: list[Any], kwargs: dict[str, Any], ctx: RunContext[Any]) -> Any:
        return await _in_thread(lambda stop: _drain(function(*args, **kwargs), ctx, stop), name)

    async def in_a_thread(args: list[Any], kwargs: dict[str, Any], ctx: RunContext[Any]) -> Any:
        value = await _in_thread(lambda stop: function(*args, **kwargs), name)
        # A decorator may have hidden that the function is async.
        if inspect.isasyncgen(value):
            return await _drain_async(value, ctx)
        return await value if inspect.isawaitable(value) else value

    if inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(inner):
        return as_async_generator
    if inspect.iscoroutinefunction(function):
        return on_the_loop
    if inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(inner):
        return as_generator
    return on_the_loop if inspect.iscoroutinefunction(inner) else in_a_thread


_NOTHING: Any = object()


class _Report:
    """What a generator has yielded so far: events and progress go out, the last value is kept."""

    def __init__(self, ctx: RunContext[Any]) -> None:
        self._ctx = ctx
        self._held: Any = _NOTHING
        self.last: Any = None

    def take(self, value: Any) -> None:
        """Take one value that was yielded."""
        if isinstance(value, Event):
            self._ctx.emit(value)
            return
        self.flush()
        self.last = value
        if isinstance(value, str):
            self._ctx.progress(replace_surrogates(value))
        else:
            self._held = value

    def flush(self) -> None:
        """Report the value that was held back: it is progress, since it is not the last."""
        if self._held is not _NOTHING:
            self._ctx.progress(_text(self._held))
            self._held = _NOTHING


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


async def _in_thread(work: Callable[[threading.Event], T], name: str) -> T:
    """Run work in a thread; if this is cancelled, the event that the work gets is set."""
    # Imported here, because making a tool needs nothing of a run.
    from rxloop.support.threads import run_in_thread

    stop = threading.Event()

    def left() -> None:
        log.warning("the function of tool %r still runs in its thread; its result will be dropped", name)

    try:
        return await run_in_thread(lambda: work(stop), on_abandoned=left)
    finally:
        stop.set()


async def call_with_limit(tool: Tool, seconds: float, deadline: asyncio.Timeout, ctx: RunContext[Any]) -> Any:
    """Call a tool with a time limit, which stops while the tool asks a person.

    Args:
        tool: The tool.
        seconds: Time limit.
        deadline: Timeout without a deadline, which is set when the time is over.
        ctx: Context of the call.
    """
    call = ctx.call
    assert call is not None
    scope = TimeScope(ctx.time_scope or ctx.info.time_scope)
    ctx = ctx.bind(time_scope=scope)
    now = asyncio.get_running_loop().time
    async with deadline:
        with scope.start_limit(seconds, lambda: deadline.reschedule(now())), scope.enter():
            return await watched(tool.call(thaw(call.arguments), ctx), call.name)


_NO_DEPS = " (the run was given no deps: a tool that uses ctx.deps wants agent.run(..., deps=...))"


def to_failure(error: BaseException, tool: Tool, ctx: RunContext[Any], *, timed_out: bool) -> dict[str, Any] | None:
    """Return the fields of the failed result for an exception of a call, or None if the exception must be raised.

    Args:
        error: Exception of the call.
        tool: The tool.
        ctx: Context of the call.
        timed_out: True if the time limit of the tool ended the call.
    """
    name = tool.definition.name if ctx.call is None else ctx.call.name
    if isinstance(error, ToolError):
        return failure_fields(error, getattr(tool, "max_result", MAX_RESULT))
    if isinstance(error, InvalidEvent):
        return make_failure(str(error))
    if isinstance(error, TimeoutError):
        if not timed_out:
            return make_failure(explain_error(error))
        text = f"{name} timed out after {tool.timeout} s."
        return make_failure(text if tool.idempotent else f"{text} It was cut off, {UNKNOWN_EFFECT}. {FIND_OUT}")
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        is_canceled = task is not None and task.cancelling()
        return None if is_canceled else make_failure(f"{name} waited for something that was cancelled.")
    if isinstance(error, SystemExit):
        return make_failure(f"{name} tried to exit the process with status {error.code}.")
    if not isinstance(error, Exception):
        return None
    # The traceback is only for the log, because the model cannot use it.
    hint = _NO_DEPS if ctx.deps is None and "NoneType" in str(error) else ""
    log.warning("the tool %s failed%s", public_name(ctx), hint, exc_info=error)
    return make_failure(explain_error(error))


def public_name(ctx: RunContext[Any]) -> str:
    """Return a name of the tool that everyone may read. A hidden tool is named by its slot."""
    return f"{ctx.step}/{ctx.index}" if ctx.call is None or ctx.call.hidden else ctx.call.name


TOO_LONG = 0.5
"""Seconds that a step of a tool may take between two of its awaits."""


@types.coroutine
def watched(work: Awaitable[T], tool: str) -> Generator[Any, Any, T]:
    """Await something, and warn, once, if one of its steps holds the event loop.

    It does what `yield from` does, and looks at the time before and after each step.

    Args:
        work: What the tool does.
        tool: Its name.
    """
    steps = work.__await__()
    longest = TOO_LONG
    given: Any = None
    thrown: BaseException | None = None
    while True:
        begin = time.perf_counter()
        try:
            waits_for = steps.throw(thrown) if thrown is not None else steps.send(given)
        except StopIteration as end:
            return end.value
        finally:
            took = time.perf_counter() - begin
            if took > longest:
                longest = float("inf")
                log.warning(
                    "the tool %s held the event loop for %.1f s, and every run of the process with it: "
                    "await what takes so long, or do it in a thread, where a function without `async` runs",
                    tool,
                    took,
                )
        given, thrown = None, None
        try:
            given = yield waits_for
        except BaseException as error:
            thrown = error
