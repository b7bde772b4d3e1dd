"""Events that close open work and end an attempt."""

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
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    State,
    StatusUpdateEvent,
    ToolCompleteEvent,
    ends_attempt,
)
from rxloop.protocol.messages import ErrorInfo, ToolCall
from rxloop.protocol.model import make_unchecked
from rxloop.run.life import Canceled, End, Released
from rxloop.run.recorder import Recorder
from rxloop.run.spec import RunSpec
from rxloop.state.history import Batch
from rxloop.state.run_state import COMMAND_ID, LimitHit, RunState
from rxloop.support.foreign_errors import find_raiser

_NEVER_BEGAN = Canceled("released before it began")

_status = make_unchecked(StatusUpdateEvent)


def final_event(state: RunState, end: Exception | Canceled | None) -> StatusUpdateEvent:
    """The last event of an attempt that ended so."""
    final = _final(state, *_outcome(state, end))
    if isinstance(end, Canceled) and end.mail is not None:
        return final.model_copy(update={"metadata": {COMMAND_ID: end.mail}})
    return final


def unrecorded_end(task_id: str, state: RunState, cause: EventLogError | Released) -> StatusUpdateEvent:
    """What the readers of an attempt are told whose end is not in the log: the attempt is over, and the run is not.

    Its state is what the log says of the run, `working`, so that nobody takes it for an end that others will find.
    """
    if isinstance(cause, Released):
        text = f"the run {task_id} was released: agent.get_run(task_id).execute() or agent.resume(task_id) continues it"
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
        return "canceled", end.code, ErrorInfo(code=end.code, message=end.reason)
    if isinstance(end, LimitHit):
        return "failed", end.reason, ErrorInfo(code=end.reason, message=str(end))
    if end is not None:
        retryable = isinstance(end, ProviderError | EventLogError) and end.retryable
        message = str(end) or type(end).__name__
        if not isinstance(end, RxloopError) and end.__traceback__ is not None:
            message = f"{message} (raised by {find_raiser(end)})"
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
    """The open messages and calls of a run, on all of its branches, and the events that end them."""

    def __init__(self, recorder: Recorder, idempotent: Callable[[ToolCall], bool]) -> None:
        """Look at a run.

        Args:
            recorder: Makes its stream.
            idempotent: Whether a call may be made again.
        """
        self._recorder, self._idempotent = recorder, idempotent

    def ends_of(self, ctx: RunContext[Any]) -> Iterator[Event]:
        """The end of the message, or of the call, of a context, if it is open."""
        state = self._recorder.state(ctx.branch)
        if ctx.call is None:
            if state.open_step == ctx.step:
                yield self._canceled_message(state, ctx.branch)
        elif state.batch is not None and state.batch.step == ctx.step and state.batch.is_open(ctx.index):
            yield self._canceled_call(state.batch, ctx.index, ctx.branch)

    def ends(self) -> Iterator[Event]:
        """The ends of every open message and call."""
        for branch, state in list(self._recorder.states.items()):
            if state.open_step is not None:
                yield self._canceled_message(state, branch)
            if state.batch is not None:
                for index in state.batch.open:
                    yield self._canceled_call(state.batch, index, branch)

    @property
    def at_work(self) -> bool:
        """Whether a call is being carried out that nobody can make again, since its tool is not idempotent.

        One that waits for an answer does not count: it begins once more when the answer is there.
        """
        asking = self._recorder.state().pending.values()
        for state in self._recorder.states.values():
            batch = state.batch
            if batch is None:
                continue
            begun = batch.started & ~batch.find_asking(asking)
            if any(begun >> index & 1 and not self._idempotent(batch.calls[index]) for index in batch.open):
                return True
        return False

    def _canceled_message(self, state: RunState, branch: str | None) -> ContentCompleteEvent:
        text = self._recorder.hub.get_open_text(self._recorder.task_id, state.open_step)
        return ContentCompleteEvent(step=state.open_step, branch=branch, content=text, finish_reason="canceled")

    def _canceled_call(self, batch: Batch, index: int, branch: str | None) -> ToolCompleteEvent:
        asking = batch.find_asking(self._recorder.state().pending.values())
        content = batch.explain_missing(index, asking, idempotent=self._idempotent(batch.calls[index]))
        return canceled_call(batch, index, content, branch)


def canceled_call(batch: Batch, index: int, content: str, branch: str | None = None) -> ToolCompleteEvent:
    """The answer to a call that was cut off; `content` is what the model reads."""
    call = batch.calls[index]
    return ToolCompleteEvent(
        call=call,
        index=index,
        hidden=call.hidden,
        step=batch.step,
        branch=branch,
        success=False,
        error="canceled",
        content=content,
    )
