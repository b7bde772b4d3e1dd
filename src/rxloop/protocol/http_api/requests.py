"""Response bodies of the HTTP API for the requests that were sent to models."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rxloop.protocol.messages import Message, Wire
from rxloop.protocol.model import is_empty, is_missing
from rxloop.protocol.step_events import PartOrigin, PartTokens

PartChange = Literal["same", "new", "shortened", "rewritten"]
"""Difference between a part and the previous request of the same branch."""

Edit = Literal["shortened", "rewritten"]
"""Difference between a sent message and the history."""


class RequestTool(Wire):
    """Tool that was offered to the model."""

    name: str = ""
    """Name. Empty if the tool is hidden from the client."""
    description: str | None = Field(default=None, exclude_if=is_missing)
    parameters: dict[str, Any] | None = Field(default=None, exclude_if=is_missing)
    """JSON Schema of the arguments."""
    tokens: int
    """Estimated tokens."""
    change: PartChange
    hidden: bool = Field(default=False, exclude_if=is_empty)
    """True if the definition is not sent to this client."""


class SentPart(Wire):
    """Message of a request."""

    role: str
    origin: PartOrigin = Field(validation_alias="from", serialization_alias="from")
    index: int | None = Field(default=None, exclude_if=is_missing)
    """Index in the history. Missing for messages that are not a part of it."""
    message: Message | None = Field(default=None, exclude_if=is_missing)
    """Message as it was sent. Missing if it is hidden or was not recorded."""
    original: Message | None = Field(default=None, exclude_if=is_missing)
    """Message in the history, if it was sent in another form."""
    tokens: int
    """Estimated tokens. The sum over all parts and tools is the estimate of the request."""
    change: PartChange
    hidden: bool = Field(default=False, exclude_if=is_empty)
    """True if the message is not sent to this client."""


class OmittedMessage(Wire):
    """Omitted history message."""

    index: int
    role: str
    tokens: int
    """Estimated tokens."""
    why: str
    """Reason: `overflow`, `steps` or `refused`, as in `context-compressed`, or `operator`."""
    text: str | None = Field(default=None, exclude_if=is_missing)
    """Beginning of the text, at most 600 characters. Missing if the message is hidden."""


class RequestTokens(Wire):
    """Size of a request in tokens."""

    estimated: int
    """Estimate before the request was sent."""
    counted: int | None = Field(default=None, exclude_if=is_missing)
    """Input tokens reported by the provider, including cached tokens."""
    cached: int | None = Field(default=None, exclude_if=is_missing)
    """Input tokens read from the provider's cache."""
    output: int | None = Field(default=None, exclude_if=is_missing)
    """Output tokens reported by the provider."""


class RequestTry(Wire):
    """Failed try of a request."""

    seq: int
    """`seq` of the `llm-failed` event."""
    status: int | None = Field(default=None, exclude_if=is_missing)
    """HTTP status code."""
    code: str
    message: str
    seconds: float
    """Duration of the try."""
    retry_in: float | None = Field(default=None, exclude_if=is_missing)
    """Delay before the next try in seconds. Missing if the request was not sent again."""


class SentRequest(Wire):
    """Request as it was sent to the model, after all operators and compressors."""

    task_id: str
    seq: int
    """`seq` of the `llm-call` event."""
    step: str | None = None
    branch: str | None = Field(default=None, exclude_if=is_missing)
    model: str
    provider: str
    """Prefix of the model string, or an empty string."""
    exact: bool
    """True if the request was rebuilt from its record. False if the log has no record of it, so that the system
    prompt, the tools and edited messages are missing."""
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Settings of the request, without headers and additional fields. Only for clients with access to internal data."""
    answer_schema: dict[str, Any] | None = Field(default=None, exclude_if=is_missing)
    """JSON Schema of the answer, if requested. Only for clients with access to internal data."""
    tools: list[RequestTool]
    parts: list[SentPart]
    left_out: list[OmittedMessage]
    """Omitted history messages."""
    tokens: RequestTokens
    window: int | None = Field(default=None, exclude_if=is_missing)
    """Context window of the model in tokens, if known."""
    problems: list[str] = Field(default_factory=list[str], exclude_if=is_empty)
    """Repaired problems in messages that operators created. Only for clients with access to internal data."""
    tries: list[RequestTry]
    """Failed tries. Only for clients with access to internal data."""
    answer: int | None = Field(default=None, exclude_if=is_missing)
    """`seq` of the `content-complete` event."""
    previous: int | None = Field(default=None, exclude_if=is_missing)
    """`seq` of the previous request of the branch, to which `change` refers."""
    omitted: dict[str, int] = Field(default_factory=dict[str, int], exclude_if=is_empty)
    """Shortened values by their JSON Pointer: number of omitted characters of a text, or of omitted values of a list or
    object. Only with `maxText`."""


class RequestRow(Wire):
    """Token counts and message ranges of a model request."""

    seq: int
    """`seq` of the `llm-call` event."""
    run: str | None = Field(default=None, exclude_if=is_missing)
    """Task id of the nested run, if any."""
    step: str | None = None
    branch: str | None = Field(default=None, exclude_if=is_missing)
    agent_path: list[str] = Field(default_factory=list[str], exclude_if=is_empty)
    model: str
    tokens: RequestTokens
    parts: PartTokens | None = Field(default=None, exclude_if=is_missing)
    """Estimated tokens of each part. Missing in logs of earlier versions."""
    window: int | None = Field(default=None, exclude_if=is_missing)
    saved: float | None = Field(default=None, exclude_if=is_missing)
    """Cost in US dollars that the cache has saved, including the cost of writing to it. Missing if the price of the
    model is unknown."""
    history: int
    """Number of messages in the history."""
    sent: list[tuple[int, int]]
    """Index ranges of messages that were sent unchanged."""
    edited: list[tuple[int, int, Edit]] = Field(default_factory=list[tuple[int, int, Edit]], exclude_if=is_empty)
    """Index ranges of edited messages."""
    exact: bool
    """As in `SentRequest`."""


class RequestList(Wire):
    """Requests of a run, including those of its branches and nested runs."""

    task_id: str
    seq: int
    """Number of the last event at the time of the response."""
    requests: list[RequestRow]
    next: int | None = Field(default=None, exclude_if=is_missing)
    """Value of `after` for the next page. Missing on the last page."""
