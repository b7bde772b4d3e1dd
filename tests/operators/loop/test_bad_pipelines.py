"""Pipelines with missing, failing or request-swallowing operators."""

import dataclasses
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from reactivex import Observable, abc
from reactivex import operators as ops

from rxloop import (
    Agent,
    Event,
    RunContext,
    RunError,
    StatusUpdateEvent,
    op,
)
from rxloop.errors import PipelineError
from rxloop.pipeline.requests import ModelRequest, Operator, Signal, ToolRequest
from rxloop.testing import ScriptedModel, call
from support.runs import is_well_formed, shape
from support.step_tools import step


@dataclasses.dataclass(frozen=True)
class Layer:
    text: str


async def run_error(*operators: Operator, turns: Any = ("Hello.",), **fields: Any) -> RunError:
    with pytest.raises(RunError) as caught:
        await Agent(ScriptedModel(*turns), tools=[step], loop=operators, **fields).run("Hi")
    return caught.value


async def test_error_names_the_operators_when_call_model_is_missing() -> None:
    error = await run_error(op.run_tools(), op.checkpoint())

    assert error.code == "pipeline"
    assert isinstance(error.__cause__, PipelineError)
    assert "ModelRequest" in str(error)
    assert "run_tools, checkpoint" in str(error)


async def test_empty_pipeline_is_an_error() -> None:
    assert "ModelRequest" in str(await run_error())


async def test_error_names_the_operators_when_run_tools_is_missing() -> None:
    error = await run_error(op.call_model(), op.checkpoint(), turns=(call("step"),))

    assert error.code == "pipeline"
    assert "ToolRequest" in str(error)
    assert "call_model, checkpoint" in str(error)
    assert is_well_formed(error.result.messages)


async def test_error_names_the_guard_that_swallows_a_tool_call() -> None:
    @op.on(ToolRequest)
    async def swallow(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        if request.call.arguments["n"] != 2:
            yield request

    turns = ([call("step", n=1), call("step", n=2)],)
    error = await run_error(op.call_model(), swallow, op.run_tools(), turns=turns)

    assert error.code == "pipeline"
    assert "unanswered (step)" in str(error)
    assert "swallow" in str(error)
    assert shape(error.result.messages)[2:] == [
        "tool: 1",
        "tool: The call was cancelled before it began: nothing was done.",
    ]


async def test_error_names_the_operator_that_swallows_a_model_request() -> None:
    @op.on(ModelRequest)
    async def swallow(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        return
        yield request

    error = await run_error(swallow, *op.standard())

    assert error.code == "pipeline"
    assert "without a content-complete" in str(error)
    assert "swallow, call_model, run_tools, checkpoint" in str(error)


@pytest.mark.parametrize("where", [0, 1, 2, 3])
async def test_agent_stays_usable_after_an_operator_raises(where: int) -> None:
    failing = [True]

    def raises(source: Observable[Any]) -> Observable[Any]:
        def subscribe(observer: abc.ObserverBase[Any], scheduler: Any = None) -> abc.DisposableBase:
            def on_next(signal: Any) -> None:
                if failing[0]:
                    raise ZeroDivisionError("by my operator")
                observer.on_next(signal)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    loop = op.standard()
    loop.insert(where, raises)
    agent = Agent(ScriptedModel("first", "second"), loop=loop)
    events: list[Event] = []
    run = agent.run("Hi")
    run.events.subscribe(events.append)

    with pytest.raises(RunError, match="by my operator") as caught:
        await run

    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert [event for event in events if isinstance(event, StatusUpdateEvent) and event.final] == [events[-1]]
    failing[0] = False
    assert (await agent.run("Hi")).state == "completed"


@pytest.mark.parametrize("fail", [lambda: json.loads("{"), lambda: dataclasses.replace(Layer("a"), other=1)])
async def test_error_names_the_user_function_that_fails_inside_the_standard_library(fail: Any) -> None:
    def add_layer(signal: Signal) -> Signal:
        if isinstance(signal, ModelRequest):
            fail()
        return signal

    error = await run_error(*op.standard(before_model=[ops.map(add_layer)]))

    assert re.search(r"\(raised by .* \(test_bad_pipelines\.py:\d+\)\)$", str(error))


async def test_run_fails_when_the_construction_of_an_operator_fails() -> None:
    def broken_operator(source: Observable[Any]) -> Observable[Any]:
        raise ZeroDivisionError("while it was made")

    error = await run_error(broken_operator)

    assert "while it was made" in str(error)
