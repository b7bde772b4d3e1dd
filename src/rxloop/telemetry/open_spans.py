"""Open spans of runs, and the options that all subscriptions of a view share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, SpanContext, TracerProvider

from rxloop import _version
from rxloop.protocol.messages import ErrorInfo, Usage
from rxloop.telemetry import names
from rxloop.telemetry.metrics import Metrics

Key = tuple[str, str | None, str | None, int | None]
"""Task id, branch, step and call index of a model call (index None) or a tool call."""

_MAX_REMEMBERED = 10_000
"""Maximum number of unfinished runs whose first attempt can be linked."""


class SpanOptions:
    """Options of `op.spans`, and the spans that its subscriptions share."""

    def __init__(
        self,
        *,
        content: bool | None = None,
        iterations: bool = False,
        metrics: bool = True,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        """Create options. See `op.spans` for the arguments."""
        self.content = names.captures_content() if content is None else content
        self.iterations = iterations
        self.tracer = trace.get_tracer(
            names.SCOPE, _version.__version__, tracer_provider, attributes=names.SCOPE_ATTRIBUTES
        )
        self.metrics = Metrics(meter_provider) if metrics else None
        self.first_attempts: dict[str, SpanContext] = {}
        """Spans of the first attempts of unfinished runs."""
        self.open_calls: dict[Key, OpenSpan] = {}
        """Spans of open model calls and tool calls."""

    def remember(self, task_id: str, span: SpanContext) -> None:
        """Remember the span of a first attempt for the links of later attempts."""
        self.first_attempts[task_id] = span
        if len(self.first_attempts) > _MAX_REMEMBERED:
            del self.first_attempts[next(iter(self.first_attempts))]


@dataclass(slots=True)
class OpenSpan:
    """Span that has not ended."""

    span: Span
    start: int
    """Start in milliseconds."""
    parent: Context
    attributes: Mapping[str, Any]
    """Attributes of the metrics."""
    usage: Usage | None = None
    failure: ErrorInfo | None = None
    """Failure of the last request."""
    failures: int = 0

    def context(self) -> Context:
        """Return the context in which this span is the current one."""
        return trace.set_span_in_context(self.span, self.parent)


class OpenAttempt:
    """Open spans of an attempt."""

    def __init__(self, agent: OpenSpan, parent_task_id: str | None) -> None:
        self.agent = agent
        self.parent_task_id = parent_task_id
        self.usage: Usage | None = None
        """Tokens of the attempt's own model calls. Nested runs have their own spans, so no token is counted twice."""
        self.context = agent.context()
        """Context for the spans of calls."""
        self.workflow: OpenSpan | None = None
        self.iteration: OpenSpan | None = None
        self.calls: dict[Key, OpenSpan] = {}

    def call_context(self, branch: str | None) -> Context:
        """Return the context for the span of a call."""
        return self.context if branch is not None or self.iteration is None else self.iteration.context()
