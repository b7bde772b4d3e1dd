"""Fault injection test for an agent, including its worker processes and result checks."""

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
    """Worker processes that execute the runs of an agent while being killed and frozen.

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
        """Configure the workers without starting them.

        Args:
            agents: Import path `module:object` of an agent, a dict of agents by name, or a function that returns
                either. Each worker imports it separately.
            dsn: URL of a dedicated Postgres database.
            workers: Number of workers, at least 2.
            concurrency: Maximum number of concurrent runs per worker.
            lease: Lease duration in seconds. A worker frozen for longer is considered dead.
            adopt_every: Interval in seconds between scans for runs of dead workers.
            grace: Seconds between SIGTERM and the forced end of a worker's runs.
            deps: Import path `module:function` of a function that creates the deps for a run.
            within: Command prefixes, assigned to workers in rotation, such as `["ip", "netns", "exec", "host1"]` for
                separate hosts. The prefix command must replace itself with the worker and share the file system.

        Raises:
            ConfigurationError: There are fewer than two workers, or the agents cannot be loaded.
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
        """Workers, for use in custom faults."""
        self._open: AsyncExitStack | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._folder = tempfile.TemporaryDirectory(prefix="rxloop-chaos-")
            stack.callback(self._folder.cleanup)
            self._log = PostgresEventLog(self._dsn, lease=self._lease)
            stack.push_async_callback(self._log.aclose)
            queue = PostgresQueue(self._dsn)
            stack.push_async_callback(queue.aclose)
            # Create the tables before starting the workers.
            await self._log.list_runs(limit=1)
            await queue.waiting()
            self.runtime = Runtime(self._agents, log=self._log, queue=queue, max_waiting=None)
            """Runtime without workers, used to start and follow runs."""
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
        """Kill the workers and close all resources. Can be called multiple times."""
        stack, self._open = self._open, None
        if stack is not None:
            await stack.aclose()

    async def _start_all(self) -> None:
        """Start all missing workers.

        Raises:
            RxloopError: A worker failed to start.
        """
        gone = [worker for worker in self.workers if not worker.alive]
        if sys.dont_write_bytecode and gone:
            # Let the first worker compile the modules, so that the other workers can reuse the bytecode.
            await gone.pop().start()
        starting = [asyncio.create_task(worker.start()) for worker in gone]
        try:
            for done in asyncio.as_completed(starting):
                await done
        finally:
            for task in starting:
                task.cancel()
            await wait_all(starting)
            # Only the first error is raised.
            await asyncio.gather(*starting, return_exceptions=True)
        for worker in self.workers:
            worker.busy = False

    async def _kill_all(self) -> None:
        # Send all signals first, so that an interruption cannot leave a worker running.
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
        """Start runs while injecting faults, wait for the runs to become idle, and check the results.

        Args:
            *prompts: Prompts, used in rotation.
            runs: Number of runs. All of them use the first agent.
            seconds: Duration in seconds for starting runs and injecting faults.
            kill_every: Average seconds between kills (SIGKILL). None disables kills.
            freeze_every: Average seconds between freezes (SIGSTOP, followed by SIGCONT before or after the lease
                expires).
            stop_every: Average seconds between graceful stops (SIGTERM).
            faults: Custom faults.
            cancelled: Fraction of runs to cancel.
            paired: Fraction of runs started in the conversation of the previous run.
            answer: Callback that answers questions, like a client.
            expect: Expected output of completed runs, or a predicate that accepts a prompt and an output. Failed runs
                are then reported as errors. None disables the check.
            patience: Timeout in seconds for the runs to become idle.
            keep: Whether to keep all runs in the log. By default, finished runs are deleted unless a check failed.
            seed: Random seed.

        Returns:
            Report with all failed checks. See `Report.check`.

        Raises:
            ConfigurationError: There are no prompts or workers, or an interval is not positive.
            RxloopError: A worker failed to restart.
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
        """Validate prompts and worker state.

        Raises:
            ConfigurationError: There are no prompts, or the workers are not running.
        """
        if not prompts:
            raise ConfigurationError('chaos needs something to ask: chaos.play("Pay Bob 5.")')
        if self._open is None:
            raise ConfigurationError(
                "chaos has no workers yet, or no more: async with Chaos(...) as chaos: chaos.play(...)"
            )

    async def _judge(self, witnesses: Sequence[Witness], faults: Faults, expect: Expect | None) -> Report:
        """Check all runs and return a report, including fault statistics."""
        judge = Judge(Path(self._folder.name), faults.hit, expect)
        await judge.judge(self._log, witnesses)
        report = judge.report
        report.faults, report.skipped = faults.done, faults.skipped
        report.wrong += [Wrong("worker", what) for what in faults.broken]
        return report

    async def _forget(self, witnesses: Sequence[Witness]) -> None:
        """Delete finished runs."""
        for witness in witnesses:
            if (await self._log.get_record(witness.task_id)).state in ("completed", "failed"):
                await self._log.delete(witness.task_id)


def _clear(folder: Path) -> None:
    """Remove files from previous scenarios."""
    for notes in folder.iterdir():
        notes.unlink()
