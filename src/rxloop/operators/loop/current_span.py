from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc

from rxloop.errors import ConfigurationError
from rxloop.pipeline.requests import Operator, Signal
from rxloop.protocol.events import ContentCompleteEvent, Event, LLMCallEvent, ToolStartEvent
from rxloop.stream.rx import ColdObservable, RunScheduler, connect
from rxloop.stream.scope import Scope
from rxloop.telemetry.names import OPEN_CALLS
from rxloop.telemetry.operations import OpenCalls, Operation


def current_span(spans: Callable[[Observable[Any]], Observable[Any]]) -> Operator[object]:
    """Make the spans of `op.spans` current in model calls and tools.

    Spans that a tool, an HTTP client or a database driver creates become children of the span of the call.

    ::

        in   --L--d--c--s---x--|
        out  --L--d--c--s---x--|

    L is an `llm-call` and s a `tool-start`. The span of L is current in its request, and the span of s in its tool.

    Place the operator at the end of the loop, and pass the same view to the agent. Calls that start early, before their
    message is complete, do not have a current span.

    Example:
        >>> tracing = op.spans()
        >>> agent = Agent(model, loop=op.standard(at_end=[op.current_span(tracing)]), views=[tracing])

    Args:
        spans: View created by `op.spans`, which the agent or the runtime subscribes to the run.

    Raises:
        ConfigurationError: The view was not created by `op.spans`.
    """
    calls = getattr(spans, OPEN_CALLS, None)
    if calls is None:
        raise ConfigurationError(f"current_span requires a view created by op.spans(), got {spans!r}")

    def operator(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            scope = scheduler.scope if isinstance(scheduler, RunScheduler) else None
            handle = _CurrentSpan(calls, observer, scope).handle
            return connect(source, handle, observer.on_error, observer.on_completed, scheduler)

        return ColdObservable(subscribe)

    operator.__qualname__ = "current_span"
    return operator


class _CurrentSpan:
    """Subscription of `current_span`."""

    def __init__(self, open_calls: OpenCalls, observer: abc.ObserverBase[Signal], scope: Scope | None) -> None:
        # Imported here, because only programs with `op.spans` have the package.
        from opentelemetry.context import attach

        from rxloop.telemetry.otel import get_context

        self._open_calls, self._publish, self._scope = open_calls, observer.on_next, scope
        self._attach, self._get_context = attach, get_context
        self._parents: dict[str | None, Any] = {}
        """Contexts around open model calls by step."""

    def handle(self, signal: Signal) -> None:
        # The view creates the span of an event when it is published.
        self._publish(signal)
        kind = type(signal)
        if kind is ToolStartEvent and isinstance(signal, ToolStartEvent):
            call = self._find(signal, signal.index)
            if call is not None and _is_in_task_of_tool():
                # The task of the tool has its own context, which ends with it.
                self._attach(self._get_context(call))
        elif kind is LLMCallEvent and isinstance(signal, LLMCallEvent):
            call = self._find(signal, None)
            if call is not None:
                self._parents[signal.step] = call.parent_context
                self._attach_to_run(self._get_context(call))
        elif kind is ContentCompleteEvent and isinstance(signal, ContentCompleteEvent) and self._parents:
            parent = self._parents.pop(signal.step, None)
            if parent is not None:
                self._attach_to_run(parent)

    def _find(self, event: Event, index: int | None) -> Operation | None:
        return self._open_calls.get(event.task_id, {}).get((event.branch, event.step, index))

    def _attach_to_run(self, context: Any) -> None:
        """Set the context of tasks that the run starts from now on. The task of the model call is started next."""
        if self._scope is None:
            return
        try:
            self._scope.run(self._attach, context)
        except RuntimeError:
            # The first model call is made inside the context of the run.
            self._attach(context)


def _is_in_task_of_tool() -> bool:
    """Return True if the current task executes a tool. Events of early calls are published by other tasks."""
    task = asyncio.current_task()
    return task is not None and task.get_name().startswith("rxloop-tool-")
