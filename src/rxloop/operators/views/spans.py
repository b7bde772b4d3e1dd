"""View that creates OpenTelemetry spans and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from rxloop.errors import ConfigurationError
from rxloop.operators.views import View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import Event
from rxloop.stream.sources import DURABLE
from rxloop.telemetry import names
from rxloop.telemetry.operations import OPEN_OPERATIONS, OpenOperations, OperationFold

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

T = TypeVar("T")


def spans(
    *,
    content: bool | None = None,
    iterations: bool = False,
    metrics: bool = True,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> View[Event, Span]:
    """Create OpenTelemetry spans and metrics for runs, and emit each span after its end.

    The spans follow the GenAI semantic conventions: `invoke_agent` for an attempt of a run, `chat` for a model call,
    `execute_tool` for a tool call, and `invoke_workflow` for a strategy. They are created from durable events alone,
    with the times of the events. A run is a child of the current span of its caller, a nested run is a child of its
    tool call, and a resumed attempt is linked to the first attempt.

    ::

        source     --t--w--l--d--c--s---x--F|      t task, l llm-call, s tool-start, F final event
        spans()    --------------C------X--A|      C chat, X execute_tool, A invoke_agent

    Example:
        >>> agent = Agent("zai:glm-4.7", views=[op.spans()])

    Args:
        content: Whether spans contain messages, arguments, results and error messages. None reads the environment
            variable `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`, which allows content with `SPAN_ONLY` or
            `SPAN_AND_EVENT`.
        iterations: Whether to create a span for each iteration, which is the parent of its calls.
        metrics: Whether to record metrics. Set this to False for recorded runs, because metrics have the current time.
        tracer_provider: Provider of the tracer. None uses the global one.
        meter_provider: Provider of the meter. None uses the global one.

    Returns:
        View of the ended spans. If its source ends early, open spans end at the time of the last event, with the error
            type `interrupted`.

    Raises:
        ConfigurationError: The package opentelemetry-api is not installed.
    """
    try:
        from rxloop.telemetry.otel import make_meter_recorder, prepare_recorder
    except ImportError as error:
        raise ConfigurationError(
            f"op.spans requires {error.name}; install it with pip install 'rxloop[otel]'"
        ) from error
    make_recorder = prepare_recorder(tracer_provider, make_meter_recorder(meter_provider) if metrics else None)
    has_content = names.captures_content() if content is None else content
    shared: OpenOperations = {}

    def make_fold(emit: Callable[[Span], None]) -> OperationFold:
        return OperationFold(make_recorder(emit), content=has_content, iterations=iterations, shared=shared)

    view = view_operations(make_fold)
    vars(view)[OPEN_OPERATIONS] = shared
    return view


def view_operations(make_fold: Callable[[Callable[[T], None]], OperationFold]) -> View[Event, T]:
    """Create a view from a fold of durable events into operations. It closes the fold when its source ends early.

    Args:
        make_fold: Function that returns the fold of a subscription. Its argument emits a value from the view.
    """

    def fold_events(out: ViewOutput[T]) -> Callable[[Event], None]:
        fold = make_fold(out.emit)
        out.on_end(fold.close, also_on_error=True)
        out.on_dispose(fold.close)
        return fold.add

    view = make_view(fold_events)
    vars(view)[DURABLE] = True
    return view
