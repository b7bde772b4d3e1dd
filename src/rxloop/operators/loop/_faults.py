"""Errors of a pipeline that cannot work."""

from __future__ import annotations

import threading

from rxloop.errors import PipelineError
from rxloop.operators.loop.compose import describe
from rxloop.pipeline.requests import Operator
from rxloop.state.run_state import RunState
from rxloop.stream.foreign_errors import sender_of


def shown(value: object) -> str:
    """Show a value in a message."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def no_signal(value: object, loop: Operator) -> PipelineError:
    """Make the error of an operator that sent neither an event nor a request; call it where that arrives."""
    return PipelineError(
        f"{sender_of(value)} sent {shown(value)}, of the type {type(value).__qualname__}, where only events and "
        f"requests may travel: the loop is {describe(loop)}"
    )


def from_thread(loop: Operator, cause: Exception | None) -> PipelineError:
    """Make the error of a delivery from another thread; call it in that thread."""
    why = "" if cause is None else f" ({cause!r})"
    error = PipelineError(
        f"something in the loop delivered from the thread {threading.current_thread().name!r}{why}, but a run belongs "
        "to the thread of its event loop: do what needs a thread inside from_task of rxloop.stream.bridges, as in "
        f"`await asyncio.to_thread(...)`, and push from there; the loop is {describe(loop)}"
    )
    error.__cause__ = cause
    return error


def stuck(state: RunState, loop: Operator) -> PipelineError:
    """Make the error of a run that nothing is left to continue."""
    if state.open_step is not None:
        waits = f"the model call of step {state.open_step} has no answer"
    elif state.batch is not None:
        names = ", ".join(state.batch.calls[index].name for index in state.batch.open)
        waits = f"tool calls of step {state.batch.step} have no answer ({names})"
    else:
        waits = "an operator has not completed"
    return PipelineError(
        f"nothing is left that could bring the run to its end, no task and no timer, but {waits}: something in the "
        "loop waits for what never comes, such as rx.never(), a Subject, or an end that only itself could bring; what "
        f"comes from outside has to be awaited in a task, by op.on or from_awaitable; the loop is {describe(loop)}"
    )


def unordered(what: str, loop: Operator) -> PipelineError:
    """Make the error of an event that does not follow what came out of the loop before it."""
    return PipelineError(
        f"{what}: something in the loop drops, doubles or holds back events, which have to pass untouched and at once; "
        f"the loop is {describe(loop)}"
    )
