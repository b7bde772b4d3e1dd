"""Interface through which operators count requests."""

from __future__ import annotations

from typing import Any

from reactivex import Observable

from rxloop.errors import PipelineError
from rxloop.protocol.events import Event


class Budget:
    """Unlimited budget. Runs use a `WorkBudget` instead."""

    __slots__ = ()

    def start(self, source: Observable[Any]) -> Observable[Any]:
        """Count a subscription to the loop or to an iteration, and return the Observable to subscribe to."""
        return source

    def send(self, call: Observable[Any], step: str, branch: str | None) -> Observable[Any]:
        """Count a model request and return its call. If a limit is reached, end the run and never send the request."""
        return call

    def replay(self, answer: Observable[Any]) -> Observable[Any]:
        """Count a request for a recorded step, and return the recorded answer."""
        return answer

    def end_flood(self, count: int) -> None:
        """Fail the run because an operator has more than `count` unanswered requests."""

    def note_unpublished(self, event: Event) -> None:
        """Add an event to the list of unpublished events."""

    def has_unpublished_call(self, step: str, index: int) -> bool:
        """Return True if operators still hold the message that contains a tool call."""
        return False

    def find_lost_events(self, branch: str | None = None, *, all_branches: bool = False) -> PipelineError | None:
        """Return an error if operators dropped, replaced or still hold events. Called when their work is complete.

        Args:
            branch: Branch to check.
            all_branches: Whether to check all branches instead.
        """
        return None
