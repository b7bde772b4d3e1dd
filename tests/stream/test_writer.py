from __future__ import annotations

import asyncio

import pytest

from rxloop.errors import ConflictError, EventLogError, Fenced
from rxloop.protocol.events import ContentDeltaEvent
from rxloop.run.log_writer import FLUSH_EVERY, MAX_PENDING
from rxloop.stream.back_pressure import Gate
from rxloop.testing import virtual_time
from support.event_logs import FailingWriterHarness, GatedLog, ImmediateWriterHarness, LogWriterHarness
from support.run_checks import assert_no_tasks, run_ready_tasks


async def test_flush_writes_immediately_and_returns_the_durable_seq() -> None:
    writing = LogWriterHarness()
    writing.add(3)
    assert await writing.writer.flush() == 3
    assert writing.log.batches == [[1, 2, 3]]
    assert writing.writer.durable_seq == 3
    await assert_no_tasks()


async def test_flush_without_events_does_not_call_the_log() -> None:
    writing = LogWriterHarness(durable_seq=7)
    assert await writing.writer.flush() == 7
    assert writing.log.batches == []


def test_first_events_are_written_immediately_and_later_ones_every_50_ms() -> None:
    with virtual_time() as time:

        async def main() -> None:
            writing = LogWriterHarness()
            writing.add(2)
            assert writing.log.batches == []
            await asyncio.sleep(0.001)
            # Searches for unfinished runs must find the run.
            assert writing.log.batches == [[1, 2]]
            writing.add(2)
            await asyncio.sleep(FLUSH_EVERY - 0.001)
            writing.add()
            assert writing.log.batches == [[1, 2]]
            await asyncio.sleep(0.002)
            assert writing.log.batches == [[1, 2], [3, 4, 5]]
            writing.add()
            await asyncio.sleep(FLUSH_EVERY + 0.001)
            assert writing.log.batches == [[1, 2], [3, 4, 5], [6]]

        time.run(main())


async def test_events_during_a_write_are_the_next_batch() -> None:
    writing = LogWriterHarness()
    writing.log.gate.clear()
    writing.add(2)
    flush = asyncio.ensure_future(writing.writer.flush())
    await run_ready_tasks()
    writing.add(2)
    writing.log.gate.set()
    assert await flush == 4
    assert writing.log.batches == [[1, 2], [3, 4]]
    assert writing.log.expected == [0, 2]


async def test_later_attempt_appends_after_the_earlier_one() -> None:
    writing = LogWriterHarness(durable_seq=5)
    writing.add()
    await writing.writer.flush()
    assert writing.log.batches == [[6]]
    assert writing.log.expected == [5]


async def test_concurrent_flushes_share_one_write() -> None:
    writing = LogWriterHarness()
    writing.add()
    assert await asyncio.gather(*(writing.writer.flush() for _ in range(5))) == [1] * 5
    assert writing.log.batches == [[1]]


async def test_cancelled_flush_does_not_stop_the_write() -> None:
    writing = LogWriterHarness()
    writing.log.gate.clear()
    writing.add()
    flush = asyncio.ensure_future(writing.writer.flush())
    await run_ready_tasks()
    flush.cancel()
    await run_ready_tasks()
    writing.log.gate.set()
    assert await writing.writer.flush() == 1
    assert writing.log.batches == [[1]]


@pytest.mark.parametrize("error", [TypeError("no such argument"), ConflictError("somebody else")])
async def test_failure_is_reported_once_and_raised_by_each_flush(error: Exception) -> None:
    writing = LogWriterHarness()
    writing.log.error = error
    writing.add()
    raised: list[EventLogError] = []
    for _ in range(2):
        with pytest.raises(EventLogError, match=str(error)) as caught:
            await writing.writer.flush()
        raised.append(caught.value)
        assert isinstance(caught.value, ConflictError) == isinstance(error, ConflictError)
    assert raised[0] is not raised[1]
    assert len(writing.failures) == 1
    assert isinstance(writing.failures[0], EventLogError)
    assert writing.writer.durable_seq == 0


async def test_nothing_is_written_after_a_failure() -> None:
    writing = LogWriterHarness()
    writing.log.error = EventLogError("the file of another program", retryable=False)
    writing.add()
    with pytest.raises(EventLogError):
        await writing.writer.flush()
    writing.log.error = None
    writing.add()
    with pytest.raises(EventLogError):
        await writing.writer.flush()
    assert writing.log.batches == []
    await writing.writer.close()
    await assert_no_tasks()


async def test_close_waits_for_the_running_write() -> None:
    writing = LogWriterHarness()
    writing.log.gate.clear()
    writing.add()
    flush = asyncio.ensure_future(writing.writer.flush())
    await run_ready_tasks()
    close = asyncio.ensure_future(writing.writer.close())
    await run_ready_tasks()
    assert not close.done()
    writing.log.gate.set()
    await close
    await flush


def test_close_stops_the_timer() -> None:
    with virtual_time() as time:

        async def main() -> None:
            writing = LogWriterHarness()
            writing.add()
            await writing.writer.close()
            await asyncio.sleep(FLUSH_EVERY * 2)
            assert writing.log.batches == []

        time.run(main())


async def test_cancelled_write_is_repeated() -> None:
    # A closing event loop cancels every task.
    writing = LogWriterHarness()
    writing.log.gate.clear()
    writing.add(2)
    flush = asyncio.ensure_future(writing.writer.flush())
    await run_ready_tasks()
    [task] = [task for task in asyncio.all_tasks() if task.get_name().startswith("rxloop-log")]
    task.cancel()
    await run_ready_tasks()
    writing.log.gate.set()
    assert await flush == 2
    assert writing.log.batches == [[1, 2]]


async def test_flush_cancelled_together_with_its_write_raises() -> None:
    # A closing event loop cancels both. Otherwise a tool would start whose `tool-start` is still being written.
    writing = LogWriterHarness()
    writing.log.gate.clear()
    writing.add()
    waiting = asyncio.ensure_future(writing.writer.flush())
    await run_ready_tasks()
    [task] = [task for task in asyncio.all_tasks() if task.get_name().startswith("rxloop-log")]
    task.cancel()
    waiting.cancel()
    writing.log.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await writing.writer.flush() == 1


async def test_log_with_append_now_is_written_synchronously() -> None:
    writing = ImmediateWriterHarness()
    writing.add(2)
    assert writing.writer.flush_now() == 2
    writing.add()
    assert await writing.writer.flush() == 3
    assert writing.writer.flush_now() == 3
    assert writing.log.batches == [[1, 2], [3]]
    assert writing.log.expected == [0, 2]
    await writing.writer.close()
    await assert_no_tasks()


async def test_batch_is_awaited_when_append_now_declines() -> None:
    writing = ImmediateWriterHarness()
    writing.log.appends_now = False
    writing.add(2)
    assert writing.writer.flush_now() is None
    assert await writing.writer.flush() == 2
    assert writing.log.batches == [[1, 2]]
    await writing.writer.close()
    await assert_no_tasks()


async def test_nothing_is_appended_past_a_running_write() -> None:
    writing = ImmediateWriterHarness()
    writing.log.appends_now = False
    writing.log.gate.clear()
    writing.add()
    flush = asyncio.ensure_future(writing.writer.flush())
    await run_ready_tasks()
    writing.log.appends_now = True
    writing.add()
    assert writing.writer.flush_now() is None
    writing.log.gate.set()
    assert await flush == 2
    assert writing.log.batches == [[1], [2]]
    await writing.writer.close()
    await assert_no_tasks()


async def test_failure_of_append_now_is_a_failure_of_the_log() -> None:
    writing = ImmediateWriterHarness()
    writing.log.error = ValueError("no room")
    writing.add()
    with pytest.raises(EventLogError, match="no room"):
        await writing.writer.flush()
    assert [str(error) for error in writing.failures] == ["the event log failed: no room"]
    await writing.writer.close()
    await assert_no_tasks()


@pytest.mark.parametrize("keeps_deltas", [False, True])
async def test_transient_events_are_written_only_to_logs_that_store_them(
    monkeypatch: pytest.MonkeyPatch, keeps_deltas: bool
) -> None:
    monkeypatch.setattr(GatedLog, "keeps_deltas", keeps_deltas)
    writing = LogWriterHarness()
    writing.add()
    writing.writer.add(ContentDeltaEvent(delta="x", seq=1, sub=1))
    await writing.writer.flush()
    assert writing.log.batches == ([[1, 1]] if keeps_deltas else [[1]])


def test_gate_closes_while_too_many_events_wait_for_the_log() -> None:
    with virtual_time() as time:

        async def main() -> None:
            gate = Gate()
            writing = FailingWriterHarness(gate=gate)
            writing.add(MAX_PENDING)
            await asyncio.sleep(1)
            writing.add(MAX_PENDING)
            assert not gate.closed
            writing.add()
            assert gate.closed
            writing.add(10)
            writing.log.error = None
            await writing.writer.flush()
            assert not gate.closed
            writing.log.error = OSError("gone")
            writing.add(1)
            await asyncio.sleep(1)
            writing.add(MAX_PENDING + 1)
            assert gate.closed
            with pytest.raises(EventLogError):
                await writing.writer.flush()
            assert not gate.closed

        time.run(main())


def test_later_attempt_writes_its_first_events_immediately() -> None:
    with virtual_time() as time:

        async def main() -> None:
            writing = LogWriterHarness(durable_seq=7)
            writing.add()
            await asyncio.sleep(0.001)
            assert writing.log.batches == [[8]]
            writing.add()
            await asyncio.sleep(0.001)
            assert writing.log.batches == [[8]]
            await writing.writer.flush()

        time.run(main())


async def test_each_writer_has_its_own_token() -> None:
    assert len({LogWriterHarness().writer.token for _ in range(20)}) == 20


async def test_failed_writer_writes_nothing_more() -> None:
    writing = LogWriterHarness()
    writing.add(2)
    writing.writer.fail(Fenced("somebody else has the turn"))
    writing.writer.fail(Fenced("told twice"))
    with pytest.raises(Fenced, match="has the turn"):
        await writing.writer.flush()
    assert writing.log.batches == []
    assert [str(error) for error in writing.failures] == ["somebody else has the turn"]
