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

_STOPS_IN = 30.0
"""Additional timeout in seconds for a graceful stop, after the grace period."""

_LOOK_EVERY = 0.5
"""Interval in seconds between checks for crashed workers."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Recurring fault. Terminated workers are restarted automatically.

    Attributes:
        kind: Name used in reports.
        every: Average interval in seconds.
        do: Applies the fault to a worker. If cancelled, it must leave the worker in a working state.

    Raises:
        ConfigurationError: The interval is not positive.

    Example:
        >>> async def hiccup(worker: Worker) -> None:
        ...     worker.send(signal.SIGSTOP)
        ...     try:
        ...         await asyncio.sleep(0.1)
        ...     finally:
        ...         worker.send(signal.SIGCONT)
        >>> await chaos.play("Pay Bob 5.", faults=[Fault("hiccup", 0.5, hiccup)])
    """

    kind: str
    every: float
    do: Callable[[Worker], Awaitable[None]]

    def __post_init__(self) -> None:
        if not self.every > 0:
            raise ConfigurationError(
                f"the seconds from one {self.kind} to the next are more than 0, not {self.every!r}"
            )


async def kill(worker: Worker) -> None:
    """Send SIGKILL to a worker."""
    await worker.kill()


def stop(grace: float) -> Callable[[Worker], Awaitable[None]]:
    """Create a fault that stops a worker with SIGTERM, like a deployment.

    Args:
        grace: Grace period for active runs in seconds.
    """

    async def do(worker: Worker) -> None:
        worker.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace + _STOPS_IN):
                await worker.wait()
        except TimeoutError:
            await worker.kill()
            raise RxloopError(f"it has not stopped {grace + _STOPS_IN:g} s after it was told to") from None

    return do


def freeze(lease: float, dice: random.Random) -> Callable[[Worker], Awaitable[None]]:
    """Create a fault that freezes a worker with SIGSTOP for a fraction or multiple of the lease duration.

    Args:
        lease: Lease duration in seconds.
        dice: Random number generator for the duration.
    """

    async def do(worker: Worker) -> None:
        worker.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(lease * dice.choice((0.3, 1.5, 2.5)))
        finally:
            worker.send(signal.SIGCONT)

    return do


class Faults:
    """Context manager that injects faults into random workers.

    On a normal exit, it waits for active faults. If the block fails or is cancelled, active faults are cancelled.
    Workers are never left frozen.

    Attributes:
        asked: Number of scheduled faults by kind.
        done: Number of injected faults by kind.
        skipped: Number of faults skipped because fewer than two workers were idle, by kind.
        hit: Injected faults as pairs of time (milliseconds since 1970) and kind, by process id.
        broken: Error messages for workers that crashed or failed to restart.
    """

    def __init__(self, workers: Sequence[Worker], dice: random.Random) -> None:
        """Create an injector without faults."""
        self._workers, self._dice = workers, dice
        self._timers: list[asyncio.Task[None]] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self.asked, self.done, self.skipped = Counter[str](), Counter[str](), Counter[str]()
        self.hit: dict[int, list[tuple[int, str]]] = {}
        self.broken: list[str] = []

    async def __aenter__(self) -> Self:
        self._timers.append(asyncio.create_task(self._watch(), name="chaos-watch"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.cease()
                self._see_who_has_ended()
                await self._idle()
        finally:
            tasks = [*self._timers, *self._under_way]
            for task in tasks:
                task.cancel()
            await wait_all(tasks)

    async def cease(self) -> None:
        """Stop injecting faults and wait for active ones. Crashed workers are still restarted."""
        watching, *timers = self._timers
        self._timers = [watching]
        for task in timers:
            task.cancel()
        await wait_all(timers)
        await self._idle()

    async def _idle(self) -> None:
        while self._under_way:
            await asyncio.wait(self._under_way)

    def begin(self, fault: Fault) -> None:
        """Schedule a recurring fault."""
        self._timers.append(asyncio.create_task(self._again_and_again(fault), name=f"chaos-{fault.kind}"))

    async def _again_and_again(self, fault: Fault) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time()
        while True:
            # Use absolute times, so that delays do not accumulate.
            at += fault.every * self._dice.uniform(0.5, 1.5)
            await asyncio.sleep(at - loop.time())
            self._hit(fault)

    def _hit(self, fault: Fault) -> None:
        self._see_who_has_ended()
        self.asked[fault.kind] += 1
        idle = [worker for worker in self._workers if worker.alive and not worker.busy]
        # Keep one worker running, so that runs can be adopted.
        if len(idle) < 2:
            self.skipped[fault.kind] += 1
            return
        worker = self._dice.choice(idle)
        self.done[fault.kind] += 1
        self.hit.setdefault(worker.pid, []).append((round(time.time() * 1000), fault.kind))
        self._spawn(worker, fault)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            self._see_who_has_ended()

    def _see_who_has_ended(self) -> None:
        for worker in self._workers:
            if not (worker.busy or worker.alive):
                self._found(f"a worker ended by itself, with {worker.ended_with}")
                self._spawn(worker, None)

    def _spawn(self, worker: Worker, fault: Fault | None) -> None:
        worker.busy = True
        task = asyncio.create_task(self._do(worker, fault))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _do(self, worker: Worker, fault: Fault | None) -> None:
        """Apply a fault, if any, and restart the worker if it has ended."""
        if fault is not None:
            try:
                await fault.do(worker)
            except Exception as error:
                self._found(f"the fault {fault.kind} failed: {error!r}")
        try:
            if not worker.alive:
                await worker.start()
        except Exception as error:
            # The worker stays marked as busy and is therefore excluded.
            self._found(f"a worker is gone, and did not start again: {error}")
        else:
            worker.busy = False

    def _found(self, what: str) -> None:
        self.broken.append(what)
        log.error("chaos: %s", what)
