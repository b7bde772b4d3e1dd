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


def numbered(*pieces: str) -> list[Event]:
    """Events of a run: a text is a delta, `!` a durable event, `%` the progress of a tool."""
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


def filled(
    overflow: Overflow, size: int, items: list[Any], gate: Gate | None = None, joins: bool = False
) -> ReadBuffer:
    buffer = ReadBuffer(overflow, size, gate, joins)
    for item in items:
        buffer.push(item)
    return buffer


async def drained(buffer: ReadBuffer) -> list[Any]:
    """Everything that the buffer has, when nothing follows."""
    buffer.end()
    items: list[Any] = []
    while True:
        try:
            items.append(await buffer.get())
        except StopAsyncIteration:
            return items


def text_of(items: list[Any]) -> str:
    return "".join(item.delta for item in items if isinstance(item, ContentDeltaEvent))


async def test_a_buffer_that_is_not_full_gives_what_it_got() -> None:
    events = numbered("a", "b", "!", "c")
    assert await drained(filled("coalesce", 10, events)) == events


async def test_coalesce_merges_deltas_only_when_it_is_full() -> None:  # L13
    events = numbered("a", "b", "c", "d", "e")
    first, rest = await drained(filled("coalesce", 2, events))
    assert first == events[0]
    assert (rest.delta, rest.seq, rest.sub) == ("bcde", 1, 5)


async def test_coalesce_never_drops_what_it_cannot_merge() -> None:  # L13
    events = numbered("a", "!", "b", "%", "c", "!", "%", "%")
    assert await drained(filled("coalesce", 1, events)) == events


async def test_coalesce_joins_text_but_no_other_values() -> None:  # L13
    assert await drained(filled("coalesce", 2, ["a", "b", "c"], joins=True)) == ["a", "bc"]
    assert await drained(filled("coalesce", 2, ["llm-call", "usage", "task"])) == ["llm-call", "usage", "task"]
    assert await drained(filled("coalesce", 2, [1, 2, 3, 4])) == [1, 2, 3, 4]
    assert await drained(filled("coalesce", 2, [b"a", b"b", b"c"])) == [b"a", b"b", b"c"]


async def test_coalesce_leaves_the_events_that_others_read_as_they_are() -> None:
    events = numbered("a", "b", "c")
    await drained(filled("coalesce", 1, events))
    assert [event.delta for event in events if isinstance(event, ContentDeltaEvent)] == ["a", "b", "c"]


@given(
    st.lists(st.sampled_from(["a", "b", "!", "%"]), max_size=40),
    st.integers(1, 5),
    st.sampled_from(["coalesce", "block"]),
    st.lists(st.integers(0, 3), max_size=20),
)
def test_coalesce_and_block_lose_nothing_however_reading_and_writing_mix(
    pieces: list[str], size: int, overflow: Overflow, reads: list[int]
) -> None:  # L13
    async def main() -> None:
        gate = Gate()
        buffer = ReadBuffer(overflow, size, gate)
        events = numbered(*pieces)
        got: list[Any] = []
        for event, count in itertools.zip_longest(events, reads[: len(events)], fillvalue=0):
            assert isinstance(event, Event)
            buffer.push(event)
            for _ in range(count):
                if len(got) < len(events) and buffer._items:
                    got.append(await buffer.get())
        got += await drained(buffer)
        assert text_of(got) == text_of(events)
        assert [item for item in got if not isinstance(item, ContentDeltaEvent)] == [
            event for event in events if not isinstance(event, ContentDeltaEvent)
        ]
        assert positions(got) == sorted(set(positions(got)))
        assert not gate.closed

    asyncio.run(main())


async def test_block_closes_the_gate_when_it_is_full_and_opens_it_at_half() -> None:  # L13
    gate = Gate()
    buffer = filled("block", 4, numbered("a", "b", "c", "d"), gate)
    assert not gate.closed
    buffer.push(numbered("e")[0])
    assert gate.closed
    for closed in (True, True, False):
        await buffer.get()
        assert gate.closed is closed


async def test_block_keeps_everything_that_comes_all_the_same() -> None:
    events = numbered("a", "!", "b", "%", "c")
    assert await drained(filled("block", 1, events, Gate())) == events


async def test_two_blocking_readers_both_have_to_catch_up() -> None:
    gate = Gate()
    events = numbered("a", "b", "c")
    quick, slow = filled("block", 2, events, gate), filled("block", 2, events, gate)
    for _ in events:
        await quick.get()
    assert gate.closed
    for _ in events:
        await slow.get()
    assert not gate.closed


async def test_a_blocking_reader_that_goes_away_opens_the_gate() -> None:
    gate = Gate()
    buffer = filled("block", 1, numbered("a", "b"), gate)
    buffer.close()
    assert not gate.closed
    buffer.close()
    gate.close()
    assert gate.closed, "closed twice, opened once"


async def test_a_blocking_reader_whose_stream_has_ended_holds_nobody_back() -> None:
    gate = Gate()
    buffer = filled("block", 1, numbered("a", "b", "c"), gate)
    assert gate.closed
    buffer.end()
    assert not gate.closed
    assert len(await drained(buffer)) == 3


async def test_drop_oldest_drops_transient_events_and_says_how_many() -> None:  # L13
    events = numbered("a", "b", "c", "d")
    gap, *rest = await drained(filled("drop_oldest", 2, events))
    assert isinstance(gap, GapEvent)
    assert (gap.reason, gap.count) == ("dropped", 2)
    assert rest == events[2:]


async def test_drop_oldest_never_drops_a_durable_event() -> None:  # L13
    events = numbered("!", "a", "!", "%", "!", "b", "!")
    items = await drained(filled("drop_oldest", 1, events))
    assert [item for item in items if item.durable] == [event for event in events if event.durable]
    lost = len(events) - len([item for item in items if not isinstance(item, GapEvent)])
    assert lost == sum(item.count or 0 for item in items if isinstance(item, GapEvent)) > 0


async def test_a_gap_stands_where_events_are_missing_with_their_ids() -> None:  # L1, L13
    events = numbered("!", "a", "b", "!", "c")
    items = await drained(filled("drop_oldest", 2, events))
    [gap] = [item for item in items if isinstance(item, GapEvent)]
    assert (gap.task_id, gap.context_id, gap.attempt) == ("t", "c", 1)
    assert gap.timestamp
    assert positions(items) == sorted(positions(items))


async def test_a_notice_of_a_gap_is_not_dropped_itself() -> None:  # L13, L133
    notice = GapEvent(reason="trimmed", count=7, task_id="t", attempt=1, seq=7, sub=1)
    items = await drained(filled("drop_oldest", 1, [notice, *numbered("a", "b", "c")]))
    assert notice in items


@given(st.lists(st.sampled_from(["a", "!", "%"]), max_size=40), st.integers(1, 5))
def test_what_drop_oldest_drops_is_counted_and_the_rest_is_in_order(pieces: list[str], size: int) -> None:  # L13
    events = numbered(*pieces)
    items = asyncio.run(drained(filled("drop_oldest", size, events)))
    kept = [item for item in items if not isinstance(item, GapEvent)]
    count = sum(item.count or 0 for item in items if isinstance(item, GapEvent))
    assert len(kept) + count == len(events)
    assert [item for item in kept if item.durable] == [event for event in events if event.durable]
    assert positions(items) == sorted(set(positions(items)))


async def test_error_gives_what_it_has_and_then_raises() -> None:  # L13
    buffer = filled("error", 2, numbered("a", "b", "c", "d"))
    assert [(await buffer.get()).delta for _ in range(2)] == ["a", "b"]
    with pytest.raises(SlowReader, match="2 items behind"):
        await buffer.get()
    with pytest.raises(StopAsyncIteration):
        await buffer.get()


async def test_error_is_told_though_the_stream_ends_in_the_same_delivery() -> None:
    buffer = filled("error", 2, numbered("a", "b", "c"))
    buffer.end()
    assert [(await buffer.get()).delta for _ in range(2)] == ["a", "b"]
    with pytest.raises(SlowReader, match="2 items behind"):
        await buffer.get()


async def test_error_ends_the_subscription() -> None:
    ended: list[bool] = []
    buffer = ReadBuffer("error", 1, None)
    buffer.subscription = Disposable(lambda: ended.append(True))
    for event in numbered("a", "b", "c"):
        buffer.push(event)
    assert ended == [True]


@pytest.mark.parametrize("overflow", ["coalesce", "block", "drop_oldest", "error"])
async def test_a_reader_that_waits_gets_what_comes(overflow: Overflow) -> None:
    buffer = ReadBuffer(overflow, 1, Gate())
    reader = asyncio.ensure_future(buffer.get())
    await run_ready_tasks()
    event = numbered("a")[0]
    buffer.push(event)
    assert await reader == event


async def test_a_reader_that_waits_learns_of_the_end() -> None:
    buffer = ReadBuffer("coalesce", 1, None)
    reader = asyncio.ensure_future(buffer.get())
    await run_ready_tasks()
    buffer.end()
    with pytest.raises(StopAsyncIteration):
        await reader


async def test_an_error_comes_behind_what_is_there_and_once() -> None:
    buffer = filled("coalesce", 5, ["a"])
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


async def test_a_reader_that_was_cancelled_can_be_followed_by_another() -> None:
    buffer = ReadBuffer("coalesce", 1, None)
    first = asyncio.ensure_future(buffer.get())
    await run_ready_tasks()
    first.cancel()
    await asyncio.wait([first])
    buffer.push("a")
    assert await buffer.get() == "a"


async def test_a_reader_that_is_cancelled_as_something_comes_loses_nothing() -> None:
    buffer = ReadBuffer("coalesce", 5, None)
    first = asyncio.ensure_future(buffer.get())
    await run_ready_tasks()
    buffer.push("a")
    first.cancel()
    await asyncio.wait([first])
    got = [] if first.cancelled() else [first.result()]
    assert [*got, *await drained(buffer)] == ["a"]


async def test_what_comes_after_the_end_is_not_taken() -> None:
    buffer = filled("coalesce", 5, ["a"])
    buffer.end()
    buffer.push("b")
    assert await drained(buffer) == ["a"]
