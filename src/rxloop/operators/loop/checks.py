"""Declarations, position checks and errors of a loop and its iterations."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from rxloop.errors import (
    ConfigurationError,
    ContextLengthExceeded,
    MediaRefused,
    PipelineError,
    ProviderProtocolError,
)
from rxloop.operators.loop.compose import describe, parts
from rxloop.pipeline.requests import IterationEnd, ModelRequest, Operator, Request, RunRequest, ToolRequest
from rxloop.protocol.events import LLMFailedEvent
from rxloop.protocol.finish import KNOWN, explain_end
from rxloop.protocol.step_events import MALFORMED_REASON
from rxloop.state.run_state import RunState
from rxloop.stream.stream import HANDLING
from rxloop.support.foreign_errors import find_sender

O = TypeVar("O", bound=Operator)  # noqa: E741

MAX_PRESSURE = 3
_ANSWERS: dict[type[Request], str] = {ModelRequest: "op.call_model()", ToolRequest: "op.run_tools()"}
NO_CALL = "Your message ended as if it called tools, but no usable call arrived. Call the tool again, or answer."


class _Handling(NamedTuple):
    request: type[Request]
    ends: bool
    """No request of the type passes the operator."""
    pipeline: Operator | None
    """What it sends the requests of its iterations through, if it makes a run of them."""


def handling(operator: O, request: type[Request], *, ends: bool = False, pipeline: Operator | None = None) -> O:
    """Write down what an operator handles.

    Args:
        operator: The operator.
        request: The type of the requests that it answers.
        ends: It answers all of them, so that none passes it.
        pipeline: What it sends the requests of its iterations through, if it answers a `RunRequest` by iterations.
    """
    fields: dict[str, Any] = vars(operator)
    fields[HANDLING] = _Handling(request, ends, pipeline)
    return operator


def check_iteration(operators: Iterable[Operator]) -> None:
    """Refuse an operator of a loop that handles what never comes to its place.

    Args:
        operators: Those of one iteration, in order.

    Raises:
        ConfigurationError: There is one; it says where to put it.
    """
    _check(list(parts(operators)), around=False)


def check_run(operator: Operator) -> None:
    """Refuse what a strategy has made if an operator in it, or in its loop, handles what never comes to its place.

    Raises:
        ConfigurationError: There is one; it says where to put it.
    """
    _check(list(parts([operator])), around=True)


def _check(line: list[Operator], *, around: bool) -> None:
    known = [(place, operator, found) for place, operator in enumerate(line) if (found := _handled(operator))]
    ends: dict[type[Request], list[int]] = {}
    for place, _, found in known:
        if found.ends:
            ends.setdefault(found.request, []).append(place)
    for place, operator, found in known:
        if found.pipeline is not None:
            check_iteration([found.pipeline])
        advice = None if found.ends else _advice(found.request, place, ends, around=around)
        if advice is not None:
            where = "around the loop" if around else "in the loop"
            raise ConfigurationError(
                f"the operator {describe(operator)} handles each {found.request.__name__}, and none ever comes to its "
                f"place {where} {', '.join(map(describe, line))}: {advice}"
            )


def _handled(operator: Operator) -> _Handling | None:
    return getattr(operator, HANDLING, None)


def _advice(kind: type[Request], place: int, ends: dict[type[Request], list[int]], *, around: bool) -> str | None:
    """Say where a handler has to be put; None if its requests may come to its place."""
    run, model, tools = (ends.get(ended, ()) for ended in (RunRequest, ModelRequest, ToolRequest))
    if issubclass(kind, RunRequest):
        if not around:
            return "put it around the loop, by a strategy that gives op.compose(..., op.iterate(pipeline))"
        return "put it before op.iterate(...), or what else answers it" if run and place > run[-1] else None
    if around and run and issubclass(kind, ModelRequest | ToolRequest | IterationEnd):
        return "put it into the loop, as in loop=op.standard(...)"
    if issubclass(kind, ModelRequest) and model and place > model[-1]:
        return "put it before op.call_model(), as in op.standard(before_model=[...])"
    if issubclass(kind, ToolRequest) and model and place < model[0]:
        return "put it after op.call_model(), as in op.standard(before_tools=[...])"
    if issubclass(kind, ToolRequest) and tools and place > tools[-1]:
        return "put it before op.run_tools(), as in op.standard(before_tools=[...])"
    return None


def shown(value: object) -> str:
    """Show a value in a message."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def find_signal_error(signal: object, loop: Operator) -> PipelineError | None:
    """Return the error of an object that left the loop: an unanswered `RunRequest`, or neither an event nor a request.

    Call it in the thread in which the object arrives, because the error names the sender.
    """
    if isinstance(signal, RunRequest):
        return PipelineError(f"nothing answered the RunRequest: the loop is {describe(loop)}")
    return None if isinstance(signal, Request) else no_signal(signal, loop)


def no_signal(value: object, loop: Operator) -> PipelineError:
    """Make the error of an operator that sent neither an event nor a request; call it where that arrives."""
    return PipelineError(
        f"{find_sender(value)} sent {shown(value)}, of the type {type(value).__qualname__}, where only events and "
        f"requests may travel: the loop is {describe(loop)}"
    )


def from_thread(loop: Operator, cause: Exception | None) -> PipelineError:
    """Make the error of a delivery from another thread; call it in that thread."""
    why = "" if cause is None else f" ({cause!r})"
    error = PipelineError(
        f"something in the loop delivered from the thread {threading.current_thread().name!r}{why}, but a run belongs "
        "to the thread of its event loop: do what needs a thread inside from_task of rxloop.stream.sources, as in "
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


# -- iterations


def unanswered(request: ModelRequest | ToolRequest, pipeline: Operator) -> PipelineError:
    """Make the error of a request that left the pipeline of an iteration."""
    return PipelineError(
        f"nothing answered a {type(request).__name__} of step {request.ctx.step}: "
        f"the pipeline is {describe(pipeline)}; put {_ANSWERS[type(request)]} after what sends it"
    )


def check_iteration_end(state: RunState, step: str | None, pipeline: Operator) -> None:
    """Check that an iteration completed its message and answered all calls.

    Raises:
        PipelineError: It did not.
    """
    if state.last is None or state.last.step != step:
        raise PipelineError(f"iteration {step} ended without a content-complete: the pipeline is {describe(pipeline)}")
    if state.batch is not None:
        names = ", ".join(state.batch.calls[index].name for index in state.batch.open)
        raise PipelineError(
            f"iteration {step} left tool calls unanswered ({names}): the pipeline is {describe(pipeline)}"
        )


def check_answer(state: RunState) -> None:
    """Refuse an empty answer with an unknown finish reason, because it may not be an answer.

    Raises:
        ProviderProtocolError: The newest message is such an answer.
    """
    last = state.last
    if last is None or state.content or state.files or last.finish_reason in KNOWN:
        return
    raise ProviderProtocolError(f"the model gave no answer: its message is empty, and {explain_end(last)}")


def find_retry(state: RunState) -> LLMFailedEvent | None:
    """Return the failure of a model call that `iterate` retries: too long a request, or media the vendor refused.

    Providers retry after other failures.
    """
    failure = state.failure
    if failure is None or state.open_step is None:
        return None
    return failure if failure.refused or failure.error.code == ContextLengthExceeded.code else None


class Retries:
    """Repeated requests of one iteration."""

    __slots__ = ("_refusal", "pressure")

    def __init__(self) -> None:
        self.pressure = 0
        """Number of times that the provider reported that the request is too long."""
        self._refusal: str | None = None
        """Reason why the vendor refused images or files."""

    def add(self, failure: LLMFailedEvent) -> None:
        """Count a failure found by `find_retry`.

        Raises:
            MediaRefused: The vendor refused images or files again.
            ContextLengthExceeded: The request is still too long.
        """
        if failure.refused:
            if self._refusal is not None:
                raise MediaRefused(self._refusal)
            self._refusal = failure.error.message
            return
        self.pressure += 1
        if self.pressure > MAX_PRESSURE:
            raise ContextLengthExceeded(failure.error.message)


def lacks_calls(state: RunState) -> bool:
    """True if the newest message ended as if it called tools, but has no calls."""
    return state.last is not None and state.last.finish_reason == "tool_calls" and not state.last.tool_calls


def lost_calls_note(state: RunState) -> str:
    """Return the message to a model whose tool calls did not arrive.

    Raises:
        ProviderProtocolError: The model has just been told, so the run would not end.
    """
    raw = state.last.raw_finish_reason if state.last is not None else None
    why = f" (finish reason {raw!r})" if raw and raw != "tool_calls" else ""
    reason = state.last.metadata.get(MALFORMED_REASON) if state.last is not None else None
    if isinstance(reason, str) and reason:
        why = f"{why}: {reason}"
    before = state.messages[-2] if len(state.messages) > 1 else None
    if before is not None and before.role == "user" and before.text.startswith(NO_CALL):
        raise ProviderProtocolError(f"the model says that it calls tools, but its messages hold no usable call{why}")
    return f"{NO_CALL}{why}"
