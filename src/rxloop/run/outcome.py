"""What comes of an attempt that is over: its result, or the error that `await run` raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc

from rxloop.errors import AttemptError, LimitReached, RunCancelled, RunError, RxloopError
from rxloop.protocol.events import StatusUpdateEvent
from rxloop.run.attempt import Attempt
from rxloop.run.result import Result
from rxloop.state.limits import LimitHit


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
    if completed or final.state in ("input-required", "auth-required"):
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
