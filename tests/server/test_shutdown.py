"""Steps of a shutdown, their order, and failures of single steps."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from rxloop import Agent, ConfigurationError, MemoryEventLog, RunContext, Runtime, tool
from rxloop.server import Shutdown, api
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import RawConnection, make_client, serve_app


def make_runtime(*turns: Any, **options: Any) -> Runtime:
    return Runtime({"clerk": Agent(ScriptedModel(*turns or ("Hello.",)), **options)}, log=MemoryEventLog())


async def test_watchers_run_in_ascending_order_of_their_positions(caplog: pytest.LogCaptureFixture) -> None:  # L140
    caplog.set_level("INFO", "rxloop")
    runtime = make_runtime()
    ending = Shutdown(api(runtime))
    done: list[str] = []

    async def record(name: str) -> None:
        done.append(name)

    ending.watch(45, "late", lambda: record("late"))
    ending.watch(5, "early", lambda: record("early"))
    ending.watch(45, "later", lambda: record("later"))
    async with runtime:
        assert await ending.run()
    assert done == ["early", "late", "later"]
    logged = [record.getMessage().partition(",")[0].removeprefix("shutdown: ") for record in caplog.records]
    assert logged == ["early", "readiness", "runs", "streams", "log", "late", "later", "agents"]


async def test_failing_or_blocking_watcher_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:  # L140
    runtime = make_runtime()
    ending = Shutdown(api(runtime))
    reached = asyncio.Event()

    async def resist() -> None:
        while not reached.is_set():
            try:
                await reached.wait()
            except asyncio.CancelledError:
                continue

    def fail() -> None:
        raise KeyError("it broke")

    async def record() -> None:
        reached.set()

    ending.watch(1, "stubborn", resist, seconds=0.01)
    # A plain function, so that the timeout does not depend on the event loop.
    ending.watch(2, "blocking", lambda: time.sleep(1), seconds=0.01)
    ending.watch(3, "broken", fail)
    ending.watch(99, "the last one", record)
    async with runtime:
        assert not await ending.run()
    assert reached.is_set()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert warnings == [
        "shutdown: stubborn is not done after 0.01 s, and is left",
        "shutdown: blocking is not done after 0.01 s, and is left",
        "shutdown: broken failed: KeyError('it broke')",
    ]


async def test_repeated_call_waits_for_the_same_shutdown() -> None:
    runtime = make_runtime()
    ending = Shutdown(api(runtime))
    started, released, times = asyncio.Event(), asyncio.Event(), 0

    async def count() -> None:
        nonlocal times
        times += 1
        started.set()
        await released.wait()

    ending.watch(1, "counted", count)
    async with runtime:
        first = asyncio.create_task(ending.run())
        second = asyncio.create_task(ending.run())
        await started.wait()
        with pytest.raises(ConfigurationError, match="too late"):
            ending.watch(2, "another", count)
        first.cancel()
        released.set()
        assert await second
        assert await ending.run()
    assert times == 1


async def test_adapters_of_a_runtime_end_together_with_their_streams_and_resources() -> None:
    stopped = asyncio.Event()

    @tool
    async def hold(ctx: RunContext[Any]) -> str:
        """Block."""
        try:
            return await asyncio.Future()
        finally:
            stopped.set()

    runtime = make_runtime(call("hold"), frames("-on and on", 0.01), tools=[hold])
    one, other = api(runtime), api(runtime)
    ending = Shutdown(one, other, seconds=0.05)
    statuses: list[Any] = []

    async def check_readiness() -> None:
        async with make_client(url) as client:
            statuses.append([(await client.get("/readyz")).status_code, (await client.get("/healthz")).status_code])
            statuses.append((await client.post("/runs", json={"input": "One more"})).status_code)

    ending.watch(15, "look", check_readiness)
    async with runtime, serve_app(one) as url, serve_app(other) as second:
        async with make_client(url) as client:
            run = (await client.post("/runs", json={"input": "Hold"})).json()
        readers = [await RawConnection.connect(url), await RawConnection.connect(second)]
        for reader in readers:
            await reader.get(run["events"])
            await reader.reader.readuntil(b"tool-start")
        assert await ending.run()
        assert statuses == [[503, 200], 503]
        assert stopped.is_set()
        for reader in readers:
            remaining = await reader.reader.readuntil(b"\r\n0\r\n\r\n")
            assert b"come back with the last id" in remaining
            await reader.close()
        assert (await runtime.get_record(run["taskId"])).state == "working"
    with pytest.raises(ConfigurationError):
        Shutdown()


async def test_adapters_drained_concurrently_and_repeatedly_end_once() -> None:
    runtime = make_runtime(frames("-on and on", 0.01))
    adapters = [api(runtime), api(runtime)]
    async with runtime:
        record = await runtime.start("clerk", "Go on")
        async with asyncio.timeout(10):
            await asyncio.gather(*(adapter.drain(0.05) for adapter in adapters))
            await adapters[0].drain()
        assert (await runtime.get_record(record.task_id)).state == "working"
