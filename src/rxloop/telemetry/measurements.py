"""Metrics of operations, with the names and buckets of the GenAI semantic conventions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from typing_extensions import override

from rxloop.telemetry import names
from rxloop.telemetry.operations import Operation, Recorder

_DURATIONS = [0.01 * 2**power for power in range(14)]
_AGENT_DURATIONS = [0.1 * 2**power for power in range(13)]
_WORKFLOW_DURATIONS = [1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0]
_TOKENS = [float(4**power) for power in range(14)]
_FIRST_CHUNK = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]


class Histogram(NamedTuple):
    """Description of a histogram."""

    name: str
    description: str
    buckets: list[float]
    """Upper bounds."""
    labels: tuple[str, ...]
    """Attributes of its values."""
    unit: str = "s"


_CHAT, _ERROR = (names.OPERATION, names.PROVIDER, names.REQUEST_MODEL), names.ERROR_TYPE
_TOOL = (names.TOOL, names.TOOL_TYPE, _ERROR)
_DURATION = {
    "chat": Histogram("gen_ai.client.operation.duration", "Duration of model calls", _DURATIONS, (*_CHAT, _ERROR)),
    "execute_tool": Histogram("gen_ai.execute_tool.duration", "Duration of tool calls", _DURATIONS, _TOOL),
    "invoke_agent": Histogram(
        "gen_ai.invoke_agent.duration", "Duration of attempts of runs", _AGENT_DURATIONS, (names.AGENT, _ERROR)
    ),
    "invoke_workflow": Histogram(
        "gen_ai.invoke_workflow.duration", "Duration of strategies", _WORKFLOW_DURATIONS, (names.WORKFLOW, _ERROR)
    ),
}
"""Histograms of durations by operation."""
_TOKEN_COUNT = Histogram(
    "gen_ai.client.token.usage", "Tokens of model calls", _TOKENS, (*_CHAT, names.TOKEN_TYPE), "{token}"
)
_TIME_TO_FIRST_CHUNK = Histogram(
    "gen_ai.client.operation.time_to_first_chunk",
    "Time from a request to the first chunk of its answer",
    _FIRST_CHUNK,
    _CHAT,
)
HISTOGRAMS = (*_DURATION.values(), _TOKEN_COUNT, _TIME_TO_FIRST_CHUNK)

MAX_SETS = 500
"""Maximum number of different sets of attributes of a recorder. Clients can name tools and models, so it must be
limited. Further values are recorded as `other`."""
_FIXED = (names.OPERATION, names.TOOL_TYPE, names.TOKEN_TYPE)

Attributes = Mapping[str, Any]


class Measurements(Recorder):
    """Recorder of the metrics of ended operations. It looks up each set of attributes once."""

    def __init__(self, bind: Callable[[Histogram, Attributes], Callable[[float], object]]) -> None:
        """Create a recorder.

        Args:
            bind: Function that returns a function for recording values with the given attributes in a histogram.
        """
        self._bind = bind
        self._sets: dict[tuple[Any, ...], Callable[[float], object]] = {}

    @override
    def end(self, operation: Operation) -> None:
        """Record the metrics of an operation."""
        identity, find = operation.identity, self._find
        if not identity:
            return
        kind = identity[names.OPERATION]
        find(_DURATION[kind], identity, names.ERROR_TYPE, operation.error)((operation.end - operation.start) / 1000)
        if operation.usage is not None and kind == "chat":
            find(_TOKEN_COUNT, identity, names.TOKEN_TYPE, "input")(operation.usage[0])
            find(_TOKEN_COUNT, identity, names.TOKEN_TYPE, "output")(operation.usage[1])
        if operation.first_chunk is not None:
            find(_TIME_TO_FIRST_CHUNK, identity, names.ERROR_TYPE, None)(operation.first_chunk)

    def _find(self, histogram: Histogram, identity: Attributes, name: str, value: str | None) -> Callable[..., object]:
        key = (histogram.name, value, *identity.values())
        record = self._sets.get(key)
        if record is None:
            values = {**identity, name: value}
            is_limited = len(self._sets) >= MAX_SETS
            attributes = {
                label: "other" if is_limited and label not in _FIXED else values[label]
                for label in histogram.labels
                if values.get(label)
            }
            if is_limited:
                return self._bind(histogram, attributes)
            record = self._sets[key] = self._bind(histogram, attributes)
        return record
