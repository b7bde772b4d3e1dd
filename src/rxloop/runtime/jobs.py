"""Jobs for executing runs, and detection of foreign runs without an owner."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from rxloop.coordination.order import find_blocking
from rxloop.errors import ConfigurationError, QueueFull
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Queue
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.support.misuse import check_argument

log = logging.getLogger("rxloop")

QUEUE = "rxloop:queue"
"""Key in the run metadata."""

_COUNT_MAX_AGE, _COUNT_TIMEOUT = 1.0, 2.0
"""Seconds to cache the queue depth, and maximum seconds to wait for it."""

_MAX_PRIORITY = 1_000_000
"""Maximum absolute priority. Queues may be limited to 32 bits, and add their own offset."""


def check_priority(priority: Any) -> None:
    """Validate the priority of a job.

    Raises:
        ConfigurationError: The priority is invalid.
    """
    is_valid = type(priority) is int and -_MAX_PRIORITY <= priority <= _MAX_PRIORITY
    check_argument("priority", priority, is_valid, f"an integer from {-_MAX_PRIORITY:,} to {_MAX_PRIORITY:,}")


def make_queue_metadata(priority: int, at: datetime | None, version: str | None) -> dict[str, Any]:
    """Create queue metadata for a new run.

    Raises:
        ConfigurationError: `at` has no time zone, or the priority is invalid.
    """
    check_priority(priority)
    if at is not None and at.tzinfo is None:
        raise ConfigurationError(f"at must have a time zone, got {at!r}; use datetime(..., tzinfo=UTC)")
    values = {
        "priority": priority or None,
        "at": None if at is None else round(at.timestamp() * 1000),
        "version": version,
    }
    metadata = {name: value for name, value in values.items() if value is not None}
    return {QUEUE: metadata} if metadata else {}


def get_version(record: RunRecord) -> str | None:
    """Return the program version that started the run."""
    return _get_queue_metadata(record).get("version")


def get_delay(record: RunRecord) -> float:
    """Return the seconds until the run is due, or a number that is not positive if it is already due."""
    return _get_queue_metadata(record).get("at", 0) / 1000 - time.time()


async def enqueue_run(queue: Queue, record: RunRecord) -> bool:
    """Enqueue a job for a run. Return False on failure, in which case workers find the run later."""
    metadata = _get_queue_metadata(record)
    # The queue decides when a job is due, because clocks may differ between processes.
    at = datetime.fromtimestamp(metadata["at"] / 1000, UTC) if "at" in metadata else None
    try:
        await queue.enqueue(
            record.task_id,
            priority=metadata.get("priority", 0),
            at=at,
            tenant=record.owner,
            agent=record.agent_name,
            version=metadata.get("version"),
        )
    except Exception as error:
        log.warning("Cannot enqueue run %s, leaving it to be found by a worker: %s", record.task_id, error)
        return False
    return True


async def enqueue_runs(queue: Queue, records: Sequence[RunRecord]) -> bool:
    """Enqueue jobs until one fails, because the others would likely fail too. Return True if all succeeded."""
    for record in records:
        if not await enqueue_run(queue, record):
            return False
    return True


async def count_waiting(queue: Queue, version: str | None) -> int:
    """Return the number of jobs waiting for workers of this version, or 0 if unknown."""
    try:
        async with asyncio.timeout(_COUNT_TIMEOUT):
            return await queue.waiting(version)
    except Exception as error:
        log.warning("Cannot read the queue depth: %s", str(error) or f"no answer in {_COUNT_TIMEOUT:g} s")
        return 0


def _get_queue_metadata(record: RunRecord) -> dict[str, Any]:
    return record.metadata.get(QUEUE) or {}


class QueueLimit:
    """Limit on the number of waiting jobs."""

    def __init__(self, queue: Queue, max_waiting: int | None, version: str | None) -> None:
        """Create a limit for a version's jobs. `max_waiting` may be None for no limit."""
        self._queue, self._max_waiting, self._version = queue, max_waiting, version
        self._waiting = 0
        self._counted_at = float("-inf")

    async def check(self) -> None:
        """Check that another job may be added without exceeding the limit.

        Raises:
            QueueFull: Too many jobs are already waiting.
        """
        if self._max_waiting is None:
            return
        now = time.monotonic()
        if now > self._counted_at + _COUNT_MAX_AGE:
            self._counted_at = now
            # If the depth is unknown, starting the run will still fail if the log is unavailable.
            self._waiting = await count_waiting(self._queue, self._version)
        if self._waiting >= self._max_waiting:
            raise QueueFull(f"the queue is full: {self._waiting} runs are waiting, the maximum is {self._max_waiting}")
        self._waiting += 1


_WARN_AFTER = 60.0
"""Seconds before warning about runs left without an owner."""

_MAX_CHECKED_RUNS = 50
"""Number of working runs to check for a worker of the same version."""

_Kind = tuple[str, str | None]
"""Agent name, and program version that started the run."""


class ForeignRuns:
    """Detector for foreign runs, which this process can't execute. Warns if they are orphaned."""

    def __init__(self, events: EventLog, agents: Collection[str], version: str | None) -> None:
        """Create a detector.

        Args:
            events: Event log.
            agents: Agent names known to this process.
            version: Program version of this process.
        """
        self._log, self._agents, self._version = events, agents, version
        self._since: dict[_Kind, float] = {}
        """Time at which each kind was first seen. Removed when no longer orphaned."""
        self._warned: set[_Kind] = set()
        """Kinds already warned about."""

    def can_execute(self, record: RunRecord) -> bool:
        """Return True if this process can execute the run."""
        return record.agent_name in self._agents and get_version(record) in (None, self._version)

    async def warn_if_orphaned(self, orphans: Sequence[RunRecord]) -> None:
        """Warn about foreign runs that have been orphaned for a minute.

        Args:
            orphans: Runs that are currently orphaned, and could continue.
        """
        first: dict[_Kind, RunRecord] = {}
        for record in orphans:
            if not self.can_execute(record):
                first.setdefault((record.agent_name, get_version(record)), record)
        now = asyncio.get_running_loop().time()
        self._since = {kind: self._since.get(kind, now) for kind in first}
        self._warned &= first.keys()
        for kind, record in first.items():
            if now - self._since[kind] < _WARN_AFTER:
                continue
            if await self._is_waiting(record, orphans):
                self._since[kind] = now
                self._warned.discard(kind)
            elif kind not in self._warned:
                self._warned.add(kind)
                self._warn(record)

    async def _is_waiting(self, record: RunRecord, orphans: Sequence[RunRecord]) -> bool:
        """Return True if the run is waiting for an earlier run, or for a worker that is busy with other runs."""
        if await find_blocking(self._log, record.conversation, record.task_id) is not None:
            return True
        ownerless = {orphan.task_id for orphan in orphans}
        working = await read_log(
            self._log.list_runs,
            agent_name=record.agent_name,
            states=("working",),
            newest_first=True,
            limit=_MAX_CHECKED_RUNS,
        )
        version = get_version(record)
        return any(get_version(each) == version and each.task_id not in ownerless for each in working)

    def _warn(self, record: RunRecord) -> None:
        if record.agent_name in self._agents:
            log.warning(
                "Orphaned run %s was started by version %r, but this process is version %s; start a worker of that "
                "version to resume it",
                record.task_id,
                get_version(record),
                "none" if self._version is None else repr(self._version),
            )
        else:
            log.warning(
                "Run %s is orphaned and needs agent %r, but this runtime only has %s",
                record.task_id,
                record.agent_name,
                ", ".join(self._agents),
            )
