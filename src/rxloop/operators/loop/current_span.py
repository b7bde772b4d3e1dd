from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc

from rxloop.errors import ConfigurationError
from rxloop.pipeline.requests import Operator, Signal
from rxloop.protocol.events import ToolStartEvent
from rxloop.stream.rx import ColdObservable, RunScheduler, connect
from rxloop.telemetry.operations import OPEN_OPERATIONS, OpenOperations, find_operation


def current_span(spans: Callable[[Observable[Any]], Observable[Any]]) -> Operator[object]:
    """Make the spans of `op.spans` current in model calls and tools.

    Spans that a tool, an HTTP client or a database driver creates become children of the span of the call.

    ::

        in   --L--d--c--s---x--|
        out  --L--d--c--s---x--|

    L is an `llm-call` and s a `tool-start`. The span of L is current in its request, and the span of s in its tool.

    Place the operator at the end of the loop, and pass the same view to the agent. In calls that start early, before
    their message is complete, the span of the model call is current.

    Example:
        >>> tracing = op.spans()
        >>> agent = Agent(model, loop=op.standard(at_end=[op.current_span(tracing)]), views=[tracing])

    Args:
        spans: View created by `op.spans`, which the agent or the runtime subscribes to the run.

    Raises:
        ConfigurationError: The view was not created by `op.spans`.
    """
    found: OpenOperations | None = getattr(spans, OPEN_OPERATIONS, None)
    if found is None:
        raise ConfigurationError(f"current_span requires a view created by op.spans(), got {spans!r}")
    operations = found
    # Imported here, because only programs with `op.spans` have the package.
    from opentelemetry.context import attach
    from opentelemetry.trace import set_span_in_context

    def enter(owner: Any, index: int | None = None) -> None:
        """Make the span of a call current, or else that of its agent. The context of the task ends with the task."""
        operation = find_operation(operations.get(owner.task_id, {}), owner.branch, owner.step, index)
        if operation is not None:
            attach(set_span_in_context(operation.span))

    def operator(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            if isinstance(scheduler, RunScheduler) and scheduler.scope is not None:
                # Requests can start later than their `llm-call`, for example after a failure or in a queue.
                scheduler.scope.on_spawn = enter

            def handle(signal: Signal) -> None:
                # The view starts spans when their events are published.
                observer.on_next(signal)
                if isinstance(signal, ToolStartEvent) and _is_in_task_of_tool():
                    enter(signal, signal.index)

            return connect(source, handle, observer.on_error, observer.on_completed, scheduler)

        return ColdObservable(subscribe)

    operator.__qualname__ = "current_span"
    return operator


def _is_in_task_of_tool() -> bool:
    """Return True if the current task executes a tool. Events of early calls are published by other tasks."""
    task = asyncio.current_task()
    return task is not None and task.get_name().startswith("rxloop-tool-")
