from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from reactivex import Observable, abc

from rxloop.operators.loop import checks
from rxloop.pipeline.active_call import Permit, Permits
from rxloop.pipeline.requests import Operator, Request, Signal
from rxloop.stream.rx import ColdObservable, Connections, PipelineStopped, connect, dispose_on_error
from rxloop.support.misuse import check_argument, check_minimum, check_type

R = TypeVar("R", bound=Request[Any])


def answer_requests(
    request_type: type[R], answer: Callable[[R], Observable[Signal] | Request[Any]], concurrency: int | None = None
) -> Operator[object]:
    """Replace requests of one type by their answers, and pass all other signals through.

    ::

        in      --e--R1------e--R2----e--|
        R1           --a--b--|
        R2                      --c------d--|
        out     --e----a--b--e----c---e--d--|

    Args:
        request_type: Type of the requests to answer.
        answer: Returns the signals that replace a request. The result is subscribed once. To only replace the request,
            return the new request, which costs less than an Observable.
        concurrency: Maximum number of concurrent answers. Further requests wait in order. Unlimited by default.

    Returns:
        Operator that completes after its source and all answers. If an answer fails, it disposes the others and fails.
    """
    check_type("request_type", request_type, type, "a class of requests, such as ToolRequest")
    check_argument("answer", answer, callable(answer), "a function of the request")
    return answer_with_permits(request_type, lambda request, _: answer(request), concurrency)


def answer_with_permits(
    request_type: type[R],
    answer: Callable[[R, Permit | None], Observable[Signal] | Request[Any]],
    concurrency: int | None,
) -> Operator[object]:
    """Return `answer_requests`, but pass `answer` a permit that it can release while it waits for a person.

    The permit is None if `concurrency` is None.
    """
    check_minimum(1, optional=True, concurrency=concurrency)

    def operator(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(observer: Any, scheduler: Any = None) -> abc.DisposableBase:
            return _AnswerSubscription(request_type, answer, concurrency, observer, scheduler).connect(source)

        return ColdObservable(subscribe)

    operator.__qualname__ = f"answer_requests({request_type.__name__})"
    return checks.declare_handler(operator, request_type)


class _AnswerSubscription(Generic[R]):
    """Subscription of `answer_requests`. A class is cheaper than closures for each iteration."""

    __slots__ = (
        "_active",
        "_advancing",
        "_answer",
        "_connections",
        "_late",
        "_observer",
        "_permits",
        "_request_type",
        "_scheduler",
        "_source_ended",
        "_waiting",
    )

    def __init__(
        self,
        request_type: type[R],
        answer: Callable[[R, Permit | None], Observable[Signal] | Request[Any]],
        concurrency: int | None,
        observer: abc.ObserverBase[Signal],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._request_type = request_type
        self._answer = answer
        self._permits = None if concurrency is None else Permits(concurrency)
        self._observer = observer
        self._scheduler = scheduler
        self._connections = Connections()
        # An empty deque would take 600 bytes.
        self._waiting: deque[R] | None = None
        self._active = 0
        """Number of active answers, including answers that released their permit."""
        self._late = 0
        """Number of requests since the subscription was disposed."""
        self._source_ended = False
        self._advancing = False

    def connect(self, source: Observable[Signal]) -> abc.DisposableBase:
        """Subscribe to the source. Disposing the result also disposes all answers."""
        connect(source, self._on_next, self._on_error, self._on_completed, self._scheduler, self._connections)
        return self._connections

    def _on_next(self, signal: Signal) -> None:
        if not isinstance(signal, self._request_type):
            self._observer.on_next(signal)
        elif self._permits is not None and not self._permits.available:
            if self._waiting is None:
                self._waiting = deque()
            if len(self._waiting) >= checks.MAX_UNANSWERED:
                checks.stop_flood(signal)
            self._waiting.append(signal)
        else:
            self._start(signal)

    def _start(self, request: R) -> None:
        if self._connections.disposed:
            # We cannot dispose a source that emits inside `subscribe`.
            self._late += 1
            if self._late > checks.MAX_LATE:
                raise PipelineStopped
            return
        if self._active >= checks.MAX_UNANSWERED:
            checks.stop_flood(request)
        permit = None if self._permits is None else Permit(self._permits, self._advance, self._end)
        try:
            inner = self._answer(request, permit)
        except Exception as error:
            self._on_error(error)
            return
        end = self._end if permit is None else permit.end
        self._active += 1
        if isinstance(inner, Request):
            self._observer.on_next(inner)
            end()
            return
        connect(inner, self._observer.on_next, self._on_error, end, self._scheduler, self._connections)

    def _end(self) -> None:
        self._active -= 1
        self._advance()

    def _advance(self) -> None:
        # A loop and not a recursion, because answers can end inside `_start`.
        if self._advancing:
            return
        self._advancing = True
        if self._permits is not None:
            self._permits.readmit()
            while self._waiting and self._permits.available:
                self._start(self._waiting.popleft())
        self._advancing = False
        if self._source_ended and not self._active and not self._waiting and not self._connections.disposed:
            self._observer.on_completed()

    def _on_error(self, error: Exception) -> None:
        self._waiting = None
        dispose_on_error(error, self._connections)
        self._observer.on_error(error)

    def _on_completed(self) -> None:
        self._source_ended = True
        self._advance()
