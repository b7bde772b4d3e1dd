"""Order and failures of shutdown steps."""

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


async def test_steps_run_in_ascending_order_of_their_positions(caplog: pytest.LogCaptureFixture) -> None:  # L140
    caplog.set_level("INFO", "rxloop")
    runtime = make_runtime()
    shutdown = Shutdown(api(runtime))
    completed: list[str] = []

    async def record(name: str) -> None:
        completed.append(name)

    shutdown.add_step(45, "late", lambda: record("late"))
    shutdown.add_step(5, "early", lambda: record("early"))
    shutdown.add_step(45, "later", lambda: record("later"))
    async with runtime:
        assert await shutdown.run()
    assert completed == ["early", "late", "later"]
    logged = [record.getMessage().removeprefix("Shutdown step ").partition(" ")[0] for record in caplog.records]
    assert logged == ["early", "readiness", "runs", "streams", "log", "late", "later", "agents"]


async def test_failing_or_blocking_step_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:  # L140
    runtime = make_runtime()
    shutdown = Shutdown(api(runtime))
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

    shutdown.add_step(1, "stubborn", resist, seconds=0.01)
    # Use a sync function, so that the timeout does not depend on the event loop.
    shutdown.add_step(2, "blocking", lambda: time.sleep(1), seconds=0.01)
    shutdown.add_step(3, "broken", fail)
    shutdown.add_step(99, "the last one", record)
    async with runtime:
        assert not await shutdown.run()
    assert reached.is_set()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert warnings == [
        "Shutdown step stubborn timed out after 0.01 s",
        "Shutdown step blocking timed out after 0.01 s",
        "Shutdown step broken failed: KeyError('it broke')",
    ]


async def test_repeated_call_waits_for_the_same_shutdown() -> None:
    runtime = make_runtime()
    shutdown = Shutdown(api(runtime))
    started, released, call_count = asyncio.Event(), asyncio.Event(), 0

    async def count() -> None:
        nonlocal call_count
        call_count += 1
        started.set()
        await released.wait()

    shutdown.add_step(1, "counted", count)
    async with runtime:
        first = asyncio.create_task(shutdown.run())
        second = asyncio.create_task(shutdown.run())
        await started.wait()
        with pytest.raises(ConfigurationError, match="already started"):
            shutdown.add_step(2, "another", count)
        first.cancel()
        released.set()
        assert await second
        assert await shutdown.run()
    assert call_count == 1


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
    shutdown = Shutdown(one, other, seconds=0.05)
    statuses: list[Any] = []

    async def check_readiness() -> None:
        async with make_client(url) as client:
            statuses.append([(await client.get("/readyz")).status_code, (await client.get("/healthz")).status_code])
            statuses.append((await client.post("/runs", json={"input": "One more"})).status_code)

    shutdown.add_step(15, "look", check_readiness)
    async with runtime, serve_app(one) as url, serve_app(other) as second:
        async with make_client(url) as client:
            run = (await client.post("/runs", json={"input": "Hold"})).json()
        readers = [await RawConnection.connect(url), await RawConnection.connect(second)]
        for reader in readers:
            await reader.get(run["events"])
            await reader.reader.readuntil(b"tool-start")
        assert await shutdown.run()
        assert statuses == [[503, 200], 503]
        assert stopped.is_set()
        for reader in readers:
            remaining = await reader.reader.readuntil(b"\r\n0\r\n\r\n")
            assert b"reconnect with the last id" in remaining
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
