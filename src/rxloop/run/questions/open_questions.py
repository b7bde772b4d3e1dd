"""Tracking of open questions and waiting calls during an attempt."""

from __future__ import annotations

import asyncio
from asyncio import Future, Task
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any, NamedTuple
from weakref import WeakSet

from rxloop.errors import Paused
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import InputReceivedEvent
from rxloop.stream.scope import Scope, TimeScope

_CALLS = "rxloop-tool-"
"""Task name prefix for tool calls."""

_PAUSE = object()
"""Value for waiting questions that will not be answered in this attempt."""


class Position:
    """Position in the tree of nested runs.

    Attributes:
        scope: Owner of the run's tasks.
        time_scope: Time limits for the run.
        call: Call containing the nested run. None for the outermost run.
        parent: Position of the parent run.
    """

    __slots__ = ("call", "parent", "scope", "time_scope")

    def __init__(
        self, scope: Scope, time_scope: TimeScope, call: RunContext[Any] | None = None, parent: Position | None = None
    ) -> None:
        self.scope = scope
        self.time_scope = time_scope
        self.call = call
        self.parent = parent

    def iterate_path(self) -> Iterator[Position]:
        """Yield this position and its ancestors, ending with the outermost run."""
        position: Position | None = self
        while position is not None:
            yield position
            position = position.parent


class _WaitingQuestion(NamedTuple):
    """Waiting question."""

    position: Position
    ctx: RunContext[Any]
    task: Task[Any]
    """Waiting task of the run."""
    answer: Future[Any] | None
    """Future for the answer from the inbox, or None if `on_input` provides it."""

    @property
    def open(self) -> bool:
        return self.answer is None or not self.answer.done()


class OpenQuestions:
    """Open questions for a run and its nested runs.

    The attempt can't pause while any call in these runs is busy. In the meantime, answers from the inbox are delivered
    immediately. A waiting call releases its concurrency permit. If all calls in a nested run are waiting, the nested
    run is idle: its time limits are paused, and the call containing it is waiting as well.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, _WaitingQuestion] = {}
        self._idle: dict[Position, ExitStack] = {}
        """Idle nested runs, with their paused time limits."""
        self._observed: WeakSet[Task[Any]] | None = None
        """Tasks with a completion callback. Created lazily because a WeakSet is large and most runs ask no questions.
        """

    def is_idle(self, position: Position) -> bool:
        """Return True if all calls in a nested run are waiting for answers."""
        return position in self._idle

    async def wait(self, position: Position, ctx: RunContext[Any], task: Task[Any], input_id: str) -> Any:
        """Wait for an answer from the inbox.

        Args:
            position: Position of the run.
            ctx: Context of the call or step.
            task: Waiting task of the run.
            input_id: Input id.

        Raises:
            Paused: All other calls have ended or are also waiting.
        """
        answer: Future[Any] = asyncio.get_running_loop().create_future()
        async with self.mark_waiting(position, ctx, task, input_id, answer):
            # Allow other calls from the same message to start.
            await asyncio.sleep(0)
            self._update()
            value = await answer
            if value is _PAUSE:
                raise Paused
            return value

    @asynccontextmanager
    async def mark_waiting(
        self,
        position: Position,
        ctx: RunContext[Any],
        task: Task[Any],
        input_id: str,
        answer: Future[Any] | None = None,
    ) -> AsyncGenerator[None]:
        """Mark a call as waiting for an answer. On exit, wait until it can continue.

        Only the time limit of the call is paused. The run's limit continues, because other calls may be busy.
        """
        with ExitStack() as stack:
            if ctx.time_scope is not None:
                stack.enter_context(ctx.time_scope.pause(outer=False))
            self._waiting[input_id] = _WaitingQuestion(position, ctx, task, answer)
            try:
                if ctx.active_call is not None:
                    ctx.active_call.release()
                self._update(pauses=False)
                yield
                del self._waiting[input_id]
                await self._resume(position, ctx)
            except BaseException:
                self._waiting.pop(input_id, None)
                self._reclaim(position, ctx)
                raise

    def deliver(self, answers: Sequence[InputReceivedEvent]) -> bool:
        """Deliver answers to waiting questions.

        Returns False, without any effect, unless all of the questions are waiting.
        """
        waiting = [self._waiting.get(answer.input_id) for answer in answers]
        if not answers or any(each is None or each.answer is None or not each.open for each in waiting):
            return False
        for answer, each in zip(answers, waiting, strict=True):
            assert each is not None
            assert each.answer is not None
            ctx = each.ctx
            # Publish immediately, because commands must be recorded in order and the next command may follow right
            # away.
            publish = ctx.out or ctx.port.publish
            publish(answer.model_copy(update={"step": ctx.step, "branch": ctx.branch}))
            each.answer.set_result(answer.value)
        return True

    # -- waiting calls

    async def _resume(self, position: Position, ctx: RunContext[Any]) -> None:
        """Wait for the permits needed to continue an answered call, outermost call first."""
        if self._has_other_questions(ctx):
            return
        for each in reversed(list(position.iterate_path())):
            if each in self._idle:
                if each.call is not None and each.call.active_call is not None:
                    await each.call.active_call.acquire()
                self._mark_active(each)
        if ctx.active_call is not None:
            await ctx.active_call.acquire()

    def _reclaim(self, position: Position, ctx: RunContext[Any]) -> None:
        """Reclaim permits immediately if an unanswered call is pausing or was cancelled."""
        if self._has_other_questions(ctx):
            return
        for each in position.iterate_path():
            if each in self._idle:
                if each.call is not None and each.call.active_call is not None:
                    each.call.active_call.reclaim()
                self._mark_active(each)
        if ctx.active_call is not None:
            ctx.active_call.reclaim()

    def _has_other_questions(self, ctx: RunContext[Any]) -> bool:
        """Return True if the call has other open questions, so that it cannot acquire a permit yet."""
        active = ctx.active_call
        return active is not None and any(
            each.ctx.active_call is active and each.open for each in self._waiting.values()
        )

    def _mark_idle(self, position: Position) -> None:
        call = position.call
        if call is None or position in self._idle:
            return
        stack = self._idle[position] = ExitStack()
        stack.enter_context(position.time_scope.pause(outer=False))
        if call.time_scope is not None:
            stack.enter_context(call.time_scope.pause(outer=False))
        if call.active_call is not None:
            call.active_call.release()

    def _mark_active(self, position: Position) -> None:
        stack = self._idle.pop(position, None)
        if stack is not None:
            stack.close()

    # -- busy calls

    def _update(self, ended: Task[Any] | None = None, *, pauses: bool = True) -> None:
        """Update the idle nested runs. If no call is busy, raise `Paused` in all waiting calls."""
        waiting = [each for each in self._waiting.values() if each.open]
        if not waiting:
            return
        asking: dict[Position, set[Task[Any]]] = {}
        for each in waiting:
            asking.setdefault(each.position, set()).add(each.task)
            for parent in each.position.iterate_path():
                asking.setdefault(parent, set())
        is_any_busy = False
        for position in sorted(asking, key=lambda position: -len(list(position.iterate_path()))):
            busy = self._list_busy_tasks(position, asking[position])
            is_any_busy = any(task.get_name().startswith(_CALLS) for task in busy)
            if position.parent is None or position.call is None:
                continue
            if not busy:
                self._mark_idle(position)
            parent_call = position.call.active_call
            if not is_any_busy and parent_call is not None and parent_call.task is not None:
                asking[position.parent].add(parent_call.task)
        if not is_any_busy and pauses:
            for each in waiting:
                if each.answer is not None and not each.answer.done():
                    # Setting an exception would create a reference cycle through its traceback.
                    each.answer.set_result(_PAUSE)

    def _list_busy_tasks(self, position: Position, asking: set[Task[Any]]) -> list[Task[Any]]:
        """Return a run's busy tasks. Each of them gets a completion callback."""
        scope = position.scope
        if self._observed is None:
            self._observed = WeakSet()
        busy = [task for task in scope.tasks if task not in asking and not scope.is_waiting(task)]
        for task in busy:
            if task not in self._observed:
                self._observed.add(task)
                task.add_done_callback(self._update)
        return busy
