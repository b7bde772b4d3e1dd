"""Metrics of the GenAI semantic conventions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry import metrics
from opentelemetry.metrics import Histogram, MeterProvider

from rxloop import _version
from rxloop.protocol.messages import Usage
from rxloop.telemetry import names

DURATION_BUCKETS = [0.01 * 2**power for power in range(14)]
"""Bucket boundaries of durations in seconds, as in the conventions."""
TOKEN_BUCKETS = [float(4**power) for power in range(14)]
FIRST_CHUNK_BUCKETS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]

_DURATIONS = {
    "chat": ("gen_ai.client.operation.duration", "Duration of model calls"),
    "execute_tool": ("gen_ai.execute_tool.duration", "Duration of tool calls"),
    "invoke_agent": ("gen_ai.invoke_agent.duration", "Duration of attempts of runs"),
}
"""Names and descriptions by operation."""


class Metrics:
    """Histograms of durations and tokens.

    Args:
        provider: Provider of the meter. None uses the global one.
    """

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = metrics.get_meter(names.SCOPE, _version.__version__, provider, attributes=names.SCOPE_ATTRIBUTES)

        def histogram(name: str, unit: str, description: str, buckets: list[float]) -> Histogram:
            return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=buckets)

        self._durations = {
            operation: histogram(name, "s", description, DURATION_BUCKETS)
            for operation, (name, description) in _DURATIONS.items()
        }
        self._tokens = histogram("gen_ai.client.token.usage", "{token}", "Tokens of model calls", TOKEN_BUCKETS)
        self._first_chunk = histogram(
            "gen_ai.client.operation.time_to_first_chunk",
            "s",
            "Time from a request to the first chunk of its answer",
            FIRST_CHUNK_BUCKETS,
        )

    def record_duration(self, attributes: Mapping[str, Any], seconds: float, error: str | None) -> None:
        """Record the duration of an operation, which is identified by its attributes."""
        durations = self._durations.get(attributes[names.OPERATION])
        if durations is not None:
            durations.record(seconds, attributes if error is None else {**attributes, names.ERROR_TYPE: error})

    def record_answer(self, attributes: Mapping[str, Any], usage: Usage | None, first_chunk: float | None) -> None:
        """Record the tokens of a model call, and the time to its first chunk in seconds, if they are known."""
        if usage is not None:
            self._tokens.record(usage.input_tokens, {**attributes, names.TOKEN_TYPE: "input"})
            self._tokens.record(usage.output_tokens, {**attributes, names.TOKEN_TYPE: "output"})
        if first_chunk is not None:
            self._first_chunk.record(first_chunk, attributes)
