"""Memory of readers, with counted bytes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from rxloop import EventLog, MemoryEventLog, SqliteEventLog, follow, replay
from rxloop.protocol.events import CustomEvent, Event, StatusUpdateEvent
from rxloop.protocol.ids import make_id
from rxloop.recorded.follow import read_pages
from rxloop.storage.postgres_log import PostgresEventLog
from rxloop.storage.tail import PAGE_BYTES, Page, Tail

SIZE = 100_000
COUNT = 40


@pytest.fixture
def task_id() -> str:
    """Unique ID, because tests share a database."""
    return make_id()


@pytest.fixture(params=["sqlite", "postgres"])
async def log(request: pytest.FixtureRequest, tmp_path: Any, task_id: str) -> AsyncGenerator[EventLog]:
    """Log with a run of 40 events of 100 kB."""
    log = (
        SqliteEventLog(tmp_path / "runs.db")
        if request.param == "sqlite"
        else PostgresEventLog(request.getfixturevalue("postgres"))
    )
    for start in range(0, COUNT, 10):
        await log.append(task_id, [make_event(start + number, task_id) for number in range(1, 11)], expected_seq=start)
    yield log
    await log.aclose()


def make_event(seq: int, task_id: str = "t") -> Event:
    """Return a large event, or the final event of the run."""
    stamp: dict[str, Any] = {"seq": seq, "task_id": task_id, "context_id": "c", "attempt": 1, "timestamp": seq}
    if seq == COUNT:
        return StatusUpdateEvent(state="completed", final=True, content="x" * SIZE, **stamp)
    return CustomEvent(name=str(seq), data={"text": "x" * SIZE}, **stamp)


class Decoded:
    """Positions of the events that a log has decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seq = 0
        from_json = Event.from_json

        def count(data: bytes) -> Event:
            event = from_json(data)
            self.seq = max(self.seq, event.seq)
            return event

        monkeypatch.setattr(Event, "from_json", staticmethod(count))


MAX_AHEAD = PAGE_BYTES // SIZE + 2
"""Events that a reader may have decoded before the client asks for them: a page, which ends after its limit."""


@pytest.mark.parametrize("stream", [follow, replay])
async def test_slow_reader_decodes_one_window_ahead(
    log: EventLog, task_id: str, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = Decoded(monkeypatch)
    positions: list[int] = []
    async with aclosing(aiter(stream(log, task_id))) as reader:
        async for event in reader:
            positions.append(event.seq)
            if event.seq % 5 == 0:
                # Reads are executed in order, so these follow any reads of the reader.
                await log.list_runs(limit=1)
                await log.list_runs(limit=1)
            assert decoded.seq - event.seq <= MAX_AHEAD
    assert positions == [*range(1, COUNT + 1)]


async def test_single_pages_are_read_until_the_last_event(log: EventLog, task_id: str) -> None:
    pages = read_pages(log, task_id, after_seq=3, last_seq=30)
    assert [event.seq async for event in pages] == [*range(4, 31)]
    assert [event.seq async for event in read_pages(log, task_id, after_seq=30, last_seq=30)] == []


def test_followers_of_an_active_run_share_a_bounded_tail() -> None:
    tail = Tail("t", Page((), is_full=False, end=(0, 0), seq=0, idle=False, finished=False, number=1))
    known: list[Event] = []
    for seq in range(1, COUNT + 1):
        event = Event.from_json(make_event(seq).to_json())
        tail.add_page([*known, event], tail.position)
        known = [event]
    assert tail.get_events((0, 0), deltas=False) is None
    assert tail.get_events((COUNT - 12, 0), deltas=False) is None
    kept = tail.get_events((COUNT - 5, 0), deltas=False)
    assert kept is not None
    assert [event.seq for event in kept] == [*range(COUNT - 4, COUNT + 1)]


async def test_reader_that_is_ahead_does_not_wait_for_another_reader_of_the_stream(log: EventLog, task_id: str) -> None:
    stream = follow(log, task_id)
    idle = aiter(stream)
    await anext(idle)
    assert [event.seq async for event in stream] == [*range(1, COUNT + 1)]
    await idle.aclose()


async def test_window_of_events_in_memory_is_not_limited() -> None:
    log = MemoryEventLog()
    await log.append("t", [make_event(number + 1) for number in range(COUNT)], expected_seq=0)
    reader = aiter(follow(log, "t"))
    assert (await anext(reader)).seq == 1
    assert len([*reader.drain()]) == COUNT - 1
    await reader.aclose()
