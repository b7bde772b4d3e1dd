"""The end of a server: what is done, in which order, and that nothing holds it up."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from rxloop import Agent, ConfigurationError, MemoryEventLog, RunContext, Runtime, tool
from rxloop.server import Shutdown, api
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import RawConnection, make_client, serve_app


def a_runtime(*turns: Any, **options: Any) -> Runtime:
    return Runtime({"clerk": Agent(ScriptedModel(*turns or ("Hello.",)), **options)}, log=MemoryEventLog())


async def test_watchers_run_in_ascending_order_of_their_places(caplog: pytest.LogCaptureFixture) -> None:  # L140
    caplog.set_level("INFO", "rxloop")
    runtime = a_runtime()
    ending = Shutdown(api(runtime))
    done: list[str] = []

    async def take_note(name: str) -> None:
        done.append(name)

    ending.watch(45, "late", lambda: take_note("late"))
    ending.watch(5, "early", lambda: take_note("early"))
    ending.watch(45, "later", lambda: take_note("later"))
    async with runtime:
        assert await ending.run()
    assert done == ["early", "late", "later"]
    logged = [record.getMessage().partition(",")[0].removeprefix("shutdown: ") for record in caplog.records]
    assert logged == ["early", "readiness", "runs", "streams", "log", "late", "later", "agents"]


async def test_one_that_fails_or_never_ends_does_not_stop_the_rest(caplog: pytest.LogCaptureFixture) -> None:  # L140
    runtime = a_runtime()
    ending = Shutdown(api(runtime))
    reached = asyncio.Event()

    async def resist() -> None:
        while not reached.is_set():
            try:
                await reached.wait()
            except asyncio.CancelledError:
                continue

    def break_down() -> None:
        raise KeyError("it broke")

    async def take_note() -> None:
        reached.set()

    ending.watch(1, "stubborn", resist, seconds=0.01)
    # Plain, so that it is not the event loop that it holds.
    ending.watch(2, "blocking", lambda: time.sleep(1), seconds=0.01)
    ending.watch(3, "broken", break_down)
    ending.watch(99, "the last one", take_note)
    async with runtime:
        assert not await ending.run()
    assert reached.is_set()
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said == [
        "shutdown: stubborn is not done after 0.01 s, and is left",
        "shutdown: blocking is not done after 0.01 s, and is left",
        "shutdown: broken failed: KeyError('it broke')",
    ]


async def test_whoever_calls_it_again_waits_for_the_same_end() -> None:
    runtime = a_runtime()
    ending = Shutdown(api(runtime))
    begun, go_on, times = asyncio.Event(), asyncio.Event(), 0

    async def count() -> None:
        nonlocal times
        times += 1
        begun.set()
        await go_on.wait()

    ending.watch(1, "counted", count)
    async with runtime:
        first = asyncio.create_task(ending.run())
        second = asyncio.create_task(ending.run())
        await begun.wait()
        with pytest.raises(ConfigurationError, match="too late"):
            ending.watch(2, "another", count)
        first.cancel()
        go_on.set()
        assert await second
        assert await ending.run()
    assert times == 1


async def test_doors_of_one_runtime_end_together_with_their_streams_and_what_they_opened() -> None:
    stopped = asyncio.Event()

    @tool
    async def hold(ctx: RunContext[Any]) -> str:
        """Go on for ever."""
        try:
            return await asyncio.Future()
        finally:
            stopped.set()

    runtime = a_runtime(call("hold"), frames("-on and on", 0.01), tools=[hold])
    one, other = api(runtime), api(runtime)
    ending = Shutdown(one, other, seconds=0.05)
    seen: list[Any] = []

    async def look() -> None:
        async with make_client(url) as client:
            seen.append([(await client.get("/readyz")).status_code, (await client.get("/healthz")).status_code])
            seen.append((await client.post("/runs", json={"input": "One more"})).status_code)

    ending.watch(15, "look", look)
    async with runtime, serve_app(one) as url, serve_app(other) as second:
        async with make_client(url) as client:
            run = (await client.post("/runs", json={"input": "Hold"})).json()
        readers = [await RawConnection.connect(url), await RawConnection.connect(second)]
        for reader in readers:
            await reader.get(run["events"])
            await reader.reader.readuntil(b"tool-start")
        assert await ending.run()
        assert seen == [[503, 200], 503]
        assert stopped.is_set()
        for reader in readers:
            rest = await reader.reader.readuntil(b"\r\n0\r\n\r\n")
            assert b"come back with the last id" in rest
            await reader.close()
        assert (await runtime.get_record(run["taskId"])).state == "working"
    with pytest.raises(ConfigurationError):
        Shutdown()


async def test_doors_that_are_drained_side_by_side_and_twice_end_once() -> None:
    runtime = a_runtime(frames("-on and on", 0.01))
    doors = [api(runtime), api(runtime)]
    async with runtime:
        record = await runtime.start("clerk", "Go on")
        async with asyncio.timeout(10):
            await asyncio.gather(*(door.drain(0.05) for door in doors))
            await doors[0].drain()
        assert (await runtime.get_record(record.task_id)).state == "working"
