"""The contract of event logs: a log that breaks it fails."""

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


class Forgets(MemoryEventLog):
    """It does not keep the last event of a run."""

    @override
    async def read(self, task_id: str, **options: Any) -> Sequence[Event]:
        return (await super().read(task_id, **options))[:-1]


class Silent(MemoryEventLog):
    """It tells no writer of a conflict."""

    @override
    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        with suppress(ConflictError):
            await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


class Trusting(MemoryEventLog):
    """It takes the bytes of anybody for those of the writer."""

    @override
    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        await super().append(task_id, events, expected_seq=expected_seq, writer="anybody")


class Impatient(MemoryEventLog):
    """Its followers do not wait for what comes."""

    @override
    async def follow(self, task_id: str, **options: Any) -> AsyncIterator[Event]:
        for event in await self.read(task_id, after_seq=options.get("after_seq", 0)):
            yield event


class Empty(MemoryEventLog):
    """It has every run, with nothing in it."""

    @override
    async def read(self, task_id: str, **options: Any) -> Sequence[Event]:
        try:
            return await super().read(task_id, **options)
        except UnknownRun:
            return ()


class Sorted(MemoryEventLog):
    """It goes by the clock."""

    @override
    async def list_runs(self, **options: Any) -> Sequence[RunRecord]:
        return sorted(await super().list_runs(**options), key=lambda record: record.created)


class Generous(MemoryEventLog):
    """It gives the turn to everybody."""

    @override
    async def acquire_lease(self, context_id: str, task_id: str, on_lost: Callable[[], None]) -> bool:
        await super().acquire_lease(context_id, task_id, on_lost)
        return True


class Adopting(MemoryEventLog):
    """It takes every run that can go on for an orphan."""

    @override
    async def list_orphaned(self, **submitted: Any) -> Sequence[RunRecord]:
        return await self.list_runs(unfinished=True)


class ByTheClockOfOthers(MemoryEventLog):
    """It believes what a submitted run says of the time."""

    @override
    async def list_orphaned(self, *, submitted_before: float = 30, **submitted: Any) -> Sequence[RunRecord]:
        before = round((time.time() - submitted_before) * 1000)
        found = await super().list_orphaned(submitted_before=0, **submitted)
        return [record for record in found if record.state != "submitted" or record.created <= before]


class OldestFirst(MemoryEventLog):
    """It lists the same submitted runs again and again."""

    @override
    async def list_orphaned(self, *, submitted_after: str | None = None, **submitted: Any) -> Sequence[RunRecord]:
        return await super().list_orphaned(**submitted)


class Repeating(MemoryEventLog):
    """It gives a letter again to who has it."""

    @override
    async def read_commands(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Command]]:
        return await super().read_commands(task_id, after=after - 1)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Generous, "a_conversation_has_one_turn"),
        (Adopting, "an_orphan_is_under_way_and_has_no_turn"),
        (ByTheClockOfOthers, "a_submitted_run_is_an_orphan_after_a_while"),
        (OldestFirst, "no_more_submitted_runs_are_listed_than_are_asked_for"),
        (Repeating, "letters_are_read_back_in_order"),
        (Forgets, "appended_events_are_read_back_in_order"),
        (Silent, "a_writer_that_expects_another_last_event_is_refused"),
        (Trusting, "of_two_writers_at_once_one_wins"),
        (Impatient, "a_follower_gets_what_is_there_and_then_what_comes"),
        (Empty, "an_unknown_run_is_an_error_that_names_it"),
        (Sorted, "runs_come_in_the_order_in_which_the_log_got_them"),
    ],
)
async def test_a_log_that_breaks_the_contract_fails(
    broken: type[MemoryEventLog], check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rxloop.testing.event_log_contract.toolkit.SECONDS", 0.05)
    failing = [function for function in CHECKS if function.__name__ == check]
    with pytest.raises(AssertionError):
        await failing[0](broken)


async def test_all_checks_are_run_and_the_one_that_failed_is_named() -> None:
    await check_event_log(MemoryEventLog)

    with pytest.raises(AssertionError) as failed:
        await check_event_log(Sorted)

    assert failed.value.__notes__ == ["event log contract: runs_come_in_the_order_in_which_the_log_got_them"]


async def test_a_log_that_keeps_no_transient_events_is_not_asked_for_them() -> None:
    def without_deltas(*, keep_deltas: bool = False) -> MemoryEventLog:
        return MemoryEventLog()

    await check_event_log(without_deltas)


def test_every_check_makes_its_own_logs_so_that_they_may_run_side_by_side() -> None:
    async def all_at_once() -> None:
        await asyncio.gather(*(check(MemoryEventLog) for check in CHECKS))

    asyncio.run(all_at_once())


async def test_two_logs_that_share_nothing_fail_the_checks_of_two() -> None:
    for check in SHARED_CHECKS:
        if check.__name__ == "transient_events_come_behind_their_durable_one":
            # It asks nothing of logs that pass no transient events on.
            continue
        with pytest.raises((AssertionError, UnknownRun)):
            await check(lambda: (MemoryEventLog(), MemoryEventLog()))
