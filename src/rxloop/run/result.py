"""Attempt results and errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

from reactivex import Observable, abc
from typing_extensions import TypeVar

from rxloop.errors import AttemptError, InvalidOutput, LimitReached, NotFinished, RunCancelled, RunError, RxloopError
from rxloop.protocol.events import WAITING, PendingInput, State, StatusUpdateEvent
from rxloop.protocol.messages import Citation, ErrorInfo, FilePart, ImagePart, Message, Usage
from rxloop.protocol.visibility import redact_error
from rxloop.run.attempt import Attempt
from rxloop.state.run_state import CompressionTotals, LimitHit
from rxloop.support.misuse import ExplainedAttributes, explain_changes, make_attribute_error
from rxloop.thinking.graph import ThoughtGraph

O = TypeVar("O", default=str)  # noqa: E741


@dataclass(frozen=True, slots=True)
class Result(ExplainedAttributes, Generic[O]):
    """Outcome of an attempt: its answer, or its progress so far.

    Attributes:
        state: `completed`, `failed`, `canceled`, `input-required` or `auth-required`. It is `working` if the end
            couldn't be logged, in which case the run hasn't ended.
        reason: Reason for ending without an answer, such as `max_iterations`.
        content: Text of the answer. Partial if there is no answer, and the last part if it arrived in several.
        files: Images and files generated with the answer.
        citations: Sources cited by the answer, as reported by the provider.
        messages: Well-formed message history, which can be used to continue: `agent.run([*result.messages, "And
            Bergen?"])`.
        usage: Token usage of all model calls.
        thoughts: Graph of thoughts and tool calls.
        pending: Questions waiting for an answer.
        finish_reason: `stop`, `length` or `content_filter`, as reported by the provider.
        error: Error details, if any.
    """

    task_id: str
    context_id: str
    state: State
    messages: list[Message] = field(repr=False)
    usage: Usage
    thoughts: ThoughtGraph = field(repr=False)
    content: str = ""
    reason: str | None = None
    finish_reason: str | None = None
    pending: list[PendingInput] = field(default_factory=list[PendingInput])
    error: ErrorInfo | None = None
    files: Sequence[ImagePart | FilePart] = ()
    citations: Sequence[Citation] = ()
    compression: CompressionTotals = field(default_factory=CompressionTotals, repr=False)
    """Compression totals."""
    parsed: Any = field(default=None, repr=False)
    misfit: str | None = field(default=None, repr=False)
    """Error message if the completed answer doesn't fit an `output_type` added after running."""

    def __repr__(self) -> str:
        # Redacted for clients, like the representation of events.
        error = None if self.error is None else redact_error(self.error, self.reason)
        fields = {
            "task_id": self.task_id,
            "context_id": self.context_id,
            "state": self.state,
            "usage": self.usage,
            "content": self.content,
            **({"files": list(self.files)} if self.files else {}),
            **({"citations": list(self.citations)} if self.citations else {}),
            "reason": self.reason,
            "finish_reason": self.finish_reason,
            "pending": self.pending,
            "error": error,
        }
        return f"Result({', '.join(f'{name}={value!r}' for name, value in fields.items())})"

    @property
    def output(self) -> O:
        """Answer, parsed as the agent's `output_type`.

        Raises:
            NotFinished: The run has no answer.
            InvalidOutput: The answer doesn't fit, because the run was completed using a different `output_type`.
        """
        if self.state != "completed":
            hint = f", waiting for {', '.join(p.input_id for p in self.pending)}" if self.pending else ""
            raise NotFinished(f"run {self.task_id} has no output because it is {self.state}{hint}")
        if self.misfit is not None:
            raise InvalidOutput(self.misfit)
        return self.parsed


def get_final_event(attempt: Attempt) -> StatusUpdateEvent:
    """Return the final event of an ended attempt."""
    if not isinstance(attempt.final, StatusUpdateEvent):
        raise RxloopError(f"run {attempt.task_id} has no final event")
    return attempt.final


def make_result(attempt: Attempt) -> Result[Any]:
    """Create the result of an ended attempt.

    Raises:
        AttemptError: The run has no answer, and is not waiting for input.
    """
    final, state = get_final_event(attempt), attempt.state()
    completed = final.state == "completed"
    parsed, misfit = attempt.try_parse(final.content or "") if completed else (None, None)
    result: Result[Any] = Result(
        task_id=attempt.task_id,
        context_id=attempt.context_id,
        state=final.state,
        reason=final.reason,
        messages=list(state.messages),
        usage=state.usage,
        thoughts=attempt.recorder.graph,
        content=final.content or "",
        files=state.files,
        citations=state.citations,
        finish_reason=final.finish_reason,
        pending=final.pending,
        error=final.error,
        compression=state.compression,
        parsed=parsed,
        misfit=misfit,
    )
    if completed or final.state in WAITING:
        return result
    info = final.error
    message = info.message if info is not None else final.state
    code = info.code if info is not None else final.state
    if final.state == "canceled":
        raise RunCancelled(message, code=code, result=result)
    if final.reason != "error":
        raise LimitReached(message, code=code, result=result)
    end = attempt.lifetime.end
    cause = end if isinstance(end, Exception) and not isinstance(end, LimitHit) else None
    raise RunError(message, code=code, result=result) from cause


def raise_failure(attempt: Attempt) -> Callable[[Observable[str]], Observable[str]]:
    """Pass all items through, then raise the error if the run failed. Otherwise its text would seem complete."""

    def operator(source: Observable[str]) -> Observable[str]:
        def subscribe(
            observer: abc.ObserverBase[str], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_completed() -> None:
                try:
                    if attempt.final is not None:
                        make_result(attempt)
                except RunCancelled:
                    pass
                except AttemptError as error:
                    attempt.is_observed = True
                    observer.on_error(error)
                    return
                observer.on_completed()

            return source.subscribe(observer.on_next, observer.on_error, on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator


def copy_error(error: BaseException) -> BaseException:
    """Copy an exception for another awaiter, because raising the same object again extends its traceback."""
    try:
        error_copy = copy(error).with_traceback(error.__traceback__)
    except Exception:
        return error
    error_copy.__cause__ = error.__cause__
    return error_copy


explain_changes(Result, "create another one with dataclasses.replace(result, ...)")


class MisuseErrors:
    """Helpful errors for treating a run like its result, or for forgetting `async`."""

    if not TYPE_CHECKING:
        # Type checkers find these mistakes on their own if the methods are missing.

        def __getattr__(self, name: str) -> Any:
            if name in Result.__dataclass_fields__ or name == "output":
                raise AttributeError(f"a run has no attribute {name!r}, but its result does: use `(await run).{name}`")
            raise make_attribute_error(type(self), name)

        def __enter__(self) -> Any:
            raise TypeError("a run must be entered using `async with agent.run(...) as run`")

        def __exit__(self, *exception: object) -> None:
            """Do nothing. The `with` statement looks this method up before calling `__enter__`."""
