"""Runtime for running several agents using a shared event log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Self
from weakref import WeakValueDictionary

from typing_extensions import Unpack

from rxloop.agents.agent import Agent
from rxloop.coordination.commands import send_answer
from rxloop.errors import ConfigurationError, QueueFull, RunExists, RuntimeClosed, RxloopError, UnknownRun
from rxloop.operators.views import View
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Queue
from rxloop.pipeline.log_retry import limit_log_time, read_log
from rxloop.pipeline.records import RunRecord, Until
from rxloop.protocol.events import AnyEvent
from rxloop.protocol.ids import derive_id
from rxloop.protocol.messages import Message, Prompt, to_messages
from rxloop.protocol.tool_events import GoalChange
from rxloop.recorded.follow import RecordedStream
from rxloop.recorded.questions import PendingQuery, PendingRun, list_pending
from rxloop.run.ownership import wait_stored
from rxloop.runtime.attempts import DepsFactory, reopen_run
from rxloop.runtime.executor import RunExecutor, Submitted
from rxloop.runtime.jobs import QUEUE, QueueLimit, enqueue_run, make_queue_metadata
from rxloop.runtime.live_runs import RuntimeLoad, follow_live
from rxloop.runtime.run_log import log_attempts
from rxloop.runtime.validation import ForkChanges, StartOptions, check_runtime, check_start_options
from rxloop.stream.stream import Stream
from rxloop.support.misuse import ExplainedAttributes


class Runtime(ExplainedAttributes):
    """Runtime for the runs of several agents in one event log.

    A run continues after the request that started it has ended. Every process with a runtime on the same log can
    follow the run, send messages to it, answer its questions and cancel it. If a process dies, another process resumes
    its runs.

    Example:
        >>> runtime = Runtime({"support": support}, log=SqliteEventLog("app.db"), deps=deps_of)
        >>> async with runtime:
        ...     record = await runtime.start("support", "Refund order A1", context_id="bob", key="request-17")
        ...     async for event in runtime.follow(record.task_id):
        ...         print(event)
    """

    def __init__(
        self,
        agents: Mapping[str, Agent[Any, Any]],
        *,
        log: EventLog,
        deps: DepsFactory | None = None,
        concurrency: int | None = None,
        adopt_every: float = 2.0,
        grace: float = 10.0,
        queue: Queue | None = None,
        is_worker: bool | None = None,
        max_waiting: int | None = 10_000,
        version: str | None = None,
        views: Sequence[View[Any, Any]] = (),
    ) -> None:
        """Create a runtime. It opens nothing until `async with runtime:`.

        Args:
            agents: Agents by name. The log stores the names, so do not change them between restarts. An empty mapping
                is allowed, for a server without agents.
            log: Event log for the runs of all agents. It must support leases and commands, like the logs of rxloop.
            deps: Function that returns the deps of a run, also after a restart. It receives the `RunRecord` with the
                owner and the metadata. A synchronous function must not block. Without it, agents get no deps.
            concurrency: Number of runs that this process executes at once, or None for no limit. Other runs wait in
                order. A run that waits for an earlier run of its conversation does not count.
            adopt_every: Seconds between two searches for orphaned runs.
            grace: Seconds that runs have to end when the runtime exits. Then they are released, and another process
                resumes them.
            queue: Queue that passes runs to workers in other processes, see `rxloop.runtime`. None executes runs in
                this process.
            is_worker: Whether this process executes runs. By default it does if there is no queue.
            max_waiting: Number of waiting runs in the queue at which `start` raises `QueueFull`, or None for no limit.
            version: Version of the program, recorded with each run. Only a runtime of the same version resumes the
                run. With None, any runtime can resume it.
            views: Views to subscribe to each run that this process executes, in addition to those of the agents.

        Raises:
            ConfigurationError: An argument is invalid.
        """
        check_runtime(agents, log, queue, deps, concurrency, max_waiting, adopt_every=adopt_every, grace=grace)
        self.log = log
        self._agents = {
            name: agent.with_log(log).with_name(name).with_views(views).with_views([log_attempts(name)])
            for name, agent in agents.items()
        }
        self._grace, self._queue, self._version = grace, queue, version
        self._queue_limit = None if queue is None else QueueLimit(queue, max_waiting, version)
        self._is_worker = queue is None if is_worker is None else is_worker
        if queue is None and not self._is_worker:
            raise ConfigurationError("is_worker=False requires a queue; otherwise no process would execute the runs")
        self._executor = RunExecutor(
            log, self._agents, deps, concurrency=concurrency, adopt_every=adopt_every, queue=queue, version=version
        )
        self._entered = False
        self.start_locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """Locks of all servers using this runtime, to start one run per principal or conversation at a time."""

    def __repr__(self) -> str:
        return f"<Runtime {', '.join(self._agents)}: {len(self._executor.live_runs)} active runs>"

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RxloopError("a runtime can only be entered once")
        if self._is_worker:
            await self._executor.start()
        self._entered = True
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.drain()

    @property
    def entered(self) -> bool:
        """True if the runtime was entered, even if it has drained since."""
        return self._entered

    @property
    def open(self) -> bool:
        """True if the runtime accepts new runs, because it was entered and is not draining."""
        return self._entered and not self._executor.is_closing

    @property
    def is_worker(self) -> bool:
        """True if this process executes runs."""
        return self._is_worker

    @property
    def queue(self) -> Queue | None:
        """Queue that passes runs to workers, or None."""
        return self._queue

    @property
    def agents(self) -> Mapping[str, Agent[Any, Any]]:
        """Agents by name."""
        return MappingProxyType(self._agents)

    @property
    def load(self) -> RuntimeLoad:
        """Number of runs that this process executes and has adopted."""
        return self._executor.load

    def add_views(self, views: Sequence[View[Any, Any]]) -> None:
        """Subscribe views to each attempt that this process starts from now on, in addition to the existing views."""
        for name, agent in self._agents.items():
            self._agents[name] = agent.with_views(views)

    # -- runs

    async def start(
        self,
        agent: str,
        prompt: Prompt,
        *,
        key: str | None = None,
        priority: int = 0,
        at: datetime | None = None,
        **options: Unpack[StartOptions],
    ) -> RunRecord:
        """Start a run and return its record once the run is in the log.

        This process or, with a queue, a worker executes the run. If this process dies, another process resumes the run.
        The run first waits until the earlier run of its conversation is idle.

        Args:
            agent: Name of the agent.
            prompt: As for `Agent.run`.
            key: Idempotency key. A call with the key of an earlier run of the same agent and owner returns that run.
            priority: Priority in the queue, from -1,000,000 to 1,000,000. Runs with a higher priority start first.
            at: Earliest start time. Later runs of the same conversation wait for this run. Requires a queue.
            **options: See `rxloop.runtime.StartOptions`. With a queue, the `owner` is the tenant for limits.

        Raises:
            ConfigurationError: The agent does not exist or an option is invalid.
            QueueFull: Too many runs wait for a worker, and no run with this key exists. Nothing was started.
            RuntimeClosed: The runtime was not entered or is draining.
        """
        self._check_open()
        check_start_options(options, StartOptions.__annotations__)
        if (at is not None or priority) and self._queue is None:
            raise ConfigurationError("at= and priority= require Runtime(..., queue=...)")
        task_id = self.derive_run_id(agent, key, options.get("owner")) if key is not None else None
        if self._queue_limit is not None:
            try:
                await self._queue_limit.check()
            except QueueFull:
                # Existing runs don't take up space in the queue.
                if task_id is None or (record := await self._reschedule(task_id)) is None:
                    raise
                return record
        metadata = options.get("metadata") or {}
        if QUEUE in metadata:
            raise ConfigurationError(f"metadata key {QUEUE!r} is reserved; use priority= and at=")
        if queue_metadata := make_queue_metadata(priority, at, self._version):
            options["metadata"] = {**metadata, **queue_metadata}
        try:
            record = await self._get_agent(agent).submit(prompt, task_id=task_id, **options)
        except RunExists:
            if task_id is None or (existing := await self._reschedule(task_id)) is None:
                raise
            return existing
        await self._schedule(record, submitted=Submitted(record, options.get("context_id") is None))
        return record

    async def _reschedule(self, task_id: str) -> RunRecord | None:
        """Return an existing run after scheduling it, or None."""
        try:
            record = await self.get_record(task_id)
        except UnknownRun:
            return None
        # Started runs are continued by their owner or adopted. The `start` call of a submitted run may have been
        # cancelled, so schedule the run again.
        if record.state == "submitted":
            await self._schedule(record)
        return record

    @staticmethod
    def derive_run_id(agent: str, key: str, owner: str | None = None) -> str:
        """Return the id used for a run with this key, even if it doesn't exist yet; see `start`."""
        # Two owners may choose the same key independently.
        return derive_id("runtime", agent, key, *((str(owner),) if owner else ()))

    async def fork(self, task_id: str, at: int, **changes: Unpack[ForkChanges]) -> RunRecord:
        """Fork a run as `Agent.fork` does, with the owner and the metadata of the original run.

        Args:
            task_id: Run to fork.
            at: The `seq` of the last event to copy.
            **changes: See `rxloop.runtime.ForkChanges`.

        Raises:
            ConfigurationError: The run ends before `at`, or has no call for a result (`NotPermitted` if restricted).
        """
        self._check_open()
        agent, deps = await self._find_agent(task_id), await self._executor.attempts.make_deps(task_id)
        with limit_log_time(None):
            run = await agent.fork(task_id, at, deps=deps, **changes).begin()
        if self._executor.is_closing or self._queue is not None:
            await run.release()
        else:
            self._executor.schedule(run.task_id, agent.name, started=run)
        record = await self.get_record(run.task_id)
        if self._queue is not None:
            await enqueue_run(self._queue, record)
        return record

    async def resume(self, task_id: str, *, after: str | None = None) -> RunRecord:
        """Resume a canceled run, or a run that failed with a retryable error, and return its record.

        The resumed run is in the log when this method returns, and any process of the runtime executes it. An active or
        waiting run is not changed, so a repeated call resumes a run once.

        Args:
            task_id: The run.
            after: Cursor of the last event that the caller has. If the run has continued since, it is not changed.

        Raises:
            RunOver: The run is completed, or it failed with an error that is not retryable.
            NotAsked: A later run of the conversation has ended this run.
            ContextBusy: Another run of the conversation is active.
        """
        self._check_open()
        async with self.start_locks.setdefault(("run", task_id), asyncio.Lock()):
            record = await self.get_record(task_id)
            if after in (None, record.cursor) and await reopen_run(self._get_agent(record.agent_name), record):
                await self._schedule(record)
            return await self.get_record(task_id)

    def follow(
        self, task_id: str, *, after: str | None = None, strict: bool = True, until: Until = "end"
    ) -> RecordedStream:
        """Return the events of a run in any process, across pauses and attempts, until the run has ended.

        The stream includes deltas if this process executes the run or the log forwards them. A slow reader delays only
        itself, and a reader that stops does not cancel the run. `follow(...).sse()` encodes the events for browsers.

        Args:
            task_id: The run.
            after: Cursor of the last event that the reader has. Only later events are delivered.
            strict: Reject an invalid cursor, and end with `LogRolledBack` if the log was rolled back. Pass False for
                cursors from clients: the stream then sends a `gap` event and starts again from the first event.
            until: `"attempt"` also ends the stream when the run has an unanswered question.

        Raises:
            ConfigurationError: `after` is not a cursor, or `until` is invalid.
            UnknownRun: From the stream: the log has no such run.
            LogRolledBack: From the stream: the log lacks an event that the reader has, for example after a failover.
        """
        return follow_live(self.log, self._executor.live_runs, task_id, after, strict=strict, until=until)

    async def send(self, task_id: str, message: str | Message, *, interrupt: bool = False) -> None:
        """Send a message to a run in any process; see `RemoteRun.send`."""
        await (await self._find_agent(task_id)).get_run(task_id).send(message, interrupt=interrupt)

    async def update_goals(self, task_id: str, *changes: GoalChange) -> None:
        """Add or change goals of a run in any process; see `RemoteRun.update_goals`."""
        await (await self._find_agent(task_id)).get_run(task_id).update_goals(*changes)

    async def answer(self, task_id: str, inputs: Mapping[str, Any], *, messages: Prompt | None = None) -> None:
        """Answer questions of a run. The run continues in this process if no other process owns it.

        An unencrypted credential stays in this process, which resumes the run as soon as it waits for input. If the
        process dies before, the run keeps waiting. With a queue, credentials must be encrypted.

        Args:
            task_id: The run.
            inputs: Answers by `input_id`.
            messages: Messages that accompany the answers. They are added to the history if the answers are accepted.

        Raises:
            InvalidInput: The run does not wait for this answer, or the answer is invalid.
            RuntimeClosed: The runtime was not entered or is draining.
        """
        self._check_open()
        record = await self.get_record(task_id)
        self._get_agent(record.agent_name)
        accompanying = () if messages is None else to_messages(messages)
        await wait_stored(self.log, task_id)
        secret = await send_answer(self.log, task_id, inputs, messages=accompanying, executes_here=self._queue is None)
        await self._schedule(record, credentials=secret)

    async def cancel(self, task_id: str, reason: str | None = None) -> None:
        """Cancel a run in any process, and wait until the cancellation is in the log."""
        await (await self._find_agent(task_id)).get_run(task_id).cancel(reason)
        await self._executor.enqueue_next(task_id)

    async def get_record(self, task_id: str) -> RunRecord:
        """Return the record of a run. `log.list_runs(...)` lists the records of all runs.

        Raises:
            UnknownRun: The log has no such run.
        """
        return await read_log(self.log.get_record, task_id)

    async def list_pending(self, **query: Unpack[PendingQuery]) -> list[PendingRun]:
        """Return the runs with unanswered questions; see `rxloop.recorded.list_pending`."""
        return await list_pending(self.log, **query)

    def is_executing(self, task_id: str) -> bool:
        """Return True if this process executes a run or is about to. Then `follow` delivers its deltas immediately."""
        return self._executor.is_executing(task_id)

    @property
    def events(self) -> Stream[AnyEvent]:
        """Events of all current and later runs that this process executes, from the first event of each attempt.

        The stream ends when the runtime has been drained. With `block`, a slow reader delays only itself.
        """
        return self._executor.live_runs.events

    # -- shutdown

    async def drain(self, seconds: float | None = None) -> None:
        """Reject new runs, wait for the active runs, and release those that have not ended in time.

        Released runs are not cancelled: another process resumes them. Runs that still wait in order here do not start.
        In the last quarter of the time, active runs start no more calls, and each is released once no call runs that
        cannot be repeated. All runs are released before this method returns, even if the awaiting task is cancelled.

        Args:
            seconds: Time limit; None for the `grace` of the runtime.
        """
        await self._executor.stop(self._grace if seconds is None else seconds)

    def _check_open(self) -> None:
        if not self._entered:
            raise RuntimeClosed("the runtime must be entered with `async with runtime:`")
        if self._executor.is_closing:
            raise RuntimeClosed("the runtime is draining")

    def _get_agent(self, name: str) -> Agent[Any, Any]:
        if name not in self._agents:
            raise ConfigurationError(f"unknown agent {name!r}, expected one of {[*self._agents]}")
        return self._agents[name]

    async def _schedule(
        self, record: RunRecord, *, submitted: Submitted | None = None, credentials: Mapping[str, Any] | None = None
    ) -> None:
        """Schedule a run in this process, or pass it to a worker."""
        if self._queue is not None:
            await enqueue_run(self._queue, record)
        else:
            self._executor.schedule(record.task_id, record.agent_name, submitted=submitted, credentials=credentials)

    async def _find_agent(self, task_id: str) -> Agent[Any, Any]:
        return self._get_agent((await self.get_record(task_id)).agent_name)
