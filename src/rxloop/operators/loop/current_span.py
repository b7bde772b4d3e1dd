from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc

from rxloop.errors import ConfigurationError
from rxloop.pipeline.requests import Operator, Signal
from rxloop.protocol.events import ContentCompleteEvent, LLMCallEvent, ToolStartEvent
from rxloop.stream.rx import ColdObservable, RunScheduler, connect
from rxloop.telemetry.operations import OPEN_OPERATIONS, OpenOperations, Operation


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
    found: OpenOperations | None = getattr(spans, OPEN_OPERATIONS, None)
    if found is None:
        raise ConfigurationError(f"current_span requires a view created by op.spans(), got {spans!r}")
    operations = found
    # Imported here, because only programs with `op.spans` have the package.
    from opentelemetry.context import attach

    from rxloop.telemetry.otel import get_context

    def find(event: LLMCallEvent | ToolStartEvent | ContentCompleteEvent) -> Operation | None:
        key = (event.branch, event.step, event.index if isinstance(event, ToolStartEvent) else None)
        return operations.get(event.task_id, {}).get(key)

    def operator(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            scope = scheduler.scope if isinstance(scheduler, RunScheduler) else None

            def handle(signal: Signal) -> None:
                # The view starts and ends spans when their events are published.
                ended = find(signal) if isinstance(signal, ContentCompleteEvent) else None
                observer.on_next(signal)
                if ended is not None and ended.parent is not None:
                    attach_to_run(ended.parent)
                elif isinstance(signal, LLMCallEvent) and (call := find(signal)) is not None:
                    attach_to_run(call)
                elif isinstance(signal, ToolStartEvent) and (call := find(signal)) and _is_in_task_of_tool():
                    # The task of the tool has its own context, which ends with it.
                    attach(get_context(call))

            def attach_to_run(operation: Operation) -> None:
                """Make a span current in tasks that the run starts from now on. The model call is started next."""
                if scope is not None:
                    try:
                        scope.run(attach, get_context(operation))
                    except RuntimeError:
                        # The first model call is made inside the context of the run.
                        attach(get_context(operation))

            return connect(source, handle, observer.on_error, observer.on_completed, scheduler)

        return ColdObservable(subscribe)

    operator.__qualname__ = "current_span"
    return operator


def _is_in_task_of_tool() -> bool:
    """Return True if the current task executes a tool. Events of early calls are published by other tasks."""
    task = asyncio.current_task()
    return task is not None and task.get_name().startswith("rxloop-tool-")
