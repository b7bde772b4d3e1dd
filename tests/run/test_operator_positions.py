"""Misplaced operators are rejected when creating an agent."""

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
async def rewrite_request(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    yield request


@op.on(IterationEnd)
async def review_iteration(request: IterationEnd, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    yield request


@op.on(RunRequest)
async def wrap_run(request: RunRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    yield request


def custom_operator(source: Observable[Signal]) -> Observable[Signal]:
    """Operator without metadata."""
    return source


def get_error(loop: list[Operator] | None = None, strategy: Strategy | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Agent(ScriptedModel("Hi."), loop=loop, strategy=strategy)
    return str(caught.value)


def test_tool_guard_before_the_model_is_rejected_with_the_right_position() -> None:
    message = get_error(op.standard(before_model=[guard]))
    assert "guard" in message
    assert "ToolRequest" in message
    assert "before_tools=[...]" in message


def test_tool_guard_after_run_tools_is_rejected() -> None:
    assert "before op.run_tools()" in get_error(op.standard(at_end=[guard]))
    assert "before op.run_tools()" in get_error([op.call_model(), op.run_tools(), op.compose(guard), op.checkpoint()])


def test_model_request_handler_after_call_model_is_rejected() -> None:
    assert "before op.call_model()" in get_error(op.standard(before_tools=[rewrite_request]))
    assert "before op.call_model()" in get_error(op.standard(at_end=[op.answer_requests(ModelRequest, emit)]))


@pytest.mark.parametrize(
    "operator",
    [
        op.compose(guard),
        op.compose(custom_operator, op.compose(op.compose(), guard)),
        op.answer_requests(ToolRequest, emit),
        wraps(guard)(lambda source: custom_operator(guard(source))),
    ],
)
def test_misplaced_guard_is_found_inside_composed_operators(operator: Operator) -> None:
    standard = op.standard(before_model=[operator])
    assert "never receives a ToolRequest" in get_error(standard)
    assert "never receives a ToolRequest" in get_error([custom_operator, *standard])
    assert "never receives a ToolRequest" in get_error([op.compose(*standard)])
    assert "never receives a ToolRequest" in get_error([*op.standard()[:2], operator])


def test_run_request_handler_in_the_loop_is_rejected() -> None:
    assert "put it around the loop" in get_error(op.standard(before_model=[wrap_run]))
    Agent(ScriptedModel("Hi."), strategy=lambda pipeline: op.compose(wrap_run, op.iterate(pipeline)))


def test_run_request_handler_after_iterate_is_rejected() -> None:
    message = get_error(strategy=lambda pipeline: op.compose(op.iterate(pipeline), wrap_run))
    assert "wrap_run" in message
    assert "before op.iterate" in message


@pytest.mark.parametrize("last", [op.iterate, chain_of_thought()])
def test_misplaced_operator_of_a_strategy_is_rejected(last: Strategy) -> None:
    assert "before_tools=[...]" in get_error(strategy=lambda pipeline: last(op.compose(guard, pipeline)))
    assert "before_model=[...]" in get_error(
        strategy=lambda pipeline: op.compose(last(op.compose(pipeline, rewrite_request)))
    )
    Agent(ScriptedModel("Hi."), strategy=lambda pipeline: last(op.compose(rewrite_request, pipeline, review_iteration)))


async def test_misplaced_operator_in_the_strategy_of_a_run_is_rejected() -> None:
    agent = Agent(ScriptedModel("Hi."))
    with pytest.raises(ConfigurationError, match="never receives a ToolRequest"):
        await agent.run("Go.", strategy=lambda pipeline: op.iterate(op.compose(guard, pipeline)))


def test_operators_at_valid_positions_are_accepted() -> None:
    Agent(
        ScriptedModel("Hi."),
        loop=op.standard(before_model=[rewrite_request], before_tools=[guard], at_end=[review_iteration]),
    )
    Agent(ScriptedModel("Hi."), loop=op.standard(before_model=[review_iteration]))
    Agent(ScriptedModel("Hi."), loop=[op.call_model(), op.answer_requests(ToolRequest, emit)])
    Agent(ScriptedModel("Hi."), loop=[custom_operator, guard, op.run_tools(), custom_operator])


def test_operator_may_have_the_name_of_a_view() -> None:
    async def rewrite(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request

    names = [name for name in op.__all__ if name.islower()]
    assert {"usage", "text", "after", "stats"} <= {*names}
    for name in names:
        rewrite.__name__ = rewrite.__qualname__ = name
        Agent(ScriptedModel("Hi."), loop=op.standard(before_model=[op.on(ModelRequest)(rewrite)]))


@pytest.mark.parametrize("misplaced", [guard, rewrite_request, review_iteration])
def test_loop_operator_around_the_loop_is_rejected(misplaced: Operator) -> None:
    def wrap_iterate(pipeline: Operator) -> Operator:
        return op.compose(op.iterate(pipeline), misplaced)

    def wrap_reasoning(pipeline: Operator) -> Operator:
        return op.compose(misplaced, chain_of_thought()(pipeline))

    for strategy in (wrap_iterate, wrap_reasoning):
        assert "around the loop" in get_error(strategy=strategy)


async def test_strategy_that_feeds_the_loop_itself_accepts_loop_operators() -> None:
    def run_once(pipeline: Operator) -> Operator:
        def send(request: RunRequest) -> Observable[Signal]:
            ctx = request.ctx.bind(step="1")
            model_request: Any = get_host(ctx).build_request(ctx, 1, 0)
            return emit(model_request, IterationEnd(1, ctx))

        return op.compose(op.answer_requests(RunRequest, send), pipeline)

    agent = Agent(ScriptedModel("Hi."), loop=op.standard(before_model=[rewrite_request]), strategy=run_once)
    assert (await agent.run("Go.")).output == "Hi."


@pytest.mark.parametrize("name", ["text", "thoughts", "tool_calls", "usage", "until_final", "partial", "stats"])
def test_view_in_the_loop_is_rejected_by_name(name: str) -> None:
    make: Any = getattr(op, name)
    message = get_error(op.standard(before_tools=[make(str) if name == "partial" else make()]))
    assert f"run.pipe(op.{name}(...))" in message


def test_merge_operator_in_the_loop_is_not_mistaken_for_a_view() -> None:
    merged: Any = operators.merge(rx.empty())
    Agent(ScriptedModel("Hi."), loop=[merged, *op.standard()])
