"""How an attempt ended, in the words of its final event."""

from __future__ import annotations

from rxloop.errors import (
    ConflictError,
    EventLogError,
    Fenced,
    InvalidOutput,
    PipelineError,
    ProviderError,
    RunExists,
    RxloopError,
    StrategyError,
)
from rxloop.protocol.events import Event, State, StatusUpdateEvent, ends_attempt
from rxloop.protocol.messages import ErrorInfo
from rxloop.protocol.unchecked import unchecked
from rxloop.run.life import Canceled, End, Released
from rxloop.run.spec import RunSpec
from rxloop.state.limits import LimitHit
from rxloop.state.run_state import MAIL_ID, RunState
from rxloop.stream.foreign_errors import raiser

_NEVER_BEGAN = Canceled("released before it began")
_status = unchecked(StatusUpdateEvent)


def final_event(state: RunState, end: Exception | Canceled | None) -> StatusUpdateEvent:
    """The last event of an attempt that ended so."""
    final = _final(state, *_outcome(state, end))
    if isinstance(end, Canceled) and end.mail is not None:
        return final.model_copy(update={"metadata": {MAIL_ID: end.mail}})
    return final


def unrecorded_end(task_id: str, state: RunState, cause: EventLogError | Released) -> StatusUpdateEvent:
    """What the readers of an attempt are told whose end is not in the log: the attempt is over, and the run is not.

    Its state is what the log says of the run, `working`, so that nobody takes it for an end that others will find.
    """
    if isinstance(cause, Released):
        text = f"the run {task_id} was released: agent.settle(task_id) or agent.resume(task_id) goes on with it"
        return _final(state, "working", "error", ErrorInfo(code="released", message=text, retryable=True))
    if isinstance(cause, ConflictError):
        how = f"another process goes on with the run {task_id}: follow(log, task_id) shows what it comes to"
    else:
        how = f"how the run {task_id} ended could not be recorded: agent.resume(task_id) goes on with it"
    info = ErrorInfo(code=error_code(cause), message=f"{cause}; {how}", retryable=cause.retryable)
    return _final(state, "working", "error", info)


def end_before_it_began(spec: RunSpec, state: RunState, end: End) -> StatusUpdateEvent:
    """The end of an attempt of which the log has nothing, and that has taken nothing from it."""
    if isinstance(end, Released):
        # Of a new run there is nothing that anybody could take up.
        return unrecorded_end(spec.task_id, state, end) if spec.resume else final_event(state, _NEVER_BEGAN)
    if spec.cancel is None and (not spec.resume or isinstance(end, Canceled)):
        # Who gives an attempt up is told that; a run that the log has is as it was, and there is no other.
        return final_event(state, end)
    if not isinstance(end, EventLogError):
        end = EventLogError(f"the attempt had to end ({spec.cancel or end}) before the log had told of its run")
    return unrecorded_end(spec.task_id, state, end)


def is_over(last: Event | None) -> bool:
    """Whether nobody can go on with a run that has this last event."""
    if not isinstance(last, StatusUpdateEvent) or not ends_attempt(last):
        return False
    return last.state == "completed" or (last.state == "failed" and not (last.error and last.error.retryable))


def run_exists(task_id: str, where: str) -> RunExists:
    """The error of a new run that has the id of another one."""
    return RunExists(
        f"the run {task_id} exists, it {where}, and was not begun again: agent.resume(task_id) goes on with it or "
        "gives its end, and follow(log, task_id) reads it"
    )


def _final(state: RunState, outcome: State, reason: str | None, error: ErrorInfo | None) -> StatusUpdateEvent:
    return _status(
        state=outcome,
        final=True,
        reason=reason,
        error=error,
        content=state.content or None,
        finish_reason=state.last.finish_reason if state.last is not None else None,
        usage=state.usage,
        pending=list(state.pending.values()),
    )


def _outcome(state: RunState, end: Exception | Canceled | None) -> tuple[State, str | None, ErrorInfo | None]:
    if isinstance(end, Canceled):
        return "canceled", "canceled", ErrorInfo(code="canceled", message=end.reason)
    if isinstance(end, LimitHit):
        return "failed", end.reason, ErrorInfo(code=end.reason, message=str(end))
    if end is not None:
        retryable = isinstance(end, ProviderError | EventLogError) and end.retryable
        message = str(end) or type(end).__name__
        if not isinstance(end, RxloopError) and end.__traceback__ is not None:
            message = f"{message} (raised by {raiser(end)})"
        return "failed", "error", ErrorInfo(code=error_code(end), message=message, retryable=retryable)
    if state.pending:
        # What else it waits for may be answered by anybody who can answer questions.
        only_credentials = all(question.secret for question in state.pending.values())
        return ("auth-required", "auth", None) if only_credentials else ("input-required", "input", None)
    if not state.done:
        return "failed", "error", ErrorInfo(code="pipeline", message="the loop ended without an answer")
    return "completed", None, None


def error_code(error: Exception) -> str:
    """The stable name of what ended a run."""
    if isinstance(error, ProviderError | StrategyError):
        return error.code
    if isinstance(error, Fenced):
        return "fenced"
    if isinstance(error, ConflictError):
        return "conflict"
    if isinstance(error, EventLogError):
        return "log"
    if isinstance(error, PipelineError):
        return "pipeline"
    return "output" if isinstance(error, InvalidOutput) else "error"
