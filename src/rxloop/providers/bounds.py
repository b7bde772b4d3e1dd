"""Size, depth and time limits."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rxloop.protocol.messages import MAX_ARGUMENT_VALUES
from rxloop.support.json_limits import find_excess
from rxloop.support.misuse import check_minimum, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Response limits, which protect the process against memory exhaustion.

    Defaults are much larger than typical responses. Exceeding a limit raises a `ProviderProtocolError` containing its
    name.
    """

    head: int = 2**16
    """Maximum status line and header size in bytes, using aiohttp. httpx has a fixed limit: 100 kB for all headers."""
    document: int = 4 * 2**20
    """Maximum JSON document size in bytes: a stream event or non-streaming response."""
    values: int = 200_000
    """Maximum number of JSON values. Log probabilities without streaming may need more."""
    depth: int = 100
    """Maximum JSON nesting depth."""
    answer: int = 256 * 2**20
    """Maximum decompressed stream size in bytes."""
    text: int = 8_000_000
    """Maximum message length in characters, including reasoning and call arguments."""
    arguments: int = 2_000_000
    """Maximum tool call length in characters, including name and id."""
    name: int = 1_000
    """Maximum tool name length."""
    argument_values: int = MAX_ARGUMENT_VALUES
    """Maximum number of argument values in all tool calls. Calls of a message with more fail, with an error for the
    model."""
    calls: int = 1_000
    """Maximum number of tool calls."""

    def __post_init__(self) -> None:
        check_minimum(0, **asdict(self))


DEFAULT_BOUNDS = Bounds()

_SENT = {
    "head": "a status or a header of more than {:,} bytes",
    "document": "an event or an answer of more than {:,} bytes in one piece",
    "values": "JSON with more than {:,} values in one piece",
    "depth": "JSON that is nested more than {:,} deep",
    "answer": "a stream of more than {:,} bytes",
    "text": "a message of more than {:,} characters",
    "arguments": "a tool call of more than {:,} characters",
    "name": "a name of a tool of more than {:,} characters",
    "calls": "a message with more than {:,} tool calls",
}


class Unreadable(Exception):
    """A vendor sent invalid data. Callers that know the vendor convert it to a `ProviderProtocolError`."""


class OutOfBounds(Unreadable):
    """Raised if a response exceeds a limit."""

    def __init__(self, name: str, bound: int) -> None:
        super().__init__(
            f"{_SENT[name].format(bound)}; if that is expected, raise the limit with bounds=Bounds({name}=...)"
        )


SMALL = 2**16
"""Document size in bytes below which memory usage is negligible."""


def check_document(data: bytes, bounds: Bounds) -> None:
    """Check the number of values and the nesting depth of a document.

    Invalid JSON passes unless it looks too large. The parser rejects it later.

    Raises:
        OutOfBounds: The document exceeds a limit.
    """
    if len(data) > bounds.document:
        raise OutOfBounds("document", bounds.document)
    excess = find_excess(data, values=bounds.values, depth=bounds.depth)
    if excess is not None:
        raise OutOfBounds(excess, bounds.values if excess == "values" else bounds.depth)


VALUE_WEIGHT = 200
"""Size charged per raw value, because values can be short in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Time limits in seconds. None means unlimited, except for `event`."""

    connect: float | None = 10.0
    """Connecting to the endpoint."""
    key: float | None = 30.0
    """Waiting for an `async` function passed as `api_key=` or `sign=`."""
    idle: float | None = 60.0
    """Time without received data, before or while streaming."""
    answer: float | None = 600.0
    """Time without received data if not streaming."""
    event: float | None = None
    """Time without events, even if keep-alive comments are received. None means ten times `idle`, or ten times `answer`
    if not streaming. A non-streaming response counts as one event."""
    total: float | None = 3600.0
    """Time from the request to the end of the answer, including retries."""

    def __post_init__(self) -> None:
        check_positive(zero=True, optional=True, **asdict(self))
