"""Fault injection for worker processes."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rxloop.errors import ConfigurationError, RxloopError
from rxloop.support.tasks import wait_all
from rxloop.testing.chaos.processes import Worker

log = logging.getLogger("rxloop")

_STOP_TIMEOUT = 30.0
"""Additional timeout in seconds for a graceful stop, after the grace period."""

_CHECK_INTERVAL = 0.5
"""Interval in seconds between checks for crashed workers."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Recurring fault. Terminated workers are restarted automatically.

    Attributes:
        kind: Name used in reports.
        every: Average interval in seconds.
        apply: Function that applies the fault to a worker. If cancelled, it must leave the worker in a working state.

    Raises:
        ConfigurationError: The interval is not positive.

    Example:
        >>> async def hiccup(worker: Worker) -> None:
        ...     worker.send(signal.SIGSTOP)
        ...     try:
        ...         await asyncio.sleep(0.1)
        ...     finally:
        ...         worker.send(signal.SIGCONT)
        >>> await chaos.run_scenario("Pay Bob 5.", faults=[Fault("hiccup", 0.5, hiccup)])
    """

    kind: str
    every: float
    apply: Callable[[Worker], Awaitable[None]]

    def __post_init__(self) -> None:
        if not self.every > 0:
            raise ConfigurationError(f"the interval of the fault {self.kind!r} must be positive, got {self.every!r}")


async def kill(worker: Worker) -> None:
    """Send SIGKILL to a worker."""
    await worker.kill()


def stop(grace: float) -> Callable[[Worker], Awaitable[None]]:
    """Create a fault that stops a worker with SIGTERM, like a deployment.

    Args:
        grace: Grace period for active runs in seconds.
    """

    async def apply(worker: Worker) -> None:
        worker.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace + _STOP_TIMEOUT):
                await worker.wait()
        except TimeoutError:
            await worker.kill()
            raise RxloopError(f"the worker did not stop within {grace + _STOP_TIMEOUT:g} s of SIGTERM") from None

    return apply


def freeze(lease: float, rng: random.Random) -> Callable[[Worker], Awaitable[None]]:
    """Create a fault that freezes a worker with SIGSTOP for a fraction or multiple of the lease duration.

    Args:
        lease: Lease duration in seconds.
        rng: Random number generator for the duration.
    """

    async def apply(worker: Worker) -> None:
        worker.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(lease * rng.choice((0.3, 1.5, 2.5)))
        finally:
            worker.send(signal.SIGCONT)

    return apply


class FaultInjector:
    """Context manager that injects faults into random workers.

    On a normal exit, it waits for active faults. If the block fails or is cancelled, active faults are cancelled.
    Workers are never left frozen.

    Attributes:
        scheduled: Number of scheduled faults by kind.
        done: Number of injected faults by kind.
        skipped: Number of faults skipped because fewer than two workers were idle, by kind.
        injected: Injected faults as pairs of time (milliseconds since 1970) and kind, by process id.
        errors: Error messages for workers that crashed or failed to restart.
    """

    def __init__(self, workers: Sequence[Worker], rng: random.Random) -> None:
        """Create an injector without faults."""
        self._workers, self._rng = workers, rng
        self._timers: list[asyncio.Task[None]] = []
        self._active: set[asyncio.Task[None]] = set()
        self.scheduled, self.done, self.skipped = Counter[str](), Counter[str](), Counter[str]()
        self.injected: dict[int, list[tuple[int, str]]] = {}
        self.errors: list[str] = []

    async def __aenter__(self) -> Self:
        self._timers.append(asyncio.create_task(self._watch(), name="chaos-watch"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.stop()
                self._restart_crashed()
                await self._wait_for_active()
        finally:
            tasks = [*self._timers, *self._active]
            for task in tasks:
                task.cancel()
            await wait_all(tasks)

    async def stop(self) -> None:
        """Stop injecting faults and wait for active ones. Crashed workers are still restarted."""
        watcher, *timers = self._timers
        self._timers = [watcher]
        for task in timers:
            task.cancel()
        await wait_all(timers)
        await self._wait_for_active()

    async def _wait_for_active(self) -> None:
        while self._active:
            await asyncio.wait(self._active)

    def schedule(self, fault: Fault) -> None:
        """Schedule a recurring fault."""
        self._timers.append(asyncio.create_task(self._repeat(fault), name=f"chaos-{fault.kind}"))

    async def _repeat(self, fault: Fault) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            # Use absolute times, so that delays do not accumulate.
            due += fault.every * self._rng.uniform(0.5, 1.5)
            await asyncio.sleep(due - loop.time())
            self._inject(fault)

    def _inject(self, fault: Fault) -> None:
        self._restart_crashed()
        self.scheduled[fault.kind] += 1
        idle = [worker for worker in self._workers if worker.alive and not worker.busy]
        # Keep one worker running, so that runs can be adopted.
        if len(idle) < 2:
            self.skipped[fault.kind] += 1
            return
        worker = self._rng.choice(idle)
        self.done[fault.kind] += 1
        self.injected.setdefault(worker.pid, []).append((round(time.time() * 1000), fault.kind))
        self._spawn(worker, fault)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            self._restart_crashed()

    def _restart_crashed(self) -> None:
        for worker in self._workers:
            if not (worker.busy or worker.alive):
                self._add_error(f"a worker exited unexpectedly with code {worker.exit_code}")
                self._spawn(worker, None)

    def _spawn(self, worker: Worker, fault: Fault | None) -> None:
        worker.busy = True
        task = asyncio.create_task(self._apply(worker, fault))
        self._active.add(task)
        task.add_done_callback(self._active.discard)

    async def _apply(self, worker: Worker, fault: Fault | None) -> None:
        """Apply a fault, if any, and restart the worker if it has ended."""
        if fault is not None:
            try:
                await fault.apply(worker)
            except Exception as error:
                self._add_error(f"fault {fault.kind} failed: {error!r}")
        try:
            if not worker.alive:
                await worker.start()
        except Exception as error:
            # The worker stays marked as busy and is therefore excluded.
            self._add_error(f"a worker did not restart: {error}")
        else:
            worker.busy = False

    def _add_error(self, message: str) -> None:
        self.errors.append(message)
        log.error("Chaos test: %s", message)
