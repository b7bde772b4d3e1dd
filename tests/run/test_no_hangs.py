"""Runs end even if user code misbehaves."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
import reactivex as rx
from reactivex import Observable, abc
from reactivex import operators as ops
from reactivex.disposable import Disposable
from reactivex.scheduler import NewThreadScheduler

from rxloop import (
    Agent,
    ContentCompleteEvent,
    ContentDeltaEvent,
    CustomEvent,
    Event,
    IterationEnd,
    MemoryEventLog,
    ModelRequest,
    Operator,
    RunContext,
    RunError,
    Signal,
    ToolCall,
    ToolCallDeltaEvent,
    ToolProgressEvent,
    ToolRequest,
    ToolStartEvent,
    op,
    tool,
)
from rxloop.errors import AttemptError
from rxloop.providers import hedge
from rxloop.stream.sources import from_task
from rxloop.testing import ScriptedModel, call
from support.failing_runs import agent_with_operator, expect_failure, look, script
from support.faulty_components import (
    PLANTED,
    BareBaseException,
    RandomAgent,
    faulty_operator,
    make_raiser,
    thread_operator,
)
from support.run_checks import Recorder, final_events, other_tasks, run_ready_tasks

MOMENTS = ["together", "subscribed", "item", "completed"]


@pytest.mark.parametrize("error", [ValueError, BareBaseException, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("after", [0, 1])
async def test_run_ends_when_an_operator_raises(
    position: int, moment: str, error: type[BaseException], after: int
) -> None:
    operator = faulty_operator(**{moment: make_raiser(error)}, after=after)  # pyright: ignore[reportArgumentType]
    error_of_run = await expect_failure(agent_with_operator(operator, position))
    assert "boom" in str(error_of_run)


@pytest.mark.parametrize("error", [ValueError, BareBaseException])
async def test_run_ends_when_an_operator_around_the_loop_raises(error: type[BaseException]) -> None:
    for moment in MOMENTS:
        broken = faulty_operator(**{moment: make_raiser(error)})  # pyright: ignore[reportArgumentType]

        def wrap_loop(pipeline: Operator, broken: Operator = broken) -> Operator:
            return op.compose(op.iterate(pipeline), broken)

        assert "boom" in str(await expect_failure(Agent(script(), tools=[look], strategy=wrap_loop)))


@pytest.mark.parametrize("error", [ValueError, BareBaseException])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_error_names_the_function_that_raised(moment: str, error: type[BaseException]) -> None:
    class BrokenCode:
        def boom(self) -> None:
            raise error("boom")

    operator = faulty_operator(**{moment: BrokenCode().boom})  # pyright: ignore[reportArgumentType]
    error_of_run = str(await expect_failure(agent_with_operator(operator, 2)))
    assert "troubled" in error_of_run if moment == "together" else "BrokenCode.boom (test_no_hangs.py:" in error_of_run


async def test_run_ends_when_a_stock_operator_buffers_all_signals() -> None:
    for position in range(4):
        error_of_run = await expect_failure(agent_with_operator(ops.to_list(), position))  # pyright: ignore[reportArgumentType]
        assert error_of_run.code == "pipeline"
        assert "list" in str(error_of_run)


@pytest.mark.parametrize("error", [ValueError, BareBaseException])
async def test_error_is_reported_when_disposal_of_another_call_raises(error: type[BaseException]) -> None:
    def answer(request: ToolRequest) -> Observable[Signal]:
        if request.ctx.index:
            return rx.throw(ZeroDivisionError("the second"))
        return Observable(lambda observer, scheduler=None: Disposable(make_raiser(error)))

    model = ScriptedModel([call("look"), call("look")], "Done.")
    loop = [op.call_model(), op.answer_requests(ToolRequest, answer), op.run_tools(), op.checkpoint()]
    assert "the second" in str(await expect_failure(Agent(model, tools=[look], loop=loop)))


@pytest.mark.parametrize("error", [ValueError, BareBaseException])
async def test_run_completes_when_disposal_of_a_losing_model_raises(error: type[BaseException]) -> None:
    class UndisposableModel:
        name = "slow"

        def call(self, request: ModelRequest) -> Observable[Event]:
            return Observable(lambda observer, scheduler=None: Disposable(make_raiser(error)))

        async def aclose(self) -> None: ...

    assert (await Agent(hedge(UndisposableModel(), ScriptedModel("Hi."), after=0.001)).run("Go.")).output == "Hi."


async def test_tasks_are_stopped_when_disposal_raises_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = faulty_operator(disposed=make_raiser(BareBaseException))
    run = agent_with_operator(broken, 3).run("Go.")
    Recorder(run.events)
    run.cancel()
    with pytest.raises(AttemptError):
        async with asyncio.timeout(10):
            await run
    assert other_tasks() == set()


def make_threaded_operators(scheduler: Callable[[], abc.SchedulerBase]) -> list[Operator]:
    operators: list[Any] = [
        ops.observe_on(scheduler()),
        ops.delay(0.01, scheduler=scheduler()),
        thread_operator(lambda observer: observer.on_completed()),
        thread_operator(lambda observer: observer.on_error(ValueError("boom"))),
        thread_operator(lambda observer: observer.on_next(CustomEvent(name="x", data={}))),
    ]
    return operators


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("index", range(5))
async def test_run_ends_when_an_operator_delivers_from_another_thread(index: int, position: int) -> None:
    error_of_run = await expect_failure(
        agent_with_operator(make_threaded_operators(NewThreadScheduler)[index], position)
    )
    assert error_of_run.code == "pipeline"
    assert "from_task" in str(error_of_run)


async def test_run_ends_when_a_provider_answers_from_another_thread() -> None:
    class ThreadedModel:
        name = "threaded"

        def call(self, request: ModelRequest) -> Observable[Event]:
            def answer(scheduler: abc.SchedulerBase, state: Any = None) -> None:
                observer.on_next(ContentCompleteEvent(step=request.step, content="Hi."))
                observer.on_completed()

            observer: Any = None

            def subscribe(subscriber: Any, scheduler: Any = None) -> abc.DisposableBase:
                nonlocal observer
                observer = subscriber
                return NewThreadScheduler().schedule(answer)

            return Observable(subscribe)

        async def aclose(self) -> None: ...

    error_of_run = await expect_failure(Agent(ThreadedModel(), log=MemoryEventLog()))
    assert "from_task" in str(error_of_run)


async def _async_tool() -> str:
    raise BareBaseException("boom")


def _sync_tool() -> str:
    raise BareBaseException("boom")


async def _generator_tool() -> AsyncIterator[str]:
    yield "working"
    raise BareBaseException("boom")


@pytest.mark.parametrize("function", [_async_tool, _sync_tool, _generator_tool])
async def test_run_ends_when_a_tool_raises_a_base_exception(function: Any) -> None:  # L113
    broken = tool(name="mine")(function)
    error_of_run = await expect_failure(Agent(ScriptedModel(call("mine"), "Done."), tools=[broken]))
    assert "tool mine" in str(error_of_run)
    assert "BareBaseException('boom')" in str(error_of_run)
    assert "not an Exception" in str(error_of_run)
    assert isinstance(error_of_run.__cause__, Exception)
    assert isinstance(error_of_run.__cause__.__cause__, BareBaseException)


@pytest.mark.parametrize("request_type", [ModelRequest, ToolRequest, IterationEnd])
async def test_run_ends_when_a_handler_raises_a_base_exception(request_type: Any) -> None:
    @op.on(request_type)
    async def mine(request: Any, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        raise BareBaseException("boom")
        yield request

    position = {ModelRequest: 0, ToolRequest: 1, IterationEnd: 2}[request_type]
    error_of_run = await expect_failure(agent_with_operator(mine, position))
    assert "handler mine" in str(error_of_run)


async def test_run_ends_when_a_provider_raises_a_base_exception() -> None:
    class BrokenModel:
        name = "broken"

        def __init__(self, at_once: bool) -> None:
            self.at_once = at_once

        def call(self, request: ModelRequest) -> Observable[Event]:
            async def work(push: Any) -> None:
                raise BareBaseException("boom")

            if self.at_once:
                raise BareBaseException("boom")
            return from_task(work)

        async def aclose(self) -> None: ...

    for at_once in (True, False):
        assert "BareBaseException('boom')" in str(await expect_failure(Agent(BrokenModel(at_once))))


async def test_subscriber_that_raises_a_base_exception_is_detached(caplog: pytest.LogCaptureFixture) -> None:
    run = Agent(script(), tools=[look]).run("Go.")

    def broken(event: Event) -> None:
        if event.kind == "tool-start":
            raise BareBaseException("boom")

    def fail_on_completed() -> None:
        raise BareBaseException("boom")

    run.events.subscribe(broken, on_error=lambda _: None)
    run.events.subscribe(on_completed=fail_on_completed)
    recorder = Recorder(run.events)
    async with asyncio.timeout(10):
        assert (await run).output == "Done."
    assert recorder.completed
    assert "A subscriber raised" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_run_ends_before_keyboard_interrupt_and_system_exit_propagate(error: type[BaseException]) -> None:
    recorded: list[Any] = []

    @tool
    async def leave() -> str:
        """Leave."""
        raise error

    async def main() -> None:
        broken = faulty_operator(completed=make_raiser(error))
        agent = Agent(script(), tools=[look], loop=[op.call_model(), op.run_tools(), broken, op.checkpoint()])
        run = agent.run("Go.")
        recorded.append(Recorder(run.events))
        await run

    with pytest.raises(error):
        asyncio.run(main())
    assert len(final_events(recorded[0].events)) == 1


@pytest.mark.parametrize("error", [ValueError, BareBaseException])
async def test_run_ends_when_a_timer_of_an_operator_raises(error: type[BaseException]) -> None:
    def delay_and_raise(source: Observable[Signal]) -> Observable[Signal]:
        return source.pipe(ops.delay(0.001), faulty_operator(item=make_raiser(error)))

    assert "boom" in str(await expect_failure(agent_with_operator(delay_and_raise, 2)))


async def test_run_completes_when_a_timer_of_a_subscriber_raises() -> None:
    run = Agent(script(), tools=[look]).run("Go.")
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))

    def boom(_: Event) -> None:
        raise ZeroDivisionError

    run.events.pipe(ops.delay(0.0001)).subscribe(boom, on_error=lambda _: None)
    assert (await run).output == "Done."


# -- random combinations


RUNS = int(os.environ.get("RXLOOP_MISBEHAVING_RUNS", "200"))
"""Number of random programs. 5,000 take some minutes."""


@pytest.mark.timeout(60 + RUNS)
@pytest.mark.parametrize("part", range(4))
async def test_run_ends_once_and_leaks_nothing_with_randomly_misbehaving_code(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    for seed in range(part, RUNS, 4):
        program = RandomAgent(seed)
        try:
            await check_program(program)
        except BaseException as error:
            error.add_note(f"seed {seed}: {program}")
            raise


async def check_program(program: RandomAgent) -> None:
    run = program.agent().run("Go.", metadata={"tenant": PLANTED})
    recorder = Recorder(run.events)
    program.subscribe(run.events)
    result_task = asyncio.create_task(run.result())
    if program.cancel_after is not None:
        await run_ready_tasks(program.cancel_after)
        run.cancel()
    async with asyncio.timeout(20):
        with suppress(AttemptError):
            await result_task
    await run_ready_tasks(20)
    assert recorder.completed
    assert len(final_events(recorder.events)) == 1
    assert recorder.events[-1] is final_events(recorder.events)[0]
    assert other_tasks() == set()
    check_grammar(recorder.events)
    assert PLANTED not in b"".join([frame async for frame in run.sse()]).decode()
    if program.log is not None:
        assert await program.log.read(run.task_id) == tuple(event for event in recorder.events if event.durable)
    if not program.leaves_subscriptions:
        assert program.subscriptions.open == 0


def check_grammar(events: list[Event]) -> None:
    """Check published events against the grammar."""
    errors: list[Exception] = []
    rx.from_iterable(events).pipe(op.grammar()).subscribe(on_error=errors.append)
    assert errors == []


@pytest.mark.parametrize("kind", ["tool-start", "tool-complete", "content-complete"])
@pytest.mark.parametrize("times", [0, 2])
async def test_run_ends_when_an_operator_drops_or_duplicates_events(kind: str, times: int) -> None:
    def repeat_or_drop(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_next(signal: Signal) -> None:
                for _ in range(times if getattr(signal, "kind", None) == kind else 1):
                    observer.on_next(signal)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    run = agent_with_operator(repeat_or_drop, 2).run("Go.")
    recorder = Recorder(run.events)
    with pytest.raises(RunError) as caught:
        await run
    assert caught.value.code == "pipeline"
    check_grammar(recorder.events)


class OwnStart(ToolStartEvent):
    """User-defined subclass of `tool-start`."""

    note: str = ""


async def test_event_subclass_follows_the_order_of_its_kind() -> None:
    def duplicate_start(signal: Signal) -> Observable[Signal]:
        if not isinstance(signal, ToolStartEvent):
            return rx.of(signal)
        fields = {name: getattr(signal, name) for name in ("call", "index", "step", "idempotency_key")}
        return rx.of(signal, OwnStart(**fields, note="again"))

    run = agent_with_operator(ops.flat_map(duplicate_start), 2).run("Go.")
    recorder = Recorder(run.events)
    with pytest.raises(RunError, match="started twice") as caught:
        await run
    assert caught.value.code == "pipeline"
    check_grammar(recorder.events)


async def test_progress_of_a_call_without_message_is_skipped() -> None:
    def add_early_progress(source: Observable[Signal]) -> Observable[Signal]:
        def add_progress(signal: Signal) -> Observable[Signal]:
            if isinstance(signal, ContentDeltaEvent | ToolCallDeltaEvent):
                return rx.of(
                    signal, ToolProgressEvent(step=signal.step, call=ToolCall(id="a", name="look"), message="5 %")
                )
            return rx.of(signal)

        return source.pipe(ops.flat_map(add_progress))

    run = agent_with_operator(add_early_progress, 1).run("Go.")
    recorder = Recorder(run.events)
    await run
    assert not any(isinstance(event, ToolProgressEvent) for event in recorder.events)
    check_grammar(recorder.events)
