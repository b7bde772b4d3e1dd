"""Summary of a run for lists."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop import MemoryEventLog, Message, StatusUpdateEvent, TaskEvent, UsageEvent
from rxloop.pipeline.records import RunRecord
from rxloop.recorded.summary import RunSummary, SummaryFold, TokenRate, summarize_start


@pytest.mark.parametrize(
    ("tokens", "bins"),
    [
        ([], []),
        ([(0, 0)], [0]),
        ([(0, 0), (500, 10), (999, 5), (2_000, 7)], [15, 0, 7]),
        ([(0, 1), (11_999, 2)], [1, *[0] * 10, 2]),
        ([(0, 1), (1_000, 2), (2_500, 4), (12_000, 8)], [3, 4, 0, 0, 0, 0, 8]),
        ([(0, 1), (100_000, 2)], [1, 0, 0, 0, 0, 0, 2]),
        # Clocks may be set back between attempts.
        ([(5_000, 1), (1_000, 2)], [3]),
    ],
)
def test_token_rate_has_at_most_twelve_parts_of_equal_width(tokens: list[tuple[int, int]], bins: list[int]) -> None:
    rate = TokenRate()
    for time, count in tokens:
        rate.add(time, count)
    assert rate.bins == bins


@pytest.mark.parametrize(("fork", "seconds"), [({}, 250.5), ({"fork_of": "original", "fork_seq": 2}, 0.5)])
def test_time_of_a_fork_excludes_copied_events(fork: dict[str, Any], seconds: float) -> None:
    ids: dict[str, Any] = {"task_id": "run", "context_id": "run", "attempt": 1}
    fold = SummaryFold()
    fold.add([TaskEvent(seq=1, model="small", agent_name="clerk", messages=[], timestamp=1_000, **fork, **ids)])
    fold.add([StatusUpdateEvent(seq=2, state="working", timestamp=1_100, **ids)])
    fold.add([StatusUpdateEvent(seq=3, state="working", timestamp=251_000, **ids)])
    fold.add([StatusUpdateEvent(seq=4, state="completed", final=True, timestamp=251_500, **ids)])
    assert fold.make_summary("run").seconds == seconds


async def store_fork() -> tuple[MemoryEventLog, RunRecord]:
    """Store a fork with two copied usage events, and two events of its own."""
    ids: dict[str, Any] = {"task_id": "run", "context_id": "run", "attempt": 1}
    task: dict[str, Any] = {"model": "small", "agent_name": "clerk", "messages": [Message.user("Hi")]}
    copied = [
        TaskEvent(seq=1, fork_of="original", fork_seq=3, timestamp=1_000, **task, **ids),
        UsageEvent(seq=2, step="1", input_tokens=900, output_tokens=9, timestamp=2_000, **ids),
        UsageEvent(seq=3, step="1", input_tokens=500, output_tokens=9, timestamp=3_000, **ids),
    ]
    log = MemoryEventLog()
    own = [
        StatusUpdateEvent(seq=4, state="working", timestamp=900_000, **ids),
        UsageEvent(seq=5, step="2", input_tokens=40, output_tokens=2, timestamp=902_500, **ids),
    ]
    await log.append("run", [*copied, *own], expected_seq=0)
    return log, await log.get_record("run")


async def test_token_rate_of_a_fork_excludes_copied_events() -> None:
    log, _ = await store_fork()
    fold = SummaryFold()
    for event in await log.read("run"):
        fold.add([event])
        if event.seq <= 4:
            assert fold.make_summary("run").token_rate == [0]
    assert fold.make_summary("run").token_rate == [0, 0, 42]


async def test_record_of_a_fork_contains_its_duration() -> None:
    log, record = await store_fork()
    fold = SummaryFold()
    fold.add(await log.read("run"))
    whole = fold.make_summary("run")
    start = await summarize_start(log, record)
    assert start == RunSummary("Hi", "original")
    assert record.updated - record.created == 2_500
    assert (whole.title, whole.fork_of, whole.seconds) == ("Hi", "original", 2.5)


async def test_fork_without_own_events_has_no_duration() -> None:
    log, _ = await store_fork()
    short = MemoryEventLog()
    await short.append("run", (await log.read("run"))[:3], expected_seq=0)
    record = await short.get_record("run")
    assert record.created == record.updated
