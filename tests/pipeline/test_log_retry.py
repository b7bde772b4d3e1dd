"""Tests for log retries and time limits."""

from __future__ import annotations

import asyncio

import pytest

from rxloop.errors import EventLogError, LogUnreachable
from rxloop.pipeline.log_retry import RETRY_SECONDS, limit_log_time, retry_log_call
from rxloop.testing import virtual_time


async def fail() -> str:
    """Simulate an unavailable server."""
    raise EventLogError("the server is gone")


async def hang() -> str:
    """Block forever."""
    await asyncio.Event().wait()
    return ""


@pytest.mark.parametrize("call", [fail, hang])
def test_call_raises_log_unreachable_at_the_time_limit(call: type) -> None:
    with virtual_time() as time:

        async def main() -> None:
            with limit_log_time(5), pytest.raises(LogUnreachable, match=r"^the log did not respond within 5 s$"):
                await retry_log_call(call, "the log cannot be read")
            assert time.now == 5
            assert asyncio.current_task().cancelling() == 0  # pyright: ignore[reportOptionalMemberAccess]

        time.run(main())


def test_time_limit_applies_to_tasks_created_inside_unless_it_is_lifted() -> None:
    with virtual_time() as time:

        async def call_log() -> tuple[str, float]:
            try:
                return await retry_log_call(fail, "the log cannot be read"), time.now
            except EventLogError as error:
                return str(error), time.now

        async def main() -> None:
            with limit_log_time(5):
                limited = asyncio.create_task(call_log())
                with limit_log_time(None):
                    unlimited = asyncio.create_task(call_log())
            assert await limited == ("the log did not respond within 5 s", 5)
            message, end = await unlimited
            assert message == "the server is gone"
            assert RETRY_SECONDS - 3 < end <= RETRY_SECONDS

        time.run(main())


def test_call_is_retried_until_the_log_responds() -> None:
    with virtual_time() as time:
        recovery = 3.0

        async def call() -> str:
            if time.now < recovery:
                raise EventLogError("the server is gone")
            return "value"

        async def main() -> None:
            with limit_log_time(5):
                assert await retry_log_call(call, "the log cannot be read") == "value"

        time.run(main())


def test_timeout_of_the_log_is_retried() -> None:
    with virtual_time() as time:
        tries: list[float] = []

        async def call() -> str:
            tries.append(time.now)
            if len(tries) == 1:
                raise TimeoutError
            return "value"

        async def main() -> None:
            with limit_log_time(5):
                assert await retry_log_call(call, "the log cannot be read") == "value"

        time.run(main())
        assert len(tries) == 2
