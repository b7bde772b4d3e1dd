"""Reserved events and invalid signals."""

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
from support.failing_runs import agent_with_operator, expect_failure
from support.run_checks import Recorder, final_events


async def test_emit_rejects_final_status_and_second_task_event() -> None:  # L4
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
    assert len(final_events(recorder.events)) == 1
    assert [event.kind for event in recorder.events].count("task") == 1
    texts = [event.content for event in recorder.events if event.kind == "tool-complete"]  # pyright: ignore[reportAttributeAccessIssue]
    assert "final `status-update`" in texts[0]
    assert "`task` event" in texts[1]


async def test_emit_rejects_value_that_is_not_an_event() -> None:
    @tool
    async def mine(ctx: RunContext[None]) -> str:
        """Mine."""
        value: Any = {"a": 1}
        ctx.emit(value)
        return "not here"

    result = await Agent(ScriptedModel(call("mine"), "Done."), tools=[mine]).run("Go.")
    assert "ctx.emit() requires an event" in result.messages[2].text
    assert "{'a': 1}" in result.messages[2].text


async def test_run_fails_with_the_code_of_the_strategy_error() -> None:
    for error in (PlanRefused("no steps"), NoAnswers("nobody voted")):

        @strategy
        async def fail(run: StrategyRun, error: Exception = error) -> str:
            raise error

        assert (await expect_failure(Agent(ScriptedModel(), strategy=fail))).code == error.code


async def test_run_fails_when_a_provider_emits_a_final_status() -> None:
    class EndingModel:
        name = "rude"

        def call(self, request: ModelRequest) -> Observable[Event]:
            async def work(push: Any) -> None:
                push(StatusUpdateEvent(state="completed", final=True))

            return from_task(work, request.ctx)

        async def aclose(self) -> None: ...

    assert "final `status-update`" in str(await expect_failure(Agent(EndingModel())))


async def test_error_names_the_operator_that_sent_an_invalid_signal() -> None:
    run_error = await expect_failure(agent_with_operator(ops.map(lambda signal: 5), 2))  # pyright: ignore[reportArgumentType]
    assert run_error.code == "pipeline"
    assert "map must emit events or requests, got 5 of type int" in str(run_error)


async def test_error_names_the_operator_that_returned_no_observable() -> None:
    def return_nothing(source: Observable[Signal]) -> Any:
        source.pipe(ops.map(lambda signal: signal))

    run_error = await expect_failure(agent_with_operator(return_nothing, 2))
    assert "return_nothing" in str(run_error)
    assert "must return an Observable, got None" in str(run_error)


async def test_error_names_stock_operators() -> None:
    drop_requests: Any = ops.filter(lambda signal: not isinstance(signal, ModelRequest))
    run_error = await expect_failure(agent_with_operator(drop_requests, 0))
    assert "rx.filter, call_model, run_tools, checkpoint" in str(run_error)


async def test_error_names_the_handler_that_yielded_an_invalid_signal() -> None:
    @op.on(ToolRequest)
    async def mine(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Any]:
        yield "refused"

    assert "handler mine must yield requests or events, got 'refused'" in str(
        await expect_failure(agent_with_operator(mine, 1))
    )
