"""Many runs by id, over one log."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypedDict, cast

from typing_extensions import Unpack

from rxloop.agent import Agent
from rxloop.errors import ConfigurationError, QueueFull, RunExists, RuntimeClosed, RxloopError, UnknownRun
from rxloop.pipeline.log_retry import within
from rxloop.pipeline.logs import EventLog, Mailbox, TakesTurns
from rxloop.pipeline.queues import Queue
from rxloop.pipeline.values import RunRecord
from rxloop.protocol.events import AnyEvent
from rxloop.protocol.messages import Message, Prompt
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.recorded.stream import RecordedStream
from rxloop.run.ids import id_of_key
from rxloop.run.sending import answer
from rxloop.runtime._bells import QUEUE, Depth, ring, told
from rxloop.runtime._driving import DepsOf, Driving
from rxloop.runtime._following import followed
from rxloop.state.conversation import read_log
from rxloop.stream.stream import Stream
from rxloop.tools.client_tool import ClientTool

log = logging.getLogger("rxloop")


class StartOptions(TypedDict, total=False):
    """What can be said of a run that is started in a runtime; as for `Agent.run`, and all of it goes into the log."""

    context_id: str | None
    owner: str | None
    metadata: dict[str, Any] | None
    model: str | None
    settings: ModelSettings | None
    limits: Limits | None
    strategy: str | None
    client_tools: Sequence[ClientTool | Mapping[str, Any]] | None


class Runtime:
    """Runs of several agents by their ids, over one log: what outlives the request that began it.

    A run that is started here goes on whoever reads it. Every process with a runtime on the same log can follow it,
    steer it, answer its questions and cancel it; and what a process leaves when it dies, the others take up.

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
        deps: DepsOf | None = None,
        concurrency: int | None = None,
        adopt_every: float = 2.0,
        grace: float = 10.0,
        queue: Queue | None = None,
        works: bool | None = None,
        max_waiting: int | None = 10_000,
        version: str | None = None,
    ) -> None:
        """Describe a runtime; nothing is opened before it is entered.

        Args:
            agents: By the names under which runs are started, and found again after a restart: keep them.
            log: Keeps the runs of all of them. It has to take turns and mail, as those of rxloop do.
            deps: Gives the deps of each run, also after a restart: of its `RunRecord`, which has the owner and the
                metadata that it was started with. A plain function must not block. Without it the agents get none.
            concurrency: How many runs go on here at once; the others wait in order. None is no limit. One that
                waits for an earlier run of its conversation does not count.
            adopt_every: Seconds between two looks for runs that nobody drives any more.
            grace: Seconds that runs have to end when the runtime is left; then they are given up, and the next process
                goes on with them.
            queue: Rings for runs that are started, so that workers carry them out, in other processes: see
                `rxloop.workers`. None is for runs that go on in this one.
            works: Whether runs go on in this process. None is where there is no queue.
            max_waiting: How many runs may wait in the queue until `start` refuses more; None is no limit.
            version: That of the program, written with each run that is started: only a runtime of the same version
                goes on with it. None is for runs that any may go on with.

        Raises:
            ConfigurationError: An argument is of a wrong kind.
        """
        if not (isinstance(log, TakesTurns) and isinstance(log, Mailbox)):
            raise ConfigurationError(
                f"{log!r} cannot be the log of a runtime, since it has no turns or no mail (see TakesTurns and Mailbox "
                "in docs/durability.md): use PostgresEventLog, SqliteEventLog or MemoryEventLog"
            )
        _check_agents(agents)
        if concurrency is not None and concurrency < 1:
            raise ConfigurationError(f"concurrency must be at least 1, or None for no limit, not {concurrency!r}")
        for name, seconds in (("adopt_every", adopt_every), ("grace", grace)):
            if not seconds >= 0:
                raise ConfigurationError(f"{name} must be 0 seconds or more, not {seconds!r}")
        self.log = log
        self._agents = {name: agent.with_log(log).named(name) for name, agent in agents.items()}
        self._grace = grace
        self._queue, self._version = queue, version
        self._depth = None if queue is None else Depth(queue, max_waiting, version)
        self._works = queue is None if works is None else works
        if queue is None and not self._works:
            raise ConfigurationError("works=False needs a queue: without one, nobody would be told of a run")
        self._driving = Driving(
            log,
            self._agents,
            deps,
            turns=log,
            concurrency=concurrency,
            adopt_every=adopt_every,
            queue=queue,
            version=version,
        )
        self._entered = False

    def __repr__(self) -> str:
        return f"<Runtime {', '.join(self._agents)}: {len(self._driving.driven)} runs under way>"

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RxloopError("a runtime is entered once: make another one")
        if self._works:
            await self._driving.begin()
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.drain()

    @property
    def entered(self) -> bool:
        """Whether it was entered, though it may have drained since."""
        return self._entered

    @property
    def open(self) -> bool:
        """Whether it takes new runs: it is entered, and does not drain."""
        return self._entered and not self._driving.closing

    @property
    def works(self) -> bool:
        """Whether runs go on in this process."""
        return self._works

    @property
    def queue(self) -> Queue | None:
        """What calls workers, where runs go on in other processes."""
        return self._queue

    @property
    def agents(self) -> Mapping[str, Agent[Any, Any]]:
        """Its agents, by the names under which runs are started."""
        return MappingProxyType(self._agents)

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
        """Start a run; it is durable when this returns, and goes on here, or where this process is survived.

        In a conversation that has a run under way it waits for that one to come to rest. With a queue it goes on in a
        worker.

        Args:
            agent: The name of the agent.
            prompt: As for `Agent.run`.
            key: The same key of the same agent and owner is the same run: started once, however often it is asked for.
            priority: Of those that wait in a queue, the ones with greater priorities come first: a whole number within
                1,000,000 of 0.
            at: The run begins at this time, or soon after it, if that is to come. What is started later in its
                conversation waits for it. It needs a queue.
            **options: See `StartOptions`. With a queue, the `owner` is the tenant whose limit counts.

        Raises:
            ConfigurationError: There is no such agent, or an option is wrong.
            QueueFull: Too many runs wait for a worker; nothing was started, and nothing was by this key before.
            RuntimeClosed: The runtime is not entered, or drains.
        """
        self._check_open()
        _check_options(options)
        if (at is not None or priority) and self._queue is None:
            raise ConfigurationError("at= and priority= are for runs that wait in a queue: Runtime(..., queue=...)")
        task_id = self.id_of(agent, key, options.get("owner")) if key is not None else None
        if self._depth is not None:
            try:
                await self._depth.check()
            except QueueFull:
                # One that is there already asks for no place.
                if task_id is None or (record := await self._started(task_id)) is None:
                    raise
                return record
        metadata = options.get("metadata") or {}
        if QUEUE in metadata:
            raise ConfigurationError(f"the key {QUEUE!r} of the metadata is not yours: use priority= and at=")
        if ours := told(priority, at, self._version):
            options["metadata"] = {**metadata, **ours}
        try:
            record = await self._agent(agent).submit(prompt, task_id=task_id, **options)
        except RunExists:
            if task_id is None or (found := await self._started(task_id)) is None:
                raise
            return found
        await self._goes_on(record)
        return record

    async def _started(self, task_id: str) -> RunRecord | None:
        """The run, if it was started already, and sees that it goes on."""
        try:
            record = await self.record(task_id)
        except UnknownRun:
            return None
        # Whoever drives it goes on; if nobody does, it is taken up as what a process has left. One that is submitted
        # may be left by a call that was cancelled in the middle.
        if record.state == "submitted":
            await self._goes_on(record)
        return record

    @staticmethod
    def id_of(agent: str, key: str, owner: str | None = None) -> str:
        """The id of the run that a key stands for, whether it was started or not; see `start`."""
        # Two owners who choose the same key know nothing of each other.
        return id_of_key("runtime", agent, key, *(() if owner is None else (str(owner),)))

    async def fork(
        self, task_id: str, at: int, *, prompt: Prompt | None = None, results: Mapping[str, Any] | None = None
    ) -> RunRecord:
        """Begin a new run with a part of another one, as `Agent.fork` does, with the owner and the metadata of that.

        Args:
            task_id: The run to begin with.
            at: The `seq` of the last event to take over.
            prompt: In the place of the question for `at=1`, else a new message.
            results: What tools have answered, by the id of the call or by its slot.

        Raises:
            ConfigurationError: The run ends before `at`, or has no such call.
            UnknownRun: The log has no such run.
            RuntimeClosed: The runtime is not entered, or drains.
        """
        self._check_open()
        agent = await self._agent_of(task_id)
        deps = await self._driving.deps_of(task_id)
        with within(None):
            run = await agent.fork(task_id, at, prompt=prompt, results=results, deps=deps).begin()
        if self._driving.closing or self._queue is not None:
            await run.release()
        else:
            self._driving.drive(run.task_id, agent.name, begun=run)
        record = await self.record(run.task_id)
        if self._queue is not None:
            await ring(self._queue, record)
        return record

    def follow(self, task_id: str, *, after: str | None = None, strict: bool = True) -> RecordedStream:
        """The events of a run from the first one, over pauses and attempts, until it is over, wherever it is driven.

        With the deltas, where it is driven in this process or the log passes them on. A slow reader holds back only
        itself. A reader that leaves does not cancel the run. `follow(...).sse()` is for browsers, as `Run.sse`.

        Args:
            task_id: The run.
            after: The cursor of the last event that the reader has; only what follows it is delivered.
            strict: Refuse what is not a cursor; otherwise it counts as that of an unknown run, as it should where it
                comes from a client. And end with `LogWentBack` if the log goes back; otherwise a `gap` says so, and the
                whole run follows.

        Raises:
            ConfigurationError: `after` is not a cursor.
            UnknownRun: From the stream: the log has no such run.
            LogWentBack: From the stream: the log lacks an event that the reader has, as after a failover.
        """
        return followed(self.log, self._driving.driven, task_id, after, strict=strict)

    async def say(self, task_id: str, message: str | Message, *, interrupt: bool = False) -> None:
        """Put a message into a run that goes on, wherever it does; see `Run.say`."""
        await (await self._agent_of(task_id)).say(task_id, message, interrupt=interrupt)

    async def answer(self, task_id: str, inputs: Mapping[str, Any]) -> None:
        """Answer questions of a run, by their `input_id`; it goes on, here if nobody else drives it.

        A credential that is not encrypted stays in this process, which goes on with the run as soon as that waits. If
        it dies before, the run still waits. With a queue there is no such process, and it has to be encrypted.

        Raises:
            InvalidInput: The run does not wait for that, or the answer does not fit.
            RuntimeClosed: The runtime is not entered, or drains.
        """
        self._check_open()
        record = await self.record(task_id)
        self._agent(record.agent_name)
        secret = await answer(self.log, task_id, inputs, goes_on_here=self._queue is None)
        await self._goes_on(record, credentials=secret)

    async def cancel(self, task_id: str, reason: str | None = None) -> None:
        """Cancel a run, wherever it goes on or waits, and wait until that is in the log."""
        await (await self._agent_of(task_id)).cancel(task_id, reason)
        await self._driving.ring_next(task_id)

    async def record(self, task_id: str) -> RunRecord:
        """What the log knows of a run; `log.runs(...)` lists them.

        Raises:
            UnknownRun: The log has no such run.
        """
        return await read_log(self.log.record, task_id)

    def drives(self, task_id: str) -> bool:
        """Whether this process drives a run, or is about to: `follow` has its deltas as they are made."""
        return self._driving.drives(task_id)

    @property
    def events(self) -> Stream[AnyEvent]:
        """The events of all runs that this process drives: of those that go on from their first one here, and of those
        that come. It never ends by itself; with `block`, a slow reader holds back itself alone."""
        return self._driving.driven.events

    # -- the end

    async def drain(self, seconds: float | None = None) -> None:
        """Refuse new runs, wait for those that go on, and give up those that have not ended by then.

        They are not cancelled: the log says that they are under way, and the next process goes on with them, as with
        those that wait in order here, of which none begins any more. In the last quarter of the time what still goes on
        begins nothing more, and is given up as soon as no tool is at work whose call nobody can make again. All of them
        are given up before it returns, though the task that awaits it is cancelled.

        Args:
            seconds: How long to wait; None is the `grace` of the runtime.
        """
        await self._driving.end(self._grace if seconds is None else seconds)

    # -- what is asked for

    def _check_open(self) -> None:
        if not self._entered:
            raise RuntimeClosed("the runtime is not entered: use it in `async with runtime:`")
        if self._driving.closing:
            raise RuntimeClosed("the runtime drains, and starts no more runs")

    def _agent(self, name: str) -> Agent[Any, Any]:
        if name not in self._agents:
            raise ConfigurationError(f"there is no agent {name!r}: the runtime has {', '.join(self._agents)}")
        return self._agents[name]

    async def _goes_on(self, record: RunRecord, credentials: Mapping[str, Any] | None = None) -> None:
        """Have somebody bring a run to rest: this process, or a worker."""
        if self._queue is not None:
            await ring(self._queue, record)
        else:
            self._driving.drive(record.task_id, record.agent_name, credentials=credentials)

    async def _agent_of(self, task_id: str) -> Agent[Any, Any]:
        return self._agent((await self.record(task_id)).agent_name)


def _check_agents(agents: Any) -> None:
    if not isinstance(agents, Mapping) or not agents:
        raise ConfigurationError(
            f"a runtime needs agents by their names, such as {{'support': support}}, not {agents!r}"
        )
    for name, agent in cast("Mapping[Any, Any]", agents).items():
        if not isinstance(name, str) or not isinstance(agent, Agent):
            raise ConfigurationError(f"a runtime takes agents by their names, and not {name!r}: {agent!r}")


def _check_options(options: StartOptions) -> None:
    hints = {
        "deps": "Runtime(..., deps=function) makes them, also after a restart",
        "task_id": "key= says which run it is",
        "on_input": "runtime.answer() answers questions",
        "steering": "runtime.say() steers a run",
        "when_busy": "a run waits for those before it in its conversation",
    }
    for name in options:
        if name not in StartOptions.__annotations__:
            known = ", ".join(StartOptions.__annotations__)
            raise TypeError(f"start() has no option {name!r}: {hints.get(name, f'it takes {known}')}")
