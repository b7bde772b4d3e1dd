"""OpenTelemetry spans and metrics of operations."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any, Self

from opentelemetry import metrics, trace
from opentelemetry.context import Context, get_current
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from typing_extensions import override

from rxloop import _version
from rxloop.support.trace_context import get_trace_context
from rxloop.telemetry import names
from rxloop.telemetry.measurements import HISTOGRAMS, Measurements
from rxloop.telemetry.operations import Attributes, Operation, Recorder

_SCOPE = ("rxloop", _version.__version__)
"""Name and version of the instrumentation scope."""
_NANOSECONDS = 1_000_000
"""Nanoseconds per millisecond."""
_MAX_REMEMBERED = 10_000
"""Maximum number of unfinished runs whose first attempt can be linked."""


class SpanRecorder(Recorder):
    """Recorder that creates spans with the times of the events, and metrics."""

    _parent: Context
    _emit: Callable[[Span], object]

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        has_metrics: bool = False,
    ) -> None:
        """Create a recorder. With None, the global provider is used."""
        tracer = trace.get_tracer(*_SCOPE, tracer_provider, attributes=names.SCOPE_ATTRIBUTES)
        self._start_span = tracer.start_span
        self._metrics = _make_meter_recorder(meter_provider) if has_metrics else Recorder()
        self._first_attempts: dict[str, SpanContext] = {}
        """Spans of the first attempts of unfinished runs."""

    def subscribe(self, emit: Callable[[Span], object], parent: Context | None = None) -> Self:
        """Return a recorder for a subscription, which shares the providers and the first attempts.

        Args:
            emit: Function called with each span after its end.
            parent: Context of the spans of outermost runs. None uses the current context.
        """
        recorder = copy(self)
        recorder._emit, recorder._parent = emit, get_current() if parent is None else parent
        return recorder

    @override
    def start(self, operation: Operation) -> None:
        """Start the span of an operation."""
        event, attributes, links = operation.event, operation.attributes, None
        if operation.parent is not None:
            context = get_context(operation.parent)
        else:
            context = TraceContextTextMapPropagator().extract(get_trace_context(event.metadata), self._parent)
        is_attempt = names.TASK in attributes
        if is_attempt and event.task_id in self._first_attempts:
            links = [Link(self._first_attempts[event.task_id])]
        kind = SpanKind.CLIENT if names.REQUEST_MODEL in attributes else SpanKind.INTERNAL
        start = event.timestamp * _NANOSECONDS
        operation.span = self._start_span(operation.name, context, kind, attributes, links, start)
        if operation.parent is None:
            operation.context = trace.set_span_in_context(operation.span, context)
        if is_attempt and links is None:
            self._first_attempts[event.task_id] = operation.span.get_span_context()
            if len(self._first_attempts) > _MAX_REMEMBERED:
                del self._first_attempts[next(iter(self._first_attempts))]

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
        span.end(operation.end * _NANOSECONDS)
        if names.STATE in changes and changes[names.STATE] == "completed":
            self._first_attempts.pop(operation.event.task_id, None)
        self._metrics.end(operation, changes, message)
        self._emit(span)


def _make_meter_recorder(provider: MeterProvider | None) -> Measurements:
    meter = metrics.get_meter(*_SCOPE, provider, attributes=names.SCOPE_ATTRIBUTES)
    histograms = {
        name: meter.create_histogram(
            name, each.unit, each.description, explicit_bucket_boundaries_advisory=each.buckets
        )
        for name, each in {each.name: each for each in HISTOGRAMS}.items()
    }
    return Measurements(lambda each, attributes: partial(histograms[each.name].record, attributes=attributes))


def get_context(operation: Operation) -> Context:
    """Return the context in which the span of an operation is the current one."""
    if operation.context is None:
        parent = None if operation.parent is None else get_context(operation.parent)
        operation.context = trace.set_span_in_context(operation.span, parent)
    return operation.context
