"""Budget of an attempt. It counts requests when operators send them, because operators may drop the events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from reactivex import Observable, abc
from reactivex.disposable import SerialDisposable
from typing_extensions import override

from rxloop.errors import PipelineError
from rxloop.operators.loop.checks import find_retry, make_flood_error, make_lost_error, make_restart_error
from rxloop.pipeline.budget import Budget
from rxloop.protocol.events import ContentCompleteEvent, Event, UsageEvent
from rxloop.protocol.settings import Limits
from rxloop.state.earlier_attempts import EarlierAttempts
from rxloop.state.run_state import LimitHit, RunState, make_token_limit
from rxloop.stream.rx import ColdObservable, PipelineStopped, connect
from rxloop.stream.scope import Scope
from rxloop.stream.sources import never

_STEPS_PER_TURN = 20
"""Maximum number of started iterations and model calls before the event loop gets a turn."""
_MAX_RETRIES = 4
"""Maximum number of repeated requests per step by `iterate`, which are not counted; see `Retries`."""
_MAX_RESTARTS = 10
"""Maximum number of subscriptions per allowed model call. Operators may retry an iteration that sends no request."""
_MAX_REFUSED = 2_000
"""Maximum number of refused or waiting requests, after which an exception stops their sender."""


class Ending(Protocol):
    """Lifetime of the attempt."""

    is_ending: bool
    """True once the end has been decided."""

    def finish(self, end: Exception) -> None:
        """Decide the end, unless already decided."""
        ...


class States(Protocol):
    """States of the attempt."""

    states: dict[str | None, RunState]
    """Current states by branch."""
    earlier: EarlierAttempts
    """Work of earlier attempts."""


class _Waiting(NamedTuple):
    """Subscription that waits for the next turn of the event loop."""

    source: Observable[Any]
    observer: abc.ObserverBase[Any]
    scheduler: abc.SchedulerBase | None
    subscription: SerialDisposable


class WorkBudget(Budget):
    """Budget that enforces the limits of an attempt, and interrupts synchronous loops for the event loop.

    If a limit is reached, it ends the run and returns an Observable that never ends. An operator such as `rx.retry`
    would handle an error and send the next request immediately.
    """

    __slots__ = (
        "_base",
        "_describe_loop",
        "_has_repeated",
        "_lifetime",
        "_limits",
        "_lost_tokens",
        "_recorder",
        "_refused",
        "_replays",
        "_resent",
        "_scope",
        "_sent",
        "_started",
        "_steps",
        "_unpublished",
        "_waiting",
    )

    def __init__(
        self, limits: Limits, recorder: States, lifetime: Ending, scope: Scope, describe_loop: Callable[[], str]
    ) -> None:
        self._limits = limits
        self._recorder = recorder
        self._lifetime = lifetime
        self._scope = scope
        self._describe_loop = describe_loop
        self._base: int | None = None
        """Number of model calls before this attempt, or None before its first subscription."""
        self._has_repeated = False
        self._lost_tokens = 0
        """Number of tokens in `usage` events that operators have dropped."""
        self._sent = 0
        """Number of model calls on all branches. Excludes requests that `iterate` repeats."""
        self._resent = 0
        self._replays = 0
        self._started = 0
        """Number of subscriptions to the loop and to its iterations."""
        self._steps = 0
        """Number of started iterations and model calls, at least since the event loop had a turn."""
        self._refused = 0
        # Empty containers would take 700 bytes per run.
        self._waiting: deque[_Waiting] | None = None
        self._unpublished: list[Event] | None = None

    # -- requests

    @override
    def start(self, source: Observable[Any]) -> Observable[Any]:
        if self._lifetime.is_ending:
            return self._refuse()
        if self._base is None:
            self._base = self._recorder.earlier.call_count
        self._started += 1
        limit = self._limits.iterations
        if limit is not None and self._started > _MAX_RESTARTS * limit and self._started > self._max_replays + limit:
            self._lifetime.finish(make_restart_error(self._started, self._describe_loop()))
            return self._refuse()
        self._steps += 1
        return source if self._steps < _STEPS_PER_TURN // 2 else self._take_turn(source)

    @override
    def send(self, call: Observable[Any], step: str, branch: str | None) -> Observable[Any]:
        if self._lifetime.is_ending:
            return self._refuse()
        state = self._recorder.states.get(branch)
        if state is not None and state.failure is not None and self._is_resent(state, step):
            self._resent += 1
        else:
            limit = self._limits.iterations
            if limit is not None and (self._base or 0) + self._sent >= limit:
                return self._end(self._make_calls_limit())
            if self._limits.tokens is not None and not self._repeats_interrupted(step):
                used = self._recorder.states[None].usage.total_tokens + self._count_unpublished_tokens()
                if used >= self._limits.tokens:
                    return self._end(make_token_limit(used, self._limits.tokens))
            self._sent += 1
        self._steps += 1
        return call if self._steps < _STEPS_PER_TURN // 2 else self._take_turn(call)

    @override
    def replay(self, answer: Observable[Any]) -> Observable[Any]:
        self._replays += 1
        if self._replays > self._max_replays:
            self._lifetime.finish(make_restart_error(self._replays, self._describe_loop()))
        if self._lifetime.is_ending:
            return self._refuse()
        self._steps += 1
        return self._take_turn(answer)

    @override
    def end_flood(self, count: int) -> None:
        self._lifetime.finish(make_flood_error(count, self._describe_loop()))
        # Stop the scope explicitly. If the exception for the sender interrupts `subscribe`, there is no subscription to
        # dispose.
        self._scope.call_soon(self._scope.stop)

    @property
    def _max_replays(self) -> int:
        return _MAX_RESTARTS * (len(self._recorder.earlier.messages) + 10)

    def _end(self, limit: LimitHit) -> Observable[Any]:
        self._lifetime.finish(limit)
        return self._refuse()

    def _refuse(self) -> Observable[Any]:
        self._refused += 1
        if self._refused > _MAX_REFUSED:
            raise PipelineStopped
        return never()

    def _is_resent(self, state: RunState, step: str) -> bool:
        """Return True if `iterate` repeats a request that was too long or contained refused media."""
        repeated = state.open_step == step and find_retry(state) is not None
        return repeated and self._resent < _MAX_RETRIES * max(self._sent, 1)

    def _repeats_interrupted(self, step: str) -> bool:
        """Return True for the first request of the step that an earlier attempt left open. It was already allowed."""
        if self._has_repeated or step != self._recorder.earlier.state.open_step:
            return False
        self._has_repeated = True
        return True

    def _make_calls_limit(self) -> LimitHit:
        sent = (self._base or 0) + self._sent
        return LimitHit(
            "max_iterations",
            f"{sent} model calls were requested on all branches (limits.iterations); raise the limit, or send "
            f"fewer requests per iteration; the loop is {self._describe_loop()}",
        )

    def _count_unpublished_tokens(self) -> int:
        return self._lost_tokens + _count_tokens(each for each in self._unpublished or () if not each.attempt)

    # -- turns of the event loop

    def _take_turn(self, source: Observable[Any]) -> Observable[Any]:
        if self._steps == _STEPS_PER_TURN // 2:
            # Called before the limit is reached, unless the pipeline is synchronous.
            self._scope.call_soon(self._start_turn)
        if self._steps <= _STEPS_PER_TURN and not self._waiting:
            return source
        return ColdObservable(lambda observer, scheduler=None: self._wait(source, observer, scheduler))

    def _wait(
        self, source: Observable[Any], observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        subscription = SerialDisposable()
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(_Waiting(source, observer, scheduler, subscription))
        if len(self._waiting) == 1:
            self._scope.call_soon(self._continue)
        elif len(self._waiting) > _MAX_REFUSED:
            self._lifetime.finish(make_restart_error(len(self._waiting), self._describe_loop()))
            raise PipelineStopped
        return subscription

    def _start_turn(self) -> None:
        self._steps = 0

    def _continue(self) -> None:
        self._steps = 0
        waiting = self._waiting
        while waiting and self._steps < _STEPS_PER_TURN and not self._lifetime.is_ending:
            source, observer, scheduler, subscription = waiting[0]
            if not subscription.is_disposed:
                on_next, on_error, on_completed = observer.on_next, observer.on_error, observer.on_completed
                try:
                    subscription.disposable = connect(source, on_next, on_error, on_completed, scheduler)
                except PipelineStopped:
                    return
            # Removed last, so that requests sent meanwhile wait in order.
            waiting.popleft()
        if waiting and not self._lifetime.is_ending:
            self._scope.call_soon(self._continue)

    # -- events

    @override
    def note_unpublished(self, event: Event) -> None:
        if self._unpublished is None:
            self._unpublished = []
        # One delta suffices to report the error.
        if event.durable or all(each.durable or each.attempt for each in self._unpublished):
            self._unpublished.append(event)

    @override
    def has_unpublished_call(self, step: str, index: int) -> bool:
        return any(
            isinstance(event, ContentCompleteEvent) and event.step == step and index < len(event.tool_calls)
            for event in self._unpublished or ()
        )

    @override
    def find_lost_events(self, branch: str | None = None, *, all_branches: bool = False) -> PipelineError | None:
        if not self._unpublished or self._lifetime.is_ending:
            return None
        lost: list[Event] = []
        held: list[Event] = []
        for event in self._unpublished:
            if not event.attempt:
                (lost if all_branches or event.branch == branch else held).append(event)
        self._unpublished = held or None
        if not lost:
            return None
        # An operator may handle the error and continue.
        self._lost_tokens += _count_tokens(lost)
        return make_lost_error(lost, self._describe_loop())


def _count_tokens(events: Iterable[Event]) -> int:
    return sum(each.usage.total_tokens for each in events if isinstance(each, UsageEvent))
