"""Retry of a failed model call."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reactivex import Observable, abc

from rxloop.errors import ProviderError, ProviderTimeout
from rxloop.protocol.events import Event, LLMFailedEvent, LLMNoticeEvent, UsageEvent
from rxloop.protocol.messages import ErrorInfo
from rxloop.stream.rx import Connection, Connections, connect, resolve_scheduler


def begins_answer(event: Event) -> bool:
    """Whether an event belongs to the answer itself: news of the request, and a count of tokens, do not."""
    return not isinstance(event, LLMFailedEvent | LLMNoticeEvent | UsageEvent)


def make_failed_event(error: Exception, wait: float) -> LLMFailedEvent:
    """The news that a request failed, and that the next one is sent after `wait` seconds."""
    code = error.code if isinstance(error, ProviderError) else "error"
    status = error.status if isinstance(error, ProviderError) else None
    return LLMFailedEvent(error=ErrorInfo(code=code, message=str(error)), retryable=True, retry_in=wait, status=status)


log = logging.getLogger("rxloop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often, and after what wait, a request is sent again that failed before the first event of its answer.

    Only failures that may pass by themselves count: too many requests, a vendor in trouble, a connection that was not
    made or broke. A timeout of our own does not: the caller has waited long enough. Once anything of the answer has
    been shown, nothing is sent again.
    """

    attempts: int = 3
    """Requests in all; 1 means none is sent again."""
    first: float = 0.5
    """Seconds before the second request; doubled before each further one."""
    longest: float = 60.0
    """Seconds to wait at most. If the vendor asks for more, or for more than is left of the total time of the call, the
    call fails at once and the error says how long."""
    jitter: float = 0.25
    """The part of a wait that chance may take off, so that clients do not come back all at once."""

    def wait(self, error: ProviderError, attempt: int) -> float | None:
        """The seconds to wait after that failure.

        Args:
            error: What went wrong.
            attempt: How many requests have been sent, from 1.

        Returns:
            None if the request is not to be sent again.
        """
        if attempt >= self.attempts or not error.retryable:
            return None
        if isinstance(error, ProviderTimeout) and error.status is None:
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= self.longest else None
        # After the thirtieth doubling any wait is the longest, and a float would overflow in the end.
        wait = min(self.longest, self.first * 2 ** min(attempt - 1, 30))
        return wait * (1 - self.jitter * random.random())


def retrying(policy: Retry) -> Callable[[Observable[Event]], Observable[Event]]:
    """Subscribe a model call again when it fails before anything of its answer was delivered.

    Each failure that is tried again is an internal `llm-failed` event, which says what happened and how long the wait
    is. The wait goes by the scheduler of the subscription, and disposing ends it.

    ::

        1st          --X
        2nd                 --d-d-C|
        retrying()   --E------d-d-C|      E llm-failed, d deltas, C content-complete

    Example:
        >>> retrying(Retry(attempts=5))(provider.call(request))

    Args:
        policy: What is tried again, how often and when.
    """

    def operator(source: Observable[Event]) -> Observable[Event]:
        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            return Attempts(policy, source, observer, scheduler).begin()

        return Observable(subscribe)

    return operator


class Attempts:
    """One subscription of `retrying`: a class, since closures that know each other wait for the garbage collector.

    Args:
        policy: What is tried again, how often and when.
        source: Subscribed for each request.
        observer: Gets the answer.
        scheduler: That of the subscription.
        until: The time of the event loop at which every wait ends; the source has to know it as well.
    """

    __slots__ = ("_begun", "_connections", "_link", "_observer", "_policy", "_scheduler", "_sent", "_source", "_until")

    def __init__(
        self,
        policy: Retry,
        source: Observable[Event],
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
        until: float = math.inf,
    ) -> None:
        self._connections = Connections()
        self._policy = policy
        self._until = until
        self._source = source
        self._observer = observer
        self._scheduler = scheduler
        self._sent = 0
        self._begun = False
        self._link: Connection | None = None

    def begin(self) -> abc.DisposableBase:
        """Send the first request; disposing the result ends everything."""
        self._send()
        return self._connections

    def _send(self, _scheduler: abc.SchedulerBase | None = None, _state: Any = None) -> None:
        self._sent += 1
        completed = self._observer.on_completed
        self._link = connect(self._source, self._on_next, self._on_error, completed, self._scheduler, self._connections)

    def _on_next(self, event: Event) -> None:
        self._begun = self._begun or begins_answer(event)
        if self._begun and self._link is not None:
            # Whatever comes now, nothing is sent again: the rest of the answer need not pass here.
            self._link.redirect(self._observer.on_next)
        self._observer.on_next(event)

    def _on_error(self, error: Exception) -> None:
        wait = None if self._begun or not isinstance(error, ProviderError) else self._policy.wait(error, self._sent)
        if wait is None:
            self._observer.on_error(error)
            return
        if self._until < math.inf:
            rest = max(0.0, self._until - asyncio.get_running_loop().time())
            if wait >= rest and isinstance(error, ProviderError) and error.retry_after is not None:
                # The call would end before the vendor answers again.
                self._observer.on_error(error)
                return
            wait = min(wait, rest)
        log.info("%s; sent again in %.1f s", error, wait)
        self._observer.on_next(make_failed_event(error, wait))
        if not self._connections.disposed:
            self._connections.add(resolve_scheduler(self._scheduler).schedule_relative(wait, self._send))
