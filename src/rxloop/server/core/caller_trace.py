"""Trace context of requests, which becomes the parent of the runs that they start."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from starlette.datastructures import Headers

from rxloop.support.trace_context import TRACEPARENT, TRACESTATE, parse_trace_context

_CONTEXT: ContextVar[Mapping[str, str] | None] = ContextVar("rxloop_trace_context", default=None)


@contextmanager
def use_trace_context(headers: Headers, meta: Mapping[str, Any] | None = None) -> Generator[None]:
    """Use the trace context of a request for the runs that the block starts.

    Args:
        headers: Headers of the request. Invalid headers are ignored.
        meta: Values that replace the headers, such as the metadata of an MCP request.
    """
    parent, state = headers.getlist(TRACEPARENT), headers.getlist(TRACESTATE)
    if meta and isinstance(meta.get(TRACEPARENT), str):
        parent, state = [meta[TRACEPARENT]], [text for text in (meta.get(TRACESTATE),) if isinstance(text, str)]
    token = _CONTEXT.set(parse_trace_context(parent[0], state) if len(parent) == 1 else {})
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def find_trace_context() -> Mapping[str, str]:
    """Return the trace context for a new run: the current span of this process, or else that of the request."""
    if "opentelemetry.trace" in sys.modules:
        # Instrumentation of the server has created this span as a child of the caller's span.
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        if carrier:
            return carrier
    return _CONTEXT.get() or {}
