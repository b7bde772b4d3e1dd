"""Questions of tools and guards to the person or client behind a run, and their answers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rxloop.errors import InvalidInput, Paused
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import InputReceivedEvent, InputRequiredEvent, PendingInput

OnInput = Callable[[PendingInput], Any]
"""Answers a question while the run waits: the value, or an awaitable of it. A plain function runs in a thread."""

_KINDS: dict[Any, Any] = {bool: "confirmation", str: "text"}


async def ask(
    ctx: RunContext[Any],
    input_id: str,
    prompt: str,
    answer: Any,
    options: Sequence[Any] | None,
    on_input: OnInput | None,
    turn: Callable[[], asyncio.Lock],
) -> Any:
    """Put a question, and give the answer.

    Args:
        ctx: Who asks.
        input_id: The same in every attempt, so that an answer that came in between is found.
        prompt: The question.
        answer: The type of the answer.
        options: The values to choose from.
        on_input: Answers at once; without it the run pauses.
        turn: For plain functions, which are asked one question after the other, in the order of the questions.

    Raises:
        InvalidInput: The answer does not fit.
        Paused: There is no answer yet.
    """
    adapter: TypeAdapter[Any] = TypeAdapter(answer)
    question = PendingInput(
        input_id=input_id,
        prompt=prompt,
        input_kind="selection" if options is not None else _KINDS.get(answer, "data"),
        options=None if options is None else list(options),
        answer_schema=adapter.json_schema(),
        call=ctx.call,
        index=ctx.index,
        step=ctx.step,
    )
    state = ctx.state
    if input_id in state.answers:
        return _validated(adapter, question, state.answers[input_id])
    if input_id not in state.pending:
        ctx.emit(InputRequiredEvent(input=question, step=ctx.step, branch=ctx.branch))
    if on_input is None:
        raise Paused
    value = _validated(adapter, question, await _given(on_input, question, turn))
    ctx.emit(InputReceivedEvent(input_id=input_id, value=value, step=ctx.step, branch=ctx.branch))
    return value


async def _given(on_input: OnInput, question: PendingInput, turn: Callable[[], asyncio.Lock]) -> Any:
    if inspect.iscoroutinefunction(on_input):
        return await on_input(question)
    # Not before it is needed: importing rxloop is quicker without.
    from rxloop.stream.threads import in_thread

    # At a terminal two questions at once could not be told apart, and the order of the answers would be by chance.
    async with turn():
        given = await in_thread(lambda: on_input(question))
    return await given if inspect.isawaitable(given) else given


def _validated(adapter: TypeAdapter[Any], question: PendingInput, value: Any) -> Any:
    """An answer as the type that was asked for.

    Raises:
        InvalidInput: It does not fit.
    """
    try:
        value = adapter.validate_python(value)
    except ValidationError as error:
        raise InvalidInput(
            f"{value!r} does not answer {question.prompt!r} ({question.input_id}): {error.errors()[0]['msg']}"
        ) from error
    if question.options is not None and value not in question.options:
        raise InvalidInput(f"{value!r} is none of the options of {question.prompt!r}: {question.options}")
    return value
