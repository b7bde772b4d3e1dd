import asyncio
import gc
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from rxloop.errors import RxloopError
from rxloop.testing import virtual_time
from rxloop.tools.task_resources import TaskResources

SECRET: ContextVar[str] = ContextVar("SECRET", default="none")


class Resource:
    """Resource that records which tasks enter and exit. Entry and exit can fail."""

    def __init__(
        self,
        *,
        entry_seconds: float = 0,
        failure: BaseException | None = None,
        exit_failure: BaseException | None = None,
    ):
        self.entry_seconds, self.failure, self.exit_failure = entry_seconds, failure, exit_failure
        self.entered: list[Any] = []
        self.exited: list[Any] = []
        self.secret = ""
        self.broken = asyncio.Event()

    @asynccontextmanager
    async def __call__(self) -> AsyncGenerator[object]:
        # Only the task that entered this context can exit it.
        async with anyio.create_task_group() as group:
            self.secret = SECRET.get()
            await asyncio.sleep(self.entry_seconds)
            if self.failure is not None:
                raise self.failure
            group.start_soon(self._break)
            self.entered.append(asyncio.current_task())
            try:
                yield object()
            finally:
                self.exited.append(asyncio.current_task())
                group.cancel_scope.cancel()
                if self.exit_failure is not None:
                    raise self.exit_failure

    async def _break(self) -> None:
        await self.broken.wait()
        raise ConnectionError("the pipe broke")


async def test_resource_is_entered_once_for_concurrent_callers_and_exited_by_the_same_task() -> None:
    owned, resource = TaskResources[object](), Resource(entry_seconds=0.01)
    resources = await asyncio.gather(*(owned.get("a", resource, name="a") for _ in range(50)))
    assert len(set(map(id, resources))) == 1 == len(resource.entered)
    assert owned.get_now("a") is resources[0]
    await asyncio.create_task(owned.aclose())
    assert resource.exited == resource.entered
    assert owned.get_now("a") is None
    await owned.aclose()


async def test_resource_can_be_entered_again_after_close() -> None:
    owned, resource = TaskResources[object](), Resource()
    for _ in range(3):
        await owned.get("a", resource, name="a")
        await owned.aclose()
    assert len(resource.exited) == 3


async def test_broken_resource_is_entered_again(caplog: pytest.LogCaptureFixture) -> None:
    owned, resource = TaskResources[object](), Resource()
    first = await owned.get("a", resource, name="the pipe")
    resource.broken.set()
    await asyncio.wait([resource.entered[0]])
    resource.broken.clear()
    assert owned.get_now("a") is None
    assert await owned.get("a", resource, name="the pipe") is not first
    assert "the pipe failed and will be entered again" in caplog.text
    await owned.aclose()


async def test_dropped_resource_is_exited_before_another_is_entered() -> None:
    owned, resource = TaskResources[object](), Resource()
    first = await owned.get("a", resource, name="a")
    owned.drop("a", first)
    owned.drop("a", first)
    second = await owned.get("a", resource, name="a")
    assert second is not first
    assert len(resource.exited) == 1
    owned.drop("a", first)
    assert owned.get_now("a") is second, "an old one is dropped in vain"
    await owned.aclose()


@pytest.mark.parametrize("error", [OSError("no"), SystemExit(3), asyncio.CancelledError(), GeneratorExit()])
async def test_any_exception_at_entry_is_an_error_of_the_caller(error: BaseException) -> None:
    owned = TaskResources[object]()
    with pytest.raises(RxloopError, match="a is not available"):
        await owned.get("a", Resource(failure=error), name="a")
    await owned.aclose()


def test_failure_is_not_retried_for_as_long_as_it_took() -> None:
    async def main() -> None:
        owned, resource = TaskResources[object](), Resource(entry_seconds=1e9)
        loop = asyncio.get_running_loop()

        async def measure_get() -> float:
            before = loop.time()
            with pytest.raises(RxloopError, match="entering it took more than 60 s"):
                await owned.get("a", resource, name="a", seconds=60)
            return loop.time() - before

        assert await measure_get() == pytest.approx(60)
        assert await measure_get() == 0
        await asyncio.sleep(60)
        resource.entry_seconds = 0
        await owned.get("a", resource, name="a", seconds=60)
        await owned.aclose()

    with virtual_time() as time:
        time.run(main())


async def test_failure_at_exit_is_raised_by_close() -> None:
    owned, resource = TaskResources[object](), Resource(exit_failure=OSError("it does not close"))
    await owned.get("a", resource, name="a")
    with pytest.raises(OSError, match="it does not close"):
        await owned.aclose()


async def test_resources_are_exited_when_their_owner_is_dropped() -> None:
    owned, resource = TaskResources[object](), Resource()
    await owned.get("a", resource, name="a")
    del owned
    gc.collect()
    await asyncio.wait(resource.entered)
    assert resource.exited == resource.entered


def test_resource_that_hangs_at_exit_is_cancelled() -> None:
    async def main() -> None:
        owned, cancelled = TaskResources[None](), asyncio.Event()

        @asynccontextmanager
        async def hang() -> AsyncGenerator[None]:
            yield
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        await owned.get("a", hang, name="a")
        await owned.aclose()
        assert cancelled.is_set()

    with virtual_time() as time:
        time.run(main())


def test_resource_that_ignores_its_cancellation_is_abandoned_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        owned, stop = TaskResources[None](), asyncio.Event()

        @asynccontextmanager
        async def ignore_cancellation() -> AsyncGenerator[None]:
            yield
            while not stop.is_set():
                with suppress(asyncio.CancelledError):
                    await stop.wait()

        await owned.get("a", ignore_cancellation, name="deaf")
        with caplog.at_level(logging.WARNING, "rxloop"):
            await owned.aclose()
        stop.set()
        assert "Abandoning rxloop-deaf, which does not end" in caplog.text

    with virtual_time() as time:
        time.run(main())


@pytest.mark.parametrize("entry_seconds", [0, 0.001], ids=["entered", "while it is entered"])
async def test_close_in_a_cancelled_scope_leaves_nothing(entry_seconds: float) -> None:
    before = asyncio.all_tasks()
    for _ in range(100):
        owned, resource = TaskResources[object](), Resource(entry_seconds=entry_seconds)
        asking = asyncio.create_task(owned.get("a", resource, name="a"))
        await asyncio.sleep(0)
        if not entry_seconds:
            await asking
        with anyio.CancelScope() as scope:
            scope.cancel()
            await owned.aclose()
        await asyncio.wait([asking])
        assert (asking.exception() is None) == (not entry_seconds)
        assert resource.exited == resource.entered
        assert asyncio.all_tasks() == before


async def test_cancelled_caller_does_not_affect_other_callers() -> None:
    owned, resource = TaskResources[object](), Resource(entry_seconds=0.01)
    first = asyncio.create_task(owned.get("a", resource, name="a"))
    second = asyncio.create_task(owned.get("a", resource, name="a"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is owned.get_now("a")
    await owned.aclose()


async def test_context_of_the_first_caller_is_not_used() -> None:
    owned, resource = TaskResources[object](), Resource()
    SECRET.set("ann's token")
    await owned.get("a", resource, name="a")
    assert resource.secret == "none"
    await owned.aclose()


def test_each_event_loop_has_its_own_resource_until_its_end() -> None:
    owned, resources = TaskResources[object](), [Resource(), Resource()]

    async def ask(resource: Resource) -> None:
        await owned.get("a", resource, name="a")

    for resource in resources:
        asyncio.run(ask(resource))
        assert resource.exited == resource.entered
        assert len(resource.exited) == 1
    asyncio.run(owned.aclose())


async def test_close_notifies_resources_of_another_event_loop() -> None:
    owned, resource = TaskResources[object](), Resource()
    entered, ended = asyncio.Event(), asyncio.Event()
    here = asyncio.get_running_loop()

    async def elsewhere() -> None:
        await owned.get("a", resource, name="a")
        here.call_soon_threadsafe(entered.set)
        await asyncio.wait(resource.entered)
        here.call_soon_threadsafe(ended.set)

    thread = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    await entered.wait()
    await owned.aclose()
    await ended.wait()
    await thread
    assert len(resource.exited) == 1
