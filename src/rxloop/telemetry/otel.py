"""OpenTelemetry spans and metrics of operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.context import Context, get_current
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from typing_extensions import override

from rxloop import _version
from rxloop.support.trace_context import get_trace_context
from rxloop.telemetry import names
from rxloop.telemetry.measurements import Bind, Histogram, Measurements
from rxloop.telemetry.operations import Attributes, Operation, Recorder

_SCOPE = ("rxloop", _version.__version__)
"""Name and version of the instrumentation scope."""
_NANOSECONDS = 1_000_000
"""Nanoseconds per millisecond."""
_MAX_REMEMBERED = 10_000
"""Maximum number of unfinished runs whose first attempt can be linked."""


@dataclass(slots=True)
class SpanRecorder(Recorder):
    """Recorder that creates spans with the times of the events. See `prepare_recorder`."""

    start_span: Callable[..., Span]
    measurements: Recorder
    """Recorder of the metrics."""
    first_attempts: dict[str, SpanContext]
    """Spans of the first attempts of unfinished runs."""
    emit: Callable[[Span], object]
    """Function called with each span after its end."""
    parent: Context = field(default_factory=get_current)
    """Context of the spans of outermost runs."""

    @override
    def start(self, operation: Operation) -> None:
        """Start the span of an operation."""
        event, attributes, links, parent = operation.event, operation.attributes, None, operation.parent
        if parent is None:
            context = TraceContextTextMapPropagator().extract(get_trace_context(event.metadata), self.parent)
        else:
            context = parent.context = parent.context or trace.set_span_in_context(parent.span, self.parent)
        is_attempt = names.TASK in attributes
        if is_attempt and event.task_id in self.first_attempts:
            links = [Link(self.first_attempts[event.task_id])]
        kind = SpanKind.CLIENT if names.REQUEST_MODEL in attributes else SpanKind.INTERNAL
        start = event.timestamp * _NANOSECONDS
        operation.span = self.start_span(operation.name, context, kind, attributes, links, start)
        if is_attempt and links is None:
            self.first_attempts[event.task_id] = operation.span.get_span_context()
            if len(self.first_attempts) > _MAX_REMEMBERED:
                del self.first_attempts[next(iter(self.first_attempts))]

    @override
    def end(self, operation: Operation, changes: Attributes, message: str | None) -> None:
        """End the span of an operation, and record its metrics."""
        span: Span = operation.span
        for failed in operation.failures:
            status: dict[str, Any] = {} if failed.status is None else {"http.response.status_code": failed.status}
            attributes = {names.ERROR_TYPE: failed.error.code, **status}
            span.add_event("rxloop.request_failed", attributes, failed.timestamp * _NANOSECONDS)
        if names.ERROR_TYPE in changes:
            span.set_status(StatusCode.ERROR, message)
        if changes:
            span.set_attributes(changes)
        if operation.model is not None:
            span.update_name(operation.name)
        span.end(operation.end * _NANOSECONDS)
        if names.STATE in changes and changes[names.STATE] == "completed":
            self.first_attempts.pop(operation.event.task_id, None)
        self.measurements.end(operation, changes, message)
        self.emit(span)


def prepare_recorder(
    provider: TracerProvider | None = None, measurements: Recorder | None = None
) -> Callable[..., SpanRecorder]:
    """Return a factory of recorders, which share their tracer, their measurements and the first attempts of runs.

    The arguments of the factory are `emit` and `parent`.

    Args:
        provider: Provider of the tracer. None uses the global one.
        measurements: Recorder of the metrics.
    """
    tracer = trace.get_tracer(*_SCOPE, provider, attributes=names.SCOPE_ATTRIBUTES)
    return partial(SpanRecorder, tracer.start_span, measurements or Recorder(), {})


def make_meter_recorder(provider: MeterProvider | None) -> Measurements:
    """Return a recorder of metrics. None uses the global provider."""
    meter = metrics.get_meter(*_SCOPE, provider, attributes=names.SCOPE_ATTRIBUTES)

    def create(each: Histogram) -> Bind:
        options = {"explicit_bucket_boundaries_advisory": each.buckets}
        histogram = meter.create_histogram(each.name, each.unit, each.description, **options)
        return lambda attributes: partial(histogram.record, attributes=attributes)

    return Measurements(create)
