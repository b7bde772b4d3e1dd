"""Retries of failed model calls."""

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
from rxloop.support.misuse import check_minimum, check_positive, check_type


def begins_answer(event: Event) -> bool:
    """Return True if an event is a part of the answer. Failures, notices and token counts are not."""
    return not isinstance(event, LLMFailedEvent | LLMNoticeEvent | UsageEvent)


def make_failed_event(error: Exception, wait: float) -> LLMFailedEvent:
    """Create the event for a failed request that is repeated after `wait` seconds."""
    code = error.code if isinstance(error, ProviderError) else "error"
    status = error.status if isinstance(error, ProviderError) else None
    return LLMFailedEvent(error=ErrorInfo(code=code, message=str(error)), retryable=True, retry_in=wait, status=status)


log = logging.getLogger("rxloop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Retry policy for requests failing before the first event.

    Only transient failures are retried: rate limits, server failures, and connection errors. Local timeouts are
    excluded, because callers have already waited long enough. Nothing is retried once output was published.
    """

    attempts: int = 3
    """Maximum number of requests; 1 disables retries."""
    first: float = 0.5
    """Delay in seconds before the second request. It doubles with each further request."""
    longest: float = 60.0
    """Maximum delay in seconds. If the vendor requests more, or more than the remaining total time of the call, the
    call fails immediately with an error that contains the delay.
    """
    jitter: float = 0.25
    """Maximum fraction that is randomly subtracted from a delay, so that clients do not retry simultaneously."""

    def __post_init__(self) -> None:
        check_minimum(0, attempts=self.attempts)
        check_positive(zero=True, first=self.first, longest=self.longest, jitter=self.jitter)

    def wait(self, error: ProviderError, attempt: int) -> float | None:
        """Return the delay before the next request in seconds.

        Args:
            error: The error of the last request.
            attempt: Number of requests sent so far, from 1.

        Returns:
            None if the request must not be repeated.
        """
        if attempt >= self.attempts or not error.retryable:
            return None
        if isinstance(error, ProviderTimeout) and error.status is None:
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= self.longest else None
        # Limit the exponent, because a float would overflow eventually.
        wait = min(self.longest, self.first * 2 ** min(attempt - 1, 30))
        return wait * (1 - self.jitter * random.random())


def retrying(policy: Retry) -> Callable[[Observable[Event]], Observable[Event]]:
    """Retry a model call that fails before producing output.

    Each retry publishes an internal `llm-failed` event with the error and delay. Delays use the subscription's
    scheduler and end on disposal.

    ::

        1st          --X
        2nd                 --d-d-C|
        retrying()   --E------d-d-C|      E llm-failed, d deltas, C content-complete

    Example:
        >>> retrying(Retry(attempts=5))(provider.call(request))

    Args:
        policy: Retry policy.

    Raises:
        ConfigurationError: The policy is not a `Retry`.
    """
    check_type("policy", policy, Retry, "a retry policy, such as Retry(attempts=3)")

    def operator(source: Observable[Event]) -> Observable[Event]:
        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            return Attempts(policy, source, observer, scheduler).begin()

        return Observable(subscribe)

    return operator


class Attempts:
    """Subscription of `retrying`. A class, because closures with reference cycles must wait for the garbage collector.

    Args:
        policy: Number and delays of the attempts.
        source: Subscribed for each request.
        observer: Receives the answer.
        scheduler: Scheduler of the subscription.
        until: Event loop time at which all delays end. The source must respect it itself.
    """

    __slots__ = (
        "_connections",
        "_link",
        "_observer",
        "_policy",
        "_scheduler",
        "_sent",
        "_source",
        "_started",
        "_until",
    )

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
        self._started = False
        self._link: Connection | None = None

    def begin(self) -> abc.DisposableBase:
        """Send the first request. Disposing the result ends all requests."""
        self._send()
        return self._connections

    def _send(self, _scheduler: abc.SchedulerBase | None = None, _state: Any = None) -> None:
        self._sent += 1
        completed = self._observer.on_completed
        self._link = connect(self._source, self._on_next, self._on_error, completed, self._scheduler, self._connections)

    def _on_next(self, event: Event) -> None:
        self._started = self._started or begins_answer(event)
        if self._started and self._link is not None:
            # The request cannot be repeated from now on, so the rest of the answer bypasses this object.
            self._link.redirect(self._observer.on_next)
        self._observer.on_next(event)

    def _on_error(self, error: Exception) -> None:
        wait = None if self._started or not isinstance(error, ProviderError) else self._policy.wait(error, self._sent)
        if wait is None:
            self._observer.on_error(error)
            return
        if self._until < math.inf:
            rest = max(0.0, self._until - asyncio.get_running_loop().time())
            if wait >= rest and isinstance(error, ProviderError) and error.retry_after is not None:
                # The total timeout would expire first.
                self._observer.on_error(error)
                return
            wait = min(wait, rest)
        log.info("%s; retrying in %.1f s", error, wait)
        self._observer.on_next(make_failed_event(error, wait))
        if not self._connections.disposed:
            self._connections.add(resolve_scheduler(self._scheduler).schedule_relative(wait, self._send))
