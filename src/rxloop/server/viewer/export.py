"""Files made from a recorded run, for the HTTP API and `rxloop export`."""

from __future__ import annotations

from collections.abc import Sequence

from rxloop.errors import ConfigurationError
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event
from rxloop.recorded.export import Form, export_text, select_events
from rxloop.server.viewer.document import make_file


def export_run(form: Form, record: RunRecord, events: Sequence[Event], *, internal: bool) -> bytes:
    """Return the file of a run.

    Args:
        form: Form of the file.
        record: Record of the run.
        events: Durable events of the run, possibly without the last ones.
        internal: Whether to include data that clients must not receive.

    Raises:
        ConfigurationError: The form does not support this run, or it requires a package that is not installed.
    """
    match form:
        case "html":
            return make_file(record, events, internal=internal)
        case "otlp":
            try:
                from rxloop.telemetry.export import encode_spans
            except ImportError as error:
                raise ConfigurationError(
                    f"OTLP requires {error.name}; install it with pip install opentelemetry-exporter-otlp-proto-http"
                ) from error
            shown = select_events(events, internal=internal)
            return encode_spans(record.task_id, shown, content=internal or None)
        case _:
            return export_text(form, record.task_id, events, internal=internal)
