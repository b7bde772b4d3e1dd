"""Back-pressure, as whoever reads a model's answer meets it."""

from __future__ import annotations

from rxloop.pipeline.requests import ModelRequest
from rxloop.stream.scope import Gate


def gate_of(request: ModelRequest) -> Gate:
    """The gate of a request's run; one that is always open if there is no run.

    Whoever reads an answer looks at `closed` after each read, never inside a push, and waits before it hands on more.
    """
    return request.ctx.scope.gate if request.ctx.run is not None else Gate()
