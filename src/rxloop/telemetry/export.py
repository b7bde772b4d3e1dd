"""Export of the spans of recorded runs over OTLP, or as OTLP/JSON."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable
from random import Random
from typing import Any

import orjson
from google.protobuf.json_format import MessageToDict
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_otlp
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Span
from typing_extensions import override

from rxloop.errors import RxloopError
from rxloop.protocol.events import Event
from rxloop.telemetry import names
from rxloop.telemetry.operations import OperationFold
from rxloop.telemetry.otel import prepare_recorder

_BATCH = 512
"""Maximum number of spans in a request, or in an element of `resourceSpans`."""


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


def make_spans(task_id: str, events: Iterable[Event], *, content: bool | None = None) -> list[ReadableSpan]:
    """Return the spans of a recorded run with their recorded times.

    Args:
        task_id: Run ID, from which the ids of the spans are derived.
        events: All events of the run.
        content: Whether spans contain content, as in `op.spans`.
    """
    spans: list[Span] = []
    resource = Resource.create({SERVICE_NAME: "rxloop"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, id_generator=_StableIds(task_id), shutdown_on_exit=False)
    recorder = prepare_recorder(provider)(spans.append, Context())
    fold = OperationFold(recorder, content=names.captures_content() if content is None else content)
    for event in events:
        fold.add(event)
    fold.close()
    # A sampler can omit spans.
    return [span for span in spans if isinstance(span, ReadableSpan)]


def encode_spans(task_id: str, events: Iterable[Event], *, content: bool | None = None) -> bytes:
    """Return the spans of a recorded run as OTLP/JSON, for files and for `POST /v1/traces`.

    Args:
        task_id: As in `make_spans`.
        events: As in `make_spans`.
        content: As in `make_spans`.
    """
    spans = make_spans(task_id, events, content=content)
    resources: list[bytes] = []
    while spans:
        # The conversion of a long run in a single call would block all threads.
        message: dict[str, Any] = MessageToDict(encode_otlp(spans[:_BATCH]))
        del spans[:_BATCH]
        resources += [_ID.sub(_to_hex, orjson.dumps(resource)) for resource in message["resourceSpans"]]
    return b'{"resourceSpans":[%b]}' % b",".join(resources)


_ID = re.compile(rb'("(?:traceId|spanId|parentSpanId)":")([\w+/=]+)')
"""Id in JSON. Texts cannot contain it, because their quotation marks are escaped."""


def _to_hex(match: re.Match[bytes]) -> bytes:
    # OTLP/JSON differs from the JSON of protocol buffers in the encoding of ids.
    return match[1] + b64decode(match[2]).hex().encode()


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
    spans = make_spans(task_id, events, content=content)
    exporter = OTLPSpanExporter()
    try:
        for start in range(0, len(spans), _BATCH):
            if exporter.export(spans[start : start + _BATCH]) is not SpanExportResult.SUCCESS:
                raise RxloopError(
                    f"cannot send the spans of run {task_id}; check the server, and the endpoint in "
                    "OTEL_EXPORTER_OTLP_ENDPOINT"
                )
    finally:
        exporter.shutdown()
    return len(spans)
