"""Early start of read-only tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import reduce
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import Disposable
from reactivex.notification import Notification, OnCompleted, OnError, OnNext

from rxloop.errors import ConfigurationError, InvalidEvent
from rxloop.operators.loop.answer_requests import answer_with_permits
from rxloop.pipeline.active_call import ActiveCall, Permit
from rxloop.pipeline.host import get_host
from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.requests import IterationEnd, Operator, Signal, ToolRequest
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import (
    GoalsUpdatedEvent,
    LLMFailedEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    ToolVoidedEvent,
)
from rxloop.protocol.messages import ToolCall
from rxloop.stream.rx import ColdObservable, connect

ExecuteCall = Callable[[Tool, ToolRequest, ActiveCall], Observable[Signal]]

Answer = Callable[[ToolRequest, Permit | None], Observable[Signal]]

_Slot = tuple[str, int]


def start_early(execute: ExecuteCall, answer: Answer, concurrency: int) -> Operator[object]:
    """Answer each `ToolRequest`, and start calls of read-only tools before it arrives.

    ::

        in         --a--a-a---C-T1-T2-----------|
        call of 1  -----s--p------x|
        out        --a--a-a---C-(s,p)--s2-x--x2-|

    a is a `tool-call-delta`; the second one completes the arguments of the first call. C is a `content-complete`, T a
    `ToolRequest`, s a `tool-start`, p a `tool-progress` and x a `tool-complete`.

    Args:
        execute: Executes a call.
        answer: Answers a request whose call has not been started.
        concurrency: Maximum number of tools that run at once.
    """

    def operator(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            early_calls = _EarlyCalls(execute, answer, concurrency, scheduler)
            replaced = answer_with_permits(ToolRequest, early_calls.answer, concurrency)(
                ColdObservable(early_calls.watch(source))
            )
            return connect(replaced, observer.on_next, observer.on_error, observer.on_completed, scheduler)

        return ColdObservable(subscribe)

    return operator


class _StreamedArguments:
    """Streamed tool call arguments."""

    __slots__ = ("complete", "depth", "pieces", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.pieces: list[str] = []
        self.depth = 0
        self.complete = False

    def write(self, fragment: str) -> bool:
        """Add a fragment, and return True if the JSON object is complete.

        Only whitespace can follow a complete JSON object, so later fragments cannot change it. Braces in strings are
        counted as well. If they make the object look complete too early, it is not valid JSON, and the call is not
        started early.
        """
        self.pieces.append(fragment)
        closing = fragment.count("}")
        self.depth += fragment.count("{") - closing
        self.complete = self.complete or (closing > 0 and self.depth == 0)
        return self.complete


class _EarlyCall:
    """Tool call started before its request. Signals are buffered until the request arrives."""

    __slots__ = ("_active", "_connection", "_held", "_observer", "_requested", "request", "tool")

    def __init__(
        self, tool: Tool, request: ToolRequest, execute: ExecuteCall, scheduler: abc.SchedulerBase | None
    ) -> None:
        self.tool = tool
        self.request = request
        self._requested = asyncio.Event()
        self._held: list[Notification[Signal]] = []
        self._observer: abc.ObserverBase[Signal] | None = None
        # Permits and questions are delayed until the request arrives.
        self._active = ActiveCall(None)
        self._active.goal_changes = []
        ctx = request.ctx.bind(until_requested=self._requested.wait)
        self._connection = connect(
            execute(tool, ToolRequest(request.call, ctx, request.offered), self._active),
            lambda signal: self._receive(OnNext(signal)),
            lambda error: self._receive(OnError(error)),
            lambda: self._receive(OnCompleted()),
            scheduler,
        )

    def _receive(self, notification: Notification[Signal]) -> None:
        if self._observer is None:
            self._held.append(notification)
        else:
            notification.accept(self._observer)

    def answer(self, permit: Permit | None) -> Observable[Signal]:
        """Return the held signals, followed by the live ones."""
        self._active.permit = permit

        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            self._observer = observer
            self._requested.set()
            try:
                self._update_goals()
                for notification in self._held:
                    notification.accept(observer)
            except (InvalidEvent, ConfigurationError) as error:
                # The tool would get this error if it had emitted the event after the request.
                self.dispose()
                observer.on_next(self.request.refuse(str(error), code="error"))
                observer.on_completed()
            return Disposable(self._abandon)

        return ColdObservable(subscribe)

    def _update_goals(self) -> None:
        """Apply the changes of goals, which may have been updated since the call started."""
        changes, self._active.goal_changes = self._active.goal_changes, None
        if changes:
            # Imported here because few tools change goals.
            from rxloop.tools.goals import change_goals

            ctx = self.request.ctx
            before = [*(ctx.state.goals or ())]
            goals = reduce(change_goals, changes, before)
            if goals != before:
                self._held.insert(1, OnNext(GoalsUpdatedEvent(goals=goals, step=ctx.step, branch=ctx.branch)))

    def _abandon(self) -> None:
        if not self._connection.stopped:
            self.dispose()
            get_host(self.request.ctx).close_abandoned(self.request.ctx)

    def dispose(self) -> None:
        self._connection.dispose()


class _EarlyCalls:
    """Early tool calls for a single iteration."""

    __slots__ = (
        "_answer",
        "_arguments",
        "_concurrency",
        "_ctx",
        "_execute",
        "_observer",
        "_scheduler",
        "_started",
        "_step",
    )

    def __init__(
        self, execute: ExecuteCall, answer: Answer, concurrency: int, scheduler: abc.SchedulerBase | None
    ) -> None:
        self._execute = execute
        self._answer = answer
        self._concurrency = concurrency
        self._scheduler = scheduler
        self._observer: abc.ObserverBase[Signal]
        self._ctx: RunContext[Any] | None = None
        self._step: str | None = None
        self._arguments: dict[int, _StreamedArguments] = {}
        self._started: dict[_Slot, _EarlyCall] = {}

    def watch(self, source: Observable[Signal]) -> abc.Subscription[Signal]:
        """Return a source that passes all signals and starts early calls."""

        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            self._observer = observer
            connection = connect(source, self._on_next, self._on_error, self._on_completed, scheduler)

            def dispose() -> None:
                connection.dispose()
                for early in self._started.values():
                    early.dispose()

            return Disposable(dispose)

        return subscribe

    def answer(self, request: ToolRequest, permit: Permit | None) -> Observable[Signal]:
        """Return the early call's output if its request matches, or answer the request separately."""
        early = self._started.pop(request.slot, None)
        if early is not None:
            host = get_host(request.ctx)
            same = (
                host.tools.find(request) is early.tool and request.of(early.tool.definition).call == early.request.call
            )
            if same and host.claim(request):
                return early.answer(permit)
            self._discard(early)
        return self._answer(request, permit)

    def _on_next(self, signal: Signal) -> None:
        self._observer.on_next(signal)
        if type(signal) is ToolCallDeltaEvent:
            self._read(signal)
        elif isinstance(signal, IterationEnd):
            # `IterationEnd` signals provide the run context.
            self._ctx = signal.ctx
        elif isinstance(signal, LLMFailedEvent) and signal.step == self._step:
            self._discard_all()
        elif isinstance(signal, ToolCompleteEvent):
            ended_early = self._started.pop((signal.step or "", signal.index), None)
            if ended_early is not None:
                self._discard(ended_early)

    def _read(self, delta: ToolCallDeltaEvent) -> None:
        if delta.branch is not None or self._ctx is None:
            return
        if delta.step != self._step:
            self._step = delta.step
            self._arguments = {}
        arguments = self._arguments.get(delta.index)
        if arguments is None:
            arguments = self._arguments[delta.index] = _StreamedArguments(len(self._arguments))
        if not arguments.complete and arguments.write(delta.fragment) and arguments.position < self._concurrency:
            self._start(self._ctx, delta, arguments)

    def _start(self, ctx: RunContext[Any], delta: ToolCallDeltaEvent, arguments: _StreamedArguments) -> None:
        model_call = get_host(ctx).open_call
        if model_call is None or model_call.request.step != delta.step:
            return
        sent = model_call.request
        call = ToolCall.parse(delta.tool_call_id, delta.name, "".join(arguments.pieces))
        request = ToolRequest(call, sent.ctx.bind(call=call, index=arguments.position), sent.tools)
        tool = get_host(ctx).tools.find(request)
        if call.error is None and not isinstance(tool, str) and can_discard(tool):
            request = request.of(tool.definition)
            self._started[request.slot] = _EarlyCall(tool, request, self._execute, self._scheduler)

    def _discard_all(self) -> None:
        started, self._started = self._started, {}
        self._arguments = {}
        for early in started.values():
            self._discard(early)

    def _discard(self, early: _EarlyCall) -> None:
        early.dispose()
        call, ctx = early.request.call, early.request.ctx
        self._observer.on_next(ToolVoidedEvent(call=call, index=ctx.index, step=ctx.step))

    def _on_error(self, error: Exception) -> None:
        self._discard_all()
        self._observer.on_error(error)

    def _on_completed(self) -> None:
        self._discard_all()
        self._observer.on_completed()


def can_discard(tool: Tool) -> bool:
    """Return True if the call has no visible effect, so that it can be discarded."""
    return bool(getattr(tool, "read_only", False)) and tool.idempotent and not tool.approve
