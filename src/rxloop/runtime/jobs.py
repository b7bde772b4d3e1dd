"""Jobs for runs, and the search for runs without owner or job."""

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
        await queue.enqueue(
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


_STRANDED = 60.0
"""Seconds without anybody who goes on with such runs, after which that is told."""

_NEWEST = 50
"""How many runs of an agent that go on are looked at, for one of the same version."""

_Kind = tuple[str, str | None]
"""An agent, and the version of the program that has started its run."""


class Strangers:
    """Tells them from those that this process can go on with, and warns of those with which nobody does."""

    def __init__(self, events: EventLog, agents: Collection[str], version: str | None) -> None:
        """Know what this process is.

        Args:
            events: The log.
            agents: The names of its agents.
            version: That of its program.
        """
        self._log, self._agents, self._version = events, agents, version
        self._since: dict[_Kind, float] = {}
        """When each was seen first, of those that were seen at every look since."""
        self._stranded: set[_Kind] = set()
        """Those that were told of."""

    def knows(self, record: RunRecord) -> bool:
        """Whether a run is none of them: this process can go on with it."""
        return record.agent_name in self._agents and version_of(record) in (None, self._version)

    async def look(self, orphans: Sequence[RunRecord]) -> None:
        """Look which runs of others nobody goes on with; that is told once it has been so for a while.

        Args:
            orphans: The runs that have no owner at this moment, and could go on.
        """
        first: dict[_Kind, RunRecord] = {}
        for record in orphans:
            if not self.knows(record):
                first.setdefault((record.agent_name, version_of(record)), record)
        now = asyncio.get_running_loop().time()
        self._since = {kind: self._since.get(kind, now) for kind in first}
        self._stranded &= first.keys()
        for kind, record in first.items():
            if now - self._since[kind] < _STRANDED:
                continue
            if await self._has_its_turn_to_come(record, orphans):
                self._since[kind] = now
                self._stranded.discard(kind)
            elif kind not in self._stranded:
                self._stranded.add(kind)
                self._warn(record)

    async def _has_its_turn_to_come(self, record: RunRecord, orphans: Sequence[RunRecord]) -> bool:
        """Whether a run waits for another one of its conversation, or for somebody alive who is busy with others."""
        if await find_blocking(self._log, record.context_id, record.task_id) is not None:
            return True
        ownerless = {orphan.task_id for orphan in orphans}
        working = await read_log(
            self._log.list_runs, agent_name=record.agent_name, states=("working",), newest_first=True, limit=_NEWEST
        )
        version = version_of(record)
        return any(version_of(each) == version and each.task_id not in ownerless for each in working)

    def _warn(self, record: RunRecord) -> None:
        if record.agent_name in self._agents:
            log.warning(
                "nobody drives the run %s, which version %r has started, and this is %s: a worker of that version "
                "has to go on with it",
                record.task_id,
                version_of(record),
                "none" if self._version is None else repr(self._version),
            )
        else:
            log.warning(
                "nobody drives the run %s, and this runtime has no agent %r that could go on with it: it has %s",
                record.task_id,
                record.agent_name,
                ", ".join(self._agents),
            )
