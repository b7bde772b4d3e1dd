"""OpenTelemetry spans and metrics of operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.context import Context, get_current
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from typing_extensions import override

from rxloop import _version
from rxloop.protocol.events import LLMFailedEvent
from rxloop.telemetry import names
from rxloop.telemetry.measurements import HISTOGRAMS, Measurements
from rxloop.telemetry.operations import OpenCalls, Operation, OperationFold, Recorder

_SCOPE = (names.SCOPE, _version.__version__)
"""Name and version of the instrumentation scope."""
_NANOSECONDS = 1_000_000
"""Nanoseconds per millisecond."""
_MAX_REMEMBERED = 10_000
"""Maximum number of unfinished runs whose first attempt can be linked."""


class Telemetry:
    """Options of `op.spans`, and the state that its subscriptions share."""

    def __init__(
        self,
        content: bool | None,
        iterations: bool,
        metrics: bool,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
    ) -> None:
        """Create options. See `op.spans` for the arguments."""
        self.content = names.captures_content() if content is None else content
        self.iterations = iterations
        self.tracer = trace.get_tracer(*_SCOPE, tracer_provider, attributes=names.SCOPE_ATTRIBUTES)
        self.metrics = _make_meter_recorder(meter_provider) if metrics else Recorder()
        self.open_calls: OpenCalls = {}
        self.first_attempts: dict[str, SpanContext] = {}
        """Spans of the first attempts of unfinished runs."""

    def fold(self, emit: Callable[[Span], None], parent: Context | None = None) -> OperationFold:
        """Return a fold that creates spans and metrics.

        Args:
            emit: Function called with each span after its end.
            parent: Context of the spans of outermost runs. None uses the current context.
        """
        recorder = SpanRecorder(self, get_current() if parent is None else parent, emit)
        return OperationFold(recorder, content=self.content, iterations=self.iterations, open_calls=self.open_calls)


def _make_meter_recorder(provider: MeterProvider | None) -> Measurements:
    """Return a recorder for the histograms of a meter. With None, the meter of the global provider is used."""
    meter = metrics.get_meter(*_SCOPE, provider, attributes=names.SCOPE_ATTRIBUTES)
    histograms = {
        each.name: meter.create_histogram(
            each.name, each.unit, each.description, explicit_bucket_boundaries_advisory=each.buckets
        )
        for each in HISTOGRAMS
    }
    return Measurements(lambda histogram, attributes: partial(histograms[histogram.name].record, attributes=attributes))


class SpanRecorder(Recorder):
    """Recorder that creates spans with the times of the events."""

    def __init__(self, telemetry: Telemetry, parent: Context, emit: Callable[[Span], None]) -> None:
        """Create a recorder. See `Telemetry.fold` for the arguments."""
        self._parent, self._emit = parent, emit
        self._start_span, self._content = telemetry.tracer.start_span, telemetry.content
        self._record_metrics, self._first_attempts = telemetry.metrics.end, telemetry.first_attempts

    @override
    def start(self, operation: Operation) -> None:
        """Start the span of an operation."""
        parent, task_id = operation.parent, operation.task_id
        if parent is not None:
            context = get_context(parent)
        elif operation.carrier is not None:
            context = TraceContextTextMapPropagator().extract(operation.carrier, self._parent)
        else:
            context = self._parent
        operation.parent_context = context
        first = self._first_attempts.get(task_id) if task_id else None
        operation.span = self._start_span(
            operation.name,
            context,
            SpanKind.CLIENT if operation.identity.get(names.OPERATION) == "chat" else SpanKind.INTERNAL,
            {**operation.identity, **operation.attributes},
            [Link(first)] if first is not None else None,
            operation.start * _NANOSECONDS,
        )
        if task_id and first is None:
            self._first_attempts[task_id] = operation.span.get_span_context()
            if len(self._first_attempts) > _MAX_REMEMBERED:
                del self._first_attempts[next(iter(self._first_attempts))]

    @override
    def fail(self, operation: Operation, event: LLMFailedEvent) -> None:
        """Add an event to the span of a model call."""
        status: dict[str, Any] = {} if event.status is None else {names.STATUS_CODE: event.status}
        attributes = {names.ERROR_TYPE: event.error.code, **status}
        operation.span.add_event("rxloop.request_failed", attributes, event.timestamp * _NANOSECONDS)

    @override
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
        self._record_metrics(operation)
        self._emit(span)


def get_context(operation: Operation) -> Context:
    """Return the context in which the span of an operation is the current one."""
    if operation.context is None:
        operation.context = trace.set_span_in_context(operation.span, operation.parent_context)
    return operation.context
