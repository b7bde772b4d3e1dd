"""What a run is rung for with: kept in its metadata, so that whoever finds it without a bell can ring again."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Any

from rxloop.errors import ConfigurationError, QueueFull
from rxloop.pipeline.queues import Queue
from rxloop.pipeline.values import RunRecord

log = logging.getLogger("rxloop")

QUEUE = "rxloop:queue"
"""The key in the metadata of a run."""
_COUNTED_FOR = 1.0
"""Seconds for which the length of a queue is taken for known."""


def told(priority: int, at: datetime | None, version: str | None) -> dict[str, Any]:
    """The metadata of a run that is started like this.

    Raises:
        ConfigurationError: `at` has no time zone.
    """
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


async def ring(queue: Queue, record: RunRecord) -> None:
    """Ring for a run. If that fails, workers find it without, and later."""
    kept = _kept(record)
    at = datetime.fromtimestamp(kept["at"] / 1000, UTC) if due_in(record) > 0 else None
    try:
        await queue.ring(
            record.task_id,
            priority=kept.get("priority", 0),
            at=at,
            tenant=record.owner,
            version=kept.get("version"),
        )
    except Exception as error:
        log.warning("the bell for the run %s does not ring: %s; a worker finds the run later", record.task_id, error)


def _kept(record: RunRecord) -> dict[str, Any]:
    return record.metadata.get(QUEUE) or {}


class Depth:
    """Refuses what is new where too much waits already."""

    def __init__(self, queue: Queue, most: int | None) -> None:
        """Watch a queue; None is no limit."""
        self._queue, self._most = queue, most
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
            try:
                self._waiting = await self._queue.waiting()
            except Exception as error:
                # The log says whether anything can be started at all.
                log.warning("it is not known how much waits in the queue: %s", error)
                self._waiting = 0
        if self._waiting >= self._most:
            raise QueueFull(f"{self._waiting} runs wait for a worker, and no more than {self._most} may: try later")
        self._waiting += 1
