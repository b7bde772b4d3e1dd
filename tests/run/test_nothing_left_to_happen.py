"""A run in which nothing is left to happen ends at once, and no other one does."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import reactivex as rx
from reactivex import Observable, abc
from reactivex import operators as ops
from reactivex.disposable import Disposable
from reactivex.scheduler.eventloop import AsyncIOScheduler

from rxloop import (
    Agent,
    ContentCompleteEvent,
    Event,
    ModelRequest,
    Operator,
    RunError,
    Signal,
    ToolRequest,
    op,
)
from rxloop.errors import Overloaded
from rxloop.providers import Retry, retrying
from rxloop.strategies import StrategyRun, strategy
from rxloop.stream import watchdog
from rxloop.testing import ScriptedModel, virtual_time
from support.failing_runs import failure, look, script, with_operator
from support.faulty_components import fine
from support.run_checks import settled


def swallowing(source: Observable[Signal]) -> Observable[Signal]:
    """Takes the end for itself."""

    def subscribe(observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None) -> Any:
        return source.subscribe(observer.on_next, observer.on_error, fine, scheduler=scheduler)

    return Observable(subscribe)


def own_end() -> Operator:
    """Waits for an end that only itself could bring."""
    gate: rx.Subject[Any] = rx.Subject()
    waits: Any = ops.concat(gate)
    return waits


STUCK: dict[str, Callable[[], Any]] = {
    "never": lambda: ops.merge(rx.never()),
    "swallowed": lambda: swallowing,
    "own end": own_end,
}


@pytest.mark.parametrize("name", STUCK)
@pytest.mark.parametrize("place", range(4))
async def test_a_run_in_which_nothing_is_left_to_happen_ends_at_once(name: str, place: int) -> None:
    told = await failure(with_operator(STUCK[name](), place))
    assert told.code == "pipeline"
    assert "nothing is left" in str(told)


async def test_an_operator_whose_iterations_share_what_must_not_be_shared_ends_the_run() -> None:
    for place in range(4):
        shared: Any = ops.ref_count()
        operator = op.compose(lambda source, shared=shared: source.pipe(ops.publish(), shared))
        agent = with_operator(operator, place)
        if place < 2:
            # The first iteration is disposed before the second one begins.
            assert (await agent.run("Go.")).output == "Done."
        else:
            assert "nothing is left" in str(await failure(agent))


async def test_around_the_loop_as_well() -> None:
    for name in ("never", "swallowed", "own end"):

        def around(pipeline: Operator, name: str = name) -> Operator:
            return op.compose(op.iterate(pipeline), STUCK[name]())

        assert "nothing is left" in str(await failure(Agent(script(), tools=[look], strategy=around)))


async def test_what_stands_unanswered_is_named() -> None:
    hold: Any = ops.filter(lambda signal: not isinstance(signal, ToolRequest))
    told = await failure(with_operator(op.compose(hold, ops.merge(rx.never())), 1))
    assert "look" in str(told)
    assert "call_model" in str(told)


def test_a_run_is_not_stuck_while_something_of_it_goes_on() -> None:
    async def slow() -> str:
        await asyncio.sleep(3)
        return "later"

    def task() -> Any:
        return ops.merge(rx.defer(lambda _: rx.from_future(asyncio.ensure_future(slow()))).pipe(ops.ignore_elements()))

    def timer() -> Any:
        loop = asyncio.get_running_loop()
        return ops.merge(rx.timer(3, scheduler=AsyncIOScheduler(loop)).pipe(ops.ignore_elements()))

    def own_timer() -> Any:
        return ops.merge(rx.timer(3).pipe(ops.ignore_elements()))

    def thread() -> Any:
        def made(_: Any) -> Observable[Any]:
            return rx.from_future(asyncio.get_running_loop().run_in_executor(None, fine))

        return ops.merge(rx.defer(made).pipe(ops.ignore_elements()))

    for make in (task, timer, own_timer, thread):
        with virtual_time() as time:

            async def main(make: Any = make) -> str:
                return (await with_operator(make(), 2).run("Go.")).output

            assert time.run(main()) == "Done."


def test_a_run_is_not_stuck_while_a_timer_goes_that_got_no_scheduler() -> None:
    def forgetful(source: Observable[Signal]) -> Observable[Signal]:
        return Observable(lambda observer, scheduler=None: source.subscribe(observer))

    class Again:
        name = "again"
        model = ScriptedModel(Overloaded("busy"), "Hi.")

        def call(self, request: ModelRequest) -> Observable[Event]:
            return retrying(Retry(first=3, jitter=0))(rx.defer(lambda _: self.model.call(request)))

        async def aclose(self) -> None: ...

    agent = Agent(Again(), loop=[op.call_model(), forgetful, op.run_tools(), op.checkpoint()])
    with virtual_time() as time:
        assert time.run(agent.run("Go.")).output == "Hi."
        assert time.now == 3


async def test_a_run_is_not_stuck_while_a_thread_works_for_it() -> None:
    class Threaded:
        name = "threaded"

        def call(self, request: ModelRequest) -> Observable[Event]:
            loop = asyncio.get_running_loop()

            def subscribe(observer: abc.ObserverBase[Event], scheduler: Any = None) -> abc.DisposableBase:
                def answer() -> None:
                    release.wait()
                    message = ContentCompleteEvent(step=request.step, content="Hi.")
                    loop.call_soon_threadsafe(observer.on_next, message)
                    loop.call_soon_threadsafe(observer.on_completed)

                threading.Thread(target=answer, daemon=True).start()
                return Disposable()

            return Observable(subscribe)

        async def aclose(self) -> None: ...

    release = threading.Event()
    run = Agent(Threaded()).run("Go.")
    running = asyncio.create_task(run.result())
    await settled(50)
    assert not running.done()
    release.set()
    assert (await running).output == "Hi."


async def test_a_thread_that_a_run_waits_for_alone_is_named_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "SILENCE", 0)
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.get_loop().call_soon_threadsafe(told.set_result, record.getMessage())

    def forgets(signal: Signal) -> Observable[Signal]:
        threading.Thread(target=release.wait, name="for ever", daemon=True).start()
        return rx.never()

    release = threading.Event()
    handler = Listening(logging.WARNING)
    logging.getLogger("rxloop").addHandler(handler)
    try:
        run = with_operator(ops.flat_map(forgets), 0).run("Go.")
        async with run:
            assert f"nothing but the thread 'for ever' can bring the run {run.task_id} on" in await told
    finally:
        logging.getLogger("rxloop").removeHandler(handler)
        release.set()


@pytest.mark.parametrize("wrapped", [asyncio.ensure_future, asyncio.shield, asyncio.gather])
async def test_a_run_is_not_stuck_while_it_goes_on_after_a_future_of_somebody_else(wrapped: Any) -> None:
    future = asyncio.get_running_loop().create_future()
    operator: Any = ops.merge(rx.defer(lambda _: rx.from_future(wrapped(future))).pipe(ops.ignore_elements()))
    running = [asyncio.create_task(with_operator(operator, 2).run("Go.").result()) for _ in "ab"]
    await settled(50)
    assert not any(each.done() for each in running)
    future.set_result(None)
    assert [(await each).output for each in running] == ["Done.", "Done."]


async def test_a_run_is_not_stuck_while_what_is_over_has_yet_to_be_told() -> None:
    inner = Agent(ScriptedModel("Hi."))

    def asked(signal: Signal) -> Observable[Signal]:
        if not isinstance(signal, ModelRequest):
            return rx.just(signal)
        running = asyncio.ensure_future(inner.run("Go.").result())
        running.add_done_callback(fine_with)
        return rx.from_future(running).pipe(ops.map(lambda _: signal))

    told = await failure(with_operator(ops.flat_map(asked), 0))
    assert "the script has 1 turn" in str(told)


async def test_a_view_with_a_timer_of_its_own_keeps_no_run_alive() -> None:
    agent = with_operator(STUCK["never"](), 2)
    run = agent.run("Go.")
    run.events.pipe(op.stats(3600)).subscribe(fine_with)
    with pytest.raises(RunError, match="nothing is left"):
        async with asyncio.timeout(10):
            await run


def fine_with(_: Any) -> None: ...


async def test_a_strategy_whose_requests_nothing_can_answer_any_more_ends() -> None:
    @strategy
    async def asking(run: StrategyRun) -> str:
        first, second = await asyncio.gather(run.ask("One?", branch="a"), run.ask("Two?", branch="b"))
        return first.text + second.text

    for name in ("never", "swallowed"):
        loop = [*op.standard(), STUCK[name]()]
        told = await failure(Agent(ScriptedModel("1", "2", "3"), strategy=asking, loop=loop))
        assert "nothing is left" in str(told)
