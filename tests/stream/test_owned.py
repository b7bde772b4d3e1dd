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
from rxloop.tools.task_resources import Owned

SECRET: ContextVar[str] = ContextVar("SECRET", default="none")


class Resource:
    """Counts how often it is entered and left, by which tasks, and may fail or hang."""

    def __init__(self, *, opens: float = 0, fails: BaseException | None = None, leaving: BaseException | None = None):
        self.opens, self.fails, self.leaving = opens, fails, leaving
        self.entered: list[Any] = []
        self.left: list[Any] = []
        self.secret = ""
        self.broken = asyncio.Event()

    @asynccontextmanager
    async def __call__(self) -> AsyncGenerator[object]:
        # What nobody but the task that entered it can leave.
        async with anyio.create_task_group() as group:
            self.secret = SECRET.get()
            await asyncio.sleep(self.opens)
            if self.fails is not None:
                raise self.fails
            group.start_soon(self._break)
            self.entered.append(asyncio.current_task())
            try:
                yield object()
            finally:
                self.left.append(asyncio.current_task())
                group.cancel_scope.cancel()
                if self.leaving is not None:
                    raise self.leaving

    async def _break(self) -> None:
        await self.broken.wait()
        raise ConnectionError("the pipe broke")


async def test_it_is_entered_once_for_all_who_ask_and_left_by_the_task_that_entered_it() -> None:
    owned, resource = Owned[object](), Resource(opens=0.01)
    given = await asyncio.gather(*(owned.get("a", resource, name="a") for _ in range(50)))
    assert len(set(map(id, given))) == 1 == len(resource.entered)
    assert owned.now("a") is given[0]
    await asyncio.create_task(owned.aclose())
    assert resource.left == resource.entered
    assert owned.now("a") is None
    await owned.aclose()


async def test_it_can_be_entered_again_after_it_was_closed() -> None:
    owned, resource = Owned[object](), Resource()
    for _ in range(3):
        await owned.get("a", resource, name="a")
        await owned.aclose()
    assert len(resource.left) == 3


async def test_one_that_broke_is_entered_again(caplog: pytest.LogCaptureFixture) -> None:
    owned, resource = Owned[object](), Resource()
    first = await owned.get("a", resource, name="the pipe")
    resource.broken.set()
    await asyncio.wait([resource.entered[0]])
    resource.broken.clear()
    assert owned.now("a") is None
    assert await owned.get("a", resource, name="the pipe") is not first
    assert "the pipe broke, and is entered again" in caplog.text
    await owned.aclose()


async def test_one_that_was_dropped_is_left_before_another_is_entered() -> None:
    owned, resource = Owned[object](), Resource()
    first = await owned.get("a", resource, name="a")
    owned.drop("a", first)
    owned.drop("a", first)
    second = await owned.get("a", resource, name="a")
    assert second is not first
    assert len(resource.left) == 1
    owned.drop("a", first)
    assert owned.now("a") is second, "an old one is dropped in vain"
    await owned.aclose()


@pytest.mark.parametrize("error", [OSError("no"), SystemExit(3), asyncio.CancelledError(), GeneratorExit()])
async def test_whatever_entering_raises_is_an_error_of_who_asks(error: BaseException) -> None:
    owned = Owned[object]()
    with pytest.raises(RxloopError, match="a is not available"):
        await owned.get("a", Resource(fails=error), name="a")
    await owned.aclose()


def test_a_failure_is_not_tried_again_for_as_long_as_it_took() -> None:
    async def main() -> None:
        owned, resource = Owned[object](), Resource(opens=1e9)
        loop = asyncio.get_running_loop()

        async def asked() -> float:
            before = loop.time()
            with pytest.raises(RxloopError, match="entering it took more than 60 s"):
                await owned.get("a", resource, name="a", seconds=60)
            return loop.time() - before

        assert await asked() == pytest.approx(60)
        assert await asked() == 0
        await asyncio.sleep(60)
        resource.opens = 0
        await owned.get("a", resource, name="a", seconds=60)
        await owned.aclose()

    with virtual_time() as time:
        time.run(main())


async def test_one_that_cannot_be_left_is_an_error_of_who_closes() -> None:
    owned, resource = Owned[object](), Resource(leaving=OSError("it does not close"))
    await owned.get("a", resource, name="a")
    with pytest.raises(OSError, match="it does not close"):
        await owned.aclose()


async def test_who_drops_it_without_closing_it_loses_what_it_has() -> None:
    owned, resource = Owned[object](), Resource()
    await owned.get("a", resource, name="a")
    del owned
    gc.collect()
    await asyncio.wait(resource.entered)
    assert resource.left == resource.entered


def test_one_that_hangs_while_it_is_left_is_cancelled() -> None:
    async def main() -> None:
        owned, cancelled = Owned[None](), asyncio.Event()

        @asynccontextmanager
        async def hangs() -> AsyncGenerator[None]:
            yield
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        await owned.get("a", hangs, name="a")
        await owned.aclose()
        assert cancelled.is_set()

    with virtual_time() as time:
        time.run(main())


def test_one_that_does_not_listen_is_left_to_itself(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        owned, stop = Owned[None](), asyncio.Event()

        @asynccontextmanager
        async def deaf() -> AsyncGenerator[None]:
            yield
            while not stop.is_set():
                with suppress(asyncio.CancelledError):
                    await stop.wait()

        await owned.get("a", deaf, name="deaf")
        with caplog.at_level(logging.WARNING, "rxloop"):
            await owned.aclose()
        stop.set()
        assert "rxloop-deaf does not end" in caplog.text

    with virtual_time() as time:
        time.run(main())


@pytest.mark.parametrize("opens", [0, 0.001], ids=["entered", "while it is entered"])
async def test_closing_in_a_cancelled_scope_leaves_nothing(opens: float) -> None:
    before = asyncio.all_tasks()
    for _ in range(100):
        owned, resource = Owned[object](), Resource(opens=opens)
        asking = asyncio.create_task(owned.get("a", resource, name="a"))
        await asyncio.sleep(0)
        if not opens:
            await asking
        with anyio.CancelScope() as scope:
            scope.cancel()
            await owned.aclose()
        await asyncio.wait([asking])
        assert (asking.exception() is None) == (not opens)
        assert resource.left == resource.entered
        assert asyncio.all_tasks() == before


async def test_who_stops_waiting_does_not_stop_the_others() -> None:
    owned, resource = Owned[object](), Resource(opens=0.01)
    first = asyncio.create_task(owned.get("a", resource, name="a"))
    second = asyncio.create_task(owned.get("a", resource, name="a"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is owned.now("a")
    await owned.aclose()


async def test_nothing_of_the_context_of_who_asks_first_gets_in() -> None:
    owned, resource = Owned[object](), Resource()
    SECRET.set("ann's token")
    await owned.get("a", resource, name="a")
    assert resource.secret == "none"
    await owned.aclose()


def test_each_event_loop_has_its_own_and_the_end_of_a_loop_leaves_it() -> None:
    owned, resources = Owned[object](), [Resource(), Resource()]

    async def ask(resource: Resource) -> None:
        await owned.get("a", resource, name="a")

    for resource in resources:
        asyncio.run(ask(resource))
        assert resource.left == resource.entered
        assert len(resource.left) == 1
    asyncio.run(owned.aclose())


async def test_closing_tells_those_of_another_event_loop() -> None:
    owned, resource = Owned[object](), Resource()
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
    assert len(resource.left) == 1
