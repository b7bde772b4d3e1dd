"""Limits for clients, and the resources that each principal holds in this process, for all adapters of a log."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, Self
from weakref import WeakValueDictionary

from rxloop.coordination.answers import read_snapshot
from rxloop.errors import UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import FINISHED, RunRecord
from rxloop.server.core.errors import Refused

Resource = Literal["runs", "requests", "streams", "sessions", "webhooks", "commands", "command_bytes"]
"""Resource that a principal can hold. Each resource has a limit of the same name in `ServerLimits`."""
_CommandResource = Literal["commands", "command_bytes"]

_NOUNS: dict[Resource, str] = {
    "runs": "concurrent runs",
    "requests": "concurrent requests",
    "streams": "concurrent streams",
    "sessions": "open sessions",
    "webhooks": "webhooks of unfinished runs",
    "commands": "unprocessed messages and answers",
    "command_bytes": "bytes of unprocessed messages and answers",
}
RUN_SHARE = 4
"""A single run may have this part of the unprocessed commands of its owner."""
_REFUSAL_SECONDS = 1.0
"""Seconds for which a refused command is refused again without reading the log."""


def make_limit_error(resource: Resource, limit: int, scope: str = "") -> Refused:
    """Return the error for a principal that has reached a limit."""
    message = f"at most {limit} {_NOUNS[resource]} are allowed{scope}"
    return Refused(429, "too_many", message, fields={"limit": resource}, headers={"retry-after": "2"})


DEFAULT_VALUES = 20_000
"""Default number of JSON values in a body. Chat histories of 1 MiB have fewer."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Client limits.

    Attributes:
        body: Maximum body size in bytes.
        values: Maximum number of JSON values in a body, counted before parsing.
        body_seconds: Timeout for reading a body.
        log_seconds: Timeout for each event log operation before the response starts; the response is then 503. Runs and
            open streams have a longer timeout.
        runs: Maximum number of active runs per principal; None for no limit. Ignored without `auth`.
        streams: Maximum number of open streams per principal in this process; None for no limit. Ignored without
            `auth`, like the following limits up to `command_bytes`.
        requests: Maximum number of requests in progress per principal, including responses that are being sent.
        sessions: Maximum number of open MCP sessions per principal.
        webhooks: Maximum number of webhooks of unfinished A2A tasks per principal.
        commands: Maximum number of unprocessed messages and answers per owner. A single run may have a quarter.
        command_bytes: Maximum size of unprocessed messages and answers per owner. A single run may have a quarter.
        stalled: Seconds after which a client that does not read from its stream is disconnected. The client can
            reconnect.
        wait: Upper limit for `?wait=` in seconds; longer waits are shortened.
    """

    body: int = 1 << 20
    values: int = DEFAULT_VALUES
    body_seconds: float = 30.0
    log_seconds: float = 5.0
    runs: int | None = 8
    streams: int | None = 32
    requests: int | None = 64
    sessions: int | None = 256
    webhooks: int | None = 256
    commands: int | None = 256
    command_bytes: int | None = 4 << 20
    stalled: float = 30.0
    wait: float = 60.0


class Reservation:
    """One unit of a resource, released when the context manager exits."""

    def __init__(self, account: Account, principal_id: str, resource: Resource) -> None:
        self._key: tuple[str, Resource] | None = (principal_id, resource)
        self._account = account

    def release(self) -> None:
        """Release the unit. This method is idempotent."""
        if self._key is not None:
            self._account.release(*self._key)
            self._key = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


@dataclass(slots=True)
class _Commands:
    """Commands sent to a run by this process that may be unprocessed."""

    count: int = 0
    size: int = 0
    sending_count: int = 0
    sending_size: int = 0
    refused_at: float = float("-inf")


class Account:
    """Amounts of resources in use."""

    def __init__(self) -> None:
        self._used: Counter[tuple[str, Resource]] = Counter()
        self._commands: dict[str, dict[str, _Commands]] = {}
        """Commands by owner and run."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def count(self, principal_id: str, resource: Resource) -> int:
        """Return the number of units that a principal holds."""
        return self._used[principal_id, resource]

    def total(self) -> dict[Resource, int]:
        """Return the number of units that all principals hold, by resource."""
        totals: dict[Resource, int] = {"requests": 0, "streams": 0, "sessions": 0}
        # Copied, because another thread may read the figures.
        for (_, resource), count in list(self._used.items()):
            if resource in totals:
                totals[resource] += count
        return totals

    def check(self, principal_id: str, resource: Resource, limit: int | None) -> None:
        """Check whether a principal may hold another unit.

        Raises:
            Refused: If the principal has reached the limit.
        """
        if limit is not None and self._used[principal_id, resource] >= limit:
            raise make_limit_error(resource, limit)

    def reserve(self, principal_id: str, resource: Resource, limit: int | None) -> Reservation:
        """Reserve a unit of a resource.

        Raises:
            Refused: As for `check`.
        """
        self.check(principal_id, resource, limit)
        self._used[principal_id, resource] += 1
        return Reservation(self, principal_id, resource)

    def release(self, principal_id: str, resource: Resource) -> None:
        """Release a unit, see `Reservation.release`."""
        self._used[principal_id, resource] -= 1
        if not self._used[principal_id, resource]:
            del self._used[principal_id, resource]

    @asynccontextmanager
    async def reserve_command(
        self, log: EventLog, record: RunRecord, size: int, *, count_limit: int | None, size_limit: int | None
    ) -> AsyncGenerator[None]:
        """Count a command for a run that is sent inside the block.

        The run does not report when it has processed a command. The log is therefore read once a limit is reached.
        Commands of an owner are counted one after the other, because concurrent requests would read the same log.

        Args:
            log: Event log of the run.
            record: Record of the run.
            size: Size of the command in bytes.
            count_limit: Maximum number of commands of the owner, or None.
            size_limit: Maximum number of bytes of the owner, or None.

        Raises:
            Refused: If the run or its owner has too many unprocessed commands.
        """
        lock = self._locks.setdefault(record.owner or "", asyncio.Lock())
        async with lock:
            run = await self._add_command(log, record, size, count_limit, size_limit)
        run.sending_count, run.sending_size = run.sending_count + 1, run.sending_size + size
        try:
            yield
        finally:
            run.sending_count, run.sending_size = run.sending_count - 1, run.sending_size - size

    async def _add_command(
        self, log: EventLog, record: RunRecord, size: int, count_limit: int | None, size_limit: int | None
    ) -> _Commands:
        owner, task_id = record.owner or "", record.task_id
        runs = self._commands.setdefault(owner, {})
        run = runs.setdefault(task_id, _Commands())
        try:
            checks: tuple[tuple[_CommandResource, int | None, int], ...] = (
                ("commands", count_limit, 1),
                ("command_bytes", size_limit, size),
            )
            for resource, limit, amount in checks:
                if limit is None:
                    continue
                if await self._exceeds(log, {task_id: run}, resource, amount, limit // RUN_SHARE):
                    raise make_limit_error(resource, limit // RUN_SHARE, " per run")
                if await self._exceeds(log, runs, resource, amount, limit):
                    raise make_limit_error(resource, limit)
            run.count, run.size = run.count + 1, run.size + size
            return run
        finally:
            for each in [each for each, commands in runs.items() if not commands.count]:
                del runs[each]
            if not runs:
                del self._commands[owner]

    async def _exceeds(
        self,
        log: EventLog,
        runs: dict[str, _Commands],
        resource: _CommandResource,
        amount: int,
        limit: int,
    ) -> bool:
        def is_exceeded() -> bool:
            # A single command is always allowed, because bodies have their own limit.
            used = sum(each.count if resource == "commands" else each.size for each in runs.values())
            return used > 0 and used + amount > limit

        for task_id, commands in list(runs.items()):
            if not is_exceeded():
                return False
            if commands.refused_at + _REFUSAL_SECONDS <= time.monotonic():
                await _recount(log, task_id, commands)
        if not is_exceeded():
            return False
        for commands in runs.values():
            commands.refused_at = time.monotonic()
        return True


async def _recount(log: EventLog, task_id: str, commands: _Commands) -> None:
    # A command that is sent now may reach the log before or after the snapshot.
    sending_count, sending_size = commands.sending_count, commands.sending_size
    try:
        snapshot = await read_snapshot(log, task_id)
        pending = [command for _, command in snapshot.new_commands] if snapshot.record.state not in FINISHED else []
    except UnknownRun:
        pending = []
    commands.count = len(pending) + sending_count
    commands.size = sum(len(each.to_json()) for each in pending) + sending_size
