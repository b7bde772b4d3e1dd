"""The view that notices when the model goes in circles."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from rxloop.errors import ConfigurationError
from rxloop.operators.views import View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import ContentCompleteEvent, Event
from rxloop.protocol.messages import ToolCall


@dataclass(frozen=True, slots=True)
class Repeat:
    """A tool call that the model has asked for before, with the same arguments."""

    call: ToolCall
    """The newest of the equal calls."""
    count: int
    """How often it was asked for by now, this time included."""
    task_id: str
    """The run that asks for it."""
    branch: str | None = None
    """The line of a strategy that asks for it; None on the main line."""
    step: str | None = None
    """The model call that asked for it this time."""

    def __str__(self) -> str:
        # A run is cancelled with it, and clients read why.
        if self.call.hidden:
            return f"a hidden call was asked for {self.count} times with the same arguments"
        arguments = ", ".join(f"{name}={_short(value)}" for name, value in self.call.arguments.items())
        return f"{self.call.name}({arguments}) was asked for {self.count} times"


def repeats(n: int = 3, *, within: int | None = None) -> View[Event, Repeat]:
    """Emit a `Repeat` when the model asks for the same call for the n-th time, and each time after.

    The same call is one of the same tool with the same arguments.

    Calls count when the model asks for them, before they are carried out, even if they are refused. Each run and each
    branch counts by itself: lines of a strategy may ask the same thing side by side. The order of arguments does not
    matter.

    ::

        source         --c(f1)--c(f2)--c(f1)--c(f1)--|      c content-complete with a call of f
        repeats(2)     ----------------R2-----R3-----|      R2 f(1) for the second time

    Example:
        >>> run.pipe(op.repeats(3)).subscribe(lambda repeat: run.cancel(str(repeat)))

    Args:
        n: The count from which on it emits.
        within: How many of the newest calls count, so that a call which a long run makes now and then, to look at a
            status, say, is not a repeat; None counts all calls of the run.

    Returns:
        A view of repeats.

    Raises:
        ConfigurationError: The count is below 2, or more than `within`; raised at once.
    """
    if n < 2:
        raise ConfigurationError(f"repeats needs a count of 2 or more, not {n}: once is not a repeat")
    if within is not None and within < n:
        raise ConfigurationError(f"repeats cannot find {n} equal calls within {within}: within must be {n} or more")

    def count_calls(out: ViewOutput[Repeat]) -> Callable[[Event], None]:
        asked: dict[tuple[str, str | None], _Asked] = {}

        def take(event: Event) -> None:
            if not event.durable:
                return
            if isinstance(event, ContentCompleteEvent) and event.finish_reason != "canceled":
                line = asked.setdefault((event.task_id, event.branch), _Asked(within))
                for call in event.tool_calls:
                    count = line.add(call)
                    if count >= n:
                        out.emit(Repeat(call, count, event.task_id, event.branch, event.step))

        return take

    return make_view(count_calls)


class _Asked:
    """How often each call was asked for, on one line of one run."""

    def __init__(self, within: int | None) -> None:
        self._within = within
        self._newest = deque[bytes]()
        self._counts = Counter[bytes]()

    def add(self, call: ToolCall) -> int:
        """Count one more call; how often there is one like it."""
        key = _digest(call)
        self._counts[key] += 1
        if self._within is not None:
            self._newest.append(key)
            if len(self._newest) > self._within:
                oldest = self._newest.popleft()
                self._counts[oldest] -= 1
                if not self._counts[oldest]:
                    del self._counts[oldest]
        return self._counts[key]


def _digest(call: ToolCall) -> bytes:
    """Make a short key, the same for equal calls; arguments that are not JSON count as they were written."""
    if call.error is not None:
        text = call.raw or ""
    else:
        try:
            text = json.dumps(call.arguments, sort_keys=True, default=repr)
        except (TypeError, ValueError):
            # Made by a program, not by a model.
            text = repr(call.arguments)
    return blake2b(
        f"{call.name}\0{call.error is None}\0{text}".encode(errors="backslashreplace"), digest_size=16
    ).digest()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
