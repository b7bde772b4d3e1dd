from __future__ import annotations

import asyncio

import pytest

from rxloop.errors import ConflictError, EventLogError, Fenced
from rxloop.protocol.events import ContentDeltaEvent
from rxloop.run.log_writer import FLUSH_EVERY, MOST
from rxloop.stream.back_pressure import Gate
from rxloop.testing import virtual_time
from support.event_logs import FailingWriterHarness, GatedLog, ImmediateWriterHarness, LogWriterHarness
from support.run_checks import assert_no_tasks, run_ready_tasks


async def test_flush_writes_at_once_and_says_how_far() -> None:
    it = LogWriterHarness()
    it.add(3)
    assert await it.writer.flush() == 3
    assert it.log.batches == [[1, 2, 3]]
    assert it.writer.durable_seq == 3
    await assert_no_tasks()


async def test_flush_with_nothing_to_write_asks_nobody() -> None:
    it = LogWriterHarness(durable_seq=7)
    assert await it.writer.flush() == 7
    assert it.log.batches == []


def test_the_beginning_of_a_run_is_written_at_once_and_what_follows_every_50_ms() -> None:
    with virtual_time() as time:

        async def main() -> None:
            it = LogWriterHarness()
            it.add(2)
            assert it.log.batches == []
            await asyncio.sleep(0.001)
            # So that whoever looks for unfinished runs finds it.
            assert it.log.batches == [[1, 2]]
            it.add(2)
            await asyncio.sleep(FLUSH_EVERY - 0.001)
            it.add()
            assert it.log.batches == [[1, 2]]
            await asyncio.sleep(0.002)
            assert it.log.batches == [[1, 2], [3, 4, 5]]
            it.add()
            await asyncio.sleep(FLUSH_EVERY + 0.001)
            assert it.log.batches == [[1, 2], [3, 4, 5], [6]]

        time.run(main())


async def test_what_comes_during_a_write_is_the_next_batch() -> None:
    it = LogWriterHarness()
    it.log.gate.clear()
    it.add(2)
    flush = asyncio.ensure_future(it.writer.flush())
    await run_ready_tasks()
    it.add(2)
    it.log.gate.set()
    assert await flush == 4
    assert it.log.batches == [[1, 2], [3, 4]]
    assert it.log.expected == [0, 2]


async def test_a_later_attempt_writes_behind_the_earlier_one() -> None:
    it = LogWriterHarness(durable_seq=5)
    it.add()
    await it.writer.flush()
    assert (it.log.batches, it.log.expected) == ([[6]], [5])


async def test_any_number_may_wait_for_one_write() -> None:
    it = LogWriterHarness()
    it.add()
    assert await asyncio.gather(*(it.writer.flush() for _ in range(5))) == [1] * 5
    assert it.log.batches == [[1]]


async def test_who_gives_up_waiting_does_not_stop_the_write() -> None:
    it = LogWriterHarness()
    it.log.gate.clear()
    it.add()
    flush = asyncio.ensure_future(it.writer.flush())
    await run_ready_tasks()
    flush.cancel()
    await run_ready_tasks()
    it.log.gate.set()
    assert await it.writer.flush() == 1
    assert it.log.batches == [[1]]


@pytest.mark.parametrize("error", [TypeError("no such argument"), ConflictError("somebody else")])
async def test_a_failure_is_told_once_and_raised_anew_by_each_flush(error: Exception) -> None:
    it = LogWriterHarness()
    it.log.error = error
    it.add()
    raised: list[EventLogError] = []
    for _ in range(2):
        with pytest.raises(EventLogError, match=str(error)) as caught:
            await it.writer.flush()
        raised.append(caught.value)
        assert isinstance(caught.value, ConflictError) == isinstance(error, ConflictError)
    assert raised[0] is not raised[1]
    assert len(it.failures) == 1
    assert isinstance(it.failures[0], EventLogError)
    assert it.writer.durable_seq == 0


async def test_nothing_is_written_behind_a_failure() -> None:
    it = LogWriterHarness()
    it.log.error = EventLogError("the file of another program", retryable=False)
    it.add()
    with pytest.raises(EventLogError):
        await it.writer.flush()
    it.log.error = None
    it.add()
    with pytest.raises(EventLogError):
        await it.writer.flush()
    assert it.log.batches == []
    await it.writer.close()
    await assert_no_tasks()


async def test_close_waits_for_the_write_that_is_under_way() -> None:
    it = LogWriterHarness()
    it.log.gate.clear()
    it.add()
    flush = asyncio.ensure_future(it.writer.flush())
    await run_ready_tasks()
    close = asyncio.ensure_future(it.writer.close())
    await run_ready_tasks()
    assert not close.done()
    it.log.gate.set()
    await close
    await flush


def test_close_stops_the_timer() -> None:
    with virtual_time() as time:

        async def main() -> None:
            it = LogWriterHarness()
            it.add()
            await it.writer.close()
            await asyncio.sleep(FLUSH_EVERY * 2)
            assert it.log.batches == []

        time.run(main())


async def test_a_write_that_was_cancelled_is_made_again() -> None:
    # As a closing event loop does, which cancels every task.
    it = LogWriterHarness()
    it.log.gate.clear()
    it.add(2)
    flush = asyncio.ensure_future(it.writer.flush())
    await run_ready_tasks()
    [task] = [task for task in asyncio.all_tasks() if task.get_name().startswith("rxloop-log")]
    task.cancel()
    await run_ready_tasks()
    it.log.gate.set()
    assert await flush == 2
    assert it.log.batches == [[1, 2]]


async def test_who_waits_for_a_write_and_is_cancelled_together_with_it_does_not_go_on() -> None:
    # As a closing event loop does: a tool whose `tool-start` is being written would begin after all.
    it = LogWriterHarness()
    it.log.gate.clear()
    it.add()
    waiting = asyncio.ensure_future(it.writer.flush())
    await run_ready_tasks()
    [task] = [task for task in asyncio.all_tasks() if task.get_name().startswith("rxloop-log")]
    task.cancel()
    waiting.cancel()
    it.log.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await it.writer.flush() == 1


async def test_a_log_that_can_append_at_once_is_asked_to() -> None:
    it = ImmediateWriterHarness()
    it.add(2)
    assert it.writer.flush_now() == 2
    it.add()
    assert await it.writer.flush() == 3
    assert it.writer.flush_now() == 3
    assert (it.log.batches, it.log.expected) == ([[1, 2], [3]], [0, 2])
    await it.writer.close()
    await assert_no_tasks()


async def test_where_it_cannot_the_batch_is_waited_for() -> None:
    it = ImmediateWriterHarness()
    it.log.appends_now = False
    it.add(2)
    assert it.writer.flush_now() is None
    assert await it.writer.flush() == 2
    assert it.log.batches == [[1, 2]]
    await it.writer.close()
    await assert_no_tasks()


async def test_nothing_is_appended_past_a_write_that_is_under_way() -> None:
    it = ImmediateWriterHarness()
    it.log.appends_now = False
    it.log.gate.clear()
    it.add()
    flush = asyncio.ensure_future(it.writer.flush())
    await run_ready_tasks()
    it.log.appends_now = True
    it.add()
    assert it.writer.flush_now() is None
    it.log.gate.set()
    assert await flush == 2
    assert it.log.batches == [[1], [2]]
    await it.writer.close()
    await assert_no_tasks()


async def test_a_failure_at_once_is_the_failure_of_the_log() -> None:
    it = ImmediateWriterHarness()
    it.log.error = ValueError("no room")
    it.add()
    with pytest.raises(EventLogError, match="no room"):
        await it.writer.flush()
    assert [str(error) for error in it.failures] == ["the event log failed: no room"]
    await it.writer.close()
    await assert_no_tasks()


@pytest.mark.parametrize("keeps", [False, True])
async def test_transient_events_are_for_the_logs_that_keep_them(monkeypatch: pytest.MonkeyPatch, keeps: bool) -> None:
    monkeypatch.setattr(GatedLog, "keeps_deltas", keeps)
    it = LogWriterHarness()
    it.add()
    it.writer.add(ContentDeltaEvent(delta="x", seq=1, sub=1))
    await it.writer.flush()
    assert it.log.batches == ([[1, 1]] if keeps else [[1]])


def test_the_sockets_are_held_back_while_too_much_waits_for_the_log() -> None:
    with virtual_time() as time:

        async def main() -> None:
            gate = Gate()
            it = FailingWriterHarness(gate=gate)
            it.add(MOST)
            await asyncio.sleep(1)
            it.add(MOST)
            assert not gate.closed
            it.add()
            assert gate.closed
            it.add(10)
            it.log.error = None
            await it.writer.flush()
            assert not gate.closed
            it.log.error = OSError("gone")
            it.add(1)
            await asyncio.sleep(1)
            it.add(MOST + 1)
            assert gate.closed
            with pytest.raises(EventLogError):
                await it.writer.flush()
            assert not gate.closed

        time.run(main())


def test_a_later_attempt_writes_its_first_events_at_once() -> None:
    with virtual_time() as time:

        async def main() -> None:
            it = LogWriterHarness(durable_seq=7)
            it.add()
            await asyncio.sleep(0.001)
            assert it.log.batches == [[8]]
            it.add()
            await asyncio.sleep(0.001)
            assert it.log.batches == [[8]]
            await it.writer.flush()

        time.run(main())


async def test_each_writer_has_a_token_of_its_own() -> None:
    assert len({LogWriterHarness().writer.token for _ in range(20)}) == 20


async def test_a_writer_that_is_told_to_stop_writes_nothing_more() -> None:
    it = LogWriterHarness()
    it.add(2)
    it.writer.fail(Fenced("somebody else has the turn"))
    it.writer.fail(Fenced("told twice"))
    with pytest.raises(Fenced, match="has the turn"):
        await it.writer.flush()
    assert it.log.batches == []
    assert [str(error) for error in it.failures] == ["somebody else has the turn"]
