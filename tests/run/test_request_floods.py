"""Runs end if operators send requests or emit values without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import reactivex as rx
from reactivex import Observable
from reactivex import operators as ops

from rxloop import Agent, IterationEnd, Limits, ModelRequest, Operator, RunContext, Signal, ToolRequest, op, tool
from rxloop.errors import AttemptError
from rxloop.stream.sources import emit
from rxloop.testing import ScriptedModel, call, virtual_time
from support.run_checks import other_tasks
from support.runs import outcome


@tool
async def look() -> str:
    """Look outside."""
    await asyncio.sleep(10)
    return "rain"


def repeat_without_end(kind: type[Any]) -> Operator:
    """Return an operator that sends each request of a type again and again."""
    return ops.flat_map(lambda signal: rx.repeat_value(signal) if isinstance(signal, kind) else emit(signal))


def wait_before(kind: type[Any]) -> Operator:
    @op.on(kind)
    async def wait(request: Any, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        await asyncio.sleep(10)
        yield request

    return wait


FLOODS: dict[str, Callable[[], list[Operator]]] = {
    "model requests": lambda: [repeat_without_end(ModelRequest), wait_before(ModelRequest), *op.standard()],
    "handled errors": lambda: [
        *(repeat_without_end(ModelRequest), wait_before(ModelRequest), ops.retry(), ops.catch(rx.empty())),
        *op.standard(),
    ],
    "calls": lambda: [op.call_model(), repeat_without_end(ToolRequest), wait_before(ToolRequest), op.run_tools()],
    "waiting calls": lambda: [op.call_model(), repeat_without_end(ToolRequest), op.run_tools(concurrency=1)],
}


def fail(agent: Agent[Any, Any]) -> AttemptError:
    """Return the error of a run, after checking that it leaves no task."""

    async def main() -> AttemptError:
        with pytest.raises(AttemptError) as caught:
            await agent.run("Go.")
        assert not other_tasks()
        return caught.value

    with virtual_time() as time:
        error = time.run(main())
    assert time.now < 5
    return error


@pytest.mark.parametrize("limits", [Limits(iterations=5), Limits(iterations=None)])
@pytest.mark.parametrize("name", FLOODS)
def test_run_ends_when_requests_arrive_faster_than_they_are_answered(
    name: str, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rxloop.operators.loop.checks.MAX_UNANSWERED", 1_000)
    agent = Agent(ScriptedModel(*[call("look")] * 9), tools=[look], loop=FLOODS[name](), limits=limits)
    error = fail(agent)
    assert error.code == "pipeline"
    assert "more than 1,000 requests before it could answer them; limit the repetitions" in str(error)


@pytest.mark.parametrize("count", [50, 51])
def test_guard_may_hold_as_many_calls_as_the_limit(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rxloop.operators.loop.checks.MAX_UNANSWERED", 50)
    loop = op.standard(before_tools=[wait_before(ToolRequest)])
    agent = Agent(ScriptedModel([call("look")] * count, "Done."), tools=[look], loop=loop)
    with virtual_time() as time:
        result = time.run(outcome(agent.run("Go.")))
    assert result.state == ("completed" if count == 50 else "failed")


@pytest.mark.parametrize("direct", [False, True])
def test_run_ends_when_an_operator_emits_values_without_end(direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rxloop.stream.rx._MAX_PAUSES", 3)

    def answer(request: ModelRequest) -> Observable[Signal]:
        values: Observable[Signal] = rx.repeat_value(IterationEnd(1, request.ctx))
        return values if direct else values.pipe(ops.ignore_elements())

    loop = [op.answer_requests(ModelRequest, answer), ops.ignore_elements(), *op.standard()]
    error = fail(Agent(ScriptedModel("Hi."), loop=loop))
    assert error.code == "pipeline"
    assert "an operator has emitted values 40,000 times without waiting; limit its repetitions" in str(error)
