"""Result of an attempt, or the error that replaces it."""

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
from rxloop.thinking.graph import ThoughtGraph

O = TypeVar("O", default=str)  # noqa: E741


@dataclass(frozen=True, slots=True)
class Result(Generic[O]):
    """The end of an attempt: the answer, or how far it came.

    Attributes:
        state: `completed`, `failed`, `canceled`, `input-required` or `auth-required`; `working` if the attempt ended
            and its log could not take the end, so that the run has not.
        reason: What ended an attempt that has no answer, such as `max_iterations`.
        content: The text of the answer, partial where there is none; of one that came in pieces, that of the last.
        files: Images and files that the model has made with the answer.
        citations: What the text of the answer rests on, as the provider says.
        messages: The history, well-formed: `agent.run([*result.messages, "And Bergen?"])` goes on by hand.
        usage: The tokens of all model calls.
        thoughts: The thoughts, tool calls and their relations.
        pending: The questions that wait for an answer.
        finish_reason: `stop`, `length`, `content_filter`, as the provider said.
        error: What went wrong.
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
    """What the compressions of the context came to."""
    parsed: Any = field(default=None, repr=False)
    misfit: str | None = field(default=None, repr=False)
    """Why the answer of a run that is over does not fit an `output_type` that the run did not have."""

    def __repr__(self) -> str:
        # As clients may see it, like the repr of an event.
        error = None if self.error is None else redact_error(self.error, self.reason)
        shown = {
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
        return f"Result({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def output(self) -> O:
        """The answer, as the agent's `output_type`.

        Raises:
            NotFinished: There is none.
            InvalidOutput: The run was completed by an agent of another `output_type`, and its answer does not fit.
        """
        if self.state != "completed":
            waits = f"; it waits for {', '.join(p.input_id for p in self.pending)}" if self.pending else ""
            raise NotFinished(f"the run {self.task_id} has no output: its state is {self.state}{waits}")
        if self.misfit is not None:
            raise InvalidOutput(self.misfit)
        return self.parsed


def outcome(attempt: Attempt) -> Result[Any]:
    """The result of an attempt that is over.

    Raises:
        AttemptError: It has no answer, and waits for none.
    """
    final = attempt.final
    if not isinstance(final, StatusUpdateEvent):
        raise RxloopError(f"the run {attempt.task_id} has no final event")
    state = attempt.state()
    completed = final.state == "completed"
    parsed, misfit = attempt.parsed(final.content or "") if completed else (None, None)
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
    end = attempt.life.end
    cause = end if isinstance(end, Exception) and not isinstance(end, LimitHit) else None
    raise RunError(message, code=code, result=result) from cause


def or_failure(attempt: Attempt) -> Callable[[Observable[str]], Observable[str]]:
    """Pass everything on, and after it the error of a run that failed: a view would end as if all were well."""

    def operator(source: Observable[str]) -> Observable[str]:
        def subscribe(
            observer: abc.ObserverBase[str], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_completed() -> None:
                try:
                    if attempt.final is not None:
                        outcome(attempt)
                except RunCancelled:
                    pass
                except AttemptError as error:
                    attempt.noticed = True
                    observer.on_error(error)
                    return
                observer.on_completed()

            return source.subscribe(observer.on_next, observer.on_error, on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator


def copy_error(error: BaseException) -> BaseException:
    """Copy an exception for another awaiter, because each raise of the same object makes its traceback longer."""
    try:
        fresh = copy(error).with_traceback(error.__traceback__)
    except Exception:
        return error
    fresh.__cause__ = error.__cause__
    return fresh


class Misuse:
    """Errors of a run that is used like its result, or without `async`."""

    if not TYPE_CHECKING:
        # Without these methods, a type checker finds the same mistakes.

        def __getattr__(self, name: str) -> Any:
            if name in Result.__dataclass_fields__ or name == "output":
                raise AttributeError(f"a run has no {name!r}, its result has: await it first, `(await run).{name}`")
            raise AttributeError(f"'Run' object has no attribute {name!r}")

        def __iter__(self) -> Any:
            raise TypeError("a run is read with `async for event in run`; in an Rx pipeline it is `run.events`")

        def __enter__(self) -> Any:
            raise TypeError("a run is held with `async with agent.run(...) as run`")

        def __exit__(self, *exception: object) -> None:
            """For `with`, which looks for it before it calls `__enter__`."""
