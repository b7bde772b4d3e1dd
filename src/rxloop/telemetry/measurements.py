"""Metrics of operations, with the names and buckets of the GenAI semantic conventions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from rxloop.telemetry import names
from rxloop.telemetry.operations import Attributes, Operation, Recorder

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

MAX_SETS = 500
"""Maximum number of different sets of attributes of a recorder. Clients can name tools and models, so it must be
limited. Further values are recorded as `other`."""


class Histogram(NamedTuple):
    """Histogram of operations."""

    operation: str
    name: str
    description: str
    buckets: list[float]
    """Upper bounds."""
    labels: tuple[str, ...]
    """Attributes of the operation that are also attributes of its values."""
    values: Mapping[str | None, str | None] = MappingProxyType({None: None})
    """Attributes with the values, and their token types. None is the duration."""
    unit: str = "s"


_DURATIONS = [0.01 * 2**power for power in range(14)]
_AGENT_DURATIONS = [0.1 * 2**power for power in range(13)]
_WORKFLOW_DURATIONS = [1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0]
_TOKENS = [float(4**power) for power in range(14)]
_FIRST_CHUNK = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]

_CHAT, _ERROR = (names.OPERATION, names.PROVIDER, names.REQUEST_MODEL), names.ERROR_TYPE
_TOOL, _AGENT, _WORKFLOW = (names.TOOL, names.TOOL_TYPE, _ERROR), (names.AGENT, _ERROR), (names.WORKFLOW, _ERROR)
_FIXED = {names.OPERATION, names.TOOL_TYPE, names.TOKEN_TYPE}
"""Labels with few values."""
_TOKEN_TYPES: dict[str | None, str | None] = {names.USAGE[0]: "input", names.USAGE[1]: "output"}
_USAGE = ("gen_ai.client.token.usage", "Tokens of model calls")
_FIRST = ("gen_ai.client.operation.time_to_first_chunk", "Time from a request to the first chunk of its answer")
_STRATEGY = ("gen_ai.invoke_workflow.duration", "Duration of strategies")

HISTOGRAMS = [
    Histogram("chat", "gen_ai.client.operation.duration", "Duration of model calls", _DURATIONS, (*_CHAT, _ERROR)),
    Histogram("chat", *_USAGE, _TOKENS, (*_CHAT, names.TOKEN_TYPE), _TOKEN_TYPES, "{token}"),
    Histogram("chat", *_FIRST, _FIRST_CHUNK, _CHAT, {names.FIRST_CHUNK: None}),
    Histogram("execute_tool", "gen_ai.execute_tool.duration", "Duration of tool calls", _DURATIONS, _TOOL),
    Histogram("invoke_agent", "gen_ai.invoke_agent.duration", "Duration of attempts of runs", _AGENT_DURATIONS, _AGENT),
    Histogram("invoke_workflow", *_STRATEGY, _WORKFLOW_DURATIONS, _WORKFLOW),
]

Record = Callable[[float], object]
Bind = Callable[[Attributes], Record]


class Measurements(Recorder):
    """Recorder of the metrics of ended operations. It looks up each set of attributes once."""

    def __init__(self, create: Callable[[Histogram], Bind]) -> None:
        """Create a recorder.

        Args:
            create: Function that creates a histogram. It returns a function which returns a function for recording
                values with the given attributes.
        """
        self._histograms = [(each, create(each)) for each in HISTOGRAMS]
        self._sets: dict[Any, list[tuple[str | None, Record]]] = {}

    @override
    def end(self, operation: Operation, changes: Attributes, message: str | None) -> None:
        """Record the metrics of an operation."""
        attributes = operation.attributes
        key = (operation.name, attributes.get(names.PROVIDER), attributes.get(_ERROR))
        for name, record in self._sets[key] if key in self._sets else self._bind_all(key, attributes):
            value = (operation.end - operation.event.timestamp) / 1000 if name is None else attributes.get(name)
            if value is not None:
                record(value)

    def _bind_all(self, key: Any, attributes: Attributes) -> list[tuple[str | None, Record]]:
        is_limited = len(self._sets) >= MAX_SETS
        records: list[tuple[str | None, Record]] = []
        for histogram, bind in self._histograms:
            if histogram.operation == attributes.get(names.OPERATION):
                for name, token_type in histogram.values.items():
                    values = {**attributes, names.TOKEN_TYPE: token_type}
                    labels = {label: values[label] for label in histogram.labels if values.get(label)}
                    others = dict.fromkeys(labels.keys() - _FIXED, "other") if is_limited else {}
                    records.append((name, bind(labels | others)))
        # Iterations have no metrics, but each one has another name.
        if records and not is_limited:
            self._sets[key] = records
        return records


def make_prometheus_recorder(registry: CollectorRegistry) -> Measurements:
    """Return a recorder that fills the histograms of a registry. Names follow the OpenTelemetry rules for Prometheus.

    Args:
        registry: Registry to which the histograms are added.

    Raises:
        ValueError: The registry already contains the histograms.
    """
    import prometheus_client

    def create(each: Histogram) -> Bind:
        name, *labels = [name.replace(".", "_") for name in (each.name, *each.labels)]
        unit = "seconds" if each.unit == "s" else ""
        histogram = prometheus_client.Histogram(
            name, each.description, labels, unit=unit, registry=registry, buckets=each.buckets
        )
        return lambda labels: histogram.labels(*[labels.get(name, "") for name in each.labels]).observe

    return Measurements(create)
