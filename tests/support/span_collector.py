"""Collector of spans and metrics, which checks that each span ends once."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from typing_extensions import override

from rxloop import Event, op
from rxloop.operators import View


def get_id(span: ReadableSpan) -> int:
    """Return the id of a span."""
    assert span.context is not None
    return span.context.span_id


class SpanCollector(SpanProcessor):
    """Collector of spans and metrics. Use `view` to create a view that sends to it."""

    def __init__(self) -> None:
        self.started: Counter[int] = Counter()
        self.spans: list[ReadableSpan] = []
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(self)
        self.reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self.reader], shutdown_on_exit=False)

    def view(self, **options: Any) -> View[Event, Any]:
        """Return a view that creates spans and metrics here."""
        return op.spans(tracer_provider=self.tracer_provider, meter_provider=self.meter_provider, **options)

    @override
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.started[get_id(span)] += 1

    @override
    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)

    def check(self) -> list[ReadableSpan]:
        """Return the spans, after checking that each has ended once and not before its start."""
        ended = Counter(get_id(span) for span in self.spans)
        assert ended == self.started
        assert set(ended.values()) <= {1}
        for span in self.spans:
            assert span.start_time is not None
            assert span.end_time is not None
            assert span.end_time >= span.start_time
        return self.spans

    def find(self, prefix: str) -> list[ReadableSpan]:
        """Return the ended spans whose names start with a prefix."""
        return [span for span in self.check() if span.name.startswith(prefix)]

    def one(self, prefix: str) -> ReadableSpan:
        """Return the only span whose name starts with a prefix."""
        [span] = self.find(prefix)
        return span

    def tree(self) -> list[str]:
        """Return the spans as `parent > child`, in order of their ends."""
        names = {get_id(span): span.name for span in self.check()}
        return [
            f"{names.get(span.parent.span_id, 'outside') + ' > ' if span.parent is not None else ''}{span.name}"
            for span in self.spans
        ]

    def content(self) -> str:
        """Return all attributes, events and statuses as text."""
        return json.dumps([json.loads(span.to_json()) for span in self.check()])

    def comparable(self) -> list[Any]:
        """Return the spans without ids that change between exports."""
        ids = {get_id(span): index for index, span in enumerate(self.check())}
        return [
            (
                span.name,
                span.kind,
                ids.get(span.parent.span_id) if span.parent is not None else None,
                [ids.get(link.context.span_id) for link in span.links],
                dict(span.attributes or {}),
                [(event.name, event.timestamp, dict(event.attributes or {})) for event in span.events],
                (span.status.status_code, span.status.description),
                span.start_time,
                span.end_time,
            )
            for span in self.spans
        ]

    def metrics(self) -> dict[str, list[Any]]:
        """Return the data points of all metrics by name."""
        data = self.reader.get_metrics_data()
        found: dict[str, list[Any]] = {}
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found[metric.name] = list(metric.data.data_points)
        return found
