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

from rxloop import Agent
from rxloop.errors import ConfigurationError, RxloopError
from rxloop.support.tasks import CLOCK
from rxloop.testing import NothingLeft, ScriptedModel, virtual_time


def test_virtual_minute_takes_no_time_and_sums_are_exact() -> None:
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
def test_timers_run_in_order_of_time_and_creation(delays: list[int]) -> None:
    ran: list[tuple[int, int]] = []
    with virtual_time() as time:
        for number, delay in enumerate(delays):
            time.at(delay, lambda delay=delay, number=number: ran.append((delay, number)))
        time.advance(5)
    assert ran == sorted(ran)
    assert len(ran) == len(delays)


def test_cancelled_timer_does_not_run_or_advance_the_clock() -> None:
    ran: list[str] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(5, ran.append, "cancelled at once").cancel()
        # Both timers are due at the same time. The first cancels the second, which is already scheduled.
        second: list[asyncio.TimerHandle] = []
        loop.call_later(1, lambda: [timer.cancel() for timer in second])
        second.append(loop.call_later(1, ran.append, "cancelled when scheduled"))
        await asyncio.sleep(2)

    with virtual_time() as time:
        time.run(work())
        assert (ran, time.now) == ([], 2)


def test_timer_runs_in_the_context_of_its_creation() -> None:
    owner: ContextVar[str] = ContextVar("owner", default="none")
    owners: list[str] = []

    async def work() -> None:
        owner.set("the task")
        asyncio.get_running_loop().call_later(1, lambda: owners.append(owner.get()))
        await asyncio.sleep(2)

    with virtual_time() as time:
        time.run(work())
    assert owners == ["the task"]


def test_at_calls_back_on_time_and_raises_errors_of_the_callback() -> None:
    times: list[float] = []

    async def fail_later() -> None:
        await asyncio.sleep(1)
        raise LookupError("from a task of at()")

    with virtual_time() as time:
        time.at(0.04, lambda: times.append(time.now))
        time.run(asyncio.sleep(1))
        assert times == [0.04]
        with pytest.raises(ConfigurationError, match="in the past"):
            time.at(0.5, lambda: None)
        time.at(2, lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            time.run(asyncio.sleep(10))
        time.at(3, fail_later)
        with pytest.raises(LookupError):
            time.advance(5)


def test_advance_runs_due_callbacks_and_stops_on_time() -> None:
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


def test_timer_waits_for_a_thread_of_the_executor() -> None:
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


def test_timer_waits_for_a_thread_of_anyio() -> None:
    async def work() -> list[str]:
        order: list[str] = []
        asyncio.get_running_loop().call_later(0.001, order.append, "timer")
        await anyio.to_thread.run_sync(real_time.sleep, 0.05)
        order.append("job")
        await asyncio.sleep(1)
        return order

    with virtual_time() as time:
        assert time.run(work()) == ["job", "timer"]


def test_thread_that_waits_for_a_timer_gets_it_after_the_real_timeout() -> None:
    async def work() -> bool:
        released = threading.Event()
        loop = asyncio.get_running_loop()
        loop.call_later(60, released.set)
        return await loop.run_in_executor(None, released.wait, 30)

    with virtual_time(real_timeout=0.05) as time:
        assert time.run(work()) is True
        assert time.now == 60


def test_foreign_thread_can_wake_up_an_idle_loop() -> None:
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


def test_idle_loop_waits_for_a_socket() -> None:
    local, remote = socket.socketpair()
    go = threading.Event()

    def answer() -> None:
        go.wait(30)
        real_time.sleep(0.05)
        remote.send(b"hello\n")

    # Start the thread before virtual time, so that the loop waits for the socket and not for the thread.
    thread = threading.Thread(target=answer)
    thread.start()

    async def work() -> bytes:
        reader, writer = await asyncio.open_connection(sock=local)
        go.set()
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return line

    with virtual_time() as time, remote:
        assert time.run(work()) == b"hello\n"
    thread.join()


def test_deadlock_raises_an_error_with_the_waiting_tasks() -> None:
    async def work() -> None:
        task = asyncio.create_task(asyncio.Event().wait(), name="a task that waits")
        await asyncio.sleep(1.25)
        await task

    with virtual_time() as time, pytest.raises(NothingLeft) as caught:
        time.run(work())
    assert "can wake up a task at t=1.25 s; waiting: a task that waits, " in str(caught.value)
    assert "work" in str(caught.value)


def test_timeout_is_virtual() -> None:
    with virtual_time() as time:
        with pytest.raises(TimeoutError):
            time.run(asyncio.Event().wait(), timeout=30)
        assert time.now == 30


def test_run_keeps_the_cause_of_an_error() -> None:
    async def work() -> None:
        raise ValueError("outer") from KeyError("inner")

    with virtual_time() as time, pytest.raises(ValueError, match="outer") as caught:
        time.run(work())
    assert isinstance(caught.value.__cause__, KeyError)


def test_endless_sleep_is_a_deadlock() -> None:
    with virtual_time() as time, pytest.raises(NothingLeft):
        time.run(asyncio.sleep(float("inf")))


def test_clock_of_runs_is_only_virtual_inside_the_block() -> None:
    outside = CLOCK.get()
    with virtual_time() as time:
        assert CLOCK.get().now() == 1_767_225_600_000
        time.advance(1.5)
        assert CLOCK.get().now() == 1_767_225_601_500
        assert CLOCK.get().monotonic() == 1.5
    assert CLOCK.get() is outside


def test_remaining_tasks_are_cancelled_with_cleanup() -> None:
    ended: list[str] = []

    async def stay() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            ended.append("task")

    async def generate() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            ended.append("generator")

    generator = generate()

    async def begin() -> None:
        await anext(generator)

    with virtual_time() as time:
        time.at(0, stay)
        time.run(begin())
        time.advance(0)
    assert sorted(ended) == ["generator", "task"]


def test_nested_virtual_time_is_rejected() -> None:
    with virtual_time(), pytest.raises(RxloopError, match="must not be nested"), virtual_time():
        pass
    with virtual_time():
        pass


async def test_virtual_time_in_a_running_loop_is_rejected() -> None:
    with pytest.raises(RxloopError, match="plain `def`"), virtual_time():
        pass


@pytest.mark.parametrize("start", ["run.events.subscribe(print)", "run.start()", "agent.map(['Hi']).subscribe(print)"])
def test_subscription_outside_of_the_event_loop_names_the_remedy_for_virtual_time(start: str) -> None:
    agent = Agent(ScriptedModel("Hi."))
    with virtual_time() as time:
        run = agent.run("Hi")
        names = {"run": run, "agent": agent}
        with pytest.raises(RxloopError, match="running event loop") as caught:
            eval(start, names)
        time.at(0, lambda: eval(start, names))
        time.run(run.result())
    assert "time.at(0, ...)" in str(caught.value)
    assert "asyncio.run" not in str(caught.value)
