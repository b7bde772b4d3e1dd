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
from support.cancellation import make_endless_model, read_until, start_observed_run, wait_until_canceled
from support.run_checks import (
    Recorder,
    assert_ended,
    assert_no_tasks,
    collect_events,
    final_events,
    kinds,
    other_tasks,
    run_ready_tasks,
    wait_until,
)


async def test_creation_of_a_run_and_its_streams_does_not_start_it() -> None:
    model = ScriptedModel("Hi.")
    run = Agent(model).run("Go.")
    readers = [run.events, run.pipe(op.text()), run.text(), aiter(run), run.sse()]
    await run_ready_tasks()
    del readers
    assert not run.started
    assert other_tasks() == set()
    assert model.requests == []
    await run


async def test_any_first_use_starts_the_run_once() -> None:
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
        first_result = use(run)
        for other in uses:
            await asyncio.wait([result]) if isinstance(result := other(run), asyncio.Task) else None
        await run
        assert len(model.requests) == 1
        del first_result


async def test_dropping_an_unstarted_run_warns() -> None:
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    task_id = run.task_id
    with pytest.warns(RuntimeWarning, match=f"{task_id} of 'agent' was never started"):  # noqa: PT031
        del run
        gc.collect()


async def test_unstarted_run_warns_when_its_last_stream_is_dropped() -> None:
    stream: Any = Agent(ScriptedModel("Hi.")).run("Go.").text()
    gc.collect()
    with pytest.warns(RuntimeWarning, match="never started"):  # noqa: PT031
        del stream
        gc.collect()


async def test_run_canceled_before_its_start_does_not_warn() -> None:
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    run.cancel()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del run
        gc.collect()
    await assert_no_tasks()


async def test_completed_run_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = Agent(ScriptedModel("Hi.")).run("Go.")
        await run
        del run
        gc.collect()


async def test_partial_reading_does_not_cancel_a_run_with_a_live_handle() -> None:
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


async def test_cancel_of_a_reader_does_not_cancel_a_run_with_a_live_handle() -> None:
    run = Agent(ScriptedModel(frames("-a-b-c-|", frame=0.001))).run("Go.")
    reader = asyncio.ensure_future(collect_events(run))
    await wait_until(lambda: run.started)
    reader.cancel()
    await asyncio.wait([reader])
    assert (await run).output == "abc"


async def test_abandoned_iterator_without_a_handle_cancels_the_run() -> None:
    agent = Agent(make_endless_model())
    holder: list[Any] = []

    async def read() -> None:
        run, events = start_observed_run(agent)
        holder.append(events)
        async for event in run:
            if event.kind == "content-delta":
                break

    await read()
    final = await wait_until_canceled(holder[0])
    assert "the run is no longer referenced" in final.error.message  # type: ignore[attr-defined]


async def test_iterator_alone_keeps_the_run_alive() -> None:
    texts = [text async for text in Agent(ScriptedModel(frames("-a-b-c-|", frame=0.001))).run("Go.").text()]
    assert texts == ["a", "b", "c"]
    await assert_no_tasks()


async def test_subscription_alone_keeps_the_run_alive() -> None:
    run, events = start_observed_run(Agent(ScriptedModel(frames("-a-b-c-|", frame=0.001))))
    texts: list[str] = []
    run.text().subscribe(texts.append)
    del run
    gc.collect()
    await wait_until(lambda: final_events(events))
    assert_ended(events, "completed")
    assert texts == ["a", "b", "c"]


async def test_disposal_of_the_last_subscription_cancels_the_run() -> None:
    run, events = start_observed_run(Agent(make_endless_model()))
    first = run.events.subscribe(lambda _: None)
    second = run.text().subscribe(lambda _: None)
    del run
    await wait_until(lambda: "content-delta" in kinds(events))
    first.dispose()
    gc.collect()
    await run_ready_tasks()
    assert not final_events(events)
    second.dispose()
    await wait_until_canceled(events)


async def test_exception_in_the_last_subscriber_cancels_the_run(caplog: pytest.LogCaptureFixture) -> None:
    run, events = start_observed_run(Agent(make_endless_model()))

    def fail_at_delta(event: Event) -> None:
        if event.kind == "content-delta":
            raise ZeroDivisionError

    run.events.subscribe(fail_at_delta)
    del run
    await wait_until_canceled(events)


async def test_stream_alone_keeps_the_run_alive() -> None:
    run, events = start_observed_run(Agent(ScriptedModel(frames("-a-b-c-|", frame=0.001))))
    run.events.subscribe(lambda _: None).dispose()
    stream = run.text()
    del run
    await wait_until(lambda: final_events(events))
    assert_ended(events, "completed")
    assert [text async for text in stream] == ["abc"]


async def test_dropping_an_unread_handle_cancels_the_run() -> None:
    run, events = start_observed_run(Agent(make_endless_model()))
    await run.__aenter__()
    await wait_until(lambda: "content-delta" in kinds(events))
    del run
    await wait_until_canceled(events)


async def test_dropping_an_sse_stream_cancels_the_run() -> None:
    run, events = start_observed_run(Agent(make_endless_model()))
    stream = run.sse()
    del run
    await anext(stream)
    await wait_until(lambda: "content-delta" in kinds(events))
    await stream.aclose()  # type: ignore[attr-defined]
    del stream
    await wait_until_canceled(events)


async def test_awaiting_task_keeps_the_run_alive() -> None:
    async def ask() -> str:
        return (await Agent(ScriptedModel(frames("-a-b-c-|", frame=0.001))).run("Go.")).output

    awaiter = asyncio.ensure_future(ask())
    for _ in range(5):
        gc.collect()
        await asyncio.sleep(0.001)
    assert await awaiter == "abc"


async def test_awaiting_a_view_keeps_the_run_alive() -> None:
    assert await Agent(ScriptedModel(frames("-a-b-c-|", frame=0.001))).run("Go.").text() == "c"


async def test_tool_does_not_keep_its_run_alive() -> None:
    first_result: list[RunContext[Any]] = []

    @tool
    async def waits(ctx: RunContext) -> str:
        """Wait."""
        first_result.append(ctx)
        await asyncio.Event().wait()
        return ""

    run, events = start_observed_run(Agent(ScriptedModel(call("waits"), "ok"), tools=[waits]))
    iterator = aiter(run)
    del run
    async for event in iterator:
        if event.kind == "tool-start":
            break
    await wait_until(lambda: first_result)
    del iterator
    await wait_until_canceled(events)
    assert "tool-complete" in kinds(events)


async def test_ended_run_is_freed() -> None:
    run = Agent(ScriptedModel(call("look"), "ok"), tools=[look]).run("Go.")
    Recorder(run.events)
    await run
    refs = [
        weakref.ref(part) for part in (run, run._attempt, run._attempt.recorder.hub, run._attempt.info.scope, run.hold)
    ]
    del run
    await run_ready_tasks()
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
        # Scripted models keep requests, which refer to their runs.
        model.requests.clear()
        attempt = weakref.ref(run._attempt)
        del run
        await run_ready_tasks()
        assert attempt() is None
    finally:
        gc.enable()


@tool
async def look(ctx: RunContext) -> str:
    """Look."""
    ctx.progress("looking")
    return "seen"


async def test_abandoned_run_is_freed() -> None:
    run, events = start_observed_run(Agent(make_endless_model()))
    refs = [
        weakref.ref(part) for part in (run, run._attempt, run._attempt.recorder.hub, run._attempt.info.scope, run.hold)
    ]
    await read_until(run, "content-delta")
    del run
    await wait_until_canceled(events)
    gc.collect()
    assert [ref() for ref in refs] == [None] * 5
