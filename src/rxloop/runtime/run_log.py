"""Log records of ended attempts, with ids and figures but without content."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import reactivex
from reactivex import Observable
from reactivex import operators as rx

from rxloop.protocol.events import Event, LLMCallEvent, StatusUpdateEvent, TaskEvent, UsageEvent
from rxloop.stream.sources import DURABLE

log = logging.getLogger("rxloop.runs")


def log_attempts(agent: str) -> Callable[[Observable[Any]], Observable[Any]]:
    """Return a view that logs the end of each attempt of an agent, if the logger `rxloop.runs` is enabled for INFO.

    Failed runs are logged as warnings. Without the check of the level, programs that do not configure logging would
    print them.
    """

    def view(source: Observable[Any]) -> Observable[Any]:
        if not log.isEnabledFor(logging.INFO):
            return reactivex.empty()
        return source.pipe(rx.do_action(_AttemptLog(agent).add))

    vars(view)[DURABLE] = True
    return view


class _AttemptLog:
    """Figures of an attempt, including its nested runs."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._started: int | None = None
        self._copied = 0
        """`seq` of the last copied event if the run is a fork, otherwise 0."""
        self._model_calls = self._input_tokens = self._output_tokens = 0

    def add(self, event: Event) -> None:
        """Add an event, and write the record if it ends the attempt."""
        if isinstance(event, TaskEvent) and event.fork_seq is not None:
            self._copied = event.fork_seq
        if event.seq <= self._copied:
            return
        if self._started is None:
            self._started = event.timestamp
        if isinstance(event, LLMCallEvent):
            self._model_calls += 1
        elif isinstance(event, UsageEvent):
            self._input_tokens += event.input_tokens
            self._output_tokens += event.output_tokens
        elif isinstance(event, StatusUpdateEvent) and event.final and event.parent_task_id is None:
            self._write(event, self._started)

    def _write(self, final: StatusUpdateEvent, started: int) -> None:
        data = {
            "task": final.task_id,
            "context": final.context_id,
            "agent": self._agent,
            "state": final.state,
            "reason": final.reason,
            "code": final.error.code if final.error is not None else None,
            "seconds": (final.timestamp - started) / 1000,
            "input_tokens": self._input_tokens,
            "output_tokens": self._output_tokens,
            "model_calls": self._model_calls,
        }
        cause = data["code"] or data["reason"]
        text = (
            f"Run %(task)s of %(agent)s ended: %(state)s{' (%(cause)s)' if cause else ''}, %(seconds).3f s, "
            "%(model_calls)d model calls, %(input_tokens)d input and %(output_tokens)d output tokens"
        )
        level = logging.WARNING if final.state == "failed" else logging.INFO
        log.log(level, text, {**data, "cause": cause}, extra=data)
