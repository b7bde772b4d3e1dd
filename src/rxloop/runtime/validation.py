"""Argument validation for runtimes."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, cast

from rxloop.agents.agent import Agent
from rxloop.agents.validation import check_log
from rxloop.errors import ConfigurationError
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Queue

log = logging.getLogger("rxloop")

_HINTS = {
    "deps": "Runtime(..., deps=function) makes them, also after a restart",
    "task_id": "key= says which run it is",
    "on_input": "runtime.answer() answers questions",
    "steering": "runtime.send() steers a run",
    "when_busy": "a run waits for those before it in its conversation",
}
"""Options only supported by `Agent.run`, with hints on what to use for `Runtime.start` instead."""


def check_runtime(
    agents: Any, event_log: EventLog, queue: Queue | None, concurrency: int | None, adopt_every: float, grace: float
) -> None:
    """Validate the arguments for `Runtime`.

    Raises:
        ConfigurationError: An argument is invalid, or the log can't be used with a queue.
    """
    check_log(event_log)
    _check_shared(event_log, queue)
    _check_agents(agents)
    if concurrency is not None and concurrency < 1:
        raise ConfigurationError(f"concurrency must be at least 1 or None, got {concurrency!r}")
    for name, seconds in (("adopt_every", adopt_every), ("grace", grace)):
        if not seconds >= 0:
            raise ConfigurationError(f"{name} must not be negative, got {seconds!r}")


def check_start_options(options: Mapping[str, Any], known: Collection[str]) -> None:
    """Reject options not supported by `Runtime.start`.

    Raises:
        TypeError: An option is unknown. The message suggests a replacement if possible.
    """
    for name in options:
        if name not in known:
            hint = _HINTS.get(name, f"it takes {', '.join(known)}")
            raise TypeError(f"start() has no option {name!r}: {hint}")


def _check_shared(event_log: EventLog, queue: Queue | None) -> None:
    """Warn when using a log whose leases and commands are limited to this process.

    Raises:
        ConfigurationError: The log can't be used with a queue.
    """
    kind = type(event_log)
    excludes = kind.acquire_lease is not EventLog.acquire_lease
    if excludes and kind.send_command is not EventLog.send_command:
        return
    # Only logs without these methods pay for the import.
    from rxloop.storage import MemoryEventLog

    if isinstance(event_log, MemoryEventLog):
        return
    lacking = "acquire_lease(), has_lease(), release_lease(), list_orphaned() and send_command(), read_commands(), "
    lacking += "watch_commands()"
    if queue is not None:
        raise ConfigurationError(f"{kind.__name__} cannot be used with a queue: it does not override {lacking}")
    log.warning(
        "%s is safe in one process only. A second process finds out by a ConflictError that it executes the same run, "
        "and commands that were sent to a run are lost with this process. Override %s",
        kind.__name__,
        lacking,
    )


def _check_agents(agents: Any) -> None:
    if not isinstance(agents, Mapping):
        raise ConfigurationError(
            f"agents must be a mapping of agents by name, such as {{'support': support}}, got {agents!r}"
        )
    for name, agent in cast("Mapping[Any, Any]", agents).items():
        if not isinstance(name, str) or not isinstance(agent, Agent):
            raise ConfigurationError(f"agents must map names to agents, got {name!r}: {agent!r}")
