"""Final events of attempts, and events for closing open work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rxloop.errors import (
    ConflictError,
    EventLogError,
    Fenced,
    IncompleteOutput,
    InvalidOutput,
    PipelineError,
    ProviderError,
    RunExists,
    RxloopError,
    StrategyError,
)
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.envelope import COMMAND_ID
from rxloop.protocol.events import (
    RELEASED,
    SUPERSEDED,
    Event,
    State,
    StatusUpdateEvent,
    ToolCompleteEvent,
    ends_attempt,
)
from rxloop.protocol.messages import ErrorInfo, ToolCall
from rxloop.protocol.model import make_unchecked
from rxloop.run.lifetime import Canceled, End, Released
from rxloop.run.recorder import Recorder
from rxloop.run.spec import RunSpec
from rxloop.state.history import Batch
from rxloop.state.run_state import LimitHit, RunState
from rxloop.support.foreign_errors import find_raiser, get_message

_NEVER_STARTED = Canceled("released before it started")

_make_status = make_unchecked(StatusUpdateEvent)


def make_final_event(state: RunState, end: Exception | Canceled | None) -> StatusUpdateEvent:
    """Create the final event for an attempt."""
    final = _make_end(state, *_choose_outcome(state, end))
    if isinstance(end, Canceled) and end.command_number is not None:
        return final.model_copy(update={"metadata": {COMMAND_ID: end.command_number}})
    return final


def make_release_event() -> StatusUpdateEvent:
    """Create the last logged event of a released attempt. It does not end the run, whose state stays `working`."""
    return _make_status(state="working", reason=RELEASED)


def make_unlogged_end(spec: RunSpec, state: RunState, cause: EventLogError | Released) -> StatusUpdateEvent:
    """Create the final event for subscribers when the end of an attempt isn't logged. The run itself isn't over.

    Its state is `working`, the same as in the log.
    """
    task_id = spec.task_id
    if isinstance(cause, Released):
        text = (
            f"run {task_id} was released: use agent.get_run(task_id).execute() or agent.resume(task_id) to continue it"
        )
        return _make_end(state, "working", "error", ErrorInfo(code=RELEASED, message=text, retryable=True))
    if isinstance(cause, ConflictError):
        hint = f"another process is executing run {task_id}: use follow(log, task_id) to read its events"
    else:
        hint = f"the end of run {task_id} could not be logged: {_choose_remedy(spec)}"
    info = ErrorInfo(code=get_error_code(cause), message=f"{cause}; {hint}", retryable=cause.retryable)
    return _make_end(state, "working", "error", info)


def _choose_remedy(spec: RunSpec) -> str:
    if spec.cancel is None:
        return "use agent.resume(task_id) to continue it"
    if spec.cancel_code == SUPERSEDED:
        return "start the later run again"
    return "use agent.get_run(task_id).cancel() to cancel it again"


def make_unstarted_end(spec: RunSpec, state: RunState, end: End) -> StatusUpdateEvent:
    """Create the final event for an attempt without reading or writing the log."""
    if isinstance(end, Released):
        # A new run cannot be resumed after its release, because nothing was logged.
        return make_unlogged_end(spec, state, end) if spec.resume else make_final_event(state, _NEVER_STARTED)
    if spec.cancel is None and (not spec.resume or isinstance(end, Canceled)):
        # If the run is in the log, it hasn't changed.
        return make_final_event(state, end)
    if not isinstance(end, EventLogError):
        end = EventLogError(f"the attempt had to end ({spec.cancel or end}) before its run was read from the log")
    return make_unlogged_end(spec, state, end)


def is_over(last: Event | None) -> bool:
    """Return True if a run with this last event can't be continued."""
    if not isinstance(last, StatusUpdateEvent) or not ends_attempt(last):
        return False
    return last.state == "completed" or (last.state == "failed" and not (last.error and last.error.retryable))


def make_exists_error(task_id: str, reason: str) -> RunExists:
    """Create the error raised when a new run's id is already in use."""
    return RunExists(
        f"run {task_id} already exists ({reason}): use agent.resume(task_id) to continue it or get its result, or "
        "follow(log, task_id) to read its events"
    )


def _make_end(state: RunState, outcome: State, reason: str | None, error: ErrorInfo | None) -> StatusUpdateEvent:
    return _make_status(
        state=outcome,
        final=True,
        reason=reason,
        error=error,
        content=state.content or None,
        finish_reason=state.last.finish_reason if state.last is not None else None,
        usage=state.usage,
        # Operators that drop messages can leave questions of calls that do not exist.
        pending=[] if outcome in ("completed", "failed") else list(state.pending.values()),
    )


def _choose_outcome(state: RunState, end: Exception | Canceled | None) -> tuple[State, str | None, ErrorInfo | None]:
    if isinstance(end, Canceled):
        return "canceled", end.code, ErrorInfo(code=end.code, message=end.reason)
    if isinstance(end, LimitHit):
        return "failed", end.reason, ErrorInfo(code=end.reason, message=str(end))
    if end is not None:
        retryable = isinstance(end, ProviderError | EventLogError) and end.retryable
        message = get_message(end) or type(end).__name__
        if not isinstance(end, RxloopError) and end.__traceback__ is not None:
            message = f"{message} (raised by {find_raiser(end)})"
        return "failed", "error", ErrorInfo(code=get_error_code(end), message=message, retryable=retryable)
    if state.pending:
        # Any other question may be answered along with the credentials.
        only_credentials = all(question.secret for question in state.pending.values())
        return ("auth-required", "auth", None) if only_credentials else ("input-required", "input", None)
    if not state.done:
        return "failed", "error", ErrorInfo(code="pipeline", message="the loop ended without an answer")
    return "completed", None, None


def get_error_code(error: Exception) -> str:
    """Return the stable error code for an exception."""
    if isinstance(error, ProviderError | StrategyError | IncompleteOutput):
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


class OpenWork:
    """Open messages and calls across all branches."""

    def __init__(self, recorder: Recorder, idempotent: Callable[[ToolCall], bool]) -> None:
        """Create a view of a run's open work.

        Args:
            recorder: Recorder of the run.
            idempotent: Function returning True if a call may be repeated.
        """
        self._recorder, self._idempotent = recorder, idempotent

    def close_context(self, ctx: RunContext[Any]) -> Iterator[Event]:
        """Yield the event closing the context's message or call, if open."""
        state = self._recorder.state(ctx.branch)
        if ctx.call is None:
            if state.open_step == ctx.step:
                yield self._recorder.cancel_message(ctx.branch)
        elif state.batch is not None and state.batch.step == ctx.step and state.batch.is_open(ctx.index):
            yield self._cancel_call(state.batch, ctx.index, ctx.branch)

    def close_all(self, *, keep_calls: bool) -> Iterator[Event]:
        """Yield events closing every open message and, unless `keep_calls` is set, every open call."""
        for branch, state in list(self._recorder.states.items()):
            if state.open_step is not None:
                yield self._recorder.cancel_message(branch)
            if state.batch is not None and not keep_calls:
                for index in state.batch.open:
                    yield self._cancel_call(state.batch, index, branch)

    @property
    def has_unrepeatable_call(self) -> bool:
        """True while executing a call that can't be repeated, because its tool isn't idempotent.

        Calls waiting for an answer don't count, because they start over when answered.
        """
        asking = self._recorder.state().pending.values()
        for state in self._recorder.states.values():
            batch = state.batch
            if batch is None:
                continue
            started = batch.started & ~batch.find_waiting_calls(asking)
            if any(started >> index & 1 and not self._idempotent(batch.calls[index]) for index in batch.open):
                return True
        return False

    def _cancel_call(self, batch: Batch, index: int, branch: str | None) -> ToolCompleteEvent:
        asking = batch.find_waiting_calls(self._recorder.state().pending.values())
        content = batch.explain_missing(index, asking, idempotent=self._idempotent(batch.calls[index]))
        return make_canceled_call(batch, index, content, branch)


def make_canceled_call(batch: Batch, index: int, content: str, branch: str | None = None) -> ToolCompleteEvent:
    """Create the result of a cancelled call. The model will read `content`."""
    call = batch.calls[index]
    return ToolCompleteEvent(
        call=call,
        index=index,
        hidden=call.hidden,
        step=batch.step,
        branch=branch,
        success=False,
        error="canceled",
        code="canceled",
        content=content,
    )
