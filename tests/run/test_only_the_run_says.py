"""What only the run itself may say is refused to everybody else, and what is not a signal is named."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from reactivex import Observable
from reactivex import operators as ops

from rxloop import (
    Agent,
    Event,
    ModelRequest,
    RunContext,
    Signal,
    StatusUpdateEvent,
    TaskEvent,
    ToolRequest,
    op,
    tool,
)
from rxloop.errors import NoAnswers, PlanRefused
from rxloop.strategies import StrategyRun, strategy
from rxloop.stream.sources import from_task
from rxloop.testing import ScriptedModel, call
from support.failing_runs import failure, with_operator
from support.run_checks import Recorder, finals


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
        async def refusing(run: StrategyRun, error: Exception = error) -> str:
            raise error

        assert (await failure(Agent(ScriptedModel(), strategy=refusing))).code == error.code


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
