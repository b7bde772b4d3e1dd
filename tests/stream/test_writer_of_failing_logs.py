"""Log writers retry failed appends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from rxloop.errors import ConflictError, EventLogError, Fenced, LogUnreachable
from rxloop.pipeline.log_retry import APPEND_TIMEOUT, RETRY_SECONDS
from rxloop.protocol.events import Event
from rxloop.run.log_writer import LogWriter
from rxloop.testing import virtual_time
from support.event_logs import FailingWriterHarness, GatedLog, ImmediateWriterHarness, LogWriterHarness


@pytest.mark.parametrize("error", [OSError("restarting"), EventLogError("the disk is full"), RuntimeError("driver")])
def test_log_that_fails_briefly_is_retried(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with virtual_time() as time:

        async def main() -> None:
            writing = FailingWriterHarness(error)
            asyncio.get_running_loop().call_later(RETRY_SECONDS - 5, setattr, writing.log, "error", None)
            writing.add(2)
            assert await writing.writer.flush() == 2
            assert writing.log.batches == [[1, 2]]
            assert writing.failures == []
            # The log recognizes repeated batches by the token.
            assert set(writing.log.writers) == {writing.writer.token}
            assert 10 < len(writing.log.writers) < 40

        time.run(main())
        assert RETRY_SECONDS - 5 <= time.now < RETRY_SECONDS
    assert [record.getMessage() for record in caplog.records if "trying again" in record.getMessage()] == [
        f"the log is not accepting events of run t; trying again: {error}"
    ]


def test_retries_end_after_the_time_limit() -> None:
    with virtual_time() as time:

        async def main() -> None:
            writing = FailingWriterHarness()
            writing.add()
            with pytest.raises(LogUnreachable, match="the server is starting"):
                await writing.writer.flush()
            assert len(writing.failures) == 1

        time.run(main())
        assert RETRY_SECONDS - 2 <= time.now <= RETRY_SECONDS


def test_time_limit_starts_again_with_each_batch() -> None:
    with virtual_time() as time:

        async def main() -> None:
            writing = FailingWriterHarness()
            for _ in range(3):
                writing.log.error = OSError("away")
                asyncio.get_running_loop().call_later(RETRY_SECONDS - 5, setattr, writing.log, "error", None)
                writing.add()
                await writing.writer.flush()
            assert writing.log.batches == [[1], [2], [3]]

        time.run(main())
        assert time.now > 2 * RETRY_SECONDS


@pytest.mark.parametrize("kind", [ConflictError, Fenced])
async def test_conflict_is_not_retried(kind: type[ConflictError]) -> None:
    writing = FailingWriterHarness(kind("somebody else"))
    writing.add()
    with pytest.raises(kind, match="somebody else"):
        await writing.writer.flush()
    assert len(writing.log.writers) == 1


class HungLog(GatedLog):
    """Log that hangs during the first `tries` appends."""

    def __init__(self, tries: int) -> None:
        super().__init__()
        self.tries = tries

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        self.tries -= 1
        if self.tries >= 0:
            await asyncio.Event().wait()
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


class HungWriterHarness(LogWriterHarness):
    def __init__(self, tries: int) -> None:
        super().__init__()
        self.log = HungLog(tries)
        self.writer = LogWriter(self.log, "t", 0, self.failures.append)  # type: ignore[arg-type]


def test_log_that_does_not_answer_is_retried() -> None:
    with virtual_time() as time:

        async def main() -> None:
            writing = HungWriterHarness(tries=1)
            writing.add(2)
            assert await writing.writer.flush() == 2
            assert writing.log.batches == [[1, 2]]

        time.run(main())
        assert APPEND_TIMEOUT <= time.now < APPEND_TIMEOUT + 1


def test_log_that_never_answers_fails_in_the_end() -> None:
    with virtual_time() as time:

        async def main() -> None:
            writing = HungWriterHarness(tries=1_000)
            writing.add()
            with pytest.raises(EventLogError, match=r"did not respond within 10 s"):
                await writing.writer.flush()
            assert len(writing.failures) == 1

        time.run(main())
        assert RETRY_SECONDS - APPEND_TIMEOUT <= time.now <= RETRY_SECONDS + APPEND_TIMEOUT


class CustomBaseException(BaseException):
    """Exception that does not derive from `Exception`."""


async def test_any_exception_of_a_log_is_its_failure() -> None:
    writing = LogWriterHarness()
    writing.log.error = CustomBaseException("gone")  # type: ignore[assignment]
    writing.add(2)
    with pytest.raises(EventLogError, match=r"raised CustomBaseException.'gone'., which is not an Exception"):
        await writing.writer.flush()
    writing.log.error = None
    writing.add()
    with pytest.raises(EventLogError):
        await writing.writer.flush()
    # A lost batch is never skipped.
    assert writing.log.batches == []
    assert len(writing.failures) == 1


async def test_any_exception_of_append_now_is_a_failure() -> None:
    writing = ImmediateWriterHarness()
    writing.log.error = CustomBaseException("gone")
    writing.add()
    assert writing.writer.flush_now() is None
    assert len(writing.failures) == 1


def test_cancellation_inside_a_log_is_retried() -> None:
    with virtual_time() as time:

        async def main() -> None:
            writing = LogWriterHarness()
            writing.log.error = asyncio.CancelledError()  # type: ignore[assignment]
            asyncio.get_running_loop().call_later(1, setattr, writing.log, "error", None)
            writing.add()
            assert await writing.writer.flush() == 1
            writing.log.error = asyncio.CancelledError()  # type: ignore[assignment]
            writing.add()
            with pytest.raises(EventLogError, match="CancelledError"):
                await writing.writer.flush()

        time.run(main())
        assert time.now > RETRY_SECONDS - 2
