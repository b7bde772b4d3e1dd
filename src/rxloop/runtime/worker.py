"""Worker process, and runs started by the clock."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rxloop.agents.agent import Agent
from rxloop.errors import ConfigurationError, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Queue
from rxloop.protocol.messages import Prompt
from rxloop.runtime.executor import DepsOf
from rxloop.runtime.jobs import check_priority
from rxloop.runtime.runtime import Runtime, StartOptions

log = logging.getLogger("rxloop")

_LATEST = 600.0
"""Seconds for which a start is made good that nobody was there for."""

_LOOK = 30.0
"""Seconds between two looks at the clock on the wall: a machine may sleep, and be told another time."""

_RANDOM = re.compile(r"(?<![a-z])r(?![a-z])", re.IGNORECASE)
"""What croniter takes for a number of its own choice, and no part of a name such as `mar`."""

_OPTIONS = (*StartOptions.__annotations__, "priority")


@dataclass(frozen=True, slots=True)
class Periodic:
    """A run that is started again and again.

    Raises:
        ConfigurationError: The times cannot be read, or never come, or an option is wrong.

    Attributes:
        name: What tells it apart from the others; keep it.
        cron: When, in UTC, as `minute hour day month weekday`: `"0 7 * * mon-fri"`. With a sixth field for seconds.
            What is more than ten minutes late is not started; a warning says so.
        agent: The name of the agent.
        prompt: What is asked.
        options: Those of `Runtime.start`, without its key and time, such as `{"owner": "ann", "priority": 5}`.
    """

    name: str
    cron: str
    agent: str
    prompt: Prompt
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        try:
            from croniter import CroniterBadDateError, croniter
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "periodic runs need croniter, which is not installed: pip install 'rxloop[postgres]'"
            ) from error

        whose = f"the cron of {self.name!r}"
        if not croniter.is_valid(self.cron):
            raise ConfigurationError(f"{whose} cannot be read: {self.cron!r}; write '0 7 * * *'")
        if len(self.cron.split()) > 6:
            raise ConfigurationError(
                f"{whose} has a year in it: {self.cron!r}; write at most six fields, to the seconds"
            )
        if _RANDOM.search(self.cron):
            raise ConfigurationError(f"{whose} is random, and other workers would have other times: {self.cron!r}")
        try:
            self.after(time.time())
        except CroniterBadDateError:
            raise ConfigurationError(f"{whose} is of a day that never comes: {self.cron!r}") from None
        check_priority(self.options.get("priority", 0))
        if unknown := [name for name in self.options if name not in _OPTIONS]:
            raise ConfigurationError(f"{self.name!r} has no option {unknown[0]!r}: it takes {', '.join(_OPTIONS)}")

    def after(self, moment: float) -> float:
        """The next of its times after a moment, in seconds of the clock on the wall."""
        from croniter import croniter

        return croniter(self.cron, moment).get_next(float)

    def before(self, moment: float) -> float:
        """The last of its times before a moment."""
        from croniter import croniter

        return croniter(self.cron, moment).get_prev(float)


async def start_on(runtime: Runtime, periodic: Periodic) -> None:
    """Start a run at each of its times.

    All workers do so, under the same key, and so it is started once.
    """
    # So that the one before now comes, too.
    seen = periodic.before(time.time()) - 1
    while True:
        now = time.time()
        # Where the clock was put back, times come once more, and are the runs that there are already.
        seen = min(seen, now)
        at = periodic.after(seen)
        if at < now - _LATEST:
            seen = periodic.before(now - _LATEST)
            await _tell_missed(runtime, periodic, at, seen)
        elif at <= now:
            await _start(runtime, periodic, at)
            seen = at
        else:
            await asyncio.sleep(min(at - now, _LOOK))


async def _start(runtime: Runtime, periodic: Periodic, at: float) -> None:
    pause = 1.0
    while True:
        try:
            await runtime.start(periodic.agent, periodic.prompt, key=_key(periodic, at), **periodic.options)
            return
        except ConfigurationError:
            raise
        except Exception as error:
            if time.time() - at >= _LATEST:
                log.warning("%r was not started at %s: %s", periodic.name, _told(at), error)
                return
            log.warning("%r cannot be started: %s; trying again in %g s", periodic.name, error, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LOOK)


async def _tell_missed(runtime: Runtime, periodic: Periodic, first: float, last: float) -> None:
    """Warn of starts that come too late, unless another worker was there."""
    try:
        await runtime.get_record(runtime.id_of(periodic.agent, _key(periodic, last), periodic.options.get("owner")))
    except Exception as error:
        why = (
            "no worker was there"
            if isinstance(error, UnknownRun)
            else f"it is not known whether a worker was ({error})"
        )
        when = _told(last) if first == last else f"its times from {_told(first)} to {_told(last)}"
        log.warning(
            "%r was not started at %s, unless it is new: %s in the %d minutes after",
            periodic.name,
            when,
            why,
            _LATEST / 60,
        )


def _key(periodic: Periodic, at: float) -> str:
    return f"periodic:{periodic.name}:{at:.0f}"


def _told(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_STOPS_IN = 5.0
"""Seconds after which what has not stopped is told so once more."""


async def work(
    agents: Mapping[str, Agent[Any, Any]],
    queue: Queue,
    *,
    log: EventLog,
    deps: DepsOf | None = None,
    periodic: Sequence[Periodic] = (),
    concurrency: int = 32,
    adopt_every: float = 2.0,
    grace: float = 10.0,
    version: str | None = None,
) -> None:
    """Bring to rest what is started, and go on with what dead workers have left, until it is cancelled.

    Then it takes nothing new, lets runs end within `grace`, and gives up those that have not: other workers go on with
    them. The log, the queue and the agents stay open. What it does is what a `Runtime` with `works=True` does.

    Example:
        >>> log, queue = PostgresEventLog(dsn), PostgresQueue(dsn)
        >>> await work({"support": support}, queue, log=log)

    Args:
        agents: By the names under which runs are started.
        queue: Calls for runs.
        log: Keeps the runs.
        deps: As for `Runtime`.
        periodic: Runs that are started by the clock.
        concurrency: How many runs go on here at once.
        adopt_every: Seconds between two looks for runs whose worker is gone.
        grace: Seconds that runs have to end in.
        version: As for `Runtime`.

    Raises:
        ConfigurationError: An argument is of a wrong kind.
        EventLogError: The log could not be read at the beginning.
    """
    runtime = Runtime(
        agents,
        log=log,
        deps=deps,
        concurrency=concurrency,
        adopt_every=adopt_every,
        grace=grace,
        queue=queue,
        works=True,
        version=version,
    )
    async with runtime:
        starting = [asyncio.create_task(start_on(runtime, each), name=f"rxloop-{each.name}") for each in periodic]
        try:
            if not starting:
                await asyncio.Event().wait()
            # One of them ends only by a mistake in what it is to start.
            ended, _ = await asyncio.wait(starting, return_when=asyncio.FIRST_COMPLETED)
            for each in ended:
                each.result()
        finally:
            while under_way := [each for each in starting if not each.done()]:
                for each in under_way:
                    each.cancel()
                # A library may take a cancellation for an error of its own.
                await asyncio.wait(under_way, timeout=_STOPS_IN)
