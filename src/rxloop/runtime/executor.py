"""Tasks that execute runs in this process."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

from rxloop.agents.agent import Agent
from rxloop.agents.options import ExecuteOptions
from rxloop.agents.remote_run import carry_out, execute_run, until_due
from rxloop.coordination.order import find_blocking
from rxloop.errors import ContextBusy, Paused, RuntimeClosed, RxloopError, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Queue
from rxloop.pipeline.log_retry import read_log, within
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import PendingInput
from rxloop.run.handle import Run
from rxloop.run.spec import WhenBusy
from rxloop.runtime.jobs import Strangers, due_in, ring, ring_for_all, waiting
from rxloop.runtime.live_runs import Driven
from rxloop.support.tasks import wait_all

log = logging.getLogger("rxloop")

DepsOf = Callable[[RunRecord], Any]
"""Gives the deps of a run, of what the log knows of it; plain or async."""

_DEPS_IN = 60.0
"""Seconds that the deps of a run may take, which holds the room of one run meanwhile."""
_FOR_CALLS = 0.25
"""The part of the time at the end that is kept for calls that nobody can make again; nothing else begins in it."""

_LONGEST_PAUSE = 60.0
"""Seconds between two tries with a run that this process cannot go on with."""

_STOPS_IN = 5.0
"""Seconds after which what has not stopped is told so once more."""
_LOST = 20.0
"""Seconds that a submitted run is left to whoever was told of it; then its bell, or its process, counts as lost."""

_LOOK, _LOOK_SELDOM = 10.0, 60.0
"""Seconds between two looks for submitted runs; and while so many bells ring that workers have enough to do."""

_BELLS = 200
"""How many bells are enough, and how many are rung at one look: those that are not lost are rung for nothing."""

_WIDE = 5_000
"""How many runs are looked at where most of so few are for later, or for others: those that are due may be rare."""

_FAILED = 10
"""How many runs that cannot go on here, for each that can, keep no other bell waiting: where all fail, all wait."""

_SERVED = 32
"""Runs of a queue that go on at once, where nobody says how many."""


class Submitted(NamedTuple):
    """A run that this process has just submitted; `alone` if the id of its conversation was made with it."""

    record: RunRecord
    alone: bool


class Driving:
    """Brings runs to rest, and takes up those that nobody drives any more."""

    def __init__(
        self,
        events: EventLog,
        agents: Mapping[str, Agent[Any, Any]],
        deps: DepsOf | None,
        *,
        concurrency: int | None,
        adopt_every: float,
        queue: Queue | None = None,
        version: str | None = None,
    ) -> None:
        """Drive nothing yet; see `Runtime` for what is given.

        Args:
            events: The log.
            agents: By their names.
            deps: Gives the deps of each run.
            concurrency: How many runs go on at once.
            adopt_every: Seconds between two looks for runs that nobody drives.
            queue: Says which runs are begun here; None leaves that to the caller.
            version: That of this program.
        """
        self.driven = Driven()
        self.closing = False
        self._log, self._agents, self._deps = events, agents, deps
        self._room = asyncio.Semaphore(concurrency) if concurrency is not None else nullcontext()
        self._adopt_every, self._queue, self._version = adopt_every, queue, version
        self._concurrency = concurrency or _SERVED
        self._strangers = Strangers(events, agents, version)
        self._looked_at = self._look_at = float("-inf")
        """When it was looked for submitted runs, and when it is to be looked again."""
        self._looked_to: str | None = None
        """The submitted run behind which the next look goes on; None is from the first one."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._credentials: dict[str, dict[str, Any]] = {}
        """Those that a run is to go on with here, by its id and that of the question."""
        self._failed: dict[str, asyncio.Future[None]] = {}
        """Of each run that is driven: done once it could not go on here."""
        self._once_more: set[str] = set()
        """The runs that somebody has asked to drive while they were driven."""
        self._watching: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Take up what nobody drives, now and from now on."""
        await self._adopt()
        self._watching.append(asyncio.create_task(self._adopt_on(), name="rxloop-runtime-adopt"))
        if self._queue is not None:
            self._watching.append(asyncio.create_task(self._serve_on(self._queue), name="rxloop-runtime-serve"))

    async def end(self, seconds: float) -> None:
        """Wait for the runs that go on, and give up those that have not ended by then; see `Runtime.drain`."""
        self.closing = True
        stopping = [asyncio.create_task(_stop(watching)) for watching in self._watching]
        tasks = list(self._tasks.values())
        for task_id, task in self._tasks.items():
            if self.driven.run(task_id) is None:
                task.cancel()
        try:
            if tasks:
                _, left = await asyncio.wait(tasks, timeout=(1 - _FOR_CALLS) * seconds)
                if left:
                    which = "1 run has" if len(left) == 1 else f"{len(left)} runs have"
                    log.info("%s not ended in time: the next process goes on with what is left", which)
                    await asyncio.gather(*(self._give_up(run, _FOR_CALLS * seconds) for run in self.driven))
        finally:
            for task in tasks:
                # One that is cancelled while it settles a run gives the run up.
                task.cancel()
            await wait_all([*tasks, *stopping])

    async def _give_up(self, run: Run[Any], grace: float) -> None:
        """Let a run begin nothing more, and give it up once its calls that nobody can make again are over."""
        releasing = asyncio.create_task(run.release(grace))
        await asyncio.sleep(0)
        # What drives it would go on with it otherwise, and comes too late to give it up at once.
        if (task := self._tasks.get(run.task_id)) is not None:
            task.cancel()
        await releasing

    def drives(self, task_id: str) -> bool:
        """Whether the run is driven here, or is about to be."""
        return task_id in self._tasks

    def drive(
        self,
        task_id: str,
        agent: str,
        *,
        begun: Run[Any] | None = None,
        submitted: Submitted | None = None,
        credentials: Mapping[str, Any] | None = None,
    ) -> asyncio.Task[None] | None:
        """Bring a run to rest in a task of its own; if one does so already, it looks once more before it is over.

        Args:
            task_id: The run.
            agent: The name of its agent.
            begun: An attempt of it that goes on already.
            submitted: Its record, if this process has just written it into the log.
            credentials: What it is to go on with here, by the id of the question.

        Returns:
            The task; None where runs are not begun any more.
        """
        if begun is not None:
            self.driven.begun(begun)
        if credentials:
            self._credentials.setdefault(task_id, {}).update(credentials)
        task = self._tasks.get(task_id)
        if task is not None and not task.done():
            self._once_more.add(task_id)
            return task
        if self.closing:
            return None
        work = self._settle(task_id, agent, begun, submitted)
        self._failed[task_id] = asyncio.get_running_loop().create_future()
        with within(None):
            task = self._tasks[task_id] = asyncio.create_task(work, name=f"rxloop-drive-{task_id}")
        task.add_done_callback(lambda done: self._over(task_id, done))
        return task

    def _over(self, task_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(task_id) is task:
            del self._tasks[task_id], self._failed[task_id]

    async def _settle(self, task_id: str, agent: str, begun: Run[Any] | None, submitted: Submitted | None) -> None:
        pause, secret = 1.0, dict[str, Any]()

        async def give(question: PendingInput) -> Any:
            if question.input_id not in secret:
                raise Paused
            return secret.pop(question.input_id)

        while True:
            failed = False
            self._once_more.discard(task_id)
            secret.update(self._credentials.pop(task_id, {}))
            try:
                if begun is not None:
                    attempt, begun = begun, None
                    await carry_out(task_id, attempt)
                # Before it takes room, which the run that it waits for may need.
                known, submitted = await self._until_due(task_id, submitted, asks=bool(secret)), None
                if known is not None:
                    async with self._room:
                        deps = await self.deps_of(task_id)
                        options: ExecuteOptions[Any] = {"on_run": self.driven.begun, "when_busy": "refuse"}
                        if secret:
                            options["on_input"] = give
                        await execute_run(self._agents[agent].definition, task_id, deps, options, known)
                        secret.clear()
                if task_id not in self._once_more:
                    await self.ring_next(task_id)
            except ContextBusy:
                if self._queue is None:
                    # An earlier one has got its answer since.
                    continue
                # Who brings the earlier one to rest rings for this one.
            except Exception:
                log.exception("the run %s cannot go on here; trying again in %g s", task_id, pause)
                failed = True
            finally:
                self.driven.ended(task_id)
            if failed:
                if not self._failed[task_id].done():
                    self._failed[task_id].set_result(None)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            elif task_id not in self._once_more:
                # Otherwise a bell has rung meanwhile, for what was not there to be seen, and is answered by this task.
                return

    async def _until_due(self, task_id: str, submitted: Submitted | None, *, asks: bool) -> RunRecord | None:
        """Wait as `until_due` does; with a queue, an earlier run that comes first is `ContextBusy`."""
        if submitted is not None:
            record, alone = submitted
            if alone or await find_blocking(self._log, record.context_id, task_id) is None:
                return record
        when_busy: WhenBusy = "wait" if self._queue is None else "refuse"
        due = await until_due(self._log, task_id, asks=asks, when_busy=when_busy)
        return due.record if due is not None else None

    async def deps_of(self, task_id: str) -> Any:
        """Ask for the deps of a run.

        Raises:
            RxloopError: They take too long.
        """
        if self._deps is None:
            return None
        deps = self._deps(await read_log(self._log.get_record, task_id))
        if not inspect.isawaitable(deps):
            return deps
        time_limit = asyncio.timeout(_DEPS_IN)
        try:
            async with time_limit:
                return await deps
        except TimeoutError as error:
            if not time_limit.expired():
                raise
            raise RxloopError(f"the deps of the run {task_id} were not there after {_DEPS_IN:g} s") from error

    async def _adopt_on(self) -> None:
        while True:
            await asyncio.sleep(self._adopt_every)
            try:
                await self._adopt()
            except Exception as error:
                log.warning("runs that nobody drives cannot be looked for: %s; trying again", error)

    async def _adopt(self) -> None:
        """Take up the runs of these agents that nobody drives; with a queue, ring for those that nobody has begun."""
        looks = await self._looks_for_submitted()
        due, last = await self._due(looks)
        unheard: list[RunRecord] = []
        for record in due:
            if not self._strangers.knows(record):
                continue
            if self._queue is not None and record.state == "submitted":
                unheard.append(record)
                continue
            if not self.drives(record.task_id):
                log.info("goes on with the run %s, which nobody drives", record.task_id)
            self.drive(record.task_id, record.agent_name)
        if self._queue is not None and await ring_for_all(self._queue, unheard[:_BELLS]) and looks:
            self._looked_to = unheard[_BELLS - 1].task_id if len(unheard) > _BELLS else last
        if looks:
            await self._strangers.look(due)

    async def _due(self, looks: bool) -> tuple[list[RunRecord], str | None]:
        """The runs that nobody drives, and that may begin; the submitted ones only if it is time to look for those.

        Returns:
            These, and the last submitted one that was looked at, if there are more.
        """
        limits = (0,) if not looks else (None,) if self._queue is None else (_BELLS, _WIDE)
        due, last = list[RunRecord](), None
        for limit in limits:
            orphans = await read_log(
                self._log.list_orphaned, submitted_before=_LOST, submitted_limit=limit, submitted_after=self._looked_to
            )
            # One that was begun was due, whatever the clock of this process says.
            due = [record for record in orphans if record.state != "submitted" or due_in(record) <= 0]
            ours = sum(record.state == "submitted" and self._strangers.knows(record) for record in due)
            submitted = [record.task_id for record in orphans if record.state == "submitted"]
            last = submitted[limit - 1] if limit and len(submitted) >= limit else None
            if last is None or ours >= _BELLS / 2:
                break
        return due, last

    async def _looks_for_submitted(self) -> bool:
        """Whether it is time to look for submitted runs too, of which there may be many."""
        now = asyncio.get_running_loop().time()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK
        lately = now < self._looked_at + _LOOK_SELDOM
        if self._queue is not None and lately and await waiting(self._queue, self._version) >= _BELLS:
            return False
        self._looked_at = now
        return True

    # -- with a queue

    async def _serve_on(self, queue: Queue) -> None:
        while not self.closing:
            try:
                await queue.serve(
                    self._answer, concurrency=self._concurrency, agents=self._agents, version=self._version
                )
            except Exception as error:
                log.warning("the queue cannot be served: %s; trying again", error)
            # Until then, and where it has lost a bell, runs are found without.
            await asyncio.sleep(1)

    async def _answer(self, task_id: str) -> None:
        """Answer a bell: bring the run to rest here, unless somebody alive does so elsewhere.

        Raises:
            RuntimeClosed: It has not come to rest here, and its bell has to ring for somebody else.
            RxloopError: It is for another worker, and so is its bell.
        """
        try:
            record = await read_log(self._log.get_record, task_id)
        except UnknownRun:
            log.warning("a bell has rung for the run %s, which the log does not have", task_id)
            return
        if not self._strangers.knows(record):
            raise RxloopError(f"the run {task_id} of the agent {record.agent_name!r} is for another worker")
        if await self._goes_on_elsewhere(record):
            return
        task = self.drive(task_id, record.agent_name)
        if task is not None:
            # One that is cancelled has nothing to say about the run.
            await asyncio.wait([task, self._failed[task_id]], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                if sum(failed.done() for failed in self._failed.values()) <= _FAILED * self._concurrency:
                    # It is tried again here, for who knows how long, and other bells are not to wait for that.
                    return
                await asyncio.wait([task])
        if task is None or task.cancelled():
            raise RuntimeClosed(f"this process goes away, and has not brought the run {task_id} to rest")

    async def _goes_on_elsewhere(self, record: RunRecord) -> bool:
        if record.state != "working" or self.drives(record.task_id):
            return False
        orphans = await read_log(self._log.list_orphaned, submitted_limit=0)
        return all(orphan.task_id != record.task_id for orphan in orphans)

    async def ring_next(self, task_id: str) -> None:
        """Ring for the run that may have waited in its conversation for this one to come to rest."""
        if self._queue is None:
            return
        with suppress(UnknownRun):
            context_id = (await read_log(self._log.get_record, task_id)).context_id
            for record in await read_log(self._log.list_runs, context_id=context_id, states=("submitted",), limit=1):
                await ring(self._queue, record)


async def _stop(task: asyncio.Task[None]) -> None:
    """Cancel a task until it is over: a library may take a cancellation for an error of its own."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_STOPS_IN)
