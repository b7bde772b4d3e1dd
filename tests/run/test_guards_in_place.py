"""An operator that stands where it can do nothing is told before anything runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import wraps
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
    Strategy,
    ToolRequest,
    op,
)
from rxloop.pipeline.host import get_host
from rxloop.strategies import chain_of_thought
from rxloop.stream.sources import emit
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


@op.on(RunRequest)
async def whole_run(request: RunRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    yield request


def by_hand(source: Observable[Signal]) -> Observable[Signal]:
    """An operator of which nothing is known."""
    return source


def refused(loop: list[Operator] | None = None, strategy: Strategy | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Agent(ScriptedModel("Hi."), loop=loop, strategy=strategy)
    return str(caught.value)


def test_a_guard_of_tools_before_the_model_is_refused_with_the_right_place() -> None:
    told = refused(op.standard(before_model=[guard]))
    assert "guard" in told
    assert "ToolRequest" in told
    assert "before_tools=[...]" in told


def test_a_guard_of_tools_after_those_who_carry_them_out_is_refused() -> None:
    assert "before op.run_tools()" in refused(op.standard(at_end=[guard]))
    assert "before op.run_tools()" in refused([op.call_model(), op.run_tools(), op.compose(guard), op.checkpoint()])


def test_what_shapes_requests_after_the_model_is_refused() -> None:
    assert "before op.call_model()" in refused(op.standard(before_tools=[shape]))
    assert "before op.call_model()" in refused(op.standard(at_end=[op.answering(ModelRequest, emit)]))


@pytest.mark.parametrize(
    "made",
    [
        op.compose(guard),
        op.compose(by_hand, op.compose(op.compose(), guard)),
        op.answering(ToolRequest, emit),
        wraps(guard)(lambda source: by_hand(guard(source))),
    ],
)
def test_a_guard_is_found_wherever_it_is_composed(made: Operator) -> None:
    standard = op.standard(before_model=[made])
    assert "handles each ToolRequest" in refused(standard)
    assert "handles each ToolRequest" in refused([by_hand, *standard])
    assert "handles each ToolRequest" in refused([op.compose(*standard)])
    assert "handles each ToolRequest" in refused([*op.standard()[:2], made])


def test_what_handles_the_run_is_refused_in_the_loop() -> None:
    assert "put it around the loop" in refused(op.standard(before_model=[whole_run]))
    Agent(ScriptedModel("Hi."), strategy=lambda pipeline: op.compose(whole_run, op.iterate(pipeline)))


def test_what_handles_the_run_is_refused_after_what_answers_it() -> None:
    told = refused(strategy=lambda pipeline: op.compose(op.iterate(pipeline), whole_run))
    assert "whole_run" in told
    assert "before op.iterate" in told


@pytest.mark.parametrize("last", [op.iterate, chain_of_thought()])
def test_what_a_strategy_adds_to_the_loop_has_to_stand_in_its_place(last: Strategy) -> None:
    assert "before_tools=[...]" in refused(strategy=lambda pipeline: last(op.compose(guard, pipeline)))
    assert "before_model=[...]" in refused(strategy=lambda pipeline: op.compose(last(op.compose(pipeline, shape))))
    Agent(ScriptedModel("Hi."), strategy=lambda pipeline: last(op.compose(shape, pipeline, look_back)))


async def test_a_strategy_of_one_run_is_refused_as_well() -> None:
    agent = Agent(ScriptedModel("Hi."))
    with pytest.raises(ConfigurationError, match="handles each ToolRequest"):
        await agent.run("Go.", strategy=lambda pipeline: op.iterate(op.compose(guard, pipeline)))


def test_what_stands_where_its_requests_come_is_taken() -> None:
    Agent(ScriptedModel("Hi."), loop=op.standard(before_model=[shape], before_tools=[guard], at_end=[look_back]))
    Agent(ScriptedModel("Hi."), loop=op.standard(before_model=[look_back]))
    Agent(ScriptedModel("Hi."), loop=[op.call_model(), op.answering(ToolRequest, emit)])
    Agent(ScriptedModel("Hi."), loop=[by_hand, guard, op.run_tools(), by_hand])


@pytest.mark.parametrize("misplaced", [guard, shape, look_back])
def test_what_stands_around_the_loop_and_answers_what_never_comes_there_is_refused(misplaced: Operator) -> None:
    def around(pipeline: Operator) -> Operator:
        return op.compose(op.iterate(pipeline), misplaced)

    def reasoning(pipeline: Operator) -> Operator:
        return op.compose(misplaced, chain_of_thought()(pipeline))

    for strategy in (around, reasoning):
        assert "around the loop" in refused(strategy=strategy)


async def test_a_strategy_that_feeds_the_loop_itself_may_be_made_of_the_same_operators() -> None:
    def once(pipeline: Operator) -> Operator:
        def send(request: RunRequest) -> Observable[Signal]:
            ctx = request.ctx.bind(step="1")
            made: Any = get_host(ctx).build_request(ctx, 1, 0)
            return emit(made, IterationEnd(1, ctx))

        return op.compose(op.answering(RunRequest, send), pipeline)

    agent = Agent(ScriptedModel("Hi."), loop=op.standard(before_model=[shape]), strategy=once)
    assert (await agent.run("Go.")).output == "Hi."


@pytest.mark.parametrize("name", ["text", "thoughts", "tool_calls", "usage", "until_final", "partial", "stats"])
def test_a_view_in_the_loop_is_refused_by_its_name(name: str) -> None:
    make: Any = getattr(op, name)
    told = refused(op.standard(before_tools=[make(str) if name == "partial" else make()]))
    assert f"run.pipe(op.{name}(...))" in told


def test_no_operator_of_the_loop_is_taken_for_a_view() -> None:
    merged: Any = operators.merge(rx.empty())
    Agent(ScriptedModel("Hi."), loop=[merged, *op.standard()])
