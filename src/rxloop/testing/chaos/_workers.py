"""The workers, and what is done to them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from typing import Any

from rxloop.errors import RxloopError

_STARTS_IN = 60.0


class Worker:
    """A process, and the next one in its place."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._orders = json.dumps(orders)
        self._process: asyncio.subprocess.Process | None = None
        self.busy = False
        """Whether something is done to it at the moment."""

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start a process, and wait until it works.

        Raises:
            RxloopError: It does not.
        """
        # The modules of the tests are found there, too.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-m", "rxloop.testing.chaos.worker", self._orders]
        self._process = process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, env=environment
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_STARTS_IN):
                said = await process.stdout.readline()
        except TimeoutError:
            said = b""
        if not said:
            await self.kill()
            raise RxloopError("a worker does not start; what it says is on stderr")

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def wait(self) -> None:
        """Wait for its end."""
        assert self._process is not None
        await self._process.wait()

    async def kill(self) -> None:
        """Kill it, without a word."""
        if self._process is not None:
            self.send(signal.SIGKILL)
            await self._process.wait()


class Faults:
    """Kills, freezes and stops workers, one of them at a time, until it is cancelled."""

    def __init__(self, workers: list[Worker], lease: float, dice: random.Random) -> None:
        self._workers, self._lease, self._dice = workers, lease, dice
        self.done: Counter[str] = Counter()
        self.hit: dict[int, list[tuple[int, str]]] = {}
        """By the id of a process: when something was done to it, in milliseconds since 1970, and what."""

    async def every(self, seconds: float, kind: str) -> None:
        """Do the same again and again, after about as many seconds each time."""
        fault = {"kill": self._kill, "freeze": self._freeze, "stop": self._stop}[kind]
        under_way: set[asyncio.Task[None]] = set()
        try:
            while True:
                await asyncio.sleep(seconds * self._dice.uniform(0.5, 1.5))
                idle = [worker for worker in self._workers if not worker.busy]
                # One of them works on, so that something can be taken over.
                if len(idle) < 2:
                    continue
                worker = self._dice.choice(idle)
                worker.busy = True
                self.done[kind] += 1
                self.hit.setdefault(worker.pid, []).append((round(time.time() * 1000), kind))
                task = asyncio.create_task(fault(worker))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
        finally:
            if under_way:
                await asyncio.wait(under_way)

    async def _kill(self, worker: Worker) -> None:
        await worker.kill()
        await self._again(worker)

    async def _stop(self, worker: Worker) -> None:
        worker.send(signal.SIGTERM)
        await worker.wait()
        await self._again(worker)

    async def _freeze(self, worker: Worker) -> None:
        worker.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(self._lease * self._dice.choice((0.3, 1.5, 2.5)))
        finally:
            worker.send(signal.SIGCONT)
            worker.busy = False

    async def _again(self, worker: Worker) -> None:
        await worker.start()
        worker.busy = False
