"""Worker process, including scheduled runs."""

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
from rxloop.runtime.attempts import DepsFactory
from rxloop.runtime.jobs import check_priority
from rxloop.runtime.runtime import Runtime
from rxloop.runtime.validation import StartOptions

log = logging.getLogger("rxloop")

_MAX_DELAY = 600.0
"""Seconds within which a missed start is still made up for."""

_CHECK_INTERVAL = 30.0
"""Seconds between checks of the wall clock, in case the machine sleeps or its clock is changed."""

_RANDOM = re.compile(r"(?<![a-z])r(?![a-z])", re.IGNORECASE)
"""Matches croniter's random fields, but not names containing an r such as `mar`."""

_OPTIONS = (*StartOptions.__annotations__, "priority")


@dataclass(frozen=True, slots=True)
class Periodic:
    """Schedule for starting a run repeatedly.

    Raises:
        ConfigurationError: The cron expression is invalid or never matches, or an option is invalid.

    Attributes:
        name: Unique name, which should not be changed later.
        cron: Schedule in UTC, as `minute hour day month weekday`, for example `"0 7 * * mon-fri"`. An optional sixth
            field holds seconds. Runs missed by more than ten minutes are skipped with a warning.
        agent: Name of the agent.
        prompt: Prompt for the agent.
        options: Options for `Runtime.start` except its key and time, such as `{"owner": "ann", "priority": 5}`.
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
                "Periodic requires croniter, which is not installed; pip install 'rxloop[postgres]'"
            ) from error

        label = f"cron of {self.name!r}"
        if not croniter.is_valid(self.cron):
            raise ConfigurationError(f"{label} must be a cron expression such as '0 7 * * *', got {self.cron!r}")
        if len(self.cron.split()) > 6:
            raise ConfigurationError(f"{label} must have at most six fields, up to the seconds, got {self.cron!r}")
        if _RANDOM.search(self.cron):
            raise ConfigurationError(
                f"{label} must not be random, because workers would choose different times, got {self.cron!r}"
            )
        try:
            self.after(time.time())
        except CroniterBadDateError:
            raise ConfigurationError(f"{label} never matches, got {self.cron!r}") from None
        check_priority(self.options.get("priority", 0))
        if unknown := [name for name in self.options if name not in _OPTIONS]:
            raise ConfigurationError(f"{self.name!r} has unknown option {unknown[0]!r}, expected {', '.join(_OPTIONS)}")

    def after(self, timestamp: float) -> float:
        """Return the next scheduled time after a timestamp, both in seconds since the epoch."""
        from croniter import croniter

        return croniter(self.cron, timestamp).get_next(float)

    def before(self, timestamp: float) -> float:
        """Return the last scheduled time before a timestamp."""
        from croniter import croniter

        return croniter(self.cron, timestamp).get_prev(float)


async def keep_starting(runtime: Runtime, periodic: Periodic) -> None:
    """Start a run at each scheduled time.

    All workers do this using the same key, so that each run is only started once.
    """
    # Also start the run scheduled just before now.
    handled_until = periodic.before(time.time()) - 1
    while True:
        now = time.time()
        # If the clock was set back, repeated times resolve to the existing runs.
        handled_until = min(handled_until, now)
        timestamp = periodic.after(handled_until)
        if timestamp < now - _MAX_DELAY:
            handled_until = periodic.before(now - _MAX_DELAY)
            await _warn_missed(runtime, periodic, timestamp, handled_until)
        elif timestamp <= now:
            await _start(runtime, periodic, timestamp)
            handled_until = timestamp
        else:
            await asyncio.sleep(min(timestamp - now, _CHECK_INTERVAL))


async def _start(runtime: Runtime, periodic: Periodic, timestamp: float) -> None:
    pause = 1.0
    while True:
        try:
            await runtime.start(periodic.agent, periodic.prompt, key=_make_key(periodic, timestamp), **periodic.options)
            return
        except ConfigurationError:
            raise
        except Exception as error:
            if time.time() - timestamp >= _MAX_DELAY:
                log.warning("Failed to start %r at %s: %s", periodic.name, _format_time(timestamp), error)
                return
            log.warning("Failed to start %r: %s; retrying in %g s", periodic.name, error, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _CHECK_INTERVAL)


async def _warn_missed(runtime: Runtime, periodic: Periodic, first: float, last: float) -> None:
    """Warn about missed runs, unless another worker started them."""
    try:
        await runtime.get_record(
            runtime.derive_run_id(periodic.agent, _make_key(periodic, last), periodic.options.get("owner"))
        )
    except Exception as error:
        reason = (
            "no worker was running"
            if isinstance(error, UnknownRun)
            else f"unknown whether a worker was running ({error})"
        )
        missed = (
            _format_time(last) if first == last else f"its times from {_format_time(first)} to {_format_time(last)}"
        )
        log.warning(
            "Missed starting %r at %s: %s in the following %d minutes. Ignore this if the schedule is new",
            periodic.name,
            missed,
            reason,
            _MAX_DELAY / 60,
        )


def _make_key(periodic: Periodic, timestamp: float) -> str:
    return f"periodic:{periodic.name}:{timestamp:.0f}"


def _format_time(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_CANCEL_INTERVAL = 5.0
"""Seconds to wait before cancelling a task again."""


async def work(
    agents: Mapping[str, Agent[Any, Any]],
    queue: Queue,
    *,
    log: EventLog,
    deps: DepsFactory | None = None,
    periodic: Sequence[Periodic] = (),
    concurrency: int = 32,
    adopt_every: float = 2.0,
    grace: float = 10.0,
    version: str | None = None,
) -> None:
    """Execute runs, including those left behind by dead workers, until cancelled.

    When cancelled, no new runs are accepted. Runs have `grace` seconds to end, then they are released and resumed by
    other workers. The log, queue and agents aren't closed. This is equivalent to a `Runtime` with `is_worker=True`.

    Example:
        >>> log, queue = PostgresEventLog(dsn), PostgresQueue(dsn)
        >>> await work({"support": support}, queue, log=log)

    Args:
        agents: Agents, keyed by the name used for starting runs.
        queue: Job queue to serve.
        log: Event log for the runs.
        deps: See `Runtime`.
        periodic: Schedules of runs to start.
        concurrency: Maximum number of runs executed at once.
        adopt_every: Seconds between searches for orphaned runs.
        grace: Seconds to wait for runs to end.
        version: See `Runtime`.

    Raises:
        ConfigurationError: An argument is invalid.
        EventLogError: The log could not be read on startup.
    """
    runtime = Runtime(
        agents,
        log=log,
        deps=deps,
        concurrency=concurrency,
        adopt_every=adopt_every,
        grace=grace,
        queue=queue,
        is_worker=True,
        version=version,
    )
    async with runtime:
        tasks = [asyncio.create_task(keep_starting(runtime, each), name=f"rxloop-{each.name}") for each in periodic]
        try:
            if not tasks:
                await asyncio.Event().wait()
            # A schedule only ends due to invalid options.
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in ended:
                each.result()
        finally:
            while running := [each for each in tasks if not each.done()]:
                for each in running:
                    each.cancel()
                # Libraries may mistake a cancellation for an error.
                await asyncio.wait(running, timeout=_CANCEL_INTERVAL)
