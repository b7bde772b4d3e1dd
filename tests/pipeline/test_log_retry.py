"""How long a log is asked again that fails: by what goes on, and by whoever waits to be told."""

from __future__ import annotations

import asyncio

import pytest

from rxloop.errors import EventLogError, LogUnreachable
from rxloop.pipeline.log_retry import PATIENCE, patiently, within
from rxloop.testing import virtual_time


async def fail() -> str:
    """Fail at once, as a log does whose server is gone."""
    raise EventLogError("the server is gone")


async def hang() -> str:
    """Say nothing."""
    await asyncio.Event().wait()
    return ""


@pytest.mark.parametrize("ask", [fail, hang])
def test_whoever_waits_for_a_log_is_told_in_time_that_it_does_not_answer(ask: type) -> None:
    with virtual_time() as time:

        async def main() -> None:
            with within(5), pytest.raises(LogUnreachable, match=r"^no answer has come in 5 s$"):
                await patiently(ask, "the log cannot be read")
            assert time.now == 5
            assert asyncio.current_task().cancelling() == 0  # pyright: ignore[reportOptionalMemberAccess]

        time.run(main())


def test_the_time_holds_for_what_begins_in_it_unless_that_goes_on_for_longer() -> None:
    with virtual_time() as time:

        async def ended() -> tuple[str, float]:
            try:
                return await patiently(fail, "the log cannot be read"), time.now
            except EventLogError as error:
                return str(error), time.now

        async def main() -> None:
            with within(5):
                written = asyncio.create_task(ended())
                with within(None):
                    run = asyncio.create_task(ended())
            assert await written == ("no answer has come in 5 s", 5)
            said, when = await run
            assert said == "the server is gone"
            assert PATIENCE - 3 < when <= PATIENCE

        time.run(main())


def test_a_log_that_answers_in_time_is_waited_for() -> None:
    with virtual_time() as time:
        back = 3.0

        async def ask() -> str:
            if time.now < back:
                raise EventLogError("the server is gone")
            return "here"

        async def main() -> None:
            with within(5):
                assert await patiently(ask, "the log cannot be read") == "here"

        time.run(main())


def test_a_time_out_of_the_log_itself_is_asked_again() -> None:
    with virtual_time() as time:
        tries: list[float] = []

        async def ask() -> str:
            tries.append(time.now)
            if len(tries) == 1:
                raise TimeoutError
            return "here"

        async def main() -> None:
            with within(5):
                assert await patiently(ask, "the log cannot be read") == "here"

        time.run(main())
        assert len(tries) == 2
