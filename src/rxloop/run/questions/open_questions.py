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


class Place:
    """Position in the tree of nested runs.

    Attributes:
        scope: Owner of the run's tasks.
        time_scope: Time limits for the run.
        call: Call containing the nested run. None for the outermost run.
        above: Position of the parent run.
    """

    __slots__ = ("above", "call", "scope", "time_scope")

    def __init__(
        self, scope: Scope, time_scope: TimeScope, call: RunContext[Any] | None = None, above: Place | None = None
    ) -> None:
        self.scope = scope
        self.time_scope = time_scope
        self.call = call
        self.above = above

    def path(self) -> Iterator[Place]:
        """Yield this position and its ancestors, ending with the outermost run."""
        place: Place | None = self
        while place is not None:
            yield place
            place = place.above


class _Wait(NamedTuple):
    """Waiting question."""

    place: Place
    ctx: RunContext[Any]
    task: Task[Any]
    """Waiting task of the run."""
    answered: Future[Any] | None
    """Future for the answer from the inbox, or None if `on_input` provides it."""

    @property
    def open(self) -> bool:
        return self.answered is None or not self.answered.done()


class OpenQuestions:
    """Open questions for a run and its nested runs.

    The attempt can't pause while any call in these runs is busy. In the meantime, answers from the inbox are delivered
    immediately. A waiting call releases its concurrency permit. If all calls in a nested run are waiting, the nested
    run is idle: its time limits are paused, and the call containing it is waiting as well.
    """

    def __init__(self) -> None:
        self._waits: dict[str, _Wait] = {}
        self._rests: dict[Place, ExitStack] = {}
        """Idle nested runs, with their paused time limits."""
        self._observed: WeakSet[Task[Any]] | None = None
        """Tasks with a completion callback. Created lazily because a WeakSet is large and most runs ask no questions.
        """

    def is_at_rest(self, place: Place) -> bool:
        """True if all calls in a nested run are waiting for answers."""
        return place in self._rests

    async def wait(self, place: Place, ctx: RunContext[Any], task: Task[Any], input_id: str) -> Any:
        """Wait for an answer from the inbox.

        Args:
            place: Position of the run.
            ctx: Context of the call or step.
            task: Waiting task of the run.
            input_id: Input id.

        Raises:
            Paused: All other calls have ended or are also waiting.
        """
        answered: Future[Any] = asyncio.get_running_loop().create_future()
        async with self.waiting(place, ctx, task, input_id, answered):
            # Allow other calls from the same message to start.
            await asyncio.sleep(0)
            self._settle()
            return await answered

    @asynccontextmanager
    async def waiting(
        self,
        place: Place,
        ctx: RunContext[Any],
        task: Task[Any],
        input_id: str,
        answered: Future[Any] | None = None,
    ) -> AsyncGenerator[None]:
        """Mark a call as waiting for an answer. On exit, wait until the call can continue.

        The call's time limit is paused. The run's own limit continues because other calls may be busy.
        """
        with ExitStack() as stack:
            if ctx.time_scope is not None:
                stack.enter_context(ctx.time_scope.pause(outer=False))
            self._waits[input_id] = _Wait(place, ctx, task, answered)
            try:
                if ctx.active_call is not None:
                    ctx.active_call.release()
                self._settle(pauses=False)
                yield
                del self._waits[input_id]
                await self._resume(place, ctx)
            except BaseException:
                self._waits.pop(input_id, None)
                self._reclaim(place, ctx)
                raise

    def take(self, answers: Sequence[InputReceivedEvent]) -> bool:
        """Deliver answers to waiting questions.

        Returns False, without any effect, unless all of the questions are waiting.
        """
        waits = [self._waits.get(answer.input_id) for answer in answers]
        if not answers or any(each is None or each.answered is None or not each.open for each in waits):
            return False
        for answer, each in zip(answers, waits, strict=True):
            assert each is not None
            assert each.answered is not None
            ctx = each.ctx
            # Publish immediately, because commands must be recorded in order and the next command may follow right
            # away.
            publish = ctx.out or ctx.port.publish
            publish(answer.model_copy(update={"step": ctx.step, "branch": ctx.branch}))
            each.answered.set_result(answer.value)
        return True

    # -- calls that wait

    async def _resume(self, place: Place, ctx: RunContext[Any]) -> None:
        """Wait for the permits needed to continue an answered call, outermost call first."""
        if self._waits_still(ctx):
            return
        for each in reversed(list(place.path())):
            if each in self._rests:
                if each.call is not None and each.call.active_call is not None:
                    await each.call.active_call.acquire()
                self._end_rest(each)
        if ctx.active_call is not None:
            await ctx.active_call.acquire()

    def _reclaim(self, place: Place, ctx: RunContext[Any]) -> None:
        """Reclaim permits immediately if an unanswered call is pausing or was cancelled."""
        if self._waits_still(ctx):
            return
        for each in place.path():
            if each in self._rests:
                if each.call is not None and each.call.active_call is not None:
                    each.call.active_call.reclaim()
                self._end_rest(each)
        if ctx.active_call is not None:
            ctx.active_call.reclaim()

    def _waits_still(self, ctx: RunContext[Any]) -> bool:
        """True if the call has other open questions, which means that it cannot acquire a permit yet."""
        active = ctx.active_call
        return active is not None and any(each.ctx.active_call is active and each.open for each in self._waits.values())

    def _begin_rest(self, place: Place) -> None:
        call = place.call
        if call is None or place in self._rests:
            return
        stack = self._rests[place] = ExitStack()
        stack.enter_context(place.time_scope.pause(outer=False))
        if call.time_scope is not None:
            stack.enter_context(call.time_scope.pause(outer=False))
        if call.active_call is not None:
            call.active_call.release()

    def _end_rest(self, place: Place) -> None:
        stack = self._rests.pop(place, None)
        if stack is not None:
            stack.close()

    # -- calls at work

    def _settle(self, ended: Task[Any] | None = None, *, pauses: bool = True) -> None:
        """Update the idle nested runs. If no call is busy, raise `Paused` in all waiting calls."""
        waits = [each for each in self._waits.values() if each.open]
        if not waits:
            return
        asking: dict[Place, set[Task[Any]]] = {}
        for each in waits:
            asking.setdefault(each.place, set()).add(each.task)
            for above in each.place.path():
                asking.setdefault(above, set())
        at_work = False
        for place in sorted(asking, key=lambda place: -len(list(place.path()))):
            busy = self._busy(place, asking[place])
            at_work = any(task.get_name().startswith(_CALLS) for task in busy)
            if place.above is None or place.call is None:
                continue
            if not busy:
                self._begin_rest(place)
            host = place.call.active_call
            if not at_work and host is not None and host.task is not None:
                asking[place.above].add(host.task)
        if not at_work and pauses:
            for each in waits:
                if each.answered is not None and not each.answered.done():
                    each.answered.set_exception(Paused())

    def _busy(self, place: Place, asking: set[Task[Any]]) -> list[Task[Any]]:
        """Return a run's busy tasks. Each of them gets a completion callback."""
        scope = place.scope
        if self._observed is None:
            self._observed = WeakSet()
        busy = [task for task in scope.tasks if task not in asking and not scope.is_waiting(task)]
        for task in busy:
            if task not in self._observed:
                self._observed.add(task)
                task.add_done_callback(self._settle)
        return busy
