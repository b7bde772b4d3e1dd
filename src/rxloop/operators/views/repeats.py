"""View that detects repeated tool calls."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from rxloop.operators.views import View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import ContentCompleteEvent, Event
from rxloop.protocol.messages import ToolCall
from rxloop.support.misuse import check_minimum
from rxloop.support.text import shorten_repr


@dataclass(frozen=True, slots=True)
class Repeat:
    """Repeated tool call with identical arguments."""

    call: ToolCall
    """The newest call."""
    count: int
    """Number of identical calls, including this one."""
    task_id: str
    """Id of the run."""
    branch: str | None = None
    """Branch name, or None for the main branch."""
    step: str | None = None
    """The newest call's step."""

    def __str__(self) -> str:
        # This text is shown to clients when it is used as the reason of a cancel.
        if self.call.hidden:
            return f"a hidden call was asked for {self.count} times with the same arguments"
        arguments = ", ".join(f"{name}={shorten_repr(value, 60)}" for name, value in self.call.arguments.items())
        return f"{self.call.name}({arguments}) was asked for {self.count} times"


def repeats(n: int = 3, *, within: int | None = None) -> View[Event, Repeat]:
    """Emit a `Repeat` when the model requests the same call for the n-th time, and on each further repetition.

    Calls are equal if they have the same tool and arguments, in any order. They are counted when the model requests
    them, even if they are refused later. Each run and branch is counted separately, because concurrent branches may
    make the same calls.

    ::

        source         --c(f1)--c(f2)--c(f1)--c(f1)--|      c content-complete with a call of f
        repeats(2)     ----------------R2-----R3-----|      R2 f(1) for the second time

    Example:
        >>> run.pipe(op.repeats(3)).subscribe(lambda repeat: run.cancel(str(repeat)))

    Args:
        n: Number of equal calls from which on a `Repeat` is emitted.
        within: Number of recent calls that are counted, so that occasional status checks in a long run are not repeats.
            The default is all calls.

    Returns:
        View of the repeats.

    Raises:
        ConfigurationError: `n` is less than 2 or greater than `within`. Raised immediately.
    """
    check_minimum(2, n=n)
    check_minimum(n, optional=True, within=within)

    def count_calls(out: ViewOutput[Repeat]) -> Callable[[Event], None]:
        counts: dict[tuple[str, str | None], _CallCounts] = {}

        def handle(event: Event) -> None:
            if not event.durable:
                return
            if isinstance(event, ContentCompleteEvent) and event.finish_reason != "canceled":
                line = counts.setdefault((event.task_id, event.branch), _CallCounts(within))
                for call in event.tool_calls:
                    count = line.add(call)
                    if count >= n:
                        out.emit(Repeat(call, count, event.task_id, event.branch, event.step))

        return handle

    return make_view(count_calls)


class _CallCounts:
    """Call counts for a single branch."""

    def __init__(self, within: int | None) -> None:
        self._within = within
        self._newest = deque[bytes]()
        self._counts = Counter[bytes]()

    def add(self, call: ToolCall) -> int:
        """Record a call and return the updated count."""
        key = digest_call(call)
        self._counts[key] += 1
        if self._within is not None:
            self._newest.append(key)
            if len(self._newest) > self._within:
                oldest = self._newest.popleft()
                self._counts[oldest] -= 1
                if not self._counts[oldest]:
                    del self._counts[oldest]
        return self._counts[key]


def digest_call(call: ToolCall) -> bytes:
    """Calculate a hash key for a call. Non-JSON arguments are compared by text."""
    if call.error is not None:
        text = call.raw or ""
    else:
        try:
            text = json.dumps(call.arguments, sort_keys=True, default=repr)
        except (TypeError, ValueError):
            # Application-created events may include arguments that are not JSON-serializable.
            text = repr(call.arguments)
    return blake2b(
        f"{call.name}\0{call.error is None}\0{text}".encode(errors="backslashreplace"), digest_size=16
    ).digest()
