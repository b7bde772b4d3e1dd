"""Metrics of operations, with the names and buckets of the GenAI semantic conventions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rxloop.telemetry import names
from rxloop.telemetry.operations import Operation

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
TOKENS, FIRST_CHUNK = "gen_ai.client.token.usage", "gen_ai.client.operation.time_to_first_chunk"
_BY_OPERATION = {
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
HISTOGRAMS = (
    *_BY_OPERATION.values(),
    Histogram(TOKENS, "Tokens of model calls", _TOKENS, (*_CHAT, names.TOKEN_TYPE), "{token}"),
    Histogram(FIRST_CHUNK, "Time from a request to the first chunk of its answer", _FIRST_CHUNK, _CHAT),
)

MAX_SETS = 500
"""Maximum number of different sets of attributes. Clients can name tools and models, so it must be limited.
Further values are recorded as `other`."""
_FIXED = (names.OPERATION, names.TOOL_TYPE, names.TOKEN_TYPE)

Attributes = Mapping[str, Any]


class Measurements:
    """Values of ended operations, whose attributes have a limited number of values."""

    def __init__(self) -> None:
        self._sets: dict[tuple[Any, ...], Attributes] = {}

    def measure(self, operation: Operation) -> Iterator[tuple[str, float, Attributes]]:
        """Yield the names, values and attributes of the metrics of an ended operation."""
        identity = operation.identity
        histogram = _BY_OPERATION.get(identity.get(names.OPERATION, ""))
        if histogram is None:
            return
        seconds = (operation.end - operation.start) / 1000
        yield histogram.name, seconds, self._limit(identity, names.ERROR_TYPE, operation.error)
        if identity[names.OPERATION] != "chat":
            return
        if operation.usage is not None:
            yield TOKENS, operation.usage[0], self._limit(identity, names.TOKEN_TYPE, "input")
            yield TOKENS, operation.usage[1], self._limit(identity, names.TOKEN_TYPE, "output")
        if operation.first_chunk is not None:
            yield FIRST_CHUNK, operation.first_chunk, self._limit(identity, names.ERROR_TYPE, None)

    def _limit(self, identity: Attributes, name: str, value: str | None) -> Attributes:
        key = (*identity.values(), name, value)
        attributes = self._sets.get(key)
        if attributes is None:
            attributes = {**identity, **({} if value is None else {name: value})}
            if identity[names.OPERATION] != "chat":
                # As in the conventions, only metrics of model calls have this attribute.
                del attributes[names.OPERATION]
            if len(self._sets) >= MAX_SETS:
                return {each: text if each in _FIXED else "other" for each, text in attributes.items()}
            self._sets[key] = attributes
        return attributes
