"""Subscription to runs, and observation of runs, from threads without an event loop."""

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
from rxloop import Agent, RunContext, RxloopError, tool
from rxloop.run.handle import Run
from rxloop.testing import ScriptedModel, call, frames

STREAMS: dict[str, Callable[[Agent, Run], Any]] = {
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


async def call_in_thread(function: Callable[[], Any]) -> Any:
    """Call a function in a thread without an event loop."""
    loop, outcome = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def work() -> None:
        try:
            result = function()
        except BaseException as error:
            loop.call_soon_threadsafe(outcome.set_exception, error)
        else:
            loop.call_soon_threadsafe(outcome.set_result, result)

    threading.Thread(target=work, daemon=True).start()
    return await outcome


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("name", STREAMS)
async def test_subscription_from_another_thread_runs_on_the_loop(name: str, started: bool) -> None:  # P33
    shared_agent = agent()
    run = shared_agent.run("Go.")
    if started or name in ("observe", "observe as text", "map"):
        run.start()
    loop = asyncio.get_running_loop()
    completed: asyncio.Future[None] = loop.create_future()
    items: list[Any] = []
    threads: set[int] = set()

    def record_item(item: Any) -> None:
        threads.add(threading.get_ident())
        items.append(item)

    def subscribe() -> Any:
        stream: Observable[Any] = STREAMS[name](shared_agent, run).pipe(
            ops.subscribe_on(AsyncIOThreadSafeScheduler(loop))
        )
        return stream.subscribe(record_item, completed.set_exception, lambda: completed.set_result(None))

    subscription = await call_in_thread(subscribe)
    await asyncio.wait_for(completed, 5)
    assert items
    assert threads == {threading.get_ident()}
    subscription.dispose()
    await run


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("name", STREAMS)
async def test_subscription_in_a_thread_without_a_loop_raises_with_the_remedy(name: str, started: bool) -> None:  # P24
    shared_agent = agent()
    run = shared_agent.run("Go.")
    if started or name in ("observe", "observe as text", "map"):
        run.start()
    completed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def record_error(error: Exception) -> None:
        loop.call_soon_threadsafe(completed.set_exception, error)

    STREAMS[name](shared_agent, run).pipe(ops.subscribe_on(ThreadPoolScheduler(1))).subscribe(print, record_error)
    with pytest.raises(RxloopError, match=r"subscribe_on\(AsyncIOThreadSafeScheduler\(loop\)\)"):
        await asyncio.wait_for(completed, 5)

    def subscribe_directly() -> Any:
        source = STREAMS[name](shared_agent, run)
        return (source.events if isinstance(source, Run) else source).subscribe(print)

    with pytest.raises(RxloopError, match=r"subscribe_on\(AsyncIOThreadSafeScheduler\(loop\)\)"):
        await call_in_thread(subscribe_directly)
    await run


async def test_items_can_be_observed_in_another_thread() -> None:  # P24
    completed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    texts: list[str] = []
    threads: set[int] = set()

    def record_item(text: str) -> None:
        threads.add(threading.get_ident())
        texts.append(text)

    def record_end() -> None:
        loop.call_soon_threadsafe(completed.set_result, None)

    run = agent().run("Go.")
    run.text().pipe(ops.observe_on(ThreadPoolScheduler(1))).subscribe(record_item, completed.set_exception, record_end)
    await asyncio.wait_for(completed, 5)
    assert "".join(texts) == "abc"
    assert threading.get_ident() not in threads
    await run


async def test_error_of_a_function_in_the_event_loop_is_raised_in_the_thread_of_a_tool() -> None:
    def fail() -> None:
        raise TimeoutError("too late")

    @tool
    def look(ctx: RunContext[Any]) -> str:
        """Look."""
        with pytest.raises(TimeoutError, match="too late"):
            ctx.info.run_in_loop(fail)
        return "looked"

    result = await Agent(ScriptedModel(call("look"), "Done."), tools=[look]).run("Look.")
    assert result.messages[-2].text == "looked"
