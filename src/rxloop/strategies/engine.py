"""An async function as a strategy."""

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
from rxloop.thinking.stages import StrategyDefinition

Function = Callable[[StrategyRun], Awaitable[str]]

ANSWER = "answer"
"""The step of an answer that a strategy gives in its own words."""


@overload
def strategy(function: Function, /) -> Strategy: ...


@overload
def strategy(*, stages: StrategyDefinition) -> Callable[[Function], Strategy]: ...


def strategy(
    function: Function | None = None, /, *, stages: StrategyDefinition | None = None
) -> Strategy | Callable[[Function], Strategy]:
    """Make a strategy of an async function, with no knowledge of Rx.

    The function asks the model as often as it likes, on lines beside the main one, and returns the answer of the run.
    Its name is that of the strategy. A run that is resumed calls it again, from the start: what the model and the tools
    have said already is answered from the log, so the function has to do the same when it gets the same answers.

    Args:
        function: Takes a `StrategyRun`, and returns the answer.
        stages: The stages that it goes through; a function that is named for one of the nine strategies goes through
            the stages of that one.

    Raises:
        ConfigurationError: It is not an async function.

    Example:
        ```
        @strategy
        async def twice(run: StrategyRun) -> str:
            first = await run.ask("Answer in one sentence.", branch="twice/1")
            return await run.conclude(f"A colleague says: {first.text} Check that, and answer.")

        agent = Agent("zai:glm-4.7", strategy=twice)
        ```
    """

    def made(function: Function) -> Strategy:
        name = getattr(function, "__name__", type(function).__name__)
        if not any(map(inspect.iscoroutinefunction, (function, type(function).__call__))):
            raise ConfigurationError(f"@strategy is for an async function, and {name} is not one: write `async def`")
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

    return made if function is None else made(function)


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
                raise StrategyError(f"the strategy {name} returned {answer!r}: it has to return the answer, a text")
            await _answer(answer, run, sender)

        leaf = from_task(work, ctx, name=f"rxloop-strategy-{name}")
        task = connect(leaf, observer.on_next, observer.on_error, observer.on_completed, scheduler)
        # What is under way comes first: its end is reported at once, not when the task gets round to being cancelled.
        return CompositeDisposable(sender.open, task)

    return Observable(subscribe)


async def _answer(text: str, run: StrategyRun, sender: Sender) -> None:
    """Answer on the main line, if it has no answer yet; the model corrects an answer of a wrong type."""
    ctx = run.ctx
    if not ctx.state.has_answered:
        answered = ctx.bind(step=ANSWER)
        message = ContentCompleteEvent(content=text, step=ANSWER)
        if (last := run.incomplete.get(text.strip())) is not None:
            end = ("finish_reason", "raw_finish_reason", "max_tokens")
            message = message.model_copy(update={name: getattr(last, name) for name in end})
        source = emit(message, IterationEnd(ctx.state.iteration, answered))
        await sender.send(sender.pipeline, source, answered)
        if ctx.state.done:
            return
    elif ctx.state.done and (ctx.state.last is None or ctx.state.last.step != ANSWER):
        return
    # It does not fit, or somebody has said something that the model has not heard; or an earlier attempt gave it, and
    # nothing at the end of the pipeline has looked at it.
    await sender.iterate(ctx, lambda request: request)
