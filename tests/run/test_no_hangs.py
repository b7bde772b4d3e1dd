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
from reactivex.scheduler.eventloop import AsyncIOScheduler

from misbehaving import PLANTED, Bad, Program, elsewhere, fine, raising, troubled
from run_checks import Recorder, finals, other_tasks, settled
from rxloop import (
    Agent,
    AttemptError,
    ContentCompleteEvent,
    CustomEvent,
    Event,
    IterationEnd,
    MemoryEventLog,
    ModelRequest,
    Operator,
    RunContext,
    RunError,
    Signal,
    StatusUpdateEvent,
    TaskEvent,
    ToolRequest,
    op,
    tool,
)
from rxloop.errors import NoAnswers, Overloaded, PlanRefused
from rxloop.providers import Retry, hedge, retrying
from rxloop.strategies import Reasoning, strategy
from rxloop.stream.bridges import from_task
from rxloop.testing import ScriptedModel, call, virtual_time


@tool
async def look() -> str:
    """Look."""
    await asyncio.sleep(0)
    return "seen"


def script() -> ScriptedModel:
    return ScriptedModel(call("look"), "Done.")


async def failure(agent: Agent[Any, Any], prompt: str = "Go.", **options: Any) -> AttemptError:
    """How a run fails, which has to end in time, once, and leave nothing."""
    run = agent.run(prompt, **options)
    recorder = Recorder(run.events)
    with pytest.raises(AttemptError) as caught:
        async with asyncio.timeout(10):
            await run
    assert len(finals(recorder.events)) == 1
    assert recorder.events[-1].kind == "status-update"
    assert recorder.completed
    await asyncio.sleep(0)
    assert other_tasks() == set()
    return caught.value


def with_operator(operator: Operator, place: int) -> Agent[Any, str]:
    loop = op.standard()
    loop.insert(place, operator)
    return Agent(script(), tools=[look], loop=loop)


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


# -- a run in which nothing is left to happen


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


# -- what only the run itself may say


async def test_an_end_or_a_second_beginning_is_refused_to_who_emits_it() -> None:  # L4
    @tool
    async def mine(ctx: RunContext[None]) -> str:
        """Mine."""
        ctx.emit(StatusUpdateEvent(state="completed", final=True))
        return "not here"

    @tool
    def threaded(ctx: RunContext[None]) -> str:
        """In a thread."""
        ctx.emit(TaskEvent(messages=[], model="x", agent_name="y"))
        return "not here"

    run = Agent(ScriptedModel([call("mine"), call("threaded")], "Done."), tools=[mine, threaded]).run("Go.")
    recorder = Recorder(run.events)
    assert (await run).output == "Done."
    assert len(finals(recorder.events)) == 1
    assert [event.kind for event in recorder.events].count("task") == 1
    texts = [event.content for event in recorder.events if event.kind == "tool-complete"]  # pyright: ignore[reportAttributeAccessIssue]
    assert "final `status-update`" in texts[0]
    assert "`task` event" in texts[1]


async def test_what_is_no_event_is_refused_to_who_emits_it() -> None:
    @tool
    async def mine(ctx: RunContext[None]) -> str:
        """Mine."""
        nothing: Any = {"a": 1}
        ctx.emit(nothing)
        return "not here"

    result = await Agent(ScriptedModel(call("mine"), "Done."), tools=[mine]).run("Go.")
    assert "ctx.emit() takes an event" in result.messages[2].text
    assert "{'a': 1}" in result.messages[2].text


async def test_the_error_of_a_strategy_ends_the_run_with_its_own_code() -> None:
    for error in (PlanRefused("no steps"), NoAnswers("nobody voted")):

        @strategy
        async def refusing(run: Reasoning, error: Exception = error) -> str:
            raise error

        assert (await failure(Agent(ScriptedModel(), strategy=refusing))).code == error.code


async def test_a_strategy_whose_requests_nothing_can_answer_any_more_ends() -> None:
    @strategy
    async def asking(run: Reasoning) -> str:
        first, second = await asyncio.gather(run.ask("One?", branch="a"), run.ask("Two?", branch="b"))
        return first.text + second.text

    for name in ("never", "swallowed"):
        loop = [*op.standard(), STUCK[name]()]
        told = await failure(Agent(ScriptedModel("1", "2", "3"), strategy=asking, loop=loop))
        assert "nothing is left" in str(told)


async def test_a_provider_that_tells_the_end_of_the_run_is_an_error() -> None:
    class Rude:
        name = "rude"

        def call(self, request: ModelRequest) -> Observable[Event]:
            async def work(push: Any) -> None:
                push(StatusUpdateEvent(state="completed", final=True))

            return from_task(work, request.ctx)

        async def aclose(self) -> None: ...

    assert "final `status-update`" in str(await failure(Agent(Rude())))


async def test_what_is_no_signal_is_named_with_the_operator_that_sent_it() -> None:
    told = await failure(with_operator(ops.map(lambda signal: 5), 2))  # pyright: ignore[reportArgumentType]
    assert told.code == "pipeline"
    assert "map sent 5, of the type int" in str(told)


async def test_an_operator_that_gives_no_observable_is_named() -> None:
    def forgetful(source: Observable[Signal]) -> Any:
        source.pipe(ops.map(lambda signal: signal))

    told = await failure(with_operator(forgetful, 2))
    assert "forgetful" in str(told)
    assert "gave None" in str(told)


async def test_stock_operators_are_called_by_their_names() -> None:
    drop: Any = ops.filter(lambda signal: not isinstance(signal, ModelRequest))
    told = await failure(with_operator(drop, 0))
    assert "rx.filter, call_model, run_tools, checkpoint" in str(told)


async def test_a_handler_that_yields_what_is_no_signal_is_named() -> None:
    @op.on(ToolRequest)
    async def mine(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Any]:
        yield "refused"

    assert "the handler mine yielded 'refused'" in str(await failure(with_operator(mine, 1)))


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
