"""How a function is carried out as a tool: on the event loop, in a thread, or step by step as a generator."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing
from typing import Any, TypeVar

from rxloop.errors import ToolError
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import Event
from rxloop.protocol.storable import readable
from rxloop.tools._result import encode_result
from rxloop.tools._schema import plain_function
from rxloop.tools._size import TooLarge

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
            self._ctx.progress(readable(value))
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
        return readable(repr(value))


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
    from rxloop.stream.threads import in_thread

    stop = threading.Event()

    def left() -> None:
        log.warning("the function of tool %r still runs in its thread; its result will be dropped", name)

    try:
        return await in_thread(lambda: work(stop), left=left)
    finally:
        stop.set()
