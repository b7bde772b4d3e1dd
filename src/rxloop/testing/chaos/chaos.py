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
from typing import Any, Self

from rxloop.errors import ConfigurationError
from rxloop.protocol.events import InputRequiredEvent
from rxloop.runtime.postgres_queue import PostgresQueue
from rxloop.runtime.runtime import Runtime
from rxloop.storage.postgres_log import PostgresEventLog
from rxloop.support.tasks import wait_all
from rxloop.testing.chaos.checker import Checker, Expect
from rxloop.testing.chaos.faults import Fault, FaultInjector, freeze, kill, stop
from rxloop.testing.chaos.processes import Worker, load_agents
from rxloop.testing.chaos.report import Report, Violation, Witness
from rxloop.testing.chaos.workload import Answer, Scenario, ScenarioOptions


def _agree(question: InputRequiredEvent) -> Any:
    return True


class Chaos:
    """Worker processes that execute the runs of an agent while being killed and frozen.

    Example:
        >>> async with Chaos("shop:agent", "postgresql://localhost/empty") as chaos:
        ...     report = await chaos.run_scenario("Pay Bob 5.", runs=100, seconds=60)
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
        command_prefixes: Sequence[Sequence[str]] = (),
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
            command_prefixes: Command prefixes, assigned to workers in rotation, such as
                `["ip", "netns", "exec", "host1"]` for separate hosts. The prefix command must replace itself with the
                worker and share the file system.

        Raises:
            ConfigurationError: There are fewer than two workers, or the agents cannot be loaded.
        """
        if workers < 2:
            raise ConfigurationError(f"chaos needs at least 2 workers, got {workers}")
        self._agents = load_agents(agents)
        self._dsn, self._lease, self._grace = dsn, lease, grace
        self._settings: dict[str, Any] = {
            "agents": agents,
            "dsn": dsn,
            "deps": deps,
            "concurrency": concurrency,
            "lease": lease,
            "adopt_every": adopt_every,
            "grace": grace,
        }
        self._count, self._command_prefixes = workers, command_prefixes or [()]
        self.workers: list[Worker] = []
        """Workers, for use in custom faults."""
        self._exit_stack: AsyncExitStack | None = None

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
            settings = {**self._settings, "folder": self._folder.name}
            self.workers = [
                Worker(settings, prefix) for _, prefix in zip(range(self._count), cycle(self._command_prefixes))
            ]
            stack.push_async_callback(self._kill_all)
            await self._start_all()
            self._exit_stack = stack.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Kill the workers and close all resources. Can be called multiple times."""
        stack, self._exit_stack = self._exit_stack, None
        if stack is not None:
            await stack.aclose()

    async def _start_all(self) -> None:
        """Start all missing workers.

        Raises:
            RxloopError: A worker failed to start.
        """
        stopped = [worker for worker in self.workers if not worker.alive]
        if sys.dont_write_bytecode and stopped:
            # Let the first worker compile the modules, so that the other workers can reuse the bytecode.
            await stopped.pop().start()
        tasks = [asyncio.create_task(worker.start()) for worker in stopped]
        try:
            for done in asyncio.as_completed(tasks):
                await done
        finally:
            for task in tasks:
                task.cancel()
            await wait_all(tasks)
            # Only the first error is raised.
            await asyncio.gather(*tasks, return_exceptions=True)
        for worker in self.workers:
            worker.busy = False

    async def _kill_all(self) -> None:
        # Send all signals first, so that an interruption cannot leave a worker running.
        await wait_all([asyncio.create_task(worker.kill()) for worker in self.workers])

    async def run_scenario(
        self,
        *prompts: str,
        runs: int = 40,
        seconds: float = 20.0,
        kill_every: float | None = 2.0,
        freeze_every: float | None = 5.0,
        stop_every: float | None = None,
        faults: Sequence[Fault] = (),
        cancel_fraction: float = 0.05,
        follow_up_fraction: float = 0.2,
        answer: Answer = _agree,
        expect: Expect | None = None,
        time_limit: float = 60.0,
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
            cancel_fraction: Fraction of runs to cancel.
            follow_up_fraction: Fraction of runs started in the conversation of the previous run.
            answer: Callback that answers questions, like a client.
            expect: Expected output of completed runs, or a predicate that accepts a prompt and an output. Failed runs
                are then reported as errors. None disables the check.
            time_limit: Timeout in seconds for the runs to become idle. Other runs are reported as unfinished.
            keep: Whether to keep all runs in the log. By default, finished runs are deleted unless a check failed.
            seed: Random seed.

        Returns:
            Report with all failed checks. See `Report.check`.

        Raises:
            ConfigurationError: There are no prompts or workers, or an interval is not positive.
            RxloopError: A worker failed to restart.
        """
        self._check_ready(prompts)
        rng = random.Random(seed)
        standard = [
            ("kill", kill_every, kill),
            ("freeze", freeze_every, freeze(self._lease, rng)),
            ("stop", stop_every, stop(self._grace)),
        ]
        faults = [*(Fault(kind, every, apply) for kind, every, apply in standard if every is not None), *faults]
        _clear(Path(self._folder.name))
        await self._start_all()
        options = ScenarioOptions(
            next(iter(self._agents)), prompts, runs, seconds, cancel_fraction, follow_up_fraction, answer
        )
        scenario = Scenario(self.runtime, options, rng)
        try:
            async with FaultInjector(self.workers, rng) as injector:
                for fault in faults:
                    injector.schedule(fault)
                await scenario.start()
                await injector.stop()
                await scenario.wait_until_idle(time_limit)
        finally:
            await scenario.stop()
        report = await self._check_runs(scenario.witnesses, injector, expect)
        if not keep and not report.violations:
            await self._delete_finished(scenario.witnesses)
        return report

    def _check_ready(self, prompts: Sequence[str]) -> None:
        """Validate prompts and worker state.

        Raises:
            ConfigurationError: There are no prompts, or the workers are not running.
        """
        if not prompts:
            raise ConfigurationError('chaos needs at least one prompt, such as chaos.run_scenario("Pay Bob 5.")')
        if self._exit_stack is None:
            raise ConfigurationError("chaos has no workers outside its block; use `async with Chaos(...) as chaos`")

    async def _check_runs(self, witnesses: Sequence[Witness], faults: FaultInjector, expect: Expect | None) -> Report:
        """Check all runs and return a report, including fault statistics."""
        checker = Checker(Path(self._folder.name), faults.injected, expect)
        await checker.check(self._log, witnesses)
        report = checker.report
        report.faults, report.skipped = faults.done, faults.skipped
        report.violations += [Violation("worker", message) for message in faults.errors]
        return report

    async def _delete_finished(self, witnesses: Sequence[Witness]) -> None:
        """Delete finished runs."""
        for witness in witnesses:
            if (await self._log.get_record(witness.task_id)).state in ("completed", "failed"):
                await self._log.delete(witness.task_id)


def _clear(folder: Path) -> None:
    """Remove files from previous scenarios."""
    for file in folder.iterdir():
        file.unlink()
