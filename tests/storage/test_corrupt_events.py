"""Unreadable events in a SQLite log."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, ConfigurationError, SqliteEventLog, tool
from rxloop.errors import EventLogError
from rxloop.pipeline.records import RunEvents
from rxloop.protocol.events import CustomEvent, Event, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message
from rxloop.storage.conversation import FORMAT
from rxloop.testing import ScriptedModel, call


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


async def write_damaged(path: Path, seq: int, json: bytes) -> None:
    """Write three runs, and make an event of the second run unreadable."""
    log = SqliteEventLog(path)
    for name in ("before", "damaged", "behind"):
        fields: dict[str, Any] = {"task_id": name, "context_id": "c"}
        events: list[Event] = [
            TaskEvent(seq=1, attempt=1, messages=[Message.user("Hi")], model="m", agent_name="helper", **fields),
            CustomEvent(seq=2, attempt=1, name="note", **fields),
            StatusUpdateEvent(seq=3, state="completed", final=True, **fields),
        ]
        await log.append(name, events, expected_seq=0)
    await log.aclose()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE events SET json = ? WHERE run = 2 AND seq = ?", (json, seq))


UNREADABLE = [
    b"",
    b"\xff\xfe\x00",
    b'{"kind":"cus\xff',
    b'{"kind":"custom","name":7}',
    b'{"kind":"status-update","state":"x"}',
    b"[]",
]


async def count_events(log: SqliteEventLog, before: str) -> int:
    """Count the events that the log returns for the conversation."""
    parts = (await log.read_conversation("c", before=before, version=FORMAT)).parts
    return sum(len(part.events) for part in parts if isinstance(part, RunEvents))


@pytest.mark.parametrize("json", UNREADABLE)
async def test_unreadable_event_is_named_and_affects_no_other_run(path: Path, json: bytes) -> None:
    await write_damaged(path, 2, json)
    log = SqliteEventLog(path)
    for read in (log.read("damaged"), anext(log.follow("damaged", after_seq=1)), count_events(log, before="none")):
        with pytest.raises(EventLogError, match=r"Cannot read event 2 of run damaged.*skip") as refusal:
            await read
        assert not refusal.value.retryable
    assert [record.state for record in await log.list_runs()] == ["completed"] * 3
    assert len(await log.read("before")) == len(await log.read("behind")) == 3
    assert await count_events(log, before="damaged") == 3
    await log.aclose()


@pytest.mark.parametrize("seq", [1, 2, 3])
async def test_unreadable_event_is_skipped_and_named_on_request(
    path: Path, seq: int, caplog: pytest.LogCaptureFixture
) -> None:
    await write_damaged(path, seq, b"rotten")
    log = SqliteEventLog(path, corrupt="skip")
    readable = [each for each in (1, 2, 3) if each != seq]
    assert [event.seq for event in await log.read("damaged")] == readable
    assert f"Cannot read event {seq} of run damaged" in caplog.text
    assert [event.seq async for event in log.follow("damaged")] == readable
    assert await count_events(log, before="none") == 8
    agent = Agent(ScriptedModel("Hello."), log=log)
    assert (await agent.run("Hi", context_id="c")).output == "Hello."
    await log.aclose()


@pytest.mark.parametrize("lost", range(1, 12))
async def test_run_with_a_skipped_event_is_not_continued(path: Path, lost: int) -> None:
    paid: list[int] = []

    @tool
    async def pay(amount: int) -> str:
        """Pays."""
        paid.append(amount)
        return "paid"

    @tool(approve=True)
    async def more() -> str:
        """Asks."""
        return "more"

    log = SqliteEventLog(path)
    script = [call("pay", amount=5), call("more"), "Done."]
    waiting = await Agent(ScriptedModel(*script), tools=[pay, more], log=log).run("Pay.")
    assert waiting.state == "input-required"
    assert (await log.list_runs())[0].seq == 12
    await log.aclose()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE events SET json = 'rotten' WHERE seq = ?", (lost,))

    log = SqliteEventLog(path, corrupt="skip")
    agent = Agent(ScriptedModel(*["Done."] * 20), tools=[pay, more], log=log)
    named = rf"event {lost} of run {waiting.task_id} is missing"
    with pytest.raises(EventLogError, match=named) as refusal:
        await agent.resume(waiting.task_id, inputs={waiting.pending[0].input_id: True})
    assert not refusal.value.retryable
    assert (f"at={lost - 1})" in str(refusal.value)) == (lost > 1)
    for at in (lost, 12):
        with pytest.raises(EventLogError, match=named):
            await agent.fork(waiting.task_id, at)
    assert paid == [5]
    if lost > 1:
        results = {"1/0": "paid before"} if lost > 4 else None
        assert (
            await agent.fork(waiting.task_id, lost - 1, results=results, on_input=lambda ask: True)
        ).output == "Done."
    # Canceling needs no readable events.
    await agent.get_run(waiting.task_id).cancel()
    await log.aclose()


async def test_skipped_last_event_is_named_when_the_run_is_continued(path: Path) -> None:
    log = SqliteEventLog(path)
    result = await Agent(ScriptedModel("Hi."), log=log).run("Go.")
    last = (await log.list_runs())[0].seq
    await log.aclose()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE events SET json = 'rotten' WHERE seq = ?", (last,))
    log = SqliteEventLog(path, corrupt="skip")
    agent = Agent(ScriptedModel("never said"), log=log)
    for continuation in (agent.resume(result.task_id), agent.get_run(result.task_id).cancel()):
        with pytest.raises(EventLogError, match=f"event {last} of run {result.task_id} is missing"):
            await continuation
    assert (await agent.fork(result.task_id, last - 1)).state == "completed"
    await log.aclose()


async def test_run_without_readable_events_is_refused(path: Path) -> None:
    log = SqliteEventLog(path)
    result = await Agent(ScriptedModel("Hi."), log=log).run("Go.")
    await log.aclose()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE events SET json = 'rotten'")
    log = SqliteEventLog(path, corrupt="skip")
    agent = Agent(ScriptedModel("Hi."), log=log)
    for run in (agent.resume(result.task_id), agent.fork(result.task_id, 1)):
        with pytest.raises(EventLogError, match="event 1 of run"):
            await run
    await log.aclose()


def test_corrupt_option_rejects_unknown_values(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'refuse' or 'skip', got 'ignore'"):
        SqliteEventLog(path, corrupt="ignore")  # pyright: ignore[reportArgumentType]
