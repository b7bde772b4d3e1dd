import asyncio
import threading
import time as real_time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from reactivex import Observable, of
from reactivex import operators as ops

from rxloop import (
    Agent,
    ConfigurationError,
    CustomEvent,
    Limits,
    MemoryEventLog,
    RunContext,
    RunError,
    ToolCompleteEvent,
    ToolError,
    ToolProgressEvent,
    ToolStartEvent,
    op,
    tool,
)
from rxloop.operators.loop.run_tools import run_tools
from rxloop.pipeline.requests import Signal, ToolRequest
from rxloop.providers.script import ScriptedCall
from rxloop.state.history import FIND_OUT, UNKNOWN_EFFECT
from rxloop.testing import ScriptedModel, assert_marbles, call, virtual_time
from support.runs import collect, is_well_formed, outcome
from support.tool_results import echo, run_tool_calls


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (False, "false"), ("", ""), ([], "[]"), (None, "null"), ({}, "{}"), (0.0, "0.0"), ("null", "null")],
)
async def test_empty_value_reaches_the_model_unchanged(value: Any, text: str) -> None:  # L75
    (answer,), read = await run_tool_calls(echo, calls=call("echo", value=value))

    assert read == [text]
    assert answer.success
    assert answer.result == value
    assert answer.content == text


@pytest.mark.parametrize("values", [500_000, 50_000])
async def test_result_that_is_too_large_fails_the_call_and_names_the_limit(values: int) -> None:
    @tool
    def export() -> list[int]:
        """Gives a lot."""
        return [0] * values

    @tool
    def exported() -> Iterator[Any]:
        """Gives a lot, and tells of it."""
        yield [0] * values
        yield "done"

    answers, read = await run_tool_calls(export, exported, calls=[call("export"), call("exported")])

    assert [answer.success for answer in answers] == [values == 50_000, True]
    if values > 50_000:
        assert answers[0].error == read[0] == answers[0].content
        assert "more than 50,000 values" in read[0]


def make_gauge(running: list[int], peak: list[int]) -> Any:
    @tool
    async def slow(n: int) -> int:
        """Takes a second."""
        running[0] += 1
        peak[0] = max(peak[0], running[0])
        await asyncio.sleep(1)
        running[0] -= 1
        return n

    return slow


@pytest.mark.parametrize(("concurrency", "seconds"), [(1, 7), (2, 4), (5, 2), (7, 1), (100, 1)])
def test_concurrency_limits_the_number_of_running_tools(concurrency: int, seconds: int) -> None:  # L78
    running, peak = [0], [0]
    calls = [call("slow", n=n) for n in range(7)]
    loop = [op.call_model(), op.run_tools(concurrency=concurrency)]
    model = ScriptedModel(calls, "done")
    with virtual_time() as time:
        time.run(Agent(model, tools=[make_gauge(running, peak)], loop=loop).run("Go"))
        assert time.now == seconds

    assert peak == [min(concurrency, 7)]
    assert [message.text for message in model.requests[1].messages[2:]] == [str(n) for n in range(7)]


def test_run_tools_rejects_a_concurrency_below_one() -> None:
    with pytest.raises(ValueError, match="concurrency must be an integer of at least 1"):
        run_tools(concurrency=0)


def test_results_are_recorded_in_call_order() -> None:  # L77
    @tool
    async def wait(seconds: float) -> float:
        """Waits."""
        await asyncio.sleep(seconds)
        return seconds

    model = ScriptedModel([call("wait", seconds=s) for s in (0.3, 0.1, 0.2)], "done")
    with virtual_time():
        run = Agent(model, tools=[wait]).run("Go")
        assert_marbles(run, "(twlcsss) 100ms x 100ms x 100ms (xlcF|)")

    assert [message.text for message in model.requests[1].messages[2:]] == ["0.3", "0.1", "0.2"]


def test_tool_that_exceeds_its_timeout_is_cancelled_and_others_complete() -> None:  # L114
    outcomes: list[str] = []

    @tool(timeout=0.5)
    async def slow() -> str:
        """Too slow."""
        try:
            await asyncio.sleep(60)
        finally:
            outcomes.append("cancelled")
        return "never"

    @tool(timeout=2)
    async def quick() -> str:
        """In time."""
        await asyncio.sleep(1)
        return "in time"

    model = ScriptedModel([call("slow"), call("quick")], "done")
    with virtual_time() as time:
        time.run(Agent(model, tools=[slow, quick]).run("Go"))
        assert time.now == 1

    assert outcomes == ["cancelled"]
    late, in_time = (message.text for message in model.requests[1].messages[2:])
    assert late == f"slow timed out after 0.5 s. It was cut off, {UNKNOWN_EFFECT}. {FIND_OUT}"
    assert in_time == "in time"


async def test_progress_and_events_of_a_tool_carry_its_call_id() -> None:  # L112
    @tool
    async def asynchronous(ctx: RunContext[None]) -> str:
        """Async."""
        ctx.progress("half", 0.5)
        ctx.emit(CustomEvent(name="mine"))
        return "a"

    @tool
    def synchronous(ctx: RunContext[None]) -> str:
        """In a thread."""
        assert threading.current_thread() is not threading.main_thread()
        ctx.progress("half", 0.5)
        ctx.emit(CustomEvent(name="mine"))
        return "b"

    @tool
    def generator() -> Iterator[Any]:
        """In a thread, step by step."""
        yield "half"
        yield CustomEvent(name="mine")
        yield {"c": 1}

    @tool
    async def async_generator() -> AsyncIterator[Any]:
        """On the loop, step by step."""
        yield "half"
        yield CustomEvent(name="mine")
        yield [1]

    names = ["asynchronous", "synchronous", "generator", "async_generator"]
    model = ScriptedModel([ScriptedCall(name, {}) for name in names], "done")
    tools = [asynchronous, synchronous, generator, async_generator]
    events = await collect(Agent(model, tools=tools).run("Go"))

    progress = [event for event in events if isinstance(event, ToolProgressEvent)]
    assert sorted((event.tool_call_id, event.index, event.message) for event in progress) == [
        (f"call_{n + 1}", n, "half") for n in range(4)
    ]
    assert all(event.step == "1" for event in events if event.kind in ("tool-progress", "custom"))
    assert [message.text for message in model.requests[1].messages[2:]] == ["a", "b", '{"c":1}', "[1]"]
    for index in range(4):
        own = [event for event in events if getattr(event, "index", None) == index and "tool-" in event.kind]
        assert [event.kind for event in own if event.kind != "tool-call-delta"] == [
            "tool-start",
            "tool-progress",
            "tool-complete",
        ]


async def test_progress_reported_from_a_thread_keeps_its_order() -> None:  # L112
    @tool
    def counts(ctx: RunContext[None]) -> str:
        """Reports often."""
        for n in range(200):
            ctx.progress(str(n))
        return "done"

    events = await collect(Agent(ScriptedModel(call("counts"), "done"), tools=[counts]).run("Go"))

    texts = [event.message for event in events if isinstance(event, ToolProgressEvent)]
    assert texts == [str(n) for n in range(200)]


async def test_tool_that_is_not_idempotent_is_called_after_its_start_is_durable() -> None:
    log = MemoryEventLog()
    logged_kinds: dict[str, list[str]] = {}

    async def look(ctx: RunContext[Any], name: str) -> str:
        logged_kinds[name] = [event.kind for event in await log.read(ctx.task_id)]
        return "ok"

    @tool
    async def careful(ctx: RunContext[Any]) -> str:
        """Not idempotent."""
        return await look(ctx, "careful")

    model = ScriptedModel(call("careful"), "done")
    await Agent(model, tools=[careful], log=log).run("Go")

    assert logged_kinds["careful"][-1] == "tool-start"


async def test_idempotency_key_depends_on_the_run_step_and_index_only() -> None:
    model = ScriptedModel([call("echo", value=1), call("echo", value=1)], "done")
    events = await collect(Agent(model, tools=[echo]).run("Go"))

    starts = [event for event in events if isinstance(event, ToolStartEvent)]
    assert [event.idempotency_key for event in starts] == [f"{starts[0].task_id}:1:{n}" for n in (0, 1)]


def test_duration_of_a_call_is_measured_from_its_start() -> None:
    @tool
    async def slow() -> str:
        """Takes a while."""
        await asyncio.sleep(1.5)
        return "ok"

    with virtual_time() as time:
        events = time.run(collect(Agent(ScriptedModel(call("slow"), "done"), tools=[slow]).run("Go")))

    assert [event.duration for event in events if isinstance(event, ToolCompleteEvent)] == [1.5]


async def test_sync_tool_does_not_block_the_event_loop() -> None:
    release = threading.Event()

    @tool
    def waits() -> str:
        """Waits for the loop."""
        assert release.wait(5)
        return "released"

    run = Agent(ScriptedModel(call("waits"), "done"), tools=[waits]).run("Go")
    async for event in run:
        if isinstance(event, ToolStartEvent):
            release.set()
    assert (await run).output == "done"


async def test_tool_that_swallows_its_cancellation_does_not_block_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rxloop.run.attempt_end.GRACE", 0.05)
    started = asyncio.Event()
    stop = asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Does not stop."""
        started.set()
        while not stop.is_set():
            with suppress(asyncio.CancelledError):
                await stop.wait()
        return "late"

    run = Agent(ScriptedModel(call("stubborn"), "done"), tools=[stubborn], limits=Limits(seconds=60)).run("Go")
    run.events.subscribe(lambda event: None)
    await started.wait()
    start = real_time.monotonic()
    run.cancel()
    result = await outcome(run)

    assert result.state == "canceled"
    assert real_time.monotonic() - start < 5
    assert is_well_formed(result.messages)
    stop.set()
    await asyncio.sleep(0)


def test_error_text_with_invalid_unicode_reaches_the_model_readable() -> None:
    # L74
    @tool
    def broken() -> str:
        """Fails with the name of a file that is no UTF-8."""
        raise ToolError("no such file: \udcff")

    model = ScriptedModel(call("broken"), "done")
    with virtual_time() as time:
        events = time.run(collect(Agent(model, tools=[broken]).run("Go")))
    answer = next(event for event in events if isinstance(event, ToolCompleteEvent))
    assert answer.content == "no such file: \ufffd"
    assert answer.to_json()


@pytest.mark.parametrize(("limit", "length"), [(None, 250_000), (1_000, 1_000), ("usual", 100_000)])
async def test_model_gets_a_shortened_result_and_subscribers_get_all(limit: Any, length: int) -> None:
    def dump() -> str:
        """Dump."""
        return "a" * 125_000 + "z" * 125_000

    dump_tool = tool(dump) if limit == "usual" else tool(max_result=limit)(dump)
    model = ScriptedModel(call("dump"), "Done.")
    events = [event async for event in Agent(model, tools=[dump_tool]).run("Go.")]
    text = model.requests[1].messages[-1].text
    assert length <= len(text) < length + 150
    assert text[:100] == "a" * 100
    assert text[-100:] == "z" * 100
    assert ("characters of this result are left out" in text) == (limit is not None)
    complete = next(event for event in events if isinstance(event, ToolCompleteEvent))
    assert complete.result == dump()
    assert complete.content == text


async def test_huge_error_is_shortened() -> None:
    def fails() -> str:
        """Fail."""
        raise ValueError("x" * 1_000_000)

    model = ScriptedModel(call("fails"), "Done.")
    await Agent(model, tools=[fails]).run("Go.")
    assert len(model.requests[1].messages[-1].text) < 100_200


def test_invalid_limit_of_results_is_rejected() -> None:
    for wrong in (0, -1, "1", True, 1.5):
        with pytest.raises(ConfigurationError, match="max_result"):
            tool(name="f", max_result=wrong)(lambda: 1)  # pyright: ignore[reportArgumentType, reportCallIssue]


@pytest.mark.parametrize("outcome", [None, "yes", 1, [], "async", "raises"])
async def test_error_names_the_tool_whose_enabled_function_fails(outcome: Any) -> None:
    async def later() -> bool:
        return True

    def decide(ctx: RunContext) -> Any:
        if outcome == "raises":
            raise KeyError("role")
        return later() if outcome == "async" else outcome

    @tool(enabled=decide)
    def look() -> str:
        """Look."""
        return "seen"

    with pytest.raises(RunError, match=r"enabled= of the tool 'look' (must return|failed)"):
        await Agent(ScriptedModel("Done."), tools=[look]).run("Go.")


async def test_tool_that_uses_missing_deps_is_reported_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def f(ctx: RunContext[Any]) -> str:
        """Use deps."""
        return ctx.deps["user"]

    await Agent(ScriptedModel(call("f"), "Done."), tools=[f]).run("q")
    assert "the run has no deps; a tool that uses ctx.deps needs agent.run(..., deps=...)" in caplog.text


def duplicate_requests(source: Observable[Signal]) -> Observable[Signal]:
    return source.pipe(ops.flat_map(lambda each: of(each, each) if isinstance(each, ToolRequest) else of(each)))


@pytest.mark.parametrize("concurrency", [1, 5])
@pytest.mark.parametrize("idempotent", [False, True])
async def test_duplicated_request_has_its_effect_once(idempotent: bool, concurrency: int) -> None:
    amounts: list[int] = []

    @tool(idempotent=idempotent)
    async def send(amount: int) -> str:
        """Sends."""
        amounts.append(amount)
        return "sent"

    loop = [op.call_model(), duplicate_requests, op.run_tools(concurrency), op.checkpoint()]
    run = Agent(ScriptedModel(call("send", amount=5), "done"), tools=[send], loop=loop).run("Go")
    assert (await run).output == "done"
    assert amounts == [5]
