from __future__ import annotations

import asyncio
import socket
import threading
import time as real_time
from collections.abc import AsyncIterator
from contextvars import ContextVar

import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.errors import ConfigurationError, RxloopError
from rxloop.support.tasks import CLOCK
from rxloop.testing import NothingLeft, virtual_time


def test_a_minute_takes_no_time_and_sums_are_exact() -> None:
    before = real_time.monotonic()

    async def work() -> str:
        await asyncio.sleep(0.5)
        await asyncio.sleep(0.15)
        assert asyncio.get_running_loop().time() == 0.65
        await asyncio.sleep(59.35)
        return "done"

    with virtual_time() as time:
        assert time.run(work()) == "done"
        assert time.now == 60
    assert real_time.monotonic() - before < 5


@given(st.lists(st.integers(0, 5), max_size=30))
def test_timers_run_by_time_and_then_in_the_order_in_which_they_were_set(delays: list[int]) -> None:
    ran: list[tuple[int, int]] = []
    with virtual_time() as time:
        for number, delay in enumerate(delays):
            time.at(delay, lambda delay=delay, number=number: ran.append((delay, number)))
        time.advance(5)
    assert ran == sorted(ran)
    assert len(ran) == len(delays)


def test_a_cancelled_timer_neither_runs_nor_moves_the_clock() -> None:
    ran: list[str] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(5, ran.append, "cancelled at once").cancel()
        # Both are due at once; the first cancels the second when that is already on its way.
        second: list[asyncio.TimerHandle] = []
        loop.call_later(1, lambda: [timer.cancel() for timer in second])
        second.append(loop.call_later(1, ran.append, "cancelled on its way"))
        await asyncio.sleep(2)

    with virtual_time() as time:
        time.run(work())
        assert (ran, time.now) == ([], 2)


def test_a_timer_runs_in_the_context_in_which_it_was_set() -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")
    seen: list[str] = []

    async def work() -> None:
        who.set("the task")
        asyncio.get_running_loop().call_later(1, lambda: seen.append(who.get()))
        await asyncio.sleep(2)

    with virtual_time() as time:
        time.run(work())
    assert seen == ["the task"]


def test_at_calls_at_the_instant_and_raises_what_the_callback_raises() -> None:
    seen: list[float] = []

    async def later() -> None:
        await asyncio.sleep(1)
        raise LookupError("from a task of at()")

    with virtual_time() as time:
        time.at(0.04, lambda: seen.append(time.now))
        time.run(asyncio.sleep(1))
        assert seen == [0.04]
        with pytest.raises(ConfigurationError, match="in the past"):
            time.at(0.5, lambda: None)
        time.at(2, lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            time.run(asyncio.sleep(10))
        time.at(3, later)
        with pytest.raises(LookupError):
            time.advance(5)


def test_advance_runs_what_is_due_and_stops_on_time() -> None:
    ran: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.4)
            await asyncio.sleep(0)
            ran.append(time.now)

    with virtual_time() as time:
        time.at(0, tick)
        time.advance(1)
        assert (ran, time.now) == ([0.4, 0.8], 1)
        time.advance(0.2)
        assert (ran, time.now) == ([0.4, 0.8, 1.2], 1.2)
        time.advance(0)
        assert time.now == 1.2


def test_a_thread_of_the_executor_is_waited_for_before_a_timer_fires() -> None:
    go = threading.Event()

    async def work() -> list[str]:
        order: list[str] = []
        asyncio.get_running_loop().call_later(0.001, order.append, "timer")
        job = asyncio.get_running_loop().run_in_executor(None, go.wait)
        threading.Timer(0.05, go.set).start()
        await job
        order.append("job")
        await asyncio.sleep(1)
        return order

    with virtual_time() as time:
        assert time.run(work()) == ["job", "timer"]


def test_a_thread_of_anyio_is_waited_for_before_a_timer_fires() -> None:
    async def work() -> list[str]:
        order: list[str] = []
        asyncio.get_running_loop().call_later(0.001, order.append, "timer")
        await anyio.to_thread.run_sync(real_time.sleep, 0.05)
        order.append("job")
        await asyncio.sleep(1)
        return order

    with virtual_time() as time:
        assert time.run(work()) == ["job", "timer"]


def test_a_thread_that_waits_for_a_timer_gets_it_when_patience_is_over() -> None:
    async def work() -> bool:
        released = threading.Event()
        loop = asyncio.get_running_loop()
        loop.call_later(60, released.set)
        return await loop.run_in_executor(None, released.wait, 30)

    with virtual_time(patience=0.05) as time:
        assert time.run(work()) is True
        assert time.now == 60


def test_a_foreign_thread_may_call_in_when_nothing_else_is_left() -> None:
    async def work() -> str:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()
        threading.Timer(0.05, loop.call_soon_threadsafe, (answer.set_result, "hello")).start()
        return await answer

    with virtual_time() as time:
        assert time.run(work()) == "hello"


def test_real_sockets_work_in_virtual_time() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()

    async def work() -> bytes:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server, asyncio.timeout(0.001):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\n")
            reply = await reader.read()
            writer.close()
            await writer.wait_closed()
            return reply

    with virtual_time() as time:
        assert time.run(work()) == b"HELLO\n"


def test_a_socket_is_waited_for_when_nothing_else_is_left() -> None:
    here, there = socket.socketpair()
    go = threading.Event()

    def answer() -> None:
        go.wait(30)
        real_time.sleep(0.05)
        there.send(b"hello\n")

    # Started before virtual time, so that it is the socket and not the thread that time waits for.
    thread = threading.Thread(target=answer)
    thread.start()

    async def work() -> bytes:
        reader, writer = await asyncio.open_connection(sock=here)
        go.set()
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return line

    with virtual_time() as time, there:
        assert time.run(work()) == b"hello\n"
    thread.join()


def test_a_deadlock_is_an_error_that_names_who_waits() -> None:
    async def work() -> None:
        task = asyncio.create_task(asyncio.Event().wait(), name="a task that waits")
        await asyncio.sleep(1.25)
        await task

    with virtual_time() as time, pytest.raises(NothingLeft) as caught:
        time.run(work())
    assert "nothing left to happen at t=1.25 s; waiting: a task that waits, " in str(caught.value)
    assert "work" in str(caught.value)


def test_a_timeout_is_virtual() -> None:
    with virtual_time() as time:
        with pytest.raises(TimeoutError):
            time.run(asyncio.Event().wait(), timeout=30)
        assert time.now == 30


def test_the_cause_of_an_error_is_kept() -> None:
    async def work() -> None:
        raise ValueError("outer") from KeyError("inner")

    with virtual_time() as time, pytest.raises(ValueError, match="outer") as caught:
        time.run(work())
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_sleep_without_end_is_no_timer() -> None:
    with virtual_time() as time, pytest.raises(NothingLeft):
        time.run(asyncio.sleep(float("inf")))


def test_the_clock_of_runs_is_virtual_inside_only() -> None:
    outside = CLOCK.get()
    with virtual_time() as time:
        assert CLOCK.get().now() == 1_767_225_600_000
        time.advance(1.5)
        assert CLOCK.get().now() == 1_767_225_601_500
        assert CLOCK.get().monotonic() == 1.5
    assert CLOCK.get() is outside


def test_what_is_left_over_is_cancelled_and_may_clean_up() -> None:
    ended: list[str] = []

    async def stays() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            ended.append("task")

    async def values() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            ended.append("generator")

    left = values()

    async def begins() -> None:
        await anext(left)

    with virtual_time() as time:
        time.at(0, stays)
        time.run(begins())
        time.advance(0)
    assert sorted(ended) == ["generator", "task"]


def test_nested_virtual_time_is_refused() -> None:
    with virtual_time(), pytest.raises(RxloopError, match="open already"), virtual_time():
        pass
    with virtual_time():
        pass


async def test_virtual_time_in_a_running_loop_is_refused() -> None:
    with pytest.raises(RxloopError, match="plain `def`"), virtual_time():
        pass
