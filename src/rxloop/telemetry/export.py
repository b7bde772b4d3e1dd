"""Export of the spans of recorded runs over OTLP, for `rxloop export --otel`."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from typing_extensions import override

from rxloop.errors import RxloopError
from rxloop.protocol.events import Event
from rxloop.telemetry.otel import Telemetry

_BATCH = 512
"""Maximum number of spans in a request."""


class _StableIds(IdGenerator):
    """Ids derived from a run, so that a run that is exported twice has the same spans."""

    def __init__(self, task_id: str) -> None:
        self._random = Random(task_id)

    @override
    def generate_span_id(self) -> int:
        return self._random.getrandbits(64) or 1

    @override
    def generate_trace_id(self) -> int:
        return self._random.getrandbits(128) or 1


class _Collector(SpanProcessor):
    """Collector of ended spans."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    @override
    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


def export_spans(task_id: str, events: Iterable[Event], *, content: bool | None = None) -> int:
    """Send the spans of a recorded run with their recorded times, and return their number.

    The environment variables of OpenTelemetry configure the request, such as `OTEL_EXPORTER_OTLP_ENDPOINT`.

    Args:
        task_id: Run ID, from which the ids of the spans are derived.
        events: All events of the run.
        content: Whether spans contain content, as in `op.spans`.

    Raises:
        RxloopError: The server cannot be reached, or it refuses the spans.
    """
    collector = _Collector()
    resource = Resource({SERVICE_NAME: "rxloop"}).merge(Resource.create())
    provider = TracerProvider(resource=resource, id_generator=_StableIds(task_id), shutdown_on_exit=False)
    provider.add_span_processor(collector)
    fold = Telemetry(content=content, metrics=False, tracer_provider=provider).fold(Context(), lambda span: None)
    for event in events:
        fold.add(event)
    fold.close()
    exporter = OTLPSpanExporter()
    try:
        for start in range(0, len(collector.spans), _BATCH):
            if exporter.export(collector.spans[start : start + _BATCH]) is not SpanExportResult.SUCCESS:
                raise RxloopError(
                    f"cannot send the spans of run {task_id}; check the server, and the endpoint in "
                    "OTEL_EXPORTER_OTLP_ENDPOINT"
                )
    finally:
        exporter.shutdown()
    return len(collector.spans)
