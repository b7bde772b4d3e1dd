from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from reactivex import Observable, abc

from rxloop.errors import ConfigurationError
from rxloop.operators.loop.checks import handling
from rxloop.pipeline.active_call import Permit
from rxloop.pipeline.requests import Operator, Request, Signal
from rxloop.stream.rx import Cold, Connections, connect, dispose_after

R = TypeVar("R", bound=Request[Any])


def answering(
    request_type: type[R], answer: Callable[[R], Observable[Signal]], concurrency: int | None = None
) -> Operator[object]:
    """Pass everything on, but put the answers to requests of one type in their place.

    The engine of the loop: `call_model`, `run_tools`, `iterate` and `on` are made of it.

    ::

        in      --e--R1------e--R2----e--|
        R1           --a--b--|
        R2                      --c------d--|
        out     --e----a--b--e----c---e--d--|

    Args:
        request_type: The requests to answer.
        answer: Called with each of them; what it returns is subscribed once and takes the place of the request.
        concurrency: How many answers may be under way at once; further requests wait, in order. None means no limit.

    Returns:
        An operator that completes when its source and all answers have. An error of one answer ends it
        and disposes the other answers.
    """
    return answering_with_permits(request_type, lambda request, _: answer(request), concurrency)


def answering_with_permits(
    request_type: type[R], answer: Callable[[R, Permit | None], Observable[Signal]], concurrency: int | None
) -> Operator[object]:
    """Do as `answering`, but let each answer give its permit back while it waits for a person.

    Args:
        request_type: The requests to answer.
        answer: Called with each of them and with its permit, which is None if `concurrency` is.
        concurrency: How many answers may hold a permit at once.
    """
    if concurrency is not None and concurrency < 1:
        raise ConfigurationError(f"concurrency must be at least 1, not {concurrency}")

    def operator(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            return _Answering(request_type, answer, concurrency, observer, scheduler).of(source)

        return Cold(subscribe)

    operator.__qualname__ = f"answering({request_type.__name__})"
    return handling(operator, request_type)


class _Answering(Generic[R]):
    """One subscription of `answering`. A class and not a closure, because each iteration has several."""

    __slots__ = (
        "_active",
        "_advancing",
        "_answer",
        "_away",
        "_concurrency",
        "_connections",
        "_observer",
        "_request_type",
        "_returning",
        "_scheduler",
        "_source_ended",
        "_waiting",
    )

    def __init__(
        self,
        request_type: type[R],
        answer: Callable[[R, Permit | None], Observable[Signal]],
        concurrency: int | None,
        observer: abc.ObserverBase[Signal],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._request_type = request_type
        self._answer = answer
        self._concurrency = concurrency
        self._observer = observer
        self._scheduler = scheduler
        self._connections = Connections()
        self._waiting: deque[R] | None = None
        self._returning: deque[_Permit] | None = None
        """The answers that want their permits back."""
        self._active = 0
        self._away = 0
        """The number of answers that have given their permits back."""
        self._source_ended = False
        self._advancing = False

    def of(self, source: Observable[Signal]) -> abc.DisposableBase:
        """Begin; disposing the result ends the source and all answers."""
        connect(source, self._on_next, self._on_error, self._on_completed, self._scheduler, self._connections)
        return self._connections

    def _on_next(self, signal: Signal) -> None:
        if not isinstance(signal, self._request_type):
            self._observer.on_next(signal)
        elif self._concurrency is not None and self._active >= self._concurrency:
            if self._waiting is None:
                self._waiting = deque()
            self._waiting.append(signal)
        else:
            self._start(signal)

    def _start(self, request: R) -> None:
        if self._connections.disposed:
            # A source that delivers inside its `subscribe` learns of an error only then.
            return
        permit = None if self._concurrency is None else _Permit(self)
        try:
            inner = self._answer(request, permit)
        except Exception as error:
            self._on_error(error)
            return
        self._active += 1
        ended = self._ended if permit is None else permit.end
        connect(inner, self._observer.on_next, self._on_error, ended, self._scheduler, self._connections)

    def _ended(self) -> None:
        self._active -= 1
        self._advance()

    # -- permits

    @property
    def has_room(self) -> bool:
        """True if one more answer may be under way."""
        return self._concurrency is None or self._active < self._concurrency

    def leave(self) -> None:
        """Let the next answer begin in the place of one that waits."""
        self._active -= 1
        self._away += 1
        self._advance()

    def come_back(self) -> None:
        """Count an answer again that has waited."""
        self._active += 1
        self._away -= 1

    def queue(self, permit: _Permit) -> None:
        """Note that an answer wants its permit back."""
        if self._returning is None:
            self._returning = deque()
        self._returning.append(permit)

    def end(self, held: bool) -> None:
        """Take an answer off that has ended, with its permit or while it waited."""
        if held:
            self._active -= 1
        else:
            self._away -= 1
        self._advance()

    def _advance(self) -> None:
        # A loop and not a recursion, for answers that end inside `_start`.
        if self._advancing:
            return
        self._advancing = True
        while self._returning and self.has_room:
            self._returning.popleft().reclaim()
        while self._waiting and self.has_room:
            self._start(self._waiting.popleft())
        self._advancing = False
        under_way = self._active or self._away or self._waiting
        if self._source_ended and not under_way and not self._connections.disposed:
            self._observer.on_completed()

    def _on_error(self, error: Exception) -> None:
        self._waiting = None
        dispose_after(error, self._connections)
        self._observer.on_error(error)

    def _on_completed(self) -> None:
        self._source_ended = True
        self._advance()


class _Permit:
    """The permit of one answer."""

    __slots__ = ("_engine", "_granted", "_held", "_over")

    def __init__(self, engine: _Answering[Any]) -> None:
        self._engine = engine
        self._held = True
        self._over = False
        self._granted: asyncio.Future[None] | None = None

    def release(self) -> None:
        """Give the permit back, so that the next answer may begin."""
        if self._held and not self._over:
            self._held = False
            self._engine.leave()

    async def acquire(self) -> None:
        """Wait until the answer may go on; several tasks of it may wait at once."""
        if self._held or self._over:
            return
        if self._granted is None and self._engine.has_room:
            self.reclaim()
            return
        if self._granted is None:
            self._granted = asyncio.get_running_loop().create_future()
            self._engine.queue(self)
        # Not awaited itself: a task that is cancelled would cancel it for the others.
        await asyncio.wait([self._granted])

    def reclaim(self) -> None:
        """Take the permit back at once, even if this is one more than allowed."""
        if not self._held and not self._over:
            self._held = True
            self._engine.come_back()
        self._grant()

    def end(self) -> None:
        """End the answer."""
        self._over = True
        self._grant()
        self._engine.end(self._held)

    def _grant(self) -> None:
        if self._granted is not None and not self._granted.done():
            self._granted.set_result(None)
        self._granted = None
