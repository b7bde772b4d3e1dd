"""Workers and web replicas that are killed at any moment."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rxloop import Event
from rxloop.protocol.events import InputReceivedEvent, InputRequiredEvent, StatusUpdateEvent
from support.workers import faults
from support.workers.cluster import SLOW_CHAOS, final_states, run_module, seconds_between, start_cluster

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("llm-call", marks=SLOW_CHAOS),
        pytest.param("content-complete", marks=SLOW_CHAOS),
        "tool-start",
        pytest.param("tool-complete", marks=SLOW_CHAOS),
        pytest.param("input-required", marks=SLOW_CHAOS),
    ],
)
async def test_run_completes_when_its_worker_dies_at_an_event(
    dsn: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "died"
    monkeypatch.setenv("RXLOOP_DIE_AT", f"{kind}:{marker}")
    async with start_cluster(dsn) as processes:
        record = await processes.start("look; pay; ask")
        await processes.wait_for_state(record, "input-required")
        assert marker.exists()
        questions = [e for e in await processes.log.read(record.task_id) if isinstance(e, InputRequiredEvent)]
        question = questions[-1].input_id
        await processes.web.answer(record.task_id, {question: 5})
        final = await processes.wait_for_end(record)
        assert final.state == "completed"
        assert final.attempt >= 2


async def test_payment_that_kills_its_worker_is_not_repeated(dsn: str) -> None:
    async with start_cluster(dsn) as processes:
        record = await processes.start("pay_and_die x")
        started = await processes.wait_for_event(record.task_id, "tool-start")
        assert (await processes.wait_for_end(record)).state == "completed"
        events = await processes.log.read(record.task_id)
        [answer] = [event for event in events if event.kind == "tool-complete"]
        assert "interrupted" in answer.describe()
        effects = (processes.folder / "effects").read_text().splitlines()
        assert len([line for line in effects if "pay_and_die" in line]) == 1
        resumed = next(event for event in events if event.attempt == 2)
        assert seconds_between(started, resumed) < 8


@SLOW_CHAOS
async def test_run_that_kills_its_workers_fails_with_reason_attempts(dsn: str) -> None:
    async with start_cluster(dsn, workers=4) as processes:
        record = await processes.start("die")
        final = await processes.wait_for_end(record)
        events = await processes.log.read(record.task_id)
    assert final.state == "failed"
    assert [event.reason for event in events if isinstance(event, StatusUpdateEvent) and event.final] == ["attempts"]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("status-update", marks=SLOW_CHAOS),
        pytest.param("llm-call", marks=SLOW_CHAOS),
        pytest.param("content-complete", marks=SLOW_CHAOS),
        "tool-start",
        pytest.param("tool-complete", marks=SLOW_CHAOS),
        pytest.param("checkpoint", marks=SLOW_CHAOS),
        pytest.param("final", marks=SLOW_CHAOS),
    ],
)
async def test_run_is_not_repeated_when_its_worker_dies_after_a_commit(
    dsn: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    death_marker = faults.order_faults(monkeypatch, tmp_path, die=f"committed {kind}")
    async with start_cluster(dsn) as processes:
        record = await processes.start("pay; look")
        final = await processes.wait_for_end(record)
        events = await processes.log.read(record.task_id)
        effects = processes.effects(record.task_id)
    assert death_marker.exists()
    assert (final.state, final.attempt) == ("completed", 1 if kind == "final" else 2)
    assert final_states(events) == ["completed"]
    assert has_one_per_step(events, "content-complete")
    assert has_one_per_step(events, "tool-complete")
    # Recorded starts must not be repeated, even without an effect.
    assert effects == ([] if kind == "tool-start" else ["pay"])
    assert len(calls(events)) == (4 if kind == "llm-call" else 3)


async def test_unacknowledged_job_of_a_dead_worker_starts_nothing_again(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    death_marker = faults.order_faults(monkeypatch, tmp_path, die="executed", lost_after=1)
    async with start_cluster(dsn) as processes:
        record = await processes.start("pay")
        final = await processes.wait_for_end(record)
        # The job belongs to a dead worker until it is rescued and processed again.
        while await count_jobs(dsn):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert death_marker.exists()
        assert await processes.web.get_record(record.task_id) == final
        assert (final.state, final.attempt) == ("completed", 1)
        assert processes.effects(record.task_id) == ["pay"]


async def test_question_is_asked_again_when_the_worker_dies_before_the_pause(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    death_marker = faults.order_faults(monkeypatch, tmp_path, die="committed input-required")
    async with start_cluster(dsn) as processes:
        record = await processes.start("pay; ask; look")
        question: Any = await processes.wait_for_event(record.task_id, "input-required")
        paused = await processes.wait_for_state(record, "input-required")
        assert death_marker.exists()
        assert paused.attempt == 2
        await processes.web.answer(record.task_id, {question.input_id: 5})
        final = await processes.wait_for_end(record)
        events = await processes.log.read(record.task_id)
        effects = processes.effects(record.task_id)
    assert (final.state, final.attempt) == ("completed", 3)
    assert final_states(events) == ["input-required", "completed"]
    assert has_one_per_step(events, "tool-complete")
    assert has_one_per_step(events, "content-complete")
    assert effects == ["pay"]
    assert [event.value for event in events if isinstance(event, InputReceivedEvent)] == [5]


async def test_run_is_found_when_its_web_replica_dies_before_enqueueing(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.order_faults(monkeypatch, tmp_path, lost_after=1.5)
    async with start_cluster(dsn) as processes:
        assert await run_module("support.workers.dying_server", dsn, "start", "pay", "k") == -signal.SIGKILL
        [record] = await processes.log.list_runs()
        assert record.state == "submitted"
        assert await count_jobs(dsn) == 0
        final = await processes.wait_for_end(record)
        assert (final.state, final.attempt) == ("completed", 1)
        assert processes.effects(record.task_id) == ["pay"]


@SLOW_CHAOS
async def test_repeated_start_enqueues_the_run_of_a_dead_web_replica(dsn: str) -> None:
    async with start_cluster(dsn) as processes:
        assert await run_module("support.workers.dying_server", dsn, "start", "pay", "k") == -signal.SIGKILL
        [record] = await processes.log.list_runs()
        assert (await processes.start("pay", key="k")).task_id == record.task_id
        async with asyncio.timeout(10):
            final = await processes.wait_for_end(record)
        assert (final.state, final.attempt) == ("completed", 1)
        assert processes.effects(record.task_id) == ["pay"]


@SLOW_CHAOS
async def test_answer_is_found_when_its_web_replica_dies_before_enqueueing(dsn: str) -> None:
    async with start_cluster(dsn) as processes:
        record = await processes.start("ask; pay")
        question: Any = await processes.wait_for_event(record.task_id, "input-required")
        await processes.wait_for_state(record, "input-required")
        arguments = ("answer", record.task_id, question.input_id, "4")
        assert await run_module("support.workers.dying_server", dsn, *arguments) == -signal.SIGKILL
        async with asyncio.timeout(10):
            final = await processes.wait_for_end(record)
        assert (final.state, final.attempt) == ("completed", 2)
        assert processes.effects(record.task_id) == ["pay"]


def calls(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.kind == "llm-call"]


def has_one_per_step(events: Sequence[Event], kind: str) -> bool:
    """True if each step or call has exactly one such event."""
    counts = Counter((event.step, getattr(event, "tool_call_id", None)) for event in events if event.kind == kind)
    return set(counts.values()) == {1}


async def count_jobs(dsn: str) -> int:
    """Return the number of unacknowledged jobs."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        cursor = await connection.execute("SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'rxloop.settle'")
        [[count]] = await cursor.fetchall()
    return count
