"""Runs without pending work fail immediately."""

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
from support.failing_runs import agent_with_operator, expect_failure, look, script
from support.faulty_components import do_nothing
from support.run_checks import run_ready_tasks


def swallow_completion(source: Observable[Signal]) -> Observable[Signal]:
    """Drop the completion of the source."""

    def subscribe(observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None) -> Any:
        return source.subscribe(observer.on_next, observer.on_error, do_nothing, scheduler=scheduler)

    return Observable(subscribe)


def wait_for_own_subject() -> Operator:
    """Create an operator that waits for its own unreachable subject."""
    gate: rx.Subject[Any] = rx.Subject()
    waits: Any = ops.concat(gate)
    return waits


STUCK_OPERATORS: dict[str, Callable[[], Any]] = {
    "never": lambda: ops.merge(rx.never()),
    "swallowed": lambda: swallow_completion,
    "own end": wait_for_own_subject,
}


@pytest.mark.parametrize("name", STUCK_OPERATORS)
@pytest.mark.parametrize("position", range(4))
async def test_stuck_run_fails_immediately(name: str, position: int) -> None:
    run_error = await expect_failure(agent_with_operator(STUCK_OPERATORS[name](), position))
    assert run_error.code == "pipeline"
    assert "the run cannot continue" in str(run_error)


async def test_run_fails_when_iterations_share_a_publish_operator() -> None:
    for position in range(4):
        shared: Any = ops.ref_count()
        operator = op.compose(lambda source, shared=shared: source.pipe(ops.publish(), shared))
        agent = agent_with_operator(operator, position)
        if position < 2:
            # Iterations do not overlap at this position.
            assert (await agent.run("Go.")).output == "Done."
        else:
            assert "the run cannot continue" in str(await expect_failure(agent))


async def test_stuck_operator_around_the_loop_fails_the_run() -> None:
    for name in ("never", "swallowed", "own end"):

        def wrap_loop(pipeline: Operator, name: str = name) -> Operator:
            return op.compose(op.iterate(pipeline), STUCK_OPERATORS[name]())

        assert "the run cannot continue" in str(await expect_failure(Agent(script(), tools=[look], strategy=wrap_loop)))


async def test_error_of_stuck_run_names_the_unanswered_request() -> None:
    hold: Any = ops.filter(lambda signal: not isinstance(signal, ToolRequest))
    run_error = await expect_failure(agent_with_operator(op.compose(hold, ops.merge(rx.never())), 1))
    assert "look" in str(run_error)
    assert "call_model" in str(run_error)


def test_run_is_not_stuck_while_a_task_timer_or_thread_is_pending() -> None:
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
        def create(_: Any) -> Observable[Any]:
            return rx.from_future(asyncio.get_running_loop().run_in_executor(None, do_nothing))

        return ops.merge(rx.defer(create).pipe(ops.ignore_elements()))

    for make in (task, timer, own_timer, thread):
        with virtual_time() as time:

            async def main(make: Any = make) -> str:
                return (await agent_with_operator(make(), 2).run("Go.")).output

            assert time.run(main()) == "Done."


def test_run_is_not_stuck_while_a_timer_without_scheduler_is_pending() -> None:
    def drop_scheduler(source: Observable[Signal]) -> Observable[Signal]:
        return Observable(lambda observer, scheduler=None: source.subscribe(observer))

    class RetryingModel:
        name = "again"
        model = ScriptedModel(Overloaded("busy"), "Hi.")

        def call(self, request: ModelRequest) -> Observable[Event]:
            return retrying(Retry(first=3, jitter=0))(rx.defer(lambda _: self.model.call(request)))

        async def aclose(self) -> None: ...

    agent = Agent(RetryingModel(), loop=[op.call_model(), drop_scheduler, op.run_tools(), op.checkpoint()])
    with virtual_time() as time:
        assert time.run(agent.run("Go.")).output == "Hi."
        assert time.now == 3


async def test_run_is_not_stuck_while_a_thread_of_its_model_works() -> None:
    class ThreadedModel:
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
    run = Agent(ThreadedModel()).run("Go.")
    result_task = asyncio.create_task(run.result())
    await run_ready_tasks(50)
    assert not result_task.done()
    release.set()
    assert (await result_task).output == "Hi."


async def test_thread_that_a_run_waits_for_is_named_in_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "WARNING_DELAY", 0)
    message: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    class ForwardingHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message.get_loop().call_soon_threadsafe(message.set_result, record.getMessage())

    def wait_in_thread(signal: Signal) -> Observable[Signal]:
        threading.Thread(target=release.wait, name="for ever", daemon=True).start()
        return rx.never()

    release = threading.Event()
    handler = ForwardingHandler(logging.WARNING)
    logging.getLogger("rxloop").addHandler(handler)
    try:
        run = agent_with_operator(ops.flat_map(wait_in_thread), 0).run("Go.")
        async with run:
            assert f"Only the thread 'for ever' can advance run {run.task_id}" in await message
    finally:
        logging.getLogger("rxloop").removeHandler(handler)
        release.set()


@pytest.mark.parametrize("wrap", [asyncio.ensure_future, asyncio.shield, asyncio.gather])
async def test_run_is_not_stuck_while_it_waits_for_an_external_future(wrap: Any) -> None:
    future = asyncio.get_running_loop().create_future()
    operator: Any = ops.merge(rx.defer(lambda _: rx.from_future(wrap(future))).pipe(ops.ignore_elements()))
    result_task = [asyncio.create_task(agent_with_operator(operator, 2).run("Go.").result()) for _ in "ab"]
    await run_ready_tasks(50)
    assert not any(task.done() for task in result_task)
    future.set_result(None)
    assert [(await task).output for task in result_task] == ["Done.", "Done."]


async def test_run_is_not_stuck_while_done_callbacks_are_pending() -> None:
    inner = Agent(ScriptedModel("Hi."))

    def run_inner_first(signal: Signal) -> Observable[Signal]:
        if not isinstance(signal, ModelRequest):
            return rx.just(signal)
        result_task = asyncio.ensure_future(inner.run("Go.").result())
        result_task.add_done_callback(ignore)
        return rx.from_future(result_task).pipe(ops.map(lambda _: signal))

    run_error = await expect_failure(agent_with_operator(ops.flat_map(run_inner_first), 0))
    assert "the script has 1 turn" in str(run_error)


async def test_stuck_run_fails_although_a_view_has_a_timer() -> None:
    agent = agent_with_operator(STUCK_OPERATORS["never"](), 2)
    run = agent.run("Go.")
    run.events.pipe(op.stats(3600)).subscribe(ignore)
    with pytest.raises(RunError, match="the run cannot continue"):
        async with asyncio.timeout(10):
            await run


def ignore(_: Any) -> None: ...


async def test_strategy_with_unanswered_requests_fails() -> None:
    @strategy
    async def ask_twice(run: StrategyRun) -> str:
        first, second = await asyncio.gather(run.ask("One?", branch="a"), run.ask("Two?", branch="b"))
        return first.text + second.text

    for name in ("never", "swallowed"):
        loop = [*op.standard(), STUCK_OPERATORS[name]()]
        run_error = await expect_failure(Agent(ScriptedModel("1", "2", "3"), strategy=ask_twice, loop=loop))
        assert "the run cannot continue" in str(run_error)
