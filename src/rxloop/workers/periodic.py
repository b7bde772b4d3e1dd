"""Runs that are started by the clock, each once, by whatever workers there are."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rxloop.errors import ConfigurationError
from rxloop.protocol.messages import Prompt
from rxloop.runtime.runtime import Runtime

log = logging.getLogger("rxloop")

_LATEST = 600.0
"""Seconds for which a start is made good that nobody was there for."""


@dataclass(frozen=True, slots=True)
class Periodic:
    """A run that is started again and again.

    Attributes:
        name: What tells it apart from the others; keep it.
        cron: When, in UTC, as `minute hour day month weekday`: `"0 7 * * mon-fri"`. With a sixth field for seconds.
        agent: The name of the agent.
        prompt: What is asked.
        options: As for `Runtime.start`, such as `{"owner": "ann", "priority": 5}`.
    """

    name: str
    cron: str
    agent: str
    prompt: Prompt
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        try:
            from croniter import croniter
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "periodic runs need croniter, which is not installed: pip install 'rxloop[postgres]'"
            ) from error

        if not croniter.is_valid(self.cron):
            raise ConfigurationError(f"the cron of {self.name!r} cannot be read: {self.cron!r}; write '0 7 * * *'")


async def start_on(runtime: Runtime, periodic: Periodic) -> None:
    """Start a run at each of its times.

    All workers do so, under the same key, and so it is started once.
    """
    from croniter import croniter

    at = croniter(periodic.cron, time.time()).get_prev(float)
    while True:
        late = time.time() - at
        if late < 0:
            await asyncio.sleep(-late)
            continue
        if late < _LATEST:
            await _start(runtime, periodic, at)
        at = croniter(periodic.cron, at).get_next(float)


async def _start(runtime: Runtime, periodic: Periodic, at: float) -> None:
    key = f"periodic:{periodic.name}:{at:.0f}"
    while True:
        try:
            await runtime.start(periodic.agent, periodic.prompt, key=key, **periodic.options)
        except ConfigurationError:
            raise
        except Exception as error:
            log.warning("%r cannot be started: %s; trying again", periodic.name, error)
            await asyncio.sleep(1)
            if time.time() - at < _LATEST:
                continue
        return
