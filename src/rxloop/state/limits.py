"""Where a run ends even without an answer."""

from __future__ import annotations

from rxloop.errors import RxloopError
from rxloop.protocol.settings import Limits
from rxloop.state.run_state import RunState


class LimitHit(RxloopError):
    """A limit of the run is reached; inside a pipeline, where it ends the run."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def check_limits(state: RunState, limits: Limits, thought_limit: int) -> LimitHit | None:
    """Find the limit that forbids another iteration, if one does.

    Args:
        state: The run after its last iteration.
        limits: Those of the run.
        thought_limit: Thought-only iterations in a row. One more is refused by the tool, and the one after that ends
            the run, so that a model that only ever thinks is called `thought_limit + 2` times.
    """
    if limits.tool_failures is not None and state.failures >= limits.tool_failures:
        return LimitHit(
            "tool_failures", f"every tool failed in {state.failures} iterations in a row (limits.tool_failures)"
        )
    if state.thought_streak >= thought_limit + 2:
        return LimitHit(
            "max_iterations",
            f"the model only thought aloud in {state.thought_streak} iterations in a row (Thoughts.limit)",
        )
    if limits.tokens is not None and state.usage.total_tokens >= limits.tokens:
        return LimitHit("tokens", f"{state.usage.total_tokens} of {limits.tokens} tokens are spent (limits.tokens)")
    if limits.iterations is not None and state.iteration >= limits.iterations:
        return LimitHit("max_iterations", f"no answer after {state.iteration} iterations (limits.iterations)")
    return None


def check_attempts(state: RunState, limits: Limits) -> LimitHit | None:
    """Find out whether the limit forbids another attempt.

    Args:
        state: The run after its last attempt.
        limits: Those of the run.
    """
    if limits.attempts is None or state.tries < limits.attempts:
        return None
    return LimitHit("attempts", f"{state.tries} attempts in a row came to no end (limits.attempts)")
