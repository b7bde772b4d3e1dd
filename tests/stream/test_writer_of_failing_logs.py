"""The writer of a log that fails, hangs or raises anything: asked again for a while, and then the end of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from rxloop.errors import ConflictError, EventLogError, Fenced, LogUnreachable
from rxloop.pipeline.log_retry import ANSWERS_IN, PATIENCE
from rxloop.protocol.events import Event
from rxloop.run.log_writer import LogWriter
from rxloop.testing import virtual_time
from support.event_logs import FailingWriterHarness, GatedLog, ImmediateWriterHarness, LogWriterHarness


@pytest.mark.parametrize("error", [OSError("restarting"), EventLogError("the disk is full"), RuntimeError("driver")])
def test_a_log_that_fails_for_a_moment_is_asked_again(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with virtual_time() as time:

        async def main() -> None:
            it = FailingWriterHarness(error)
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
            it = FailingWriterHarness()
            it.add()
            with pytest.raises(LogUnreachable, match="the server is starting"):
                await it.writer.flush()
            assert len(it.failures) == 1

        time.run(main())
        assert PATIENCE - 2 <= time.now <= PATIENCE


def test_patience_begins_anew_with_each_batch() -> None:
    with virtual_time() as time:

        async def main() -> None:
            it = FailingWriterHarness()
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
    it = FailingWriterHarness(kind("somebody else"))
    it.add()
    with pytest.raises(kind, match="somebody else"):
        await it.writer.flush()
    assert len(it.log.writers) == 1


class HungLog(GatedLog):
    """A log that does not answer, as a connection does that nobody hears at the other end."""

    def __init__(self, tries: int) -> None:
        super().__init__()
        self.tries = tries

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        self.tries -= 1
        if self.tries >= 0:
            await asyncio.Event().wait()
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


class Hung(LogWriterHarness):
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
    it = LogWriterHarness()
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
    it = ImmediateWriterHarness()
    it.log.error = Raised("gone")
    it.add()
    assert it.writer.flush_now() is None
    assert len(it.failures) == 1


def test_a_log_in_which_something_was_cancelled_is_asked_again() -> None:
    with virtual_time() as time:

        async def main() -> None:
            it = LogWriterHarness()
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
