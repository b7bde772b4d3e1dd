"""Tests for the event log contract, using invalid logs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from typing_extensions import override

from rxloop import Event, MemoryEventLog
from rxloop.errors import ConflictError, UnknownRun
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.commands import Command
from rxloop.testing.event_log_contract import CHECKS, SHARED_CHECKS, check_event_log


class LosingLog(MemoryEventLog):
    """Omits the last event."""

    @override
    async def read(self, task_id: str, **options: Any) -> Sequence[Event]:
        return (await super().read(task_id, **options))[:-1]


class ConflictFreeLog(MemoryEventLog):
    """Ignores conflicts."""

    @override
    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        with suppress(ConflictError):
            await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


class WriterBlindLog(MemoryEventLog):
    """Ignores the `writer` argument."""

    @override
    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        await super().append(task_id, events, expected_seq=expected_seq, writer="any")


class ImpatientLog(MemoryEventLog):
    """Does not wait for new events."""

    @override
    async def follow(self, task_id: str, **options: Any) -> AsyncIterator[Event]:
        for event in await self.read(task_id, after_seq=options.get("after_seq", 0)):
            yield event


class PermissiveLog(MemoryEventLog):
    """Returns no events for unknown runs."""

    @override
    async def read(self, task_id: str, **options: Any) -> Sequence[Event]:
        try:
            return await super().read(task_id, **options)
        except UnknownRun:
            return ()


class SortedLog(MemoryEventLog):
    """Sorts runs by timestamp."""

    @override
    async def list_runs(self, **options: Any) -> Sequence[RunRecord]:
        return sorted(await super().list_runs(**options), key=lambda record: record.created)


class SharedLeaseLog(MemoryEventLog):
    """Grants leases that are already held."""

    @override
    async def acquire_lease(self, conversation: str, task_id: str, on_lost: Callable[[], None]) -> bool:
        await super().acquire_lease(conversation, task_id, on_lost)
        return True


class OrphaningLog(MemoryEventLog):
    """Lists all unfinished runs as orphaned."""

    @override
    async def list_orphaned(self, **submitted: Any) -> Sequence[RunRecord]:
        return await self.list_runs(unfinished=True)


class SubmitterClockLog(MemoryEventLog):
    """Uses the timestamps of submitted runs."""

    @override
    async def list_orphaned(self, *, submitted_before: float = 30, **submitted: Any) -> Sequence[RunRecord]:
        before = round((time.time() - submitted_before) * 1000)
        records = await super().list_orphaned(submitted_before=0, **submitted)
        return [record for record in records if record.state != "submitted" or record.created <= before]


class OldestFirstLog(MemoryEventLog):
    """Ignores the `submitted_after` argument."""

    @override
    async def list_orphaned(self, *, submitted_after: str | None = None, **submitted: Any) -> Sequence[RunRecord]:
        return await super().list_orphaned(**submitted)


class RepeatingLog(MemoryEventLog):
    """Returns commands repeatedly."""

    @override
    async def read_commands(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Command]]:
        return await super().read_commands(task_id, after=after - 1)


@pytest.mark.parametrize(
    ("log_type", "check"),
    [
        (SharedLeaseLog, "conversation_has_one_lease"),
        (OrphaningLog, "list_orphaned_returns_active_runs_without_a_lease"),
        (SubmitterClockLog, "submitted_run_is_orphaned_after_a_delay"),
        (OldestFirstLog, "list_orphaned_limits_submitted_runs"),
        (RepeatingLog, "read_commands_returns_commands_in_order"),
        (LosingLog, "read_returns_appended_events_in_order"),
        (ConflictFreeLog, "append_rejects_a_wrong_expected_seq"),
        (WriterBlindLog, "append_accepts_one_of_two_concurrent_writers"),
        (ImpatientLog, "follow_yields_stored_and_new_events"),
        (PermissiveLog, "read_and_follow_raise_unknown_run"),
        (SortedLog, "list_runs_keeps_the_insertion_order"),
    ],
)
async def test_log_that_violates_the_contract_fails_its_check(
    log_type: type[MemoryEventLog], check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rxloop.testing.event_log_contract.toolkit.SECONDS", 0.05)
    checks = [function for function in CHECKS if function.__name__ == check]
    with pytest.raises(AssertionError):
        await checks[0](log_type)


async def test_check_event_log_names_the_failed_check() -> None:
    await check_event_log(MemoryEventLog)

    with pytest.raises(AssertionError) as raised:
        await check_event_log(SortedLog)

    assert raised.value.__notes__ == ["event log contract: list_runs_keeps_the_insertion_order"]


async def test_log_without_transient_events_skips_their_checks() -> None:
    def make_log(*, keep_deltas: bool = False) -> MemoryEventLog:
        return MemoryEventLog()

    await check_event_log(make_log)


def test_checks_can_run_concurrently() -> None:
    async def run_all() -> None:
        await asyncio.gather(*(check(MemoryEventLog) for check in CHECKS))

    asyncio.run(run_all())


async def test_two_logs_without_shared_storage_fail_the_shared_checks() -> None:
    for check in SHARED_CHECKS:
        if check.__name__ == "follow_yields_transient_events_after_their_durable_event":
            # This check is skipped for logs that do not deliver transient events.
            continue
        with pytest.raises((AssertionError, UnknownRun)):
            await check(lambda: (MemoryEventLog(), MemoryEventLog()))
