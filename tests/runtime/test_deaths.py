"""Workers and web replicas that are killed, at whatever moment."""

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
from support.workers.cluster import BY_HAND, cluster, finals, python, seconds_between

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("llm-call", marks=BY_HAND),
        pytest.param("content-complete", marks=BY_HAND),
        "tool-start",
        pytest.param("tool-complete", marks=BY_HAND),
        pytest.param("input-required", marks=BY_HAND),
    ],
)
async def test_a_worker_that_dies_at_an_event_is_survived(
    dsn: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "died"
    monkeypatch.setenv("RXLOOP_DIE_AT", f"{kind}:{marker}")
    async with cluster(dsn) as all_of_it:
        record = await all_of_it.start("look; pay; ask")
        await all_of_it.state(record, "input-required")
        assert marker.exists()
        asked = [e for e in await all_of_it.log.read(record.task_id) if isinstance(e, InputRequiredEvent)]
        question = asked[-1].input_id
        await all_of_it.web.answer(record.task_id, {question: 5})
        done = await all_of_it.over(record)
        assert (done.state, done.attempt >= 2) == ("completed", True)


async def test_a_tool_that_pays_and_kills_its_worker_is_not_begun_again(dsn: str) -> None:
    async with cluster(dsn) as all_of_it:
        record = await all_of_it.start("pay_and_die x")
        started = await all_of_it.until(record.task_id, "tool-start")
        assert (await all_of_it.over(record)).state == "completed"
        events = await all_of_it.log.read(record.task_id)
        [answer] = [event for event in events if event.kind == "tool-complete"]
        assert "interrupted" in answer.describe()
        effects = (all_of_it.folder / "effects").read_text().splitlines()
        assert len([line for line in effects if "pay_and_die" in line]) == 1
        again = next(event for event in events if event.attempt == 2)
        assert seconds_between(started, again) < 8


@BY_HAND
async def test_a_run_that_kills_its_workers_is_ended(dsn: str) -> None:
    async with cluster(dsn, workers=4) as all_of_it:
        record = await all_of_it.start("die")
        done = await all_of_it.over(record)
        events = await all_of_it.log.read(record.task_id)
    assert done.state == "failed"
    assert [event.reason for event in events if isinstance(event, StatusUpdateEvent) and event.final] == ["attempts"]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("status-update", marks=BY_HAND),
        pytest.param("llm-call", marks=BY_HAND),
        pytest.param("content-complete", marks=BY_HAND),
        "tool-start",
        pytest.param("tool-complete", marks=BY_HAND),
        pytest.param("checkpoint", marks=BY_HAND),
        pytest.param("final", marks=BY_HAND),
    ],
)
async def test_a_worker_that_dies_between_a_commit_and_its_answer_is_survived_and_nothing_is_done_twice(
    dsn: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = faults.order(monkeypatch, tmp_path, die=f"committed {kind}")
    async with cluster(dsn) as all_of_it:
        record = await all_of_it.start("pay; look")
        done = await all_of_it.over(record)
        events = await all_of_it.log.read(record.task_id)
        effects = all_of_it.effects(record.task_id)
    assert died.exists()
    assert (done.state, done.attempt, finals(events)) == ("completed", 1 if kind == "final" else 2, ["completed"])
    assert once(events, "content-complete")
    assert once(events, "tool-complete")
    # In the log it was begun, and so nobody may begin it, though nobody has.
    assert effects == ([] if kind == "tool-start" else ["pay"])
    assert len(calls(events)) == (4 if kind == "llm-call" else 3)


async def test_a_bell_that_a_dead_worker_has_not_acknowledged_begins_nothing_again(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = faults.order(monkeypatch, tmp_path, die="settled", patience=1)
    async with cluster(dsn) as all_of_it:
        record = await all_of_it.start("pay")
        done = await all_of_it.over(record)
        # It is the job of a dead worker, until it is rescued and answered once more.
        while await bells(dsn):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert died.exists()
        assert await all_of_it.web.get_record(record.task_id) == done
        assert (done.state, done.attempt, all_of_it.effects(record.task_id)) == ("completed", 1, ["pay"])


async def test_a_worker_that_dies_between_a_question_and_its_pause_leaves_it_to_be_asked(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = faults.order(monkeypatch, tmp_path, die="committed input-required")
    async with cluster(dsn) as all_of_it:
        record = await all_of_it.start("pay; ask; look")
        question: Any = await all_of_it.until(record.task_id, "input-required")
        paused = await all_of_it.state(record, "input-required")
        assert (died.exists(), paused.attempt) == (True, 2)
        await all_of_it.web.answer(record.task_id, {question.input_id: 5})
        done = await all_of_it.over(record)
        events = await all_of_it.log.read(record.task_id)
        effects = all_of_it.effects(record.task_id)
    assert (done.state, done.attempt, finals(events)) == ("completed", 3, ["input-required", "completed"])
    assert (once(events, "tool-complete"), once(events, "content-complete"), effects) == (True, True, ["pay"])
    assert [event.value for event in events if isinstance(event, InputReceivedEvent)] == [5]


async def test_a_run_whose_web_replica_dies_before_it_rings_is_found(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.order(monkeypatch, tmp_path, patience=1.5)
    async with cluster(dsn) as all_of_it:
        assert await python("support.workers.dying_server", dsn, "start", "pay", "k") == -signal.SIGKILL
        [record] = await all_of_it.log.list_runs()
        assert (record.state, await bells(dsn)) == ("submitted", 0)
        done = await all_of_it.over(record)
        assert (done.state, done.attempt, all_of_it.effects(record.task_id)) == ("completed", 1, ["pay"])


@BY_HAND
async def test_a_client_that_asks_again_rings_for_the_run_whose_web_replica_has_died(dsn: str) -> None:
    async with cluster(dsn) as all_of_it:
        assert await python("support.workers.dying_server", dsn, "start", "pay", "k") == -signal.SIGKILL
        [record] = await all_of_it.log.list_runs()
        assert (await all_of_it.start("pay", key="k")).task_id == record.task_id
        async with asyncio.timeout(10):
            done = await all_of_it.over(record)
        assert (done.state, done.attempt, all_of_it.effects(record.task_id)) == ("completed", 1, ["pay"])


@BY_HAND
async def test_an_answer_whose_web_replica_dies_before_it_rings_is_found(dsn: str) -> None:
    async with cluster(dsn) as all_of_it:
        record = await all_of_it.start("ask; pay")
        question: Any = await all_of_it.until(record.task_id, "input-required")
        await all_of_it.state(record, "input-required")
        arguments = ("answer", record.task_id, question.input_id, "4")
        assert await python("support.workers.dying_server", dsn, *arguments) == -signal.SIGKILL
        async with asyncio.timeout(10):
            done = await all_of_it.over(record)
        assert (done.state, done.attempt, all_of_it.effects(record.task_id)) == ("completed", 2, ["pay"])


def calls(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.kind == "llm-call"]


def once(events: Sequence[Event], kind: str) -> bool:
    """Whether each step, or each call of it, has one such event."""
    found = Counter((event.step, getattr(event, "tool_call_id", None)) for event in events if event.kind == kind)
    return set(found.values()) == {1}


async def bells(dsn: str) -> int:
    """The bells that nobody has acknowledged."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        cursor = await connection.execute("SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'rxloop.settle'")
        [[count]] = await cursor.fetchall()
    return count
