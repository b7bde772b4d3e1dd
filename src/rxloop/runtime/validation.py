"""Argument validation for runtimes."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, cast

from rxloop.agents.agent import Agent
from rxloop.errors import ConfigurationError
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Queue
from rxloop.protocol.messages import Prompt
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.storage.log_urls import check_log
from rxloop.support.misuse import check_argument, check_method, check_minimum, check_positive, check_type
from rxloop.tools.client_tool import ClientTool

if TYPE_CHECKING:
    from rxloop.strategies.catalog import StrategyName

log = logging.getLogger("rxloop")

_HINTS = {
    "deps": "use Runtime(..., deps=function)",
    "task_id": "use key=",
    "on_input": "use runtime.answer()",
    "steering": "use runtime.send()",
    "when_busy": "runs always wait for the earlier runs of their conversation",
}
"""Options only supported by `Agent.run`, with hints on what to use for `Runtime.start` instead."""


class StartOptions(TypedDict, total=False):
    """Options for `Runtime.start`, as in `Agent.run`. Recorded in the log."""

    context_id: str | None
    owner: str | None
    metadata: dict[str, Any] | None
    model: str | None
    settings: ModelSettings | None
    limits: Limits | None
    strategy: StrategyName | None
    client_tools: Sequence[ClientTool | Mapping[str, Any]] | None


class ForkChanges(TypedDict, total=False):
    """Changes of `Runtime.fork`, as in `Agent.fork`."""

    fork_id: str | None
    prompt: Prompt | None
    results: Mapping[str, Any] | None
    model: str | None
    settings: ModelSettings | None
    restricted: bool
    metadata: dict[str, Any] | None


def check_runtime(
    agents: Any, event_log: EventLog, queue: Queue | None, deps: Any, concurrency: Any, max_waiting: Any, **seconds: Any
) -> None:
    """Validate the arguments for `Runtime`.

    Raises:
        ConfigurationError: An argument is invalid, or the log can't be used with a queue.
    """
    check_log(event_log)
    if queue is not None:
        check_method("queue", queue, "enqueue", "a queue, such as PostgresQueue(dsn)")
    _check_log_is_shared(event_log, queue)
    _check_agents(agents)
    check_argument("deps", deps, deps is None or callable(deps), "a function of the run record that returns the deps")
    check_minimum(1, optional=True, concurrency=concurrency)
    check_minimum(0, optional=True, max_waiting=max_waiting)
    check_positive(zero=True, optional=False, **seconds)


def check_start_options(options: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Reject options not supported by `Runtime.start`.

    Raises:
        ConfigurationError: A model or a strategy is an object, which the log cannot store.
        TypeError: An option is unknown. The message suggests a replacement if possible.
    """
    for name in options:
        if name not in allowed:
            # Imported lazily, because correct programs do not need it.
            from rxloop._names import explain_argument

            hint = _HINTS.get(name) or explain_argument("Runtime.start", ["Agent.run", "option"], name, allowed)
            raise TypeError(f"start() does not accept {name!r}; {hint}")
    for name in ("model", "strategy"):
        value = options.get(name)
        expected = f"a string for start(), because the log stores it; pass the object to Agent(..., {name}=...)"
        check_type(name, value, str | None, expected)


def _check_log_is_shared(event_log: EventLog, queue: Queue | None) -> None:
    """Warn about a log whose leases and commands are limited to this process.

    Raises:
        ConfigurationError: The log can't be used with a queue.
    """
    kind = type(event_log)
    has_leases = kind.acquire_lease is not EventLog.acquire_lease
    if has_leases and kind.send_command is not EventLog.send_command:
        return
    # Only logs without these methods pay for the import.
    from rxloop.storage import MemoryEventLog

    if isinstance(event_log, MemoryEventLog):
        return
    missing = "acquire_lease(), has_lease(), release_lease(), list_orphaned() and send_command(), read_commands(), "
    missing += "watch_commands()"
    if queue is not None:
        raise ConfigurationError(
            f"a queue requires a log with leases and commands; {kind.__name__} must override {missing}"
        )
    log.warning(
        "%s has no leases or commands, so it is only safe in one process. With several processes, runs fail with a "
        "ConflictError and commands are lost. Override %s",
        kind.__name__,
        missing,
    )


def _check_agents(agents: Any) -> None:
    check_type("agents", agents, Mapping, "a mapping of agents by name, such as {'support': support}")
    for name, agent in cast("Mapping[Any, Any]", agents).items():
        if not isinstance(name, str) or not isinstance(agent, Agent):
            raise ConfigurationError(f"agents must map names to agents, got {name!r}: {agent!r}")
