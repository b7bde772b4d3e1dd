"""The runs of agents, and of versions of them, that this process is not: somebody else has to go on with those."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence

from rxloop.pipeline.logs import EventLog
from rxloop.pipeline.values import RunRecord
from rxloop.run.earlier import earlier_run
from rxloop.runtime._bells import version_of
from rxloop.state.conversation import read_log

log = logging.getLogger("rxloop")

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
        if await earlier_run(self._log, record.context_id, record.task_id) is not None:
            return True
        ownerless = {orphan.task_id for orphan in orphans}
        working = await read_log(
            self._log.runs, agent_name=record.agent_name, states=("working",), newest_first=True, limit=_NEWEST
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
