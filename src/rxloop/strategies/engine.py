"""Strategies written as async functions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, cast, overload

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable

from rxloop.errors import ConfigurationError, StrategyError
from rxloop.operators.loop.answer_requests import answer_requests
from rxloop.operators.loop.checks import declare_handler
from rxloop.operators.loop.compose import describe
from rxloop.pipeline.requests import IterationEnd, Operator, RunRequest, Signal, Strategy
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import ContentCompleteEvent
from rxloop.strategies.catalog import STRATEGIES
from rxloop.strategies.requests import Sender
from rxloop.strategies.strategy_run import StrategyRun
from rxloop.stream.rx import connect
from rxloop.stream.sources import Push, emit, from_task
from rxloop.support.misuse import check_type
from rxloop.thinking.stages import StrategyDefinition

Function = Callable[[StrategyRun], Awaitable[str]]

ANSWER = "answer"
"""Step name of answers returned by strategy functions."""


@overload
def strategy(function: Function, /) -> Strategy: ...


@overload
def strategy(*, stages: StrategyDefinition) -> Callable[[Function], Strategy]: ...


def strategy(
    function: Function | None = None, /, *, stages: StrategyDefinition | None = None
) -> Strategy | Callable[[Function], Strategy]:
    """Create a strategy from an async function, without knowledge of Rx.

    The function may call the model any number of times on branches, and returns the answer of the run. The name of the
    function is the name of the strategy. A resumed run calls the function again from the start. Recorded model messages
    and tool results are replayed from the log, so the function must be deterministic for equal replies.

    Args:
        function: Takes a `StrategyRun` and returns the answer.
        stages: Stages of the strategy. Defaults to the stages of the built-in strategy of the same name, if there is
            one.

    Raises:
        ConfigurationError: If the function is not async.

    Example:
        ```
        @strategy
        async def twice(run: StrategyRun) -> str:
            first = await run.ask("Answer in one sentence.", branch="twice/1")
            return await run.conclude(f"A colleague says: {first.text} Check that, and answer.")

        agent = Agent("zai:glm-4.7", strategy=twice)
        ```
    """
    check_type("stages", stages, StrategyDefinition | None, "a StrategyDefinition, such as get_stages('react')")

    def make(function: Function) -> Strategy:
        name = getattr(function, "__name__", type(function).__name__)
        if not any(map(inspect.iscoroutinefunction, (function, type(function).__call__))):
            raise ConfigurationError(f"@strategy requires an async function, got {name}; use `async def`")
        definition = stages or STRATEGIES.get(name)

        def strategy(pipeline: Operator) -> Operator:
            operator = answer_requests(
                RunRequest, lambda each: _reasoning(name, definition, function, pipeline, each.ctx)
            )
            operator.__qualname__ = f"{name}({describe(pipeline)})"
            return declare_handler(operator, RunRequest, ends=True, pipeline=pipeline)

        strategy.__name__ = strategy.__qualname__ = name
        strategy.__doc__ = function.__doc__
        return strategy

    return make if function is None else make(function)


def _reasoning(
    name: str, stages: StrategyDefinition | None, function: Function, pipeline: Operator, ctx: RunContext[Any]
) -> Observable[Signal]:
    def subscribe(observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        sender = Sender(pipeline, ctx, observer, scheduler)
        run = StrategyRun(name, ctx, sender, stages)

        async def work(push: Push[Signal]) -> None:
            sender.owner = asyncio.current_task()
            answer = cast("object", await function(run))
            if not isinstance(answer, str):
                raise StrategyError(f"the strategy {name} must return the answer as a string, got {answer!r}")
            await _answer(answer, run, sender)

        leaf = from_task(work, ctx, name=f"rxloop-strategy-{name}")
        task = connect(leaf, observer.on_next, observer.on_error, observer.on_completed, scheduler)
        # Dispose pending requests first. Their end is then reported at once, rather than when the task handles its
        # cancellation.
        return CompositeDisposable(sender.pending, task)

    return Observable(subscribe)


async def _answer(text: str, run: StrategyRun, sender: Sender) -> None:
    """Publish the answer on the main branch unless it already exists.

    Invalid answers are corrected by the model.
    """
    ctx = run.ctx
    if not ctx.state.has_answered:
        answer_ctx = ctx.bind(step=ANSWER)
        message = ContentCompleteEvent(content=text, step=ANSWER)
        if (last := run.incomplete.get(text.strip())) is not None:
            end = ("finish_reason", "raw_finish_reason", "max_tokens")
            message = message.model_copy(update={name: getattr(last, name) for name in end})
        source = emit(message, IterationEnd(ctx.state.iteration, answer_ctx))
        await sender.send(sender.pipeline, source, answer_ctx)
        if ctx.state.done:
            return
    elif ctx.state.done and (ctx.state.last is None or ctx.state.last.step != ANSWER):
        return
    # Reached if the answer is invalid, the model has not seen a new message, or an earlier attempt published an
    # unchecked answer.
    await sender.iterate(ctx, lambda request: request)
