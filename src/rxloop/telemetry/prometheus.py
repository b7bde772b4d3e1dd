"""Prometheus metrics of operations."""

from __future__ import annotations

from collections.abc import Callable

import prometheus_client

from rxloop.telemetry.measurements import HISTOGRAMS, Attributes, Histogram, Measurements

_UNITS = {"s": "seconds", "{token}": ""}
"""Suffixes of metric names by unit."""


def make_prometheus_recorder(registry: prometheus_client.CollectorRegistry) -> Measurements:
    """Return a recorder that fills the histograms of a registry. Names follow the OpenTelemetry rules for Prometheus.

    Args:
        registry: Registry to which the histograms are added.

    Returns:
        Recorder of the metrics.

    Raises:
        ValueError: The registry already contains the histograms.
    """
    histograms = {
        each.name: prometheus_client.Histogram(
            each.name.replace(".", "_"),
            each.description,
            [label.replace(".", "_") for label in each.labels],
            unit=_UNITS[each.unit],
            registry=registry,
            buckets=each.buckets,
        )
        for each in HISTOGRAMS
    }

    def bind(histogram: Histogram, attributes: Attributes) -> Callable[[float], object]:
        return histograms[histogram.name].labels(*[attributes.get(label, "") for label in histogram.labels]).observe

    return Measurements(bind)
