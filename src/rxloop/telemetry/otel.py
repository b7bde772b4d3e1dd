"""OpenTelemetry spans and metrics of operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rxloop import _version
from rxloop.protocol.events import LLMFailedEvent
from rxloop.telemetry import names
from rxloop.telemetry.measurements import HISTOGRAMS, Measurements
from rxloop.telemetry.operations import FoldOptions, Operation, OperationFold

_NANOSECONDS = 1_000_000
"""Nanoseconds per millisecond."""
_MAX_REMEMBERED = 10_000
"""Maximum number of unfinished runs whose first attempt can be linked."""


class Telemetry:
    """Options of `op.spans`, and the state that its subscriptions share."""

    def __init__(
        self,
        *,
        content: bool | None = None,
        iterations: bool = False,
        metrics: bool = True,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        """Create options. See `op.spans` for the arguments."""
        scope = (names.SCOPE, _version.__version__)
        self.options = FoldOptions(names.captures_content() if content is None else content, iterations)
        self.tracer = trace.get_tracer(*scope, tracer_provider, attributes=names.SCOPE_ATTRIBUTES)
        self.metrics = Metrics(meter_provider) if metrics else None
        self.first_attempts: dict[str, SpanContext] = {}
        """Spans of the first attempts of unfinished runs."""

    def fold(self, parent: Context, emit: Callable[[Span], None]) -> OperationFold:
        """Return a fold that creates spans and metrics.

        Args:
            parent: Context of the spans of outermost runs.
            emit: Function called with each span after its end.
        """
        return OperationFold(self.options, SpanRecorder(self, parent, emit))


class Metrics:
    """Histograms of a meter. With None, the meter of the global provider is used."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = metrics.get_meter(names.SCOPE, _version.__version__, provider, attributes=names.SCOPE_ATTRIBUTES)
        self._measurements = Measurements()
        self._record = {
            each.name: meter.create_histogram(
                each.name, each.unit, each.description, explicit_bucket_boundaries_advisory=each.buckets
            ).record
            for each in HISTOGRAMS
        }

    def end(self, operation: Operation) -> None:
        """Record the metrics of an operation."""
        for name, value, attributes in self._measurements.measure(operation):
            self._record[name](value, attributes)


class SpanRecorder:
    """Recorder that creates spans with the times of the events."""

    def __init__(self, telemetry: Telemetry, parent: Context, emit: Callable[[Span], None]) -> None:
        """Create a recorder. See `Telemetry.fold` for the arguments."""
        self._parent, self._emit = parent, emit
        self._start_span, self._content = telemetry.tracer.start_span, telemetry.options.content
        self._metrics, self._first_attempts = telemetry.metrics, telemetry.first_attempts

    def start(self, operation: Operation) -> None:
        """Start the span of an operation."""
        parent, carrier, task_id = operation.parent, operation.carrier, operation.task_id
        if parent is not None:
            operation.context = get_context(parent)
        elif carrier is not None:
            operation.context = TraceContextTextMapPropagator().extract(carrier, self._parent)
        else:
            operation.context = self._parent
        first = self._first_attempts.get(task_id) if task_id else None
        operation.span = self._start_span(
            operation.name,
            operation.context,
            SpanKind.CLIENT if operation.identity.get(names.OPERATION) == "chat" else SpanKind.INTERNAL,
            {**operation.identity, **operation.attributes},
            [Link(first)] if first is not None else None,
            operation.start * _NANOSECONDS,
        )
        if task_id and first is None:
            self._first_attempts[task_id] = operation.span.get_span_context()
            if len(self._first_attempts) > _MAX_REMEMBERED:
                del self._first_attempts[next(iter(self._first_attempts))]

    def fail(self, operation: Operation, event: LLMFailedEvent) -> None:
        """Add an event to the span of a model call."""
        status: dict[str, Any] = {} if event.status is None else {names.STATUS_CODE: event.status}
        attributes = {names.ERROR_TYPE: event.error.code, **status}
        operation.span.add_event("rxloop.request_failed", attributes, event.timestamp * _NANOSECONDS)

    def end(self, operation: Operation) -> None:
        """End the span of an operation, and record its metrics."""
        span, error, attributes = operation.span, operation.error, operation.attributes
        if error is not None:
            attributes[names.ERROR_TYPE] = error
            span.set_status(Status(StatusCode.ERROR, operation.message if self._content else None))
        if attributes:
            span.set_attributes(attributes)
        span.end(operation.end * _NANOSECONDS)
        if operation.is_over:
            self._first_attempts.pop(operation.task_id, None)
        if self._metrics is not None:
            self._metrics.end(operation)
        self._emit(span)


def get_context(operation: Operation) -> Context:
    """Return the context in which the span of an operation is the current one."""
    return trace.set_span_in_context(operation.span, operation.context)
