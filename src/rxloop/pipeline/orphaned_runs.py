"""Search for orphaned runs with the methods that every event log has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from typing_extensions import Unpack

from rxloop.errors import UnknownRun
from rxloop.pipeline.local_state import FirstSeen, LocalState
from rxloop.pipeline.records import RunQuery, RunRecord
from rxloop.protocol.commands import Command
from rxloop.protocol.events import Event
from rxloop.state.fold import fold_all
from rxloop.support.tasks import CLOCK
from rxloop.support.threads import compute


class _Log(Protocol):
    """Methods of an event log. A reference to `EventLog` would be an import cycle."""

    @property
    def local(self) -> LocalState: ...
    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]: ...
    async def list_runs(self, **query: Unpack[RunQuery]) -> Sequence[RunRecord]: ...
    async def has_lease(self, conversation: str, task_id: str) -> bool: ...
    async def read_commands(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Command]]: ...


async def list_orphaned(
    log: _Log, submitted_before: float, submitted_limit: int | None, submitted_after: str | None
) -> Sequence[RunRecord]:
    """Return resumable runs without a lease, as the default of `EventLog.list_orphaned`."""
    now = CLOCK.get().monotonic()
    records = await log.list_runs(states=("submitted", "working", "input-required", "auth-required"))
    submitted = [record.task_id for record in records if record.state == "submitted"]
    seen = log.local.get(FirstSeen).update(submitted, now)
    later = set(submitted)
    if submitted_after is not None:
        try:
            newer = await log.list_runs(states=("submitted",), after=submitted_after)
            later = {record.task_id for record in newer}
        except UnknownRun:
            pass
    orphaned: list[RunRecord] = []
    for record in records:
        if await log.has_lease(record.conversation, record.task_id):
            continue
        if record.state == "submitted":
            if record.task_id not in later or seen[record.task_id] > now - submitted_before:
                continue
            if submitted_limit is not None:
                submitted_limit -= 1
                if submitted_limit < 0:
                    continue
        elif record.state != "working" and not await _is_answered(log, record.task_id):
            continue
        orphaned.append(record)
    return orphaned


async def _is_answered(log: _Log, task_id: str) -> bool:
    """Return True if a waiting run has an unapplied answer or cancel command."""
    commands = await log.read_commands(task_id)
    if all(command.kind == "message" for _, command in commands):
        return False
    events = await log.read(task_id)
    applied = (await compute(partial(fold_all, events), steps=len(events))).last_command
    return any(number > applied and command.kind != "message" for number, command in commands)
