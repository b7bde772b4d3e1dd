"""Prometheus metrics of operations."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram

from rxloop.protocol.events import LLMFailedEvent
from rxloop.telemetry.measurements import HISTOGRAMS, Measurements
from rxloop.telemetry.operations import Operation

_UNITS = {"s": "seconds", "{token}": ""}
"""Suffixes of metric names by unit."""


class PrometheusRecorder:
    """Recorder that fills the histograms of a registry. Names follow the OpenTelemetry rules for Prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._measurements = Measurements()
        self._histograms = {
            each.name: (
                Histogram(
                    each.name.replace(".", "_"),
                    each.description,
                    [label.replace(".", "_") for label in each.labels],
                    unit=_UNITS[each.unit],
                    registry=registry,
                    buckets=each.buckets,
                ),
                each.labels,
            )
            for each in HISTOGRAMS
        }

    def start(self, operation: Operation) -> None:
        """Ignore the start of an operation."""

    def fail(self, operation: Operation, event: LLMFailedEvent) -> None:
        """Ignore a failed request."""

    def end(self, operation: Operation) -> None:
        """Record the metrics of an operation."""
        for name, value, attributes in self._measurements.measure(operation):
            histogram, labels = self._histograms[name]
            histogram.labels(*[attributes.get(label, "") for label in labels]).observe(value)
