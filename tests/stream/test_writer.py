from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from run_checks import nothing_left, settled
from rxloop.errors import ConflictError, EventLogError, Fenced, LogUnreachable
from rxloop.pipeline.log_retry import ANSWERS_IN, PATIENCE
from rxloop.protocol.events import ContentDeltaEvent, CustomEvent, Event
from rxloop.stream.scope import Gate
from rxloop.stream.writer import FLUSH_EVERY, MOST, LogWriter
from rxloop.testing import virtual_time


class Log:
    """A log whose appends take as long as the test wants, and fail when it wants."""

    keeps_deltas = False

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.expected: list[int] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.writing = 0

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        assert task_id == "t"
        self.writing += 1
        assert self.writing == 1, "one writer"
        try:
            await self.gate.wait()
            if self.error is not None:
                raise self.error
            self.batches.append([event.seq for event in events])
            self.expected.append(expected_seq)
        finally:
            self.writing -= 1


class Writing:
    def __init__(self, durable_seq: int = 0) -> None:
        self.log = Log()
        self.failures: list[Exception] = []
        self.writer = LogWriter(self.log, "t", durable_seq, self.failures.append)  # type: ignore[arg-type]
        self.seq = durable_seq

    def add(self, count: int = 1) -> None:
        for _ in range(count):
            self.seq += 1
            self.writer.add(CustomEvent(name="x", seq=self.seq))


async def test_flush_writes_at_once_and_says_how_far() -> None:
    it = Writing()
    it.add(3)
    assert await it.writer.flush() == 3
    assert it.log.batches == [[1, 2, 3]]
    assert it.writer.durable_seq == 3
    await nothing_left()


async def test_flush_with_nothing_to_write_asks_nobody() -> None:
    it = Writing(durable_seq=7)
    assert await it.writer.flush() == 7
    assert it.log.batches == []


def test_the_beginning_of_a_run_is_written_at_once_and_what_follows_every_50_ms() -> None:
    with virtual_time() as time:

        async def main() -> None:
            it = Writing()
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
    it = Writing()
    it.log.gate.clear()
    it.add(2)
    flush = asyncio.ensure_future(it.writer.flush())
    await settled()
    it.add(2)
    it.log.gate.set()
    assert await flush == 4
    assert it.log.batches == [[1, 2], [3, 4]]
    assert it.log.expected == [0, 2]


async def test_a_later_attempt_writes_behind_the_earlier_one() -> None:
    it = Writing(durable_seq=5)
    it.add()
    await it.writer.flush()
    assert (it.log.batches, it.log.expected) == ([[6]], [5])


async def test_any_number_may_wait_for_one_write() -> None:
    it = Writing()
    it.add()
    assert await asyncio.gather(*(it.writer.flush() for _ in range(5))) == [1] * 5
    assert it.log.batches == [[1]]


async def test_who_gives_up_waiting_does_not_stop_the_write() -> None:
    it = Writing()
    it.log.gate.clear()
    it.add()
    flush = asyncio.ensure_future(it.writer.flush())
    await settled()
    flush.cancel()
    await settled()
    it.log.gate.set()
    assert await it.writer.flush() == 1
    assert it.log.batches == [[1]]


@pytest.mark.parametrize("error", [TypeError("no such argument"), ConflictError("somebody else")])
async def test_a_failure_is_told_once_and_raised_anew_by_each_flush(error: Exception) -> None:
    it = Writing()
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
    it = Writing()
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
    await nothing_left()


async def test_close_waits_for_the_write_that_is_under_way() -> None:
    it = Writing()
    it.log.gate.clear()
    it.add()
    flush = asyncio.ensure_future(it.writer.flush())
    await settled()
    close = asyncio.ensure_future(it.writer.close())
    await settled()
    assert not close.done()
    it.log.gate.set()
    await close
    await flush


def test_close_stops_the_timer() -> None:
    with virtual_time() as time:

        async def main() -> None:
            it = Writing()
            it.add()
            await it.writer.close()
            await asyncio.sleep(FLUSH_EVERY * 2)
            assert it.log.batches == []

        time.run(main())


async def test_a_write_that_was_cancelled_is_made_again() -> None:
    # As a closing event loop does, which cancels every task.
    it = Writing()
    it.log.gate.clear()
    it.add(2)
    flush = asyncio.ensure_future(it.writer.flush())
    await settled()
    [task] = [task for task in asyncio.all_tasks() if task.get_name().startswith("rxloop-log")]
    task.cancel()
    await settled()
    it.log.gate.set()
    assert await flush == 2
    assert it.log.batches == [[1, 2]]


async def test_who_waits_for_a_write_and_is_cancelled_together_with_it_does_not_go_on() -> None:
    # As a closing event loop does: a tool whose `tool-start` is being written would begin after all.
    it = Writing()
    it.log.gate.clear()
    it.add()
    waiting = asyncio.ensure_future(it.writer.flush())
    await settled()
    [task] = [task for task in asyncio.all_tasks() if task.get_name().startswith("rxloop-log")]
    task.cancel()
    waiting.cancel()
    it.log.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await it.writer.flush() == 1


class QuickLog(Log):
    """A log that may append without waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.quick = True

    def append_now(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> bool:
        if self.error is not None:
            raise self.error
        if self.quick:
            self.batches.append([event.seq for event in events])
            self.expected.append(expected_seq)
        return self.quick


class QuickWriting(Writing):
    def __init__(self) -> None:
        super().__init__()
        self.log: Any = QuickLog()
        self.writer = LogWriter(self.log, "t", 0, self.failures.append)


async def test_a_log_that_can_append_at_once_is_asked_to() -> None:
    it = QuickWriting()
    it.add(2)
    assert it.writer.flush_now() == 2
    it.add()
    assert await it.writer.flush() == 3
    assert it.writer.flush_now() == 3
    assert (it.log.batches, it.log.expected) == ([[1, 2], [3]], [0, 2])
    await it.writer.close()
    await nothing_left()


async def test_where_it_cannot_the_batch_is_waited_for() -> None:
    it = QuickWriting()
    it.log.quick = False
    it.add(2)
    assert it.writer.flush_now() is None
    assert await it.writer.flush() == 2
    assert it.log.batches == [[1, 2]]
    await it.writer.close()
    await nothing_left()


async def test_nothing_is_appended_past_a_write_that_is_under_way() -> None:
    it = QuickWriting()
    it.log.quick = False
    it.log.gate.clear()
    it.add()
    flush = asyncio.ensure_future(it.writer.flush())
    await settled()
    it.log.quick = True
    it.add()
    assert it.writer.flush_now() is None
    it.log.gate.set()
    assert await flush == 2
    assert it.log.batches == [[1], [2]]
    await it.writer.close()
    await nothing_left()


async def test_a_failure_at_once_is_the_failure_of_the_log() -> None:
    it = QuickWriting()
    it.log.error = ValueError("no room")
    it.add()
    with pytest.raises(EventLogError, match="no room"):
        await it.writer.flush()
    assert [str(error) for error in it.failures] == ["the event log failed: no room"]
    await it.writer.close()
    await nothing_left()


@pytest.mark.parametrize("keeps", [False, True])
async def test_transient_events_are_for_the_logs_that_keep_them(monkeypatch: pytest.MonkeyPatch, keeps: bool) -> None:
    monkeypatch.setattr(Log, "keeps_deltas", keeps)
    it = Writing()
    it.add()
    it.writer.add(ContentDeltaEvent(delta="x", seq=1, sub=1))
    await it.writer.flush()
    assert it.log.batches == ([[1, 1]] if keeps else [[1]])


class AwayLog(Log):
    """Fails until the test says otherwise, and remembers who asked."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.writers: list[str] = []

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        self.writers.append(writer)
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


class Away(Writing):
    """A writer whose log is away."""

    def __init__(self, error: Exception | None = None, gate: Gate | None = None) -> None:
        super().__init__()
        self.log: Any = AwayLog(error or OSError("the server is starting"))
        self.writer = LogWriter(self.log, "t", 0, self.failures.append, gate)


@pytest.mark.parametrize("error", [OSError("restarting"), EventLogError("the disk is full"), RuntimeError("driver")])
def test_a_log_that_fails_for_a_moment_is_asked_again(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with virtual_time() as time:

        async def main() -> None:
            it = Away(error)
            asyncio.get_running_loop().call_later(PATIENCE - 5, setattr, it.log, "error", None)
            it.add(2)
            assert await it.writer.flush() == 2
            assert it.log.batches == [[1, 2]]
            assert it.failures == []
            # Each try has the token of the writer, so that one whose answer was lost is known again.
            assert set(it.log.writers) == {it.writer.token}
            assert 10 < len(it.log.writers) < 40

        time.run(main())
        assert PATIENCE - 5 <= time.now < PATIENCE
    assert [record.getMessage() for record in caplog.records if "trying again" in record.getMessage()] == [
        f"the log does not take the events of the run t; trying again: {error}"
    ]


def test_patience_ends() -> None:
    with virtual_time() as time:

        async def main() -> None:
            it = Away()
            it.add()
            with pytest.raises(LogUnreachable, match="the server is starting"):
                await it.writer.flush()
            assert len(it.failures) == 1

        time.run(main())
        assert PATIENCE - 2 <= time.now <= PATIENCE


def test_patience_begins_anew_with_each_batch() -> None:
    with virtual_time() as time:

        async def main() -> None:
            it = Away()
            for _ in range(3):
                it.log.error = OSError("away")
                asyncio.get_running_loop().call_later(PATIENCE - 5, setattr, it.log, "error", None)
                it.add()
                await it.writer.flush()
            assert it.log.batches == [[1], [2], [3]]

        time.run(main())
        assert time.now > 2 * PATIENCE


@pytest.mark.parametrize("kind", [ConflictError, Fenced])
async def test_a_conflict_is_final_at_once(kind: type[ConflictError]) -> None:
    it = Away(kind("somebody else"))
    it.add()
    with pytest.raises(kind, match="somebody else"):
        await it.writer.flush()
    assert len(it.log.writers) == 1


def test_the_sockets_are_held_back_while_too_much_waits_for_the_log() -> None:
    with virtual_time() as time:

        async def main() -> None:
            gate = Gate()
            it = Away(gate=gate)
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
            it = Writing(durable_seq=7)
            it.add()
            await asyncio.sleep(0.001)
            assert it.log.batches == [[8]]
            it.add()
            await asyncio.sleep(0.001)
            assert it.log.batches == [[8]]
            await it.writer.flush()

        time.run(main())


async def test_each_writer_has_a_token_of_its_own() -> None:
    assert len({Writing().writer.token for _ in range(20)}) == 20


class HungLog(Log):
    """A log that does not answer, as a connection does that nobody hears at the other end."""

    def __init__(self, tries: int) -> None:
        super().__init__()
        self.tries = tries

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        self.tries -= 1
        if self.tries >= 0:
            await asyncio.Event().wait()
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


class Hung(Writing):
    """A writer whose log hangs so many times."""

    def __init__(self, tries: int) -> None:
        super().__init__()
        self.log = HungLog(tries)
        self.writer = LogWriter(self.log, "t", 0, self.failures.append)  # type: ignore[arg-type]


def test_a_log_that_does_not_answer_is_asked_again() -> None:
    with virtual_time() as time:

        async def main() -> None:
            it = Hung(tries=1)
            it.add(2)
            assert await it.writer.flush() == 2
            assert it.log.batches == [[1, 2]]

        time.run(main())
        assert ANSWERS_IN <= time.now < ANSWERS_IN + 1


def test_a_log_that_never_answers_is_gone_in_the_end() -> None:
    with virtual_time() as time:

        async def main() -> None:
            it = Hung(tries=1_000)
            it.add()
            with pytest.raises(EventLogError, match=r"has not answered for 10 s"):
                await it.writer.flush()
            assert len(it.failures) == 1

        time.run(main())
        assert PATIENCE - ANSWERS_IN <= time.now <= PATIENCE + ANSWERS_IN


class Raised(BaseException):
    """What a library of the log's may raise, and is no `Exception`."""


async def test_whatever_a_log_raises_is_its_failure() -> None:
    it = Writing()
    it.log.error = Raised("gone")  # type: ignore[assignment]
    it.add(2)
    with pytest.raises(EventLogError, match=r"raised Raised.'gone'., which is not an Exception"):
        await it.writer.flush()
    it.log.error = None
    it.add()
    with pytest.raises(EventLogError):
        await it.writer.flush()
    # A batch that is lost is never passed over.
    assert it.log.batches == []
    assert len(it.failures) == 1


async def test_whatever_a_log_raises_at_once_is_its_failure() -> None:
    it = QuickWriting()
    it.log.error = Raised("gone")
    it.add()
    assert it.writer.flush_now() is None
    assert len(it.failures) == 1


def test_a_log_in_which_something_was_cancelled_is_asked_again() -> None:
    with virtual_time() as time:

        async def main() -> None:
            it = Writing()
            it.log.error = asyncio.CancelledError()  # type: ignore[assignment]
            asyncio.get_running_loop().call_later(1, setattr, it.log, "error", None)
            it.add()
            assert await it.writer.flush() == 1
            it.log.error = asyncio.CancelledError()  # type: ignore[assignment]
            it.add()
            with pytest.raises(EventLogError, match="CancelledError"):
                await it.writer.flush()

        time.run(main())
        assert time.now > PATIENCE - 2


async def test_a_writer_that_is_told_to_stop_writes_nothing_more() -> None:
    it = Writing()
    it.add(2)
    it.writer.fail(Fenced("somebody else has the turn"))
    it.writer.fail(Fenced("told twice"))
    with pytest.raises(Fenced, match="has the turn"):
        await it.writer.flush()
    assert it.log.batches == []
    assert [str(error) for error in it.failures] == ["somebody else has the turn"]
