"""An operator that stands where it can do nothing is told before anything runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import reactivex as rx
from reactivex import Observable, operators

from rxloop import (
    Agent,
    ConfigurationError,
    IterationEnd,
    ModelRequest,
    Operator,
    RunContext,
    RunRequest,
    Signal,
    ToolRequest,
    op,
)
from rxloop.strategies import chain_of_thought
from rxloop.stream.bridges import emit
from rxloop.testing import ScriptedModel


@op.on(ToolRequest)
async def guard(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    yield request


@op.on(ModelRequest)
async def shape(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    yield request


@op.on(IterationEnd)
async def look_back(request: IterationEnd, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    yield request


def refused(loop: list[Operator]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Agent(ScriptedModel("Hi."), loop=loop)
    return str(caught.value)


def test_a_guard_of_tools_before_the_model_is_refused_with_the_right_place() -> None:
    told = refused(op.standard(before_model=[guard]))
    assert "guard" in told
    assert "ToolRequest" in told
    assert "before_tools=[...]" in told


def test_a_guard_of_tools_behind_those_who_carry_them_out_is_refused() -> None:
    assert "before op.run_tools()" in refused(op.standard(at_end=[guard]))
    assert "before op.run_tools()" in refused([op.call_model(), op.run_tools(), op.compose(guard), op.checkpoint()])


def test_what_shapes_requests_behind_the_model_is_refused() -> None:
    assert "before op.call_model()" in refused(op.standard(before_tools=[shape]))
    assert "before op.call_model()" in refused(op.standard(at_end=[op.answering(ModelRequest, emit)]))


def test_what_stands_where_its_requests_come_is_taken() -> None:
    Agent(ScriptedModel("Hi."), loop=op.standard(before_model=[shape], before_tools=[guard], at_end=[look_back]))
    Agent(ScriptedModel("Hi."), loop=op.standard(before_model=[look_back]))
    Agent(ScriptedModel("Hi."), loop=[op.call_model(), op.answering(ToolRequest, emit)])


@pytest.mark.parametrize("misplaced", [guard, shape, look_back])
async def test_what_stands_around_the_loop_and_answers_what_never_comes_there_is_refused(misplaced: Operator) -> None:
    def around(pipeline: Operator) -> Operator:
        return op.compose(op.iterate(pipeline), misplaced)

    def reasoning(pipeline: Operator) -> Operator:
        return op.compose(misplaced, chain_of_thought()(pipeline))

    for strategy in (around, reasoning):
        with pytest.raises(ConfigurationError, match="around the loop"):
            await Agent(ScriptedModel("Hi."), strategy=strategy).run("Go.")


async def test_a_strategy_that_feeds_the_loop_itself_may_be_made_of_the_same_operators() -> None:
    def once(pipeline: Operator) -> Operator:
        def send(request: RunRequest) -> Observable[Signal]:
            ctx = request.ctx.bind(step="1")
            made: Any = ctx.host.request(ctx, 1, 0)
            return emit(made, IterationEnd(1, ctx))

        return op.compose(op.answering(RunRequest, send), pipeline)

    agent = Agent(ScriptedModel("Hi."), loop=op.standard(before_model=[shape]), strategy=once)
    assert (await agent.run("Go.")).output == "Hi."


def test_a_view_in_the_loop_is_refused_by_its_name() -> None:
    view: Any = op.text()
    told = refused([view, *op.standard()])
    assert "run.pipe(op.text(...))" in told


def test_no_operator_of_the_loop_is_taken_for_a_view() -> None:
    merged: Any = operators.merge(rx.empty())
    Agent(ScriptedModel("Hi."), loop=[op.idle_timeout(5), merged, *op.standard()])
