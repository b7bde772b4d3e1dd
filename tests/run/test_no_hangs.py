"""No run hangs, whatever user code does: each ends, with an error that names who is to blame."""

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
from support.failing_runs import failure, look, script, with_operator
from support.faulty_components import PLANTED, Bad, Program, elsewhere, raising, troubled
from support.run_checks import Recorder, finals, other_tasks, settled

MOMENTS = ["together", "subscribed", "item", "completed"]


@pytest.mark.parametrize("error", [ValueError, Bad, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("after", [0, 1])
async def test_an_operator_that_raises_ends_the_run(
    place: int, moment: str, error: type[BaseException], after: int
) -> None:
    operator = troubled(**{moment: raising(error)}, after=after)  # pyright: ignore[reportArgumentType]
    told = await failure(with_operator(operator, place))
    assert "boom" in str(told)


@pytest.mark.parametrize("error", [ValueError, Bad])
async def test_an_operator_around_the_loop_that_raises_ends_the_run(error: type[BaseException]) -> None:
    for moment in MOMENTS:
        bad = troubled(**{moment: raising(error)})  # pyright: ignore[reportArgumentType]

        def around(pipeline: Operator, bad: Operator = bad) -> Operator:
            return op.compose(op.iterate(pipeline), bad)

        assert "boom" in str(await failure(Agent(script(), tools=[look], strategy=around)))


@pytest.mark.parametrize("error", [ValueError, Bad])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_who_raised_is_named(moment: str, error: type[BaseException]) -> None:
    class Mine:
        def boom(self) -> None:
            raise error("boom")

    operator = troubled(**{moment: Mine().boom})  # pyright: ignore[reportArgumentType]
    told = str(await failure(with_operator(operator, 2)))
    assert "troubled" in told if moment == "together" else "Mine.boom (test_no_hangs.py:" in told


async def test_stock_operators_that_hold_everything_back_to_the_end_end_the_run() -> None:
    for place in range(4):
        told = await failure(with_operator(ops.to_list(), place))  # pyright: ignore[reportArgumentType]
        assert told.code == "pipeline"
        assert "list" in str(told)


@pytest.mark.parametrize("error", [ValueError, Bad])
async def test_an_error_is_told_though_disposing_what_runs_beside_it_raises(error: type[BaseException]) -> None:
    def answer(request: ToolRequest) -> Observable[Signal]:
        if request.ctx.index:
            return rx.throw(ZeroDivisionError("the second"))
        return Observable(lambda observer, scheduler=None: Disposable(raising(error)))

    model = ScriptedModel([call("look"), call("look")], "Done.")
    loop = [op.call_model(), op.answering(ToolRequest, answer), op.run_tools(), op.checkpoint()]
    assert "the second" in str(await failure(Agent(model, tools=[look], loop=loop)))


@pytest.mark.parametrize("error", [ValueError, Bad])
async def test_a_model_that_lost_a_race_and_cannot_be_stopped_harms_nobody(error: type[BaseException]) -> None:
    class Slow:
        name = "slow"

        def call(self, request: ModelRequest) -> Observable[Event]:
            return Observable(lambda observer, scheduler=None: Disposable(raising(error)))

        async def aclose(self) -> None: ...

    assert (await Agent(hedge(Slow(), ScriptedModel("Hi."), after=0.001)).run("Go.")).output == "Hi."


async def test_what_cannot_be_disposed_at_the_end_is_logged_and_its_tasks_are_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = troubled(disposed=raising(Bad))
    run = with_operator(bad, 3).run("Go.")
    Recorder(run.events)
    run.cancel()
    with pytest.raises(AttemptError):
        async with asyncio.timeout(10):
            await run
    assert other_tasks() == set()


def from_thread_with(scheduler: Callable[[], abc.SchedulerBase]) -> list[Operator]:
    made: list[Any] = [
        ops.observe_on(scheduler()),
        ops.delay(0.01, scheduler=scheduler()),
        elsewhere(lambda observer: observer.on_completed()),
        elsewhere(lambda observer: observer.on_error(ValueError("boom"))),
        elsewhere(lambda observer: observer.on_next(CustomEvent(name="x", data={}))),
    ]
    return made


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("which", range(5))
async def test_what_is_delivered_from_another_thread_ends_the_run(which: int, place: int) -> None:
    told = await failure(with_operator(from_thread_with(NewThreadScheduler)[which], place))
    assert told.code == "pipeline"
    assert "from_task" in str(told)


async def test_a_provider_that_answers_from_a_thread_ends_the_run() -> None:
    class Threaded:
        name = "threaded"

        def call(self, request: ModelRequest) -> Observable[Event]:
            def answer(scheduler: abc.SchedulerBase, state: Any = None) -> None:
                observer.on_next(ContentCompleteEvent(step=request.step, content="Hi."))
                observer.on_completed()

            observer: Any = None

            def subscribe(given: Any, scheduler: Any = None) -> abc.DisposableBase:
                nonlocal observer
                observer = given
                return NewThreadScheduler().schedule(answer)

            return Observable(subscribe)

        async def aclose(self) -> None: ...

    told = await failure(Agent(Threaded(), log=MemoryEventLog()))
    assert "from_task" in str(told)


async def _async_tool() -> str:
    raise Bad("boom")


def _sync_tool() -> str:
    raise Bad("boom")


async def _generator_tool() -> AsyncIterator[str]:
    yield "working"
    raise Bad("boom")


@pytest.mark.parametrize("function", [_async_tool, _sync_tool, _generator_tool])
async def test_a_tool_that_raises_what_is_no_exception_ends_the_run(function: Any) -> None:  # L113
    bad = tool(name="mine")(function)
    told = await failure(Agent(ScriptedModel(call("mine"), "Done."), tools=[bad]))
    assert "tool mine" in str(told)
    assert "Bad('boom')" in str(told)
    assert "not an Exception" in str(told)
    assert isinstance(told.__cause__, Exception)
    assert isinstance(told.__cause__.__cause__, Bad)


@pytest.mark.parametrize("request_type", [ModelRequest, ToolRequest, IterationEnd])
async def test_a_handler_that_raises_what_is_no_exception_ends_the_run(request_type: Any) -> None:
    @op.on(request_type)
    async def mine(request: Any, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        raise Bad("boom")
        yield request

    place = {ModelRequest: 0, ToolRequest: 1, IterationEnd: 2}[request_type]
    told = await failure(with_operator(mine, place))
    assert "handler mine" in str(told)


async def test_a_provider_that_raises_what_is_no_exception_ends_the_run() -> None:
    class Broken:
        name = "broken"

        def __init__(self, at_once: bool) -> None:
            self.at_once = at_once

        def call(self, request: ModelRequest) -> Observable[Event]:
            async def work(push: Any) -> None:
                raise Bad("boom")

            if self.at_once:
                raise Bad("boom")
            return from_task(work)

        async def aclose(self) -> None: ...

    for at_once in (True, False):
        assert "Bad('boom')" in str(await failure(Agent(Broken(at_once))))


async def test_a_subscriber_that_raises_what_is_no_exception_is_detached(caplog: pytest.LogCaptureFixture) -> None:
    run = Agent(script(), tools=[look]).run("Go.")

    def bad(event: Event) -> None:
        if event.kind == "tool-start":
            raise Bad("boom")

    def bad_end() -> None:
        raise Bad("boom")

    run.events.subscribe(bad, on_error=lambda _: None)
    run.events.subscribe(on_completed=bad_end)
    recorder = Recorder(run.events)
    async with asyncio.timeout(10):
        assert (await run).output == "Done."
    assert recorder.completed
    assert "a subscriber raised" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_does_so_and_the_run_ends_before(error: type[BaseException]) -> None:
    recorded: list[Any] = []

    @tool
    async def leave() -> str:
        """Leave."""
        raise error

    async def main() -> None:
        bad = troubled(completed=raising(error))
        agent = Agent(script(), tools=[look], loop=[op.call_model(), op.run_tools(), bad, op.checkpoint()])
        run = agent.run("Go.")
        recorded.append(Recorder(run.events))
        await run

    with pytest.raises(error):
        asyncio.run(main())
    assert len(finals(recorded[0].events)) == 1


@pytest.mark.parametrize("error", [ValueError, Bad])
async def test_a_timer_of_an_operator_that_raises_ends_the_run(error: type[BaseException]) -> None:
    def late(source: Observable[Signal]) -> Observable[Signal]:
        return source.pipe(ops.delay(0.001), troubled(item=raising(error)))

    assert "boom" in str(await failure(with_operator(late, 2)))


async def test_a_timer_of_a_subscriber_that_raises_hurts_nobody() -> None:
    run = Agent(script(), tools=[look]).run("Go.")
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))

    def boom(_: Event) -> None:
        raise ZeroDivisionError

    run.events.pipe(ops.delay(0.0001)).subscribe(boom, on_error=lambda _: None)
    assert (await run).output == "Done."


# -- all of it at random


RUNS = int(os.environ.get("RXLOOP_MISBEHAVING_RUNS", "200"))
"""5,000 take some minutes."""


@pytest.mark.timeout(60 + RUNS)
@pytest.mark.parametrize("part", range(4))
async def test_whatever_misbehaves_every_run_ends_once_and_leaves_nothing(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    for seed in range(part, RUNS, 4):
        program = Program(seed)
        try:
            await ends(program)
        except BaseException as error:
            error.add_note(f"seed {seed}: {program}")
            raise


async def ends(program: Program) -> None:
    run = program.agent().run("Go.", metadata={"tenant": PLANTED})
    recorder = Recorder(run.events)
    program.subscribe(run.events)
    awaiting = asyncio.create_task(run.result())
    if program.cancelled_after is not None:
        await settled(program.cancelled_after)
        run.cancel()
    async with asyncio.timeout(20):
        with suppress(AttemptError):
            await awaiting
    await settled(20)
    assert recorder.completed
    assert len(finals(recorder.events)) == 1
    assert recorder.events[-1] is finals(recorder.events)[0]
    assert other_tasks() == set()
    follows_the_grammar(recorder.events)
    assert PLANTED not in b"".join([frame async for frame in run.sse()]).decode()
    if program.log is not None:
        assert await program.log.read(run.task_id) == tuple(event for event in recorder.events if event.durable)
    if not program.leaves_subscriptions:
        assert program.subscriptions.open == 0


def follows_the_grammar(events: list[Event]) -> None:
    """Whatever an operator does to events, those that are published tell one story."""
    wrong: list[Exception] = []
    rx.from_iterable(events).pipe(op.grammar()).subscribe(on_error=wrong.append)
    assert wrong == []


@pytest.mark.parametrize("kind", ["tool-start", "tool-complete", "content-complete"])
@pytest.mark.parametrize("times", [0, 2])
async def test_an_operator_that_drops_or_doubles_events_ends_the_run_and_is_told_so(kind: str, times: int) -> None:
    def mangles(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_next(signal: Signal) -> None:
                for _ in range(times if getattr(signal, "kind", None) == kind else 1):
                    observer.on_next(signal)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    run = with_operator(mangles, 2).run("Go.")
    recorder = Recorder(run.events)
    with pytest.raises(RunError) as caught:
        await run
    assert caught.value.code == "pipeline"
    follows_the_grammar(recorder.events)


class OwnStart(ToolStartEvent):
    """A `tool-start` of the user's."""

    note: str = ""


async def test_a_class_of_ones_own_keeps_to_the_order_of_the_kind_that_it_is_made_of() -> None:
    def doubles(signal: Signal) -> Observable[Signal]:
        if not isinstance(signal, ToolStartEvent):
            return rx.of(signal)
        fields = {name: getattr(signal, name) for name in ("call", "index", "step", "idempotency_key")}
        return rx.of(signal, OwnStart(**fields, note="again"))

    run = with_operator(ops.flat_map(doubles), 2).run("Go.")
    recorder = Recorder(run.events)
    with pytest.raises(RunError, match="begins twice") as caught:
        await run
    assert caught.value.code == "pipeline"
    follows_the_grammar(recorder.events)


async def test_progress_of_a_call_that_no_message_has_yet_is_passed_over() -> None:
    def hurries(source: Observable[Signal]) -> Observable[Signal]:
        def early(signal: Signal) -> Observable[Signal]:
            if isinstance(signal, ContentDeltaEvent | ToolCallDeltaEvent):
                return rx.of(
                    signal, ToolProgressEvent(step=signal.step, call=ToolCall(id="a", name="look"), message="5 %")
                )
            return rx.of(signal)

        return source.pipe(ops.flat_map(early))

    run = with_operator(hurries, 1).run("Go.")
    recorder = Recorder(run.events)
    await run
    assert not any(isinstance(event, ToolProgressEvent) for event in recorder.events)
    follows_the_grammar(recorder.events)
