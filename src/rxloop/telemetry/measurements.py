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

    unit: str
    description: str
    buckets: list[float]
    """Upper bounds."""
    labels: tuple[str, ...]
    """Attributes of its values."""


_CHAT = (names.OPERATION, names.PROVIDER, names.REQUEST_MODEL)
_DURATION_NAMES = {
    "chat": "gen_ai.client.operation.duration",
    "execute_tool": "gen_ai.execute_tool.duration",
    "invoke_agent": "gen_ai.invoke_agent.duration",
    "invoke_workflow": "gen_ai.invoke_workflow.duration",
}
"""Names of the histograms of durations by operation."""
TOKENS, FIRST_CHUNK = "gen_ai.client.token.usage", "gen_ai.client.operation.time_to_first_chunk"
_SPECIFICATIONS: tuple[tuple[str, str, list[float], tuple[str, ...]], ...] = (
    (_DURATION_NAMES["chat"], "Duration of model calls", _DURATIONS, (*_CHAT, names.ERROR_TYPE)),
    (TOKENS, "Tokens of model calls", _TOKENS, (*_CHAT, names.TOKEN_TYPE)),
    (FIRST_CHUNK, "Time from a request to the first chunk of its answer", _FIRST_CHUNK, _CHAT),
    (
        _DURATION_NAMES["execute_tool"],
        "Duration of tool calls",
        _DURATIONS,
        (names.TOOL, names.TOOL_TYPE, names.ERROR_TYPE),
    ),
    (
        _DURATION_NAMES["invoke_agent"],
        "Duration of attempts of runs",
        _AGENT_DURATIONS,
        (names.AGENT, names.ERROR_TYPE),
    ),
    (
        _DURATION_NAMES["invoke_workflow"],
        "Duration of strategies",
        _WORKFLOW_DURATIONS,
        (names.WORKFLOW, names.ERROR_TYPE),
    ),
)
HISTOGRAMS = {
    name: Histogram("{token}" if name == TOKENS else "s", description, buckets, labels)
    for name, description, buckets, labels in _SPECIFICATIONS
}
"""Histograms by name."""

MAX_SETS = 500
"""Maximum number of different sets of attributes. Clients can name tools and models, so it must be limited."""
OTHER = "other"
"""Value of attributes beyond the limit."""
_FIXED = (names.OPERATION, names.TOOL_TYPE, names.TOKEN_TYPE)

Attributes = Mapping[str, Any]


class Measurements:
    """Values of ended operations, whose attributes have a limited number of values."""

    def __init__(self) -> None:
        self._sets: dict[tuple[Any, ...], Attributes] = {}

    def measure(self, operation: Operation) -> Iterator[tuple[str, float, Attributes]]:
        """Yield the names, values and attributes of the metrics of an ended operation."""
        identity = operation.identity
        name = _DURATION_NAMES.get(identity.get(names.OPERATION, ""))
        if name is None:
            return
        yield name, (operation.end - operation.start) / 1000, self._limit(identity, names.ERROR_TYPE, operation.error)
        if identity[names.OPERATION] != "chat":
            return
        if operation.usage is not None:
            yield TOKENS, operation.usage.input_tokens, self._limit(identity, names.TOKEN_TYPE, "input")
            yield TOKENS, operation.usage.output_tokens, self._limit(identity, names.TOKEN_TYPE, "output")
        if operation.first_chunk is not None:
            yield FIRST_CHUNK, operation.first_chunk, self._limit(identity, names.ERROR_TYPE, None)

    def _limit(self, identity: Attributes, name: str, value: str | None) -> Attributes:
        key = (*identity.values(), name, value)
        attributes = self._sets.get(key)
        if attributes is None:
            # Only the metrics of model calls have the operation as an attribute, as in the conventions.
            attributes = {
                each: text
                for each, text in {**identity, name: value}.items()
                if text is not None and (each != names.OPERATION or text == "chat")
            }
            if len(self._sets) >= MAX_SETS:
                return {each: text if each in _FIXED else OTHER for each, text in attributes.items()}
            self._sets[key] = attributes
        return attributes
