"""Attempts executed by a worker, with deps from the factory of the runtime."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from enum import Enum
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from rxloop.agents.agent import Agent
from rxloop.agents.remote_run import execute_attempt, make_attempt
from rxloop.agents.specs import make_resume_spec
from rxloop.agents.validation import check_deps
from rxloop.errors import ConflictError, ContextBusy, RunOver, RxloopError
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.recorded.follow import FINAL_STATES
from rxloop.run.handle import Run
from rxloop.run.questions.registry import OnInput
from rxloop.runtime.live_runs import LiveRuns
from rxloop.runtime.probation import Probation, Suspicion
from rxloop.support.tasks import limit_time

# Import lazily imported modules now, because importing them during a run blocks the event loop.
for _module in ("pipeline.ask", "run.admission", "run.fork", "run.loader", "run.questions.recorded_answers"):
    import_module(f"rxloop.{_module}")

DepsFactory = Callable[[RunRecord], Any]
"""Function returning the deps for a run, given its record. May be async."""

_DEPS_TIMEOUT = 60.0
"""Maximum seconds for creating deps, which occupy a concurrency slot."""


class DueRun(NamedTuple):
    """Run that is due."""

    record: RunRecord
    suspicion: Suspicion = Suspicion()


class Outcome(Enum):
    """Outcome of an attempt."""

    FINISHED = "finished"
    """The run is completed or failed."""
    ENDED = "ended"
    """The attempt ended, for example with a question."""
    LOST = "lost"
    """The attempt did not end here, or the run has changed."""
    ELSEWHERE = "elsewhere"
    """Another process is executing the suspect run."""


class Attempts:
    """Attempts of the runs of this process."""

    def __init__(
        self,
        events: EventLog,
        agents: Mapping[str, Agent[Any, Any]],
        deps: DepsFactory | None,
        slots: AbstractAsyncContextManager[object],
        live_runs: LiveRuns,
    ) -> None:
        """Prepare attempts without starting any.

        Args:
            events: Event log.
            agents: Agents by name.
            deps: Function returning the deps for a run.
            slots: Reusable context manager that limits the number of concurrent attempts.
            live_runs: Collection to add the attempts to.
        """
        self._log, self._agents, self._deps = events, agents, deps
        self._slots, self._live_runs = slots, live_runs
        self._probation = Probation()

    async def execute(
        self,
        due: DueRun,
        agent: str,
        on_input: OnInput | None,
        check: Callable[[], Awaitable[DueRun | None]],
        on_delay: Callable[[], object],
    ) -> Outcome:
        """Execute an attempt of a run.

        Args:
            due: The run.
            agent: Name of its agent.
            on_input: Function that answers questions.
            check: Async function that returns the run if it is still due.
            on_delay: Called if the attempt is delayed, because the run is suspect.

        Raises:
            Exception: Creating the deps failed.
            LogUnreachable: The log is unavailable, so the stored state is unknown.
        """
        if not due.suspicion.level:
            async with self._slots:
                return await self._execute(due, agent, on_input, self._live_runs.add)
        task_id = due.record.task_id
        if not await read_log(self._log.is_orphaned, task_id):
            return Outcome.ELSEWHERE
        on_delay()
        async with self._probation.admit(task_id, due.suspicion) as suspect:
            # Another process may have adopted it in the meantime.
            if not await read_log(self._log.is_orphaned, task_id):
                return Outcome.ELSEWHERE
            current = await check()
            if current is None or current.suspicion != due.suspicion:
                return Outcome.LOST

            def watch(run: Run[Any]) -> None:
                self._live_runs.add(run)
                suspect.watch(run)

            async with self._slots:
                outcome = await self._execute(current, agent, on_input, watch)
            return Outcome.ELSEWHERE if outcome is Outcome.LOST else outcome

    async def _execute(
        self, due: DueRun, agent: str, on_input: OnInput | None, on_run: Callable[[Run[Any]], object]
    ) -> Outcome:
        task_id, definition = due.record.task_id, self._agents[agent].definition
        errors: list[Exception] = []

        async def make_deps() -> Any:
            try:
                deps = await self.make_deps(task_id)
                check_deps("Runtime", definition.deps_type, deps)
            except Exception as error:
                errors.append(error)
                raise
            return deps

        run = make_attempt(
            definition,
            due.record,
            on_input,
            make_deps=make_deps if self._deps is not None else None,
            # A suspect must not wait for another process that executes it, because other suspects wait for it.
            when_busy="refuse" if due.suspicion.level else "wait",
        )
        on_run(run)
        is_ended = await execute_attempt(task_id, run)
        if errors and not is_ended:
            # Don't keep the error, because its frames may refer to most of the memory.
            raise errors.pop()
        if not is_ended:
            return Outcome.LOST
        return Outcome.FINISHED if run.hold.end is not None else Outcome.ENDED

    async def make_deps(self, task_id: str) -> Any:
        """Return the deps for a run.

        Raises:
            RxloopError: Creating them took too long, or raised SystemExit.
        """
        if self._deps is None:
            return None
        record = await read_log(self._log.get_record, task_id)
        message = f"creating deps for run {task_id} took longer than {_DEPS_TIMEOUT:g} s"
        try:
            return await limit_time(partial(_call, self._deps, record), _DEPS_TIMEOUT, lambda: RxloopError(message))
        except SystemExit as error:
            # It would end the process, and with it all other runs.
            raise RxloopError(f"creating deps for run {task_id} raised SystemExit({error.code!r})") from error


async def _call(make_deps: DepsFactory, record: RunRecord) -> Any:
    deps = make_deps(record)
    return await deps if inspect.isawaitable(deps) else deps


async def reopen_run(agent: Agent[Any, Any], record: RunRecord) -> bool:
    """Log the start of another attempt of an ended run, which any process can then execute.

    Args:
        agent: Agent of the run.
        record: Record of the run.

    Returns:
        False if the run is active, waits for input, or has been resumed elsewhere at the same time.

    Raises:
        RunOver: The run is completed, or it failed with an error that is not retryable.
        NotAsked: A later run of the conversation has ended this run.
        ContextBusy: Another run of the conversation is active.
    """
    if record.state not in FINAL_STATES:
        return False
    if record.state != "canceled" and not (record.error is not None and record.error.retryable):
        raise RunOver(f"run {record.task_id} is {record.state} and cannot be resumed; fork it, or start a new run")

    async def leave() -> None:
        # The run is released if its deps are missing. So it is resumed before any code of the agent is called here.
        raise RxloopError("the run is executed by another attempt")

    run = agent.definition.make_run(
        make_resume_spec(agent.definition, "Runtime.resume", record.task_id, None, {}, make_deps=leave)
    )
    try:
        await run.begin()
    except (ContextBusy, ConflictError):
        if (await read_log(agent.definition.get_log("resume").get_record, record.task_id)).seq == record.seq:
            raise
        return False
    await run.release()
    return True
