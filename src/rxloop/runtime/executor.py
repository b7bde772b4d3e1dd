"""Execution of runs in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

from rxloop.agents.agent import Agent
from rxloop.agents.remote_run import execute_attempt, wait_until_due
from rxloop.coordination.order import find_blocking
from rxloop.errors import ContextBusy, Paused, RuntimeClosed, RxloopError, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Queue
from rxloop.pipeline.log_retry import limit_log_time, read_log
from rxloop.pipeline.records import ConversationQuery, RunRecord
from rxloop.protocol.events import PendingInput
from rxloop.run.handle import Run
from rxloop.run.questions.registry import OnInput
from rxloop.run.spec import WhenBusy
from rxloop.runtime.attempts import Attempts, DepsFactory, DueRun, Outcome
from rxloop.runtime.jobs import ForeignRuns, count_waiting, enqueue_run, enqueue_runs, get_delay
from rxloop.runtime.live_runs import LiveRuns, RuntimeLoad
from rxloop.runtime.probation import Suspicion
from rxloop.support.tasks import wait_all

log = logging.getLogger("rxloop")

_CALLS_SHARE = 0.25
"""Fraction of the grace period reserved for calls that can't be repeated."""

_MAX_PAUSE = 60.0
"""Maximum seconds between retries of a failing run."""
_CANCEL_INTERVAL = 5.0
"""Seconds to wait before cancelling a task again."""
_LOST_AFTER = 20.0
"""Seconds after which the job or process of a submitted run is considered lost."""

_SEARCH_INTERVAL, _SLOW_SEARCH_INTERVAL = 10.0, 60.0
"""Seconds between searches for submitted runs, normally and while enough jobs are waiting."""

_ENOUGH_JOBS = 200
"""Number of jobs considered enough to keep workers busy. Also the maximum number enqueued per search, because most
weren't lost."""
_MAX_SEARCHED_RUNS = 5_000
"""Number of runs to search if most of the first ones are scheduled for later or foreign."""

_MAX_FAILING_RUNS = 10
"""Number of failing runs tolerated per concurrency slot before new jobs have to wait."""

_DEFAULT_CONCURRENCY = 32
"""Default concurrency when serving a queue."""


class Submitted(NamedTuple):
    """Run submitted by this process. `is_alone` is True if its conversation is new."""

    record: RunRecord
    is_alone: bool


class RunExecutor:
    """Executor for runs, which also adopts orphaned runs."""

    def __init__(
        self,
        events: EventLog,
        agents: Mapping[str, Agent[Any, Any]],
        deps: DepsFactory | None,
        *,
        concurrency: int | None,
        adopt_every: float,
        queue: Queue | None = None,
        version: str | None = None,
    ) -> None:
        """Create an idle executor. See `Runtime` for details.

        Args:
            events: Event log.
            agents: Agents by name.
            deps: Function returning the deps for a run.
            concurrency: Maximum number of runs executed at once.
            adopt_every: Seconds between searches for orphaned runs.
            queue: Queue with jobs to execute. None if only the caller starts runs.
            version: Version of this program.
        """
        self.live_runs = LiveRuns()
        self.is_closing = False
        self._log, self._agents = events, agents
        slots = asyncio.Semaphore(concurrency) if concurrency is not None else nullcontext()
        self.attempts = Attempts(events, agents, deps, slots, self.live_runs)
        self._adopt_every, self._queue, self._version = adopt_every, queue, version
        self._concurrency = concurrency or _DEFAULT_CONCURRENCY
        self._foreign_runs = ForeignRuns(events, agents, version)
        self._searched_at = self._search_at = float("-inf")
        """Times of the last and next search for submitted runs."""
        self._search_after: str | None = None
        """Id of the submitted run to continue searching from, or None to start over."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._credentials: dict[str, dict[str, Any]] = {}
        """Credentials for resuming runs, keyed by run id and question id."""
        self._failed: dict[str, asyncio.Future[None]] = {}
        """Futures per executing run, done after its first failure."""
        self._requested_again: set[str] = set()
        """Ids of runs requested again while they were executing."""
        self._watching: list[asyncio.Task[None]] = []
        self._adopted = 0

    @property
    def load(self) -> RuntimeLoad:
        """Number of runs of this process."""
        return RuntimeLoad(len(self.live_runs), max(0, len(self._tasks) - len(self.live_runs)), self._adopted)

    async def start(self) -> None:
        """Adopt orphaned runs, now and periodically, and start serving the queue."""
        await self._adopt()
        self._watching.append(asyncio.create_task(self._keep_adopting(), name="rxloop-runtime-adopt"))
        if self._queue is not None:
            self._watching.append(asyncio.create_task(self._keep_serving(self._queue), name="rxloop-runtime-serve"))

    async def stop(self, seconds: float) -> None:
        """Wait for runs to end, and release those still running; see `Runtime.drain`."""
        self.is_closing = True
        stopping = [asyncio.create_task(_stop(watching)) for watching in self._watching]
        tasks = list(self._tasks.values())
        for task_id, task in self._tasks.items():
            if self.live_runs.find(task_id) is None:
                task.cancel()
        try:
            if tasks:
                _, unfinished = await asyncio.wait(tasks, timeout=(1 - _CALLS_SHARE) * seconds)
                if unfinished:
                    log.info("Releasing runs that have not ended in time: %d", len(unfinished))
                    await asyncio.gather(*(self._release(run, _CALLS_SHARE * seconds) for run in self.live_runs))
        finally:
            for task in tasks:
                # Cancelling the task releases its run.
                task.cancel()
            await wait_all([*tasks, *stopping])
            self.live_runs.close()

    async def _release(self, run: Run[Any], grace: float) -> None:
        """Stop starting new calls, and release the run once any calls that can't be repeated are done."""
        releasing = asyncio.create_task(run.release(grace))
        await asyncio.sleep(0)
        # Prevent the task from resuming the run. It is too late for it to release the run immediately.
        if (task := self._tasks.get(run.task_id)) is not None:
            task.cancel()
        await releasing

    def is_executing(self, task_id: str) -> bool:
        """Return True if the run is executing here, or about to."""
        return task_id in self._tasks

    def schedule(
        self,
        task_id: str,
        agent: str,
        *,
        started: Run[Any] | None = None,
        submitted: Submitted | None = None,
        credentials: Mapping[str, Any] | None = None,
    ) -> asyncio.Task[None] | None:
        """Execute a run in a task. If it is already executing, it will be checked once more before the task ends.

        Args:
            task_id: Id of the run.
            agent: Name of its agent.
            started: Run whose attempt has already started.
            submitted: Record of the run if just submitted by this process.
            credentials: Credentials for resuming the run, keyed by question id.

        Returns:
            The task, or None when closing.
        """
        if started is not None:
            self.live_runs.add(started)
        if credentials:
            self._credentials.setdefault(task_id, {}).update(credentials)
        task = self._tasks.get(task_id)
        if task is not None and not task.done():
            self._requested_again.add(task_id)
            return task
        if self.is_closing:
            return None
        work = self._execute(task_id, agent, started, submitted)
        self._failed[task_id] = asyncio.get_running_loop().create_future()
        with limit_log_time(None):
            task = self._tasks[task_id] = asyncio.create_task(work, name=f"rxloop-execute-{task_id}")
        task.add_done_callback(lambda done: self._forget(task_id, done))
        return task

    def _forget(self, task_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(task_id) is task:
            del self._tasks[task_id], self._failed[task_id]

    async def _execute(self, task_id: str, agent: str, started: Run[Any] | None, submitted: Submitted | None) -> None:
        pause, credentials = 1.0, dict[str, Any]()

        async def answer(question: PendingInput) -> Any:
            if question.input_id not in credentials:
                raise Paused
            return credentials.pop(question.input_id)

        while True:
            failed = False
            self._requested_again.discard(task_id)
            credentials.update(self._credentials.pop(task_id, {}))
            try:
                if started is not None:
                    attempt, started = started, None
                    await execute_attempt(task_id, attempt)
                outcome = await self._execute_next(task_id, agent, submitted, answer if credentials else None)
                submitted = None
                if outcome is Outcome.ELSEWHERE and task_id not in self._credentials:
                    # It is adopted again if that process dies too.
                    return
                if outcome is Outcome.ENDED:
                    credentials.clear()
                if outcome in (Outcome.ENDED, Outcome.LOST):
                    continue
                if task_id not in self._requested_again:
                    await self.enqueue_next(task_id)
            except ContextBusy:
                if self._queue is None:
                    # An earlier run has been answered since.
                    continue
                # The process that executes the earlier run will enqueue this one.
            except Exception:
                log.exception("Failed to execute run %s; retrying in %g s", task_id, pause)
                failed = True
            finally:
                self.live_runs.remove(task_id)
            if failed:
                self._note_failure(task_id)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE)
            elif task_id not in self._requested_again:
                # Otherwise the run was requested again meanwhile, so check it once more.
                return

    async def _execute_next(
        self, task_id: str, agent: str, submitted: Submitted | None, on_input: OnInput | None
    ) -> Outcome | None:
        """Execute the next attempt of a run. Return None if the run is idle."""
        check = partial(self._until_due, task_id, None, asks=on_input is not None)
        # Don't occupy a slot while an earlier run may still need one.
        due = await self._until_due(task_id, submitted, asks=on_input is not None)
        if due is None:
            return None
        return await self.attempts.execute(due, agent, on_input, check, partial(self._note_failure, task_id))

    def _note_failure(self, task_id: str) -> None:
        if not self._failed[task_id].done():
            self._failed[task_id].set_result(None)

    async def _until_due(self, task_id: str, submitted: Submitted | None, *, asks: bool) -> DueRun | None:
        """Wait like `wait_until_due`. With a queue, raises `ContextBusy` instead of waiting for earlier runs."""
        if submitted is not None:
            record, is_alone = submitted
            if is_alone or await find_blocking(self._log, record.conversation, task_id) is None:
                return DueRun(record)
        when_busy: WhenBusy = "wait" if self._queue is None else "refuse"
        due = await wait_until_due(self._log, task_id, asks=asks, when_busy=when_busy)
        if due is None:
            return None
        return DueRun(due.record, Suspicion.of(due, self._agents[due.record.agent_name].definition))

    async def _keep_adopting(self) -> None:
        while True:
            await asyncio.sleep(self._adopt_every)
            try:
                await self._adopt()
            except Exception as error:
                log.warning("Cannot search for orphaned runs: %s; retrying", error)

    async def _adopt(self) -> None:
        """Adopt orphaned runs of this runtime. With a queue, enqueue jobs for runs that have not started."""
        all_states = await self._is_time_to_search()
        due, last = await self._find_due(all_states)
        unqueued: list[RunRecord] = []
        for record in due:
            # Starting a thousand runs in one iteration would block the event loop for a second.
            await asyncio.sleep(0)
            if not self._foreign_runs.can_execute(record):
                continue
            if self._queue is not None and record.state == "submitted":
                unqueued.append(record)
                continue
            if not self.is_executing(record.task_id):
                log.info("Adopting orphaned run %s", record.task_id)
                self._adopted += 1
            self.schedule(record.task_id, record.agent_name)
        if self._queue is not None and await enqueue_runs(self._queue, unqueued[:_ENOUGH_JOBS]) and all_states:
            self._search_after = unqueued[_ENOUGH_JOBS - 1].task_id if len(unqueued) > _ENOUGH_JOBS else last
        if all_states:
            await self._foreign_runs.warn_if_orphaned(due)

    async def _find_due(self, all_states: bool) -> tuple[list[RunRecord], str | None]:
        """Return orphaned runs that are due. Submitted runs are only included if `all_states` is True.

        Returns:
            The runs, and the last submitted run that was checked if there are more.
        """
        limits = (0,) if not all_states else (None,) if self._queue is None else (_ENOUGH_JOBS, _MAX_SEARCHED_RUNS)
        due, last = list[RunRecord](), None
        for limit in limits:
            orphans = await read_log(
                self._log.list_orphaned,
                submitted_before=_LOST_AFTER,
                submitted_limit=limit,
                submitted_after=self._search_after,
            )
            # Started runs were already due, even if our clock disagrees.
            due = [record for record in orphans if record.state != "submitted" or get_delay(record) <= 0]
            executable = sum(record.state == "submitted" and self._foreign_runs.can_execute(record) for record in due)
            submitted = [record.task_id for record in orphans if record.state == "submitted"]
            last = submitted[limit - 1] if limit and len(submitted) >= limit else None
            if last is None or executable >= _ENOUGH_JOBS / 2:
                break
        return due, last

    async def _is_time_to_search(self) -> bool:
        """Return True if it is time to search for submitted runs, of which there may be many."""
        now = asyncio.get_running_loop().time()
        if now < self._search_at:
            return False
        self._search_at = now + _SEARCH_INTERVAL
        is_recent = now < self._searched_at + _SLOW_SEARCH_INTERVAL
        if self._queue is not None and is_recent and await count_waiting(self._queue, self._version) >= _ENOUGH_JOBS:
            return False
        self._searched_at = now
        return True

    # -- with a queue

    async def _keep_serving(self, queue: Queue) -> None:
        while not self.is_closing:
            try:
                await queue.serve(
                    self._handle_job, concurrency=self._concurrency, agents=self._agents, version=self._version
                )
            except Exception as error:
                log.warning("Cannot serve the queue: %s; retrying", error)
            # Meanwhile, runs are found without jobs.
            await asyncio.sleep(1)

    async def _handle_job(self, task_id: str) -> None:
        """Handle a job by executing its run, unless another process already is.

        Raises:
            RuntimeClosed: The run isn't idle, and its job must be enqueued again.
            RxloopError: Another worker must handle the job.
        """
        try:
            record = await read_log(self._log.get_record, task_id)
        except UnknownRun:
            log.warning("Notified of unknown run %s", task_id)
            return
        if not self._foreign_runs.can_execute(record):
            raise RxloopError(f"run {task_id} of agent {record.agent_name!r} must be executed by another worker")
        if await self._is_executing_elsewhere(record):
            return
        task = self.schedule(task_id, record.agent_name)
        if task is not None:
            # If the task was cancelled, that says nothing about the run.
            await asyncio.wait([task, self._failed[task_id]], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                if sum(failed.done() for failed in self._failed.values()) <= _MAX_FAILING_RUNS * self._concurrency:
                    # Keep retrying the run in its task, so that other jobs don't have to wait for it.
                    return
                await asyncio.wait([task])
        if task is None or task.cancelled():
            raise RuntimeClosed(f"this process closed before run {task_id} became idle")

    async def _is_executing_elsewhere(self, record: RunRecord) -> bool:
        if record.state != "working" or self.is_executing(record.task_id):
            return False
        return not await read_log(self._log.is_orphaned, record.task_id)

    async def enqueue_next(self, task_id: str) -> None:
        """Enqueue the next run that may have been waiting in the same conversation."""
        if self._queue is None:
            return
        with suppress(UnknownRun):
            conversation = (await read_log(self._log.get_record, task_id)).conversation
            query: ConversationQuery = {"states": ("submitted",), "limit": 1}
            for record in await read_log(self._log.list_conversation, conversation, **query):
                await enqueue_run(self._queue, record)


async def _stop(task: asyncio.Task[None]) -> None:
    """Cancel a task repeatedly, because libraries may mistake a cancellation for an error."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_INTERVAL)
