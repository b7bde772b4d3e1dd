"""Validation and error messages for loops and iterations."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn, TypeVar

from rxloop.errors import ConfigurationError, ContextLengthExceeded, MediaRefused, PipelineError, ProviderProtocolError
from rxloop.operators.loop.compose import describe, parts
from rxloop.pipeline.requests import IterationEnd, ModelRequest, Operator, Request, RunRequest, ToolRequest
from rxloop.protocol.events import Event, LLMFailedEvent
from rxloop.protocol.finish import KNOWN, MALFORMED_REASON, explain_end
from rxloop.state.run_state import RunState, needs_change
from rxloop.stream.rx import PipelineStopped
from rxloop.stream.stream import HANDLING
from rxloop.support.foreign_errors import find_sender

O = TypeVar("O", bound=Operator)  # noqa: E741

MAX_PRESSURE = 3
MAX_LATE = 2_000
"""Maximum number of requests ignored after an operator has ended. Exceeding it raises an exception, which stops an
endless source."""
MAX_UNANSWERED = 10_000
"""Maximum number of active answers and of queued requests per operator. A single model message contains fewer calls."""
_ANSWERS: dict[type[Request], str] = {ModelRequest: "op.call_model()", ToolRequest: "op.run_tools()"}
NO_CALL = "Your message ended as if it called tools, but no usable call arrived. Call the tool again, or answer."


class _Declaration(NamedTuple):
    request: type[Request]
    ends: bool
    """True if the operator answers all requests of the type."""
    pipeline: Operator | None
    """Iteration pipeline for operators that answer a `RunRequest` with iterations."""


def declare_handler(operator: O, request: type[Request], *, ends: bool = False, pipeline: Operator | None = None) -> O:
    """Mark an operator as the handler for a request type, and return the operator.

    Args:
        operator: Request handler.
        request: Handled request type.
        ends: True if the operator answers every request of this type, without passing any on.
        pipeline: Iteration pipeline for operators that answer a `RunRequest` with iterations.
    """
    fields: dict[str, Any] = vars(operator)
    fields[HANDLING] = _Declaration(request, ends, pipeline)
    return operator


def check_iteration(operators: Iterable[Operator]) -> None:
    """Validate the operator order within an iteration.

    Args:
        operators: Operators in pipeline order.

    Raises:
        ConfigurationError: Unreachable request handler. The message suggests the correct position.
    """
    _check(list(parts(operators)), around=False)


def check_run(operator: Operator) -> None:
    """Validate the operator order of a strategy and its loop.

    Raises:
        ConfigurationError: Unreachable request handler. The message suggests the correct position.
    """
    _check(list(parts([operator])), around=True)


def _check(operators: list[Operator], *, around: bool) -> None:
    declared = [
        (position, operator, declaration)
        for position, operator in enumerate(operators)
        if (declaration := _get_declaration(operator))
    ]
    ends: dict[type[Request], list[int]] = {}
    for position, _, declaration in declared:
        if declaration.ends:
            ends.setdefault(declaration.request, []).append(position)
    for position, operator, declaration in declared:
        if declaration.pipeline is not None:
            check_iteration([declaration.pipeline])
        advice = None if declaration.ends else _find_advice(declaration.request, position, ends, around=around)
        if advice is not None:
            where = "around the loop" if around else "in the loop"
            raise ConfigurationError(
                f"operator {describe(operator)} never receives a {declaration.request.__name__} at its position "
                f"{where} {', '.join(map(describe, operators))}; {advice}"
            )


def _get_declaration(operator: Operator) -> _Declaration | None:
    return getattr(operator, HANDLING, None)


def _find_advice(
    request_type: type[Request], position: int, ends: dict[type[Request], list[int]], *, around: bool
) -> str | None:
    """Return where a misplaced handler belongs, or None if it can receive requests."""
    run, model, tools = (ends.get(handled, ()) for handled in (RunRequest, ModelRequest, ToolRequest))
    if issubclass(request_type, RunRequest):
        if not around:
            return "put it around the loop, with a strategy that returns op.compose(..., op.iterate(pipeline))"
        return (
            "put it before op.iterate(...), or before the operator that answers the RunRequest"
            if run and position > run[-1]
            else None
        )
    if around and run and issubclass(request_type, ModelRequest | ToolRequest | IterationEnd):
        return "put it into the loop, as in loop=op.standard(...)"
    if issubclass(request_type, ModelRequest) and model and position > model[-1]:
        return "put it before op.call_model(), as in op.standard(before_model=[...])"
    if issubclass(request_type, ToolRequest) and model and position < model[0]:
        return "put it after op.call_model(), as in op.standard(before_tools=[...])"
    if issubclass(request_type, ToolRequest) and tools and position > tools[-1]:
        return "put it before op.run_tools(), as in op.standard(before_tools=[...])"
    return None


def format_value(value: object) -> str:
    """Format a value with a maximum length of 100 characters."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def find_signal_error(signal: object, loop: Operator) -> PipelineError | None:
    """Return an error for signals that must not leave the loop, or None.

    Invalid signals are unanswered `RunRequest` objects and values other than events and requests. Must be called in the
    emitting thread to determine the sender.
    """
    if isinstance(signal, RunRequest):
        return PipelineError(f"no operator answered the RunRequest; the loop is {describe(loop)}")
    return None if isinstance(signal, Request) else make_signal_error(signal, loop)


def make_signal_error(value: object, loop: Operator) -> PipelineError:
    """Create an error for invalid signals.

    Must be called in the emitting thread to determine the sender.
    """
    return PipelineError(
        f"{find_sender(value)} must emit events or requests, got {format_value(value)} of type "
        f"{type(value).__qualname__}; the loop is {describe(loop)}"
    )


def make_thread_error(loop: Operator, cause: Exception | None) -> PipelineError:
    """Create an error for signals from other threads. Must be called in the emitting thread."""
    why = "" if cause is None else f" ({cause!r})"
    error = PipelineError(
        f"operators must emit signals in the thread of the event loop, got one from thread "
        f"{threading.current_thread().name!r}{why}; use from_task of rxloop.stream.sources, call "
        f"`await asyncio.to_thread(...)` inside it, and push the result; the loop is {describe(loop)}"
    )
    error.__cause__ = cause
    return error


def make_stuck_error(state: RunState, loop: Operator) -> PipelineError:
    """Create an error for stuck runs without pending tasks or timers."""
    if state.open_step is not None:
        reason = f"the model call of step {state.open_step} has no answer"
    elif state.batch is not None:
        names = ", ".join(state.batch.calls[index].name for index in state.batch.open)
        reason = f"tool calls of step {state.batch.step} have no answer ({names})"
    else:
        reason = "an operator has not completed"
    return PipelineError(
        f"the run cannot continue, because no task or timer is left, but {reason}; an operator may be waiting for "
        "rx.never(), a Subject, or its own end; await external values in a task with op.on or from_awaitable; "
        f"the loop is {describe(loop)}"
    )


_EVENT_RULE = (
    "operators must pass events unchanged, once and immediately; to filter or change events for a subscriber, use a "
    "view, as in run.pipe(...)"
)


def make_order_error(problem: str, loop: Operator) -> PipelineError:
    """Create an error for out-of-order events."""
    return PipelineError(f"{problem}: {_EVENT_RULE}; the loop is {describe(loop)}")


def make_lost_error(events: Iterable[Event], loop: str) -> PipelineError:
    """Create an error for events that did not reach the run."""
    names = ", ".join(dict.fromkeys(f"{event.kind} of step {event.step}" for event in events))
    return PipelineError(f"an operator dropped, replaced or held events ({names}): {_EVENT_RULE}; the loop is {loop}")


def make_restart_error(count: int, loop: str) -> PipelineError:
    """Create an error for a loop that is restarted without progress."""
    return PipelineError(
        f"an operator has sent requests or restarted the loop {count} times without progress; limit its repetitions, "
        f"as in rx.retry(3) or rx.repeat(3); the loop is {loop}"
    )


def make_flood_error(count: int, loop: str) -> PipelineError:
    """Return the error for an operator with too many unanswered requests."""
    return PipelineError(
        f"an operator has received more than {count:,} requests before it could answer them; limit the repetitions of "
        f"the operator that sends them, as in rx.retry(3) or rx.repeat(3); the loop is {loop}"
    )


def stop_flood(request: Request) -> NoReturn:
    """Fail the run due to too many unanswered requests, and stop the sender by raising an exception."""
    request.ctx.info.budget.end_flood(MAX_UNANSWERED)
    raise PipelineStopped


def make_unknown_call_error(request: ToolRequest) -> PipelineError:
    """Create an error for a request to execute a call that no message contains."""
    ctx = request.ctx
    return PipelineError(
        f"a ToolRequest for call {ctx.index} ({request.call.name}) of step {ctx.step} was sent, but no open message "
        "contains this call; send only requests that the operator has received, or emit a content-complete with the "
        f"call first; the loop is {ctx.info.describe_loop()}"
    )


# -- iterations


def make_unanswered_error(request: ModelRequest | ToolRequest, pipeline: Operator) -> PipelineError:
    """Create an error for unanswered requests at the end of an iteration pipeline."""
    return PipelineError(
        f"no operator answered a {type(request).__name__} of step {request.ctx.step}; "
        f"put {_ANSWERS[type(request)]} after its sender; the pipeline is {describe(pipeline)}"
    )


def check_iteration_end(state: RunState, step: str | None, pipeline: Operator) -> None:
    """Validate the completeness of an iteration.

    Raises:
        PipelineError: Missing message or tool result.
    """
    if state.last is None or state.last.step != step:
        raise PipelineError(
            f"iteration {step} ended without a content-complete; an operator must answer each ModelRequest, and all "
            f"others must pass its events; the pipeline is {describe(pipeline)}"
        )
    if state.batch is not None:
        names = ", ".join(state.batch.calls[index].name for index in state.batch.open)
        raise PipelineError(
            f"iteration {step} left tool calls unanswered ({names}); operators must pass or answer each ToolRequest, "
            f"as with request.refuse('reason'), and pass its events; the pipeline is {describe(pipeline)}"
        )


def check_answer(state: RunState) -> None:
    """Reject empty answers with unknown finish reasons.

    Raises:
        ProviderProtocolError: Empty message with an unknown finish reason.
    """
    last = state.last
    if last is None or state.content or state.files or last.finish_reason in KNOWN:
        return
    raise ProviderProtocolError(f"the model returned an empty message, and {explain_end(last)}")


def find_retry(state: RunState) -> LLMFailedEvent | None:
    """Return the failed model call if `iterate` has to retry it, or None.

    This is the case if the request was too long or the vendor refused media. Providers retry after other failures.
    """
    failure = state.failure
    if failure is None or state.open_step is None:
        return None
    return failure if needs_change(failure) else None


def repeats_step(state: RunState) -> bool:
    """Return True if an attempt repeats the last step of the previous attempt.

    This is the case for a refused request, which was closed by a pause. Calls on other branches, which wait for
    answers, belong to the same step.
    """
    return state.open_step is not None or (state.failure is not None and needs_change(state.failure))


class Retries:
    """Retry counter for one iteration."""

    __slots__ = ("_refusal", "pressure")

    def __init__(self) -> None:
        self.pressure = 0
        """Number of requests rejected as too long."""
        self._refusal: str | None = None
        """Reason that the vendor gave for refusing images or files."""

    def add(self, failure: LLMFailedEvent) -> None:
        """Update retry counters for a failure returned by `find_retry`.

        Raises:
            MediaRefused: Repeated refusal of images or files.
            ContextLengthExceeded: Request still too long after the maximum number of retries.
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
    """Return True if the newest message ended as if it called tools, but has no calls."""
    return state.last is not None and state.last.finish_reason == "tool_calls" and not state.last.tool_calls


def lost_calls_note(state: RunState) -> str:
    """Return the note to a model whose tool calls did not arrive.

    Raises:
        ProviderProtocolError: The previous message already was this note, so the run would never end.
    """
    raw = state.last.raw_finish_reason if state.last is not None else None
    why = f" (finish reason {raw!r})" if raw and raw != "tool_calls" else ""
    reason = state.last.metadata.get(MALFORMED_REASON) if state.last is not None else None
    if isinstance(reason, str) and reason:
        why = f"{why}: {reason}"
    before = state.messages[-2] if len(state.messages) > 1 else None
    if before is not None and before.role == "user" and before.text.startswith(NO_CALL):
        raise ProviderProtocolError(f"the model's messages end as tool calls, but contain no usable call{why}")
    return f"{NO_CALL}{why}"
