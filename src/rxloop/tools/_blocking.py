"""Warns of a tool that holds the event loop, and with it every run of the process."""

from __future__ import annotations

import logging
import time
import types
from collections.abc import Awaitable, Generator
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger("rxloop")

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
