"""What a run is rung for with: kept in its metadata, so that whoever finds it without a bell can ring again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rxloop.errors import ConfigurationError, QueueFull
from rxloop.pipeline.queues import Queue
from rxloop.pipeline.values import RunRecord

log = logging.getLogger("rxloop")

QUEUE = "rxloop:queue"
"""The key in the metadata of a run."""
_COUNTED_FOR, _COUNTED_IN = 1.0, 2.0
"""Seconds for which the length of a queue is taken for known, and that it may take to count it."""
_PRIORITIES = 1_000_000
"""The greatest priority, and with a minus the least: a queue may have 32 bits for it, and puts something on top."""


def check_priority(priority: Any) -> None:
    """See that a queue can have this priority.

    Raises:
        ConfigurationError: It cannot.
    """
    if type(priority) is not int or not -_PRIORITIES <= priority <= _PRIORITIES:
        raise ConfigurationError(
            f"priority must be a whole number from {-_PRIORITIES:,} to {_PRIORITIES:,}, not {priority!r}"
        )


def told(priority: int, at: datetime | None, version: str | None) -> dict[str, Any]:
    """The metadata of a run that is started like this.

    Raises:
        ConfigurationError: `at` has no time zone, or `priority` is none.
    """
    check_priority(priority)
    if at is not None and at.tzinfo is None:
        raise ConfigurationError(f"at={at!r} has no time zone: write datetime(..., tzinfo=UTC)")
    found = {
        "priority": priority or None,
        "at": None if at is None else round(at.timestamp() * 1000),
        "version": version,
    }
    kept = {name: value for name, value in found.items() if value is not None}
    return {QUEUE: kept} if kept else {}


def version_of(record: RunRecord) -> str | None:
    """The version of the program that started a run."""
    return _kept(record).get("version")


def due_in(record: RunRecord) -> float:
    """Seconds until a run may begin; 0 or less if it may."""
    return _kept(record).get("at", 0) / 1000 - time.time()


async def ring(queue: Queue, record: RunRecord) -> bool:
    """Ring for a run, and give whether that was done. If it fails, workers find the run without, and later."""
    kept = _kept(record)
    # The queue tells whether it has come: the clock of this process need not be that of others.
    at = datetime.fromtimestamp(kept["at"] / 1000, UTC) if "at" in kept else None
    try:
        await queue.ring(
            record.task_id,
            priority=kept.get("priority", 0),
            at=at,
            tenant=record.owner,
            agent=record.agent_name,
            version=kept.get("version"),
        )
    except Exception as error:
        log.warning("the bell for the run %s does not ring: %s; a worker finds the run later", record.task_id, error)
        return False
    return True


async def ring_for_all(queue: Queue, records: Sequence[RunRecord]) -> bool:
    """Ring for runs until one bell fails, and give whether none has: the others would, and may take their time."""
    for record in records:
        if not await ring(queue, record):
            return False
    return True


async def waiting(queue: Queue, version: str | None) -> int:
    """How many bells ring that no worker of this version has answered; none, where that is not known."""
    try:
        async with asyncio.timeout(_COUNTED_IN):
            return await queue.waiting(version)
    except Exception as error:
        log.warning("it is not known how much waits in the queue: %s", str(error) or f"no answer in {_COUNTED_IN:g} s")
        return 0


def _kept(record: RunRecord) -> dict[str, Any]:
    return record.metadata.get(QUEUE) or {}


class Depth:
    """Refuses what is new where too much waits already."""

    def __init__(self, queue: Queue, most: int | None, version: str | None) -> None:
        """Watch what waits in a queue for workers of a version; None is no limit."""
        self._queue, self._most, self._version = queue, most, version
        self._waiting = 0
        self._counted_at = float("-inf")

    async def check(self) -> None:
        """See that there is room for one more.

        Raises:
            QueueFull: There is not.
        """
        if self._most is None:
            return
        now = time.monotonic()
        if now > self._counted_at + _COUNTED_FOR:
            self._counted_at = now
            # If that is not known, the log says whether anything can be started at all.
            self._waiting = await waiting(self._queue, self._version)
        if self._waiting >= self._most:
            raise QueueFull(f"{self._waiting} runs wait for a worker, and no more than {self._most} may: try later")
        self._waiting += 1
