from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from reactivex import Observable, abc

from rxloop.errors import ConfigurationError
from rxloop.requests import Operator, Request, Signal
from rxloop.stream.connect import Connections, connect

R = TypeVar("R", bound=Request)


def answering(
    request_type: type[R], answer: Callable[[R], Observable[Signal]], concurrency: int | None = None
) -> Operator:
    """Pass everything on, but put the answers to requests of one type in their place.

    The engine of the loop: `call_model`, `run_tools`, `iterate` and `on` are made of it.

    ::

        in      --e--R1------e--R2----e--|
        R1           --a--b--|
        R2                      --c------d--|
        out     --e----a--b--e----c---e--d--|

    Args:
        request_type: The requests to answer.
        answer: Called with each of them; what it gives is subscribed once, and takes the request's place.
        concurrency: How many answers may be under way at once; further requests wait, in order. None is no limit.

    Returns:
        An operator that completes when its source and all answers have. An error of an answer ends it and disposes the
        other answers.
    """
    if concurrency is not None and concurrency < 1:
        raise ConfigurationError(f"concurrency must be at least 1, not {concurrency}")

    def operator(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            connections = Connections()
            waiting: list[R] = []
            active = 0
            source_ended = False
            advancing = False

            def on_next(signal: Signal) -> None:
                if not isinstance(signal, request_type):
                    observer.on_next(signal)
                elif concurrency is not None and active >= concurrency:
                    waiting.append(signal)
                else:
                    start(signal)

            def start(request: R) -> None:
                nonlocal active
                try:
                    inner = answer(request)
                except Exception as error:
                    on_error(error)
                    return
                active += 1
                connect(inner, observer.on_next, on_error, ended, scheduler, connections)

            def ended() -> None:
                nonlocal active
                active -= 1
                advance()

            def advance() -> None:
                # A loop and not a recursion, for answers that end inside `start`.
                nonlocal advancing
                if advancing:
                    return
                advancing = True
                while waiting and (concurrency is None or active < concurrency):
                    start(waiting.pop(0))
                advancing = False
                if source_ended and not active and not waiting:
                    observer.on_completed()

            def on_error(error: Exception) -> None:
                waiting.clear()
                connections.dispose()
                observer.on_error(error)

            def on_completed() -> None:
                nonlocal source_ended
                source_ended = True
                advance()

            connect(source, on_next, on_error, on_completed, scheduler, connections)
            return connections

        return Observable(subscribe)

    operator.__qualname__ = f"answering({request_type.__name__})"
    return operator
