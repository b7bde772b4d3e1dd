from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex.disposable import Disposable

from rxloop.errors import SlowReader
from rxloop.protocol.events import ContentDeltaEvent, CustomEvent, Event, GapEvent, ToolProgressEvent
from rxloop.protocol.messages import ToolCall
from rxloop.stream.back_pressure import Gate, Overflow, ReadBuffer
from support.run_checks import positions, run_ready_tasks


def make_events(*pieces: str) -> list[Event]:
    """Convert each piece to an event: `!` to a durable event, `%` to tool progress, other text to a delta."""
    events: list[Event] = []
    seq, sub = 1, 0
    for piece in pieces:
        event: Event
        if piece == "!":
            seq, sub = seq + 1, 0
            event = CustomEvent(name=str(seq))
        elif piece == "%":
            sub += 1
            event = ToolProgressEvent(call=ToolCall(id="c", name="tool"), message="on it")
        else:
            sub += 1
            event = ContentDeltaEvent(delta=piece, step="1")
        stamp = {"seq": seq, "sub": sub, "attempt": 1, "task_id": "t", "context_id": "c", "timestamp": 1_000 + seq}
        events.append(event.model_copy(update=stamp))
    return events


def fill_buffer(
    overflow: Overflow, size: int, items: list[Any], gate: Gate | None = None, joins: bool = False
) -> ReadBuffer:
    buffer = ReadBuffer(overflow, size, gate, joins)
    for item in items:
        buffer.push(item)
    return buffer


async def drain(buffer: ReadBuffer) -> list[Any]:
    buffer.end()
    items: list[Any] = []
    while True:
        try:
            items.append(await buffer.get())
        except StopAsyncIteration:
            return items


def join_text(items: list[Any]) -> str:
    return "".join(item.delta for item in items if isinstance(item, ContentDeltaEvent))


async def test_buffer_below_its_limit_returns_its_items_unchanged() -> None:
    events = make_events("a", "b", "!", "c")
    assert await drain(fill_buffer("coalesce", 10, events)) == events


async def test_coalesce_merges_deltas_only_when_full() -> None:  # L13
    events = make_events("a", "b", "c", "d", "e")
    first, remaining = await drain(fill_buffer("coalesce", 2, events))
    assert first == events[0]
    assert remaining.delta == "bcde"
    assert remaining.seq == 1
    assert remaining.sub == 5


async def test_coalesce_keeps_items_that_it_cannot_merge() -> None:  # L13
    events = make_events("a", "!", "b", "%", "c", "!", "%", "%")
    assert await drain(fill_buffer("coalesce", 1, events)) == events


async def test_coalesce_joins_strings_but_no_other_values() -> None:  # L13
    assert await drain(fill_buffer("coalesce", 2, ["a", "b", "c"], joins=True)) == ["a", "bc"]
    assert await drain(fill_buffer("coalesce", 2, ["llm-call", "usage", "task"])) == ["llm-call", "usage", "task"]
    assert await drain(fill_buffer("coalesce", 2, [1, 2, 3, 4])) == [1, 2, 3, 4]
    assert await drain(fill_buffer("coalesce", 2, [b"a", b"b", b"c"])) == [b"a", b"b", b"c"]


async def test_coalesce_does_not_change_events_of_other_readers() -> None:
    events = make_events("a", "b", "c")
    await drain(fill_buffer("coalesce", 1, events))
    assert [event.delta for event in events if isinstance(event, ContentDeltaEvent)] == ["a", "b", "c"]


@given(
    st.lists(st.sampled_from(["a", "b", "!", "%"]), max_size=40),
    st.integers(1, 5),
    st.sampled_from(["coalesce", "block"]),
    st.lists(st.integers(0, 3), max_size=20),
)
def test_coalesce_and_block_lose_nothing_for_any_order_of_reads_and_writes(
    pieces: list[str], size: int, overflow: Overflow, reads: list[int]
) -> None:  # L13
    async def main() -> None:
        gate = Gate()
        buffer = ReadBuffer(overflow, size, gate)
        events = make_events(*pieces)
        received: list[Any] = []
        for event, count in itertools.zip_longest(events, reads[: len(events)], fillvalue=0):
            assert isinstance(event, Event)
            buffer.push(event)
            for _ in range(count):
                if len(received) < len(events) and buffer._items:
                    received.append(await buffer.get())
        received += await drain(buffer)
        assert join_text(received) == join_text(events)
        assert [item for item in received if not isinstance(item, ContentDeltaEvent)] == [
            event for event in events if not isinstance(event, ContentDeltaEvent)
        ]
        assert positions(received) == sorted(set(positions(received)))
        assert not gate.closed

    asyncio.run(main())


async def test_block_closes_the_gate_when_full_and_opens_it_at_half() -> None:  # L13
    gate = Gate()
    buffer = fill_buffer("block", 4, make_events("a", "b", "c", "d"), gate)
    assert not gate.closed
    buffer.push(make_events("e")[0])
    assert gate.closed
    for closed in (True, True, False):
        await buffer.get()
        assert gate.closed is closed


async def test_block_keeps_items_that_arrive_while_the_gate_is_closed() -> None:
    events = make_events("a", "!", "b", "%", "c")
    assert await drain(fill_buffer("block", 1, events, Gate())) == events


async def test_gate_stays_closed_until_both_blocking_readers_catch_up() -> None:
    gate = Gate()
    events = make_events("a", "b", "c")
    quick, slow = fill_buffer("block", 2, events, gate), fill_buffer("block", 2, events, gate)
    for _ in events:
        await quick.get()
    assert gate.closed
    for _ in events:
        await slow.get()
    assert not gate.closed


async def test_closed_blocking_reader_opens_the_gate() -> None:
    gate = Gate()
    buffer = fill_buffer("block", 1, make_events("a", "b"), gate)
    buffer.close()
    assert not gate.closed
    buffer.close()
    gate.close()
    assert gate.closed, "closed twice, opened once"


async def test_end_of_the_stream_opens_the_gate() -> None:
    gate = Gate()
    buffer = fill_buffer("block", 1, make_events("a", "b", "c"), gate)
    assert gate.closed
    buffer.end()
    assert not gate.closed
    assert len(await drain(buffer)) == 3


async def test_drop_oldest_drops_transient_events_and_counts_them() -> None:  # L13
    events = make_events("a", "b", "c", "d")
    gap, *remaining = await drain(fill_buffer("drop_oldest", 2, events))
    assert isinstance(gap, GapEvent)
    assert gap.reason == "dropped"
    assert gap.count == 2
    assert remaining == events[2:]


async def test_drop_oldest_never_drops_a_durable_event() -> None:  # L13
    events = make_events("!", "a", "!", "%", "!", "b", "!")
    items = await drain(fill_buffer("drop_oldest", 1, events))
    assert [item for item in items if item.durable] == [event for event in events if event.durable]
    lost = len(events) - len([item for item in items if not isinstance(item, GapEvent)])
    assert lost == sum(item.count or 0 for item in items if isinstance(item, GapEvent)) > 0


async def test_gap_has_the_position_and_ids_of_the_missing_events() -> None:  # L1, L13
    events = make_events("!", "a", "b", "!", "c")
    items = await drain(fill_buffer("drop_oldest", 2, events))
    [gap] = [item for item in items if isinstance(item, GapEvent)]
    assert gap.task_id == "t"
    assert gap.context_id == "c"
    assert gap.attempt == 1
    assert gap.timestamp
    assert positions(items) == sorted(positions(items))


async def test_gap_event_is_not_dropped() -> None:  # L13, L133
    notice = GapEvent(reason="trimmed", count=7, task_id="t", attempt=1, seq=7, sub=1)
    items = await drain(fill_buffer("drop_oldest", 1, [notice, *make_events("a", "b", "c")]))
    assert notice in items


@given(st.lists(st.sampled_from(["a", "!", "%"]), max_size=40), st.integers(1, 5))
def test_drop_oldest_counts_dropped_events_and_keeps_the_order(pieces: list[str], size: int) -> None:  # L13
    events = make_events(*pieces)
    items = asyncio.run(drain(fill_buffer("drop_oldest", size, events)))
    remaining = [item for item in items if not isinstance(item, GapEvent)]
    count = sum(item.count or 0 for item in items if isinstance(item, GapEvent))
    assert len(remaining) + count == len(events)
    assert [item for item in remaining if item.durable] == [event for event in events if event.durable]
    assert positions(items) == sorted(set(positions(items)))


async def test_error_policy_returns_its_items_and_then_raises() -> None:  # L13
    buffer = fill_buffer("error", 2, make_events("a", "b", "c", "d"))
    assert [(await buffer.get()).delta for _ in range(2)] == ["a", "b"]
    with pytest.raises(SlowReader, match="2 items behind"):
        await buffer.get()
    with pytest.raises(StopAsyncIteration):
        await buffer.get()


async def test_error_policy_raises_when_the_stream_ends_at_the_same_time() -> None:
    buffer = fill_buffer("error", 2, make_events("a", "b", "c"))
    buffer.end()
    assert [(await buffer.get()).delta for _ in range(2)] == ["a", "b"]
    with pytest.raises(SlowReader, match="2 items behind"):
        await buffer.get()


async def test_error_policy_disposes_the_subscription() -> None:
    ended: list[bool] = []
    buffer = ReadBuffer("error", 1, None)
    buffer.subscription = Disposable(lambda: ended.append(True))
    for event in make_events("a", "b", "c"):
        buffer.push(event)
    assert ended == [True]


@pytest.mark.parametrize("overflow", ["coalesce", "block", "drop_oldest", "error"])
async def test_waiting_reader_gets_the_next_item(overflow: Overflow) -> None:
    buffer = ReadBuffer(overflow, 1, Gate())
    reader = asyncio.ensure_future(buffer.get())
    await run_ready_tasks()
    event = make_events("a")[0]
    buffer.push(event)
    assert await reader == event


async def test_waiting_reader_gets_the_end() -> None:
    buffer = ReadBuffer("coalesce", 1, None)
    reader = asyncio.ensure_future(buffer.get())
    await run_ready_tasks()
    buffer.end()
    with pytest.raises(StopAsyncIteration):
        await reader


async def test_error_is_raised_once_after_the_remaining_items() -> None:
    buffer = fill_buffer("coalesce", 5, ["a"])
    buffer.end(ValueError("broken"))
    assert await buffer.get() == "a"
    with pytest.raises(ValueError, match="broken"):
        await buffer.get()
    with pytest.raises(StopAsyncIteration):
        await buffer.get()


async def test_two_tasks_cannot_read_one_iterator() -> None:
    buffer = ReadBuffer("coalesce", 1, None)
    first = asyncio.ensure_future(buffer.get())
    await run_ready_tasks()
    with pytest.raises(RuntimeError, match="an iterator for each task"):
        await buffer.get()
    buffer.push("a")
    assert await first == "a"


async def test_reader_may_follow_a_cancelled_one() -> None:
    buffer = ReadBuffer("coalesce", 1, None)
    first = asyncio.ensure_future(buffer.get())
    await run_ready_tasks()
    first.cancel()
    await asyncio.wait([first])
    buffer.push("a")
    assert await buffer.get() == "a"


async def test_reader_cancelled_while_an_item_arrives_loses_nothing() -> None:
    buffer = ReadBuffer("coalesce", 5, None)
    first = asyncio.ensure_future(buffer.get())
    await run_ready_tasks()
    buffer.push("a")
    first.cancel()
    await asyncio.wait([first])
    received = [] if first.cancelled() else [first.result()]
    assert [*received, *await drain(buffer)] == ["a"]


async def test_items_after_the_end_are_ignored() -> None:
    buffer = fill_buffer("coalesce", 5, ["a"])
    buffer.end()
    buffer.push("b")
    assert await drain(buffer) == ["a"]
