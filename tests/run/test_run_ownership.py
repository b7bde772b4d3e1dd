from __future__ import annotations

import asyncio
import gc
import warnings
import weakref
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, RunContext, op, tool
from rxloop.protocol.events import Event
from rxloop.testing import ScriptedModel, call, frames
from support.cancellation import ended, endless, first_of, watched
from support.run_checks import (
    Recorder,
    assert_ended,
    events_of,
    finals,
    kinds,
    nothing_left,
    other_tasks,
    settled,
    until,
)


async def test_making_a_run_starts_nothing() -> None:
    model = ScriptedModel("Hi.")
    run = Agent(model).run("Go.")
    made = [run.events, run.pipe(op.text()), run.text(), aiter(run), run.sse()]
    await settled()
    del made
    assert not run.started
    assert other_tasks() == set()
    assert model.requests == []
    await run


async def test_any_first_use_starts_it_exactly_once() -> None:
    uses: list[Any] = [
        lambda run: run.events.subscribe(lambda _: None),
        lambda run: run.pipe(op.text()).subscribe(lambda _: None),
        lambda run: asyncio.ensure_future(anext(aiter(run))),
        lambda run: asyncio.ensure_future(anext(aiter(run.text()))),
        lambda run: asyncio.ensure_future(anext(run.sse())),
        lambda run: asyncio.ensure_future(run.result()),
        lambda run: asyncio.ensure_future(run.__aenter__()),
    ]
    for use in uses:
        model = ScriptedModel("Hi.")
        run = Agent(model).run("Go.")
        kept = use(run)
        for other in uses:
            await asyncio.wait([made]) if isinstance(made := other(run), asyncio.Task) else None
        await run
        assert len(model.requests) == 1
        del kept


async def test_a_run_that_never_started_warns() -> None:
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    task_id = run.task_id
    with pytest.warns(RuntimeWarning, match=f"{task_id} of 'agent' was never started"):  # noqa: PT031
        del run
        gc.collect()


async def test_a_stream_of_a_run_that_never_started_keeps_the_warning_back_until_it_is_dropped_too() -> None:
    stream: Any = Agent(ScriptedModel("Hi.")).run("Go.").text()
    gc.collect()
    with pytest.warns(RuntimeWarning, match="never started"):  # noqa: PT031
        del stream
        gc.collect()


async def test_a_run_that_was_cancelled_before_it_started_does_not_warn() -> None:
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    run.cancel()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del run
        gc.collect()
    await nothing_left()


async def test_a_run_that_was_used_never_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = Agent(ScriptedModel("Hi.")).run("Go.")
        await run
        del run
        gc.collect()


async def test_reading_a_part_does_not_cancel_while_the_handle_is_there() -> None:
    model = ScriptedModel(frames("-a-b-c-|", frame=0.001))
    run = Agent(model).run("Go.")
    async for event in run:
        if event.kind == "content-delta":
            break
    async for _ in run.text():
        break
    run.events.subscribe(lambda _: None).dispose()
    assert (await run).output == "abc"
    assert len(model.requests) == 1


async def test_giving_up_reading_does_not_cancel() -> None:
    run = Agent(ScriptedModel(frames("-a-b-c-|", frame=0.001))).run("Go.")
    reading = asyncio.ensure_future(events_of(run))
    await until(lambda: run.started)
    reading.cancel()
    await asyncio.wait([reading])
    assert (await run).output == "abc"


async def test_an_iterator_that_is_left_with_no_handle_cancels_the_run() -> None:
    agent = Agent(endless())
    holder: list[Any] = []

    async def read() -> None:
        run, seen = watched(agent)
        holder.append(seen)
        async for event in run:
            if event.kind == "content-delta":
                break

    await read()
    final = await ended(holder[0])
    assert "nobody holds the run" in final.error.message  # type: ignore[attr-defined]


async def test_an_iterator_alone_keeps_the_run_going() -> None:
    texts = [text async for text in Agent(ScriptedModel(frames("-a-b-c-|", frame=0.001))).run("Go.").text()]
    assert texts == ["a", "b", "c"]
    await nothing_left()


async def test_a_subscription_alone_keeps_the_run_going() -> None:
    run, seen = watched(Agent(ScriptedModel(frames("-a-b-c-|", frame=0.001))))
    texts: list[str] = []
    run.text().subscribe(texts.append)
    del run
    gc.collect()
    await until(lambda: finals(seen))
    assert_ended(seen, "completed")
    assert texts == ["a", "b", "c"]


async def test_the_last_subscription_that_is_disposed_cancels_the_run() -> None:
    run, seen = watched(Agent(endless()))
    first = run.events.subscribe(lambda _: None)
    second = run.text().subscribe(lambda _: None)
    del run
    await until(lambda: "content-delta" in kinds(seen))
    first.dispose()
    gc.collect()
    await settled()
    assert not finals(seen)
    second.dispose()
    await ended(seen)


async def test_the_last_subscriber_that_raises_cancels_the_run(caplog: pytest.LogCaptureFixture) -> None:
    run, seen = watched(Agent(endless()))

    def fails(event: Event) -> None:
        if event.kind == "content-delta":
            raise ZeroDivisionError

    run.events.subscribe(fails)
    del run
    await ended(seen)


async def test_a_stream_that_is_kept_keeps_the_run_going() -> None:
    run, seen = watched(Agent(ScriptedModel(frames("-a-b-c-|", frame=0.001))))
    run.events.subscribe(lambda _: None).dispose()
    stream = run.text()
    del run
    await until(lambda: finals(seen))
    assert_ended(seen, "completed")
    assert [text async for text in stream] == ["abc"]


async def test_a_handle_that_is_dropped_unread_after_its_start_cancels_the_run() -> None:
    run, seen = watched(Agent(endless()))
    await run.__aenter__()
    await until(lambda: "content-delta" in kinds(seen))
    del run
    await ended(seen)


async def test_a_server_sent_stream_that_is_dropped_cancels_the_run() -> None:
    run, seen = watched(Agent(endless()))
    stream = run.sse()
    del run
    await anext(stream)
    await until(lambda: "content-delta" in kinds(seen))
    await stream.aclose()  # type: ignore[attr-defined]
    del stream
    await ended(seen)


async def test_a_task_that_awaits_the_run_holds_it() -> None:
    async def ask() -> str:
        return (await Agent(ScriptedModel(frames("-a-b-c-|", frame=0.001))).run("Go.")).output

    waiting = asyncio.ensure_future(ask())
    for _ in range(5):
        gc.collect()
        await asyncio.sleep(0.001)
    assert await waiting == "abc"


async def test_awaiting_a_view_of_a_run_that_nobody_else_holds_works() -> None:
    assert await Agent(ScriptedModel(frames("-a-b-c-|", frame=0.001))).run("Go.").text() == "c"


async def test_a_tool_does_not_hold_its_run() -> None:
    kept: list[RunContext[Any]] = []

    @tool
    async def waits(ctx: RunContext) -> str:
        """Wait."""
        kept.append(ctx)
        await asyncio.Event().wait()
        return ""

    run, seen = watched(Agent(ScriptedModel(call("waits"), "ok"), tools=[waits]))
    iterator = aiter(run)
    del run
    async for event in iterator:
        if event.kind == "tool-start":
            break
    await until(lambda: kept)
    del iterator
    await ended(seen)
    assert "tool-complete" in kinds(seen)


async def test_nothing_keeps_a_run_alive_that_has_ended() -> None:
    run = Agent(ScriptedModel(call("look"), "ok"), tools=[look]).run("Go.")
    Recorder(run.events)
    await run
    refs = [
        weakref.ref(part) for part in (run, run._attempt, run._attempt.recorder.hub, run._attempt.info.scope, run.hold)
    ]
    del run
    await settled()
    gc.collect()
    assert [ref() for ref in refs] == [None] * 5


class LeasedLog(MemoryEventLog):
    """Log whose leases expire."""

    lease_seconds = 10.0


@pytest.mark.parametrize("log", [None, MemoryEventLog(), LeasedLog()], ids=["no log", "memory", "leases"])
async def test_attempt_is_freed_without_the_garbage_collector(log: MemoryEventLog | None) -> None:
    model = ScriptedModel(call("look"), "ok")
    agent = Agent(model, tools=[look], log=log)
    gc.collect()
    gc.disable()
    try:
        run = agent.run("Go.")
        await run
        # A scripted model keeps its requests, and so their runs.
        model.requests.clear()
        attempt = weakref.ref(run._attempt)
        del run
        await settled()
        assert attempt() is None
    finally:
        gc.enable()


@tool
async def look(ctx: RunContext) -> str:
    """Look."""
    ctx.progress("looking")
    return "seen"


async def test_nothing_keeps_a_run_alive_that_was_abandoned() -> None:
    run, seen = watched(Agent(endless()))
    refs = [
        weakref.ref(part) for part in (run, run._attempt, run._attempt.recorder.hub, run._attempt.info.scope, run.hold)
    ]
    await first_of(run, "content-delta")
    del run
    await ended(seen)
    gc.collect()
    assert [ref() for ref in refs] == [None] * 5
