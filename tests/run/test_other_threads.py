"""Runs that are subscribed to, and observed, from threads without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from reactivex import Observable
from reactivex import operators as ops
from reactivex.scheduler import ThreadPoolScheduler
from reactivex.scheduler.eventloop import AsyncIOThreadSafeScheduler

import rxloop
from rxloop import Agent, RxloopError
from rxloop.run.handle import Run
from rxloop.testing import ScriptedModel, frames

WAYS: dict[str, Callable[[Agent, Run], Any]] = {
    "run": lambda _, run: run,
    "events": lambda _, run: run.events,
    "stream": lambda _, run: run.stream(),
    "text": lambda _, run: run.text(),
    "merge": lambda _, run: rxloop.merge(run),
    "observe": lambda agent, _: agent.observe("Go."),
    "observe as text": lambda agent, _: agent.observe("Go.").text(),
    "map": lambda agent, _: agent.map(["Go."]),
}


def agent() -> Agent:
    return Agent(ScriptedModel(*[frames("-a-b-c-|", 0.001)] * 2))


async def in_gui(function: Callable[[], Any]) -> Any:
    """Call a function in a thread of its own, which has no event loop."""
    loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def work() -> None:
        try:
            result = function()
        except BaseException as error:
            loop.call_soon_threadsafe(done.set_exception, error)
        else:
            loop.call_soon_threadsafe(done.set_result, result)

    threading.Thread(target=work, daemon=True).start()
    return await done


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("name", WAYS)
async def test_a_subscription_from_another_thread_comes_to_the_loop(name: str, started: bool) -> None:  # P33
    made = agent()
    run = made.run("Go.")
    if started or name in ("observe", "observe as text", "map"):
        run.start()
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    items: list[Any] = []
    threads: set[int] = set()

    def take(item: Any) -> None:
        threads.add(threading.get_ident())
        items.append(item)

    def subscribe() -> Any:
        stream: Observable[Any] = WAYS[name](made, run).pipe(ops.subscribe_on(AsyncIOThreadSafeScheduler(loop)))
        return stream.subscribe(take, over.set_exception, lambda: over.set_result(None))

    subscription = await in_gui(subscribe)
    await asyncio.wait_for(over, 5)
    assert items
    assert threads == {threading.get_ident()}
    subscription.dispose()
    await run


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("name", WAYS)
async def test_a_subscription_in_a_thread_without_a_loop_names_the_remedy(name: str, started: bool) -> None:  # P24
    made = agent()
    run = made.run("Go.")
    if started or name in ("observe", "observe as text", "map"):
        run.start()
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def failed(error: Exception) -> None:
        loop.call_soon_threadsafe(over.set_exception, error)

    WAYS[name](made, run).pipe(ops.subscribe_on(ThreadPoolScheduler(1))).subscribe(print, failed)
    with pytest.raises(RxloopError, match=r"subscribe_on\(AsyncIOThreadSafeScheduler\(loop\)\)"):
        await asyncio.wait_for(over, 5)

    def plainly() -> Any:
        source = WAYS[name](made, run)
        return (source.events if isinstance(source, Run) else source).subscribe(print)

    with pytest.raises(RxloopError, match=r"subscribe_on\(AsyncIOThreadSafeScheduler\(loop\)\)"):
        await in_gui(plainly)
    await run


async def test_items_can_be_observed_in_another_thread() -> None:  # P24
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    texts: list[str] = []
    threads: set[int] = set()

    def take(text: str) -> None:
        threads.add(threading.get_ident())
        texts.append(text)

    def ended() -> None:
        loop.call_soon_threadsafe(over.set_result, None)

    run = agent().run("Go.")
    run.text().pipe(ops.observe_on(ThreadPoolScheduler(1))).subscribe(take, over.set_exception, ended)
    await asyncio.wait_for(over, 5)
    assert "".join(texts) == "abc"
    assert threading.get_ident() not in threads
    await run
