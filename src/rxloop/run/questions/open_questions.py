"""The questions of a run that wait for an answer while the attempt goes on, and the calls that wait with them."""

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
"""How the names of the tasks of calls begin."""


class Place:
    """One run of a family: the outermost run, or a run that is nested in a call.

    Attributes:
        scope: Owns the tasks of the run.
        time_scope: The time limits of the run.
        call: The call that the run is nested in; None for the outermost run.
        above: The place of the run that has made the call.
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
        """Yield this place and those above it, the outermost last."""
        place: Place | None = self
        while place is not None:
            yield place
            place = place.above


class _Wait(NamedTuple):
    """A question that waits."""

    place: Place
    ctx: RunContext[Any]
    task: Task[Any]
    """The task of the run that waits for the answer."""
    answered: Future[Any] | None
    """Gets the answer from the inbox; None if `on_input` answers."""

    @property
    def open(self) -> bool:
        return self.answered is None or not self.answered.done()


class OpenQuestions:
    """The questions of a run, and of the runs nested in it, that wait for an answer.

    As long as a call of any of these runs is at work, the attempt cannot pause. An answer from the inbox that comes
    earlier goes to its question at once. A call that waits for an answer gives its permit back. A nested run all of
    whose calls wait is at rest: its time limits stop, and the call that it is nested in waits, too.
    """

    def __init__(self) -> None:
        self._waits: dict[str, _Wait] = {}
        self._rests: dict[Place, ExitStack] = {}
        """The nested runs at rest; each has its time limits to be continued."""
        self._observed: WeakSet[Task[Any]] | None = None
        """The tasks whose end is observed. Most runs ask nothing, and a WeakSet is most of what this object takes."""

    def is_at_rest(self, place: Place) -> bool:
        """True if all calls of a nested run wait for answers."""
        return place in self._rests

    async def wait(self, place: Place, ctx: RunContext[Any], task: Task[Any], input_id: str) -> Any:
        """Wait for the answer to a question from the inbox.

        Args:
            place: The run that asks.
            ctx: The call that asks, or the step.
            task: The task of the run that waits.
            input_id: The question.

        Raises:
            Paused: All other calls have ended, or wait for an answer, too.
        """
        answered: Future[Any] = asyncio.get_running_loop().create_future()
        async with self.waiting(place, ctx, task, input_id, answered):
            # The other calls of the message begin.
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
        """Count a call as waiting for an answer; at the end, wait until it may go on.

        The time limit of the call stops. That of the run does not, since other calls are at work.
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
        """Give answers to the questions that wait here, and tell whether all of them do."""
        waits = [self._waits.get(answer.input_id) for answer in answers]
        if not answers or any(each is None or each.answered is None or not each.open for each in waits):
            return False
        for answer, each in zip(answers, waits, strict=True):
            assert each is not None
            assert each.answered is not None
            ctx = each.ctx
            # At once, since a letter behind this one may be taken next, and letters are recorded in order.
            publish = ctx.out or ctx.port.publish
            publish(answer.model_copy(update={"step": ctx.step, "branch": ctx.branch}))
            each.answered.set_result(answer.value)
        return True

    # -- calls that wait

    async def _resume(self, place: Place, ctx: RunContext[Any]) -> None:
        """Wait until a call may go on that has its answer, the outermost call first."""
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
        """Let a call go on that has no answer: it pauses, or is cut off."""
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
        """Tell whether another question of the same call has no answer: the call has no permit until then."""
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
        """Note which runs are at rest, and let the attempt pause unless a call is at work."""
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
        """Find the tasks of a run that do not wait, and observe their ends."""
        scope = place.scope
        if self._observed is None:
            self._observed = WeakSet()
        busy = [task for task in scope.tasks if task not in asking and not scope.is_waiting(task)]
        for task in busy:
            if task not in self._observed:
                self._observed.add(task)
                task.add_done_callback(self._settle)
        return busy
