"""An agent under faults: its runs, the processes that execute them, and the check of the results."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rxloop.errors import ConfigurationError
from rxloop.protocol.events import InputRequiredEvent
from rxloop.runtime.postgres_queue import PostgresQueue
from rxloop.runtime.runtime import Runtime
from rxloop.storage.postgres_log import PostgresEventLog
from rxloop.support.tasks import wait_all
from rxloop.testing.chaos.checker import Expect, Judge
from rxloop.testing.chaos.faults import Fault, Faults, freeze, kill, stop
from rxloop.testing.chaos.processes import Worker, load_agents
from rxloop.testing.chaos.report import Report, Witness, Wrong
from rxloop.testing.chaos.workload import Answer, Play, Script


def _agree(question: InputRequiredEvent) -> Any:
    return True


class Chaos:
    """Workers, in processes of their own, that carry out the runs of your agent while they are killed and frozen.

    Example:
        >>> async with Chaos("shop:agent", "postgresql://localhost/empty") as chaos:
        ...     report = await chaos.play("Pay Bob 5.", runs=100, seconds=60)
        ...     report.check()
    """

    def __init__(
        self,
        agents: str,
        dsn: str,
        *,
        workers: int = 3,
        concurrency: int = 16,
        lease: float = 2.0,
        adopt_every: float = 0.5,
        grace: float = 1.0,
        deps: str | None = None,
        within: Sequence[Sequence[str]] = (),
    ) -> None:
        """Describe it; nothing is started yet.

        Args:
            agents: Where the agent is, as `module:object`, or agents by their names, or a function that makes either.
                Each worker loads it anew.
            dsn: A Postgres database that nothing else is in.
            workers: How many, two at least.
            concurrency: How many runs go on at once in each.
            lease: Seconds after which a frozen worker counts as dead.
            adopt_every: Seconds between two looks for runs of dead workers.
            grace: Seconds that a worker has that is told to stop.
            deps: Where the function is that gives the deps of a run, as `module:function`.
            within: What is put before the command of each worker, in turn, such as `["ip", "netns", "exec", "host1"]`,
                so that it runs on a host of its own. It has to become that process, and to see the same files.

        Raises:
            ConfigurationError: There are too few workers, or no such agents.
        """
        if workers < 2:
            raise ConfigurationError(f"chaos needs two workers at least, and not {workers}: one goes on for the other")
        self._agents = load_agents(agents)
        self._dsn, self._lease, self._grace = dsn, lease, grace
        self._orders: dict[str, Any] = {
            "agents": agents,
            "dsn": dsn,
            "deps": deps,
            "concurrency": concurrency,
            "lease": lease,
            "adopt_every": adopt_every,
            "grace": grace,
        }
        self._count, self._within = workers, within or [()]
        self.workers: list[Worker] = []
        """The workers, for faults of your own."""
        self._open: AsyncExitStack | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._folder = tempfile.TemporaryDirectory(prefix="rxloop-chaos-")
            stack.callback(self._folder.cleanup)
            self._log = PostgresEventLog(self._dsn, lease=self._lease)
            stack.push_async_callback(self._log.aclose)
            queue = PostgresQueue(self._dsn)
            stack.push_async_callback(queue.aclose)
            # So that the tables are there before the workers are.
            await self._log.list_runs(limit=1)
            await queue.waiting()
            self.runtime = Runtime(self._agents, log=self._log, queue=queue, max_waiting=None)
            """A replica that drives nothing: it starts runs, and follows them."""
            await self.runtime.__aenter__()
            stack.push_async_callback(self.runtime.drain, 0)
            orders = {**self._orders, "folder": self._folder.name}
            self.workers = [Worker(orders, within) for _, within in zip(range(self._count), cycle(self._within))]
            stack.push_async_callback(self._kill_all)
            await self._start_all()
            self._open = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Kill the workers, and close what is open; may be called more than once."""
        stack, self._open = self._open, None
        if stack is not None:
            await stack.aclose()

    async def _start_all(self) -> None:
        """Start the workers that are not there.

        Raises:
            RxloopError: One does not start.
        """
        gone = [worker for worker in self.workers if not worker.alive]
        if sys.dont_write_bytecode and gone:
            # The first one compiles, and the others find that.
            await gone.pop().start()
        starting = [asyncio.create_task(worker.start()) for worker in gone]
        try:
            for done in asyncio.as_completed(starting):
                await done
        finally:
            for task in starting:
                task.cancel()
            await wait_all(starting)
            # Of several that do not start, one is told of.
            await asyncio.gather(*starting, return_exceptions=True)
        for worker in self.workers:
            worker.busy = False

    async def _kill_all(self) -> None:
        # All signals first: nothing that comes between is to leave one of them there.
        await wait_all([asyncio.create_task(worker.kill()) for worker in self.workers])

    async def play(
        self,
        *prompts: str,
        runs: int = 40,
        seconds: float = 20.0,
        kill_every: float | None = 2.0,
        freeze_every: float | None = 5.0,
        stop_every: float | None = None,
        faults: Sequence[Fault] = (),
        cancelled: float = 0.05,
        paired: float = 0.2,
        answer: Answer = _agree,
        expect: Expect | None = None,
        patience: float = 60.0,
        keep: bool = False,
        seed: int = 1,
    ) -> Report:
        """Start runs, one after the other, and let workers die meanwhile; then wait for all of them, and judge.

        Args:
            *prompts: What is asked, in turn.
            runs: How many runs are started, of the first agent.
            seconds: In what time, during which workers are hit.
            kill_every: Seconds between two kills (SIGKILL), on average; None is none.
            freeze_every: Between two freezes (SIGSTOP, and SIGCONT after less or more than the lease).
            stop_every: Between two orders to stop (SIGTERM).
            faults: What else is done to workers.
            cancelled: The share of runs that are cancelled.
            paired: The share of runs that are begun in the conversation of the one before.
            answer: Answers the questions of the runs, as from a browser.
            expect: The output of runs that complete, or a function that says of a prompt and an output whether they
                belong together. A run that fails is wrong then, too. None lets every output pass.
            patience: Seconds that the runs have to come to rest afterwards.
            keep: Keep all runs in the log. Otherwise those that are over are removed, unless something is wrong, so
                that each play finds the database as the first one did.
            seed: Of the dice.

        Returns:
            What the judge has found: see `Report.check`.

        Raises:
            ConfigurationError: There is nothing to ask, the workers are not there, or a time is not more than 0.
            RxloopError: A worker that was gone does not start.
        """
        self._check_playable(prompts)
        dice = random.Random(seed)
        ours = [
            ("kill", kill_every, kill),
            ("freeze", freeze_every, freeze(self._lease, dice)),
            ("stop", stop_every, stop(self._grace)),
        ]
        faults = [*(Fault(kind, every, do) for kind, every, do in ours if every is not None), *faults]
        _clear(Path(self._folder.name))
        await self._start_all()
        script = Script(next(iter(self._agents)), prompts, runs, seconds, cancelled, paired, answer)
        play = Play(self.runtime, script, dice)
        try:
            async with Faults(self.workers, dice) as hitting:
                for fault in faults:
                    hitting.begin(fault)
                await play.start()
                await hitting.cease()
                await play.rest(patience)
        finally:
            await play.end()
        report = await self._judge(play.witnesses, hitting, expect)
        if not keep and not report.wrong:
            await self._forget(play.witnesses)
        return report

    def _check_playable(self, prompts: Sequence[str]) -> None:
        """Check that there are prompts and workers.

        Raises:
            ConfigurationError: There is nothing to ask, or the workers are not there.
        """
        if not prompts:
            raise ConfigurationError('chaos needs something to ask: chaos.play("Pay Bob 5.")')
        if self._open is None:
            raise ConfigurationError(
                "chaos has no workers yet, or no more: async with Chaos(...) as chaos: chaos.play(...)"
            )

    async def _judge(self, witnesses: Sequence[Witness], faults: Faults, expect: Expect | None) -> Report:
        """Check the runs, and report them together with the faults."""
        judge = Judge(Path(self._folder.name), faults.hit, expect)
        await judge.judge(self._log, witnesses)
        report = judge.report
        report.faults, report.skipped = faults.done, faults.skipped
        report.wrong += [Wrong("worker", what) for what in faults.broken]
        return report

    async def _forget(self, witnesses: Sequence[Witness]) -> None:
        """Remove the runs that are over."""
        for witness in witnesses:
            if (await self._log.get_record(witness.task_id)).state in ("completed", "failed"):
                await self._log.delete(witness.task_id)


def _clear(folder: Path) -> None:
    """Remove the notes of what was played before, and judged."""
    for notes in folder.iterdir():
        notes.unlink()
