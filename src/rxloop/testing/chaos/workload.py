"""Simulated clients that start, follow, answer and cancel runs."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from rxloop.errors import ConflictError, EventLogError, InvalidInput, RunOver
from rxloop.protocol.events import WAITING, InputRequiredEvent
from rxloop.runtime.runtime import Runtime
from rxloop.support.tasks import wait_all
from rxloop.testing.chaos.report import Witness, seen

log = logging.getLogger("rxloop")

Answer = Callable[[InputRequiredEvent], Any]
"""Callback for answering questions."""

_FORGOTTEN = 5.0
"""Seconds after which an open question is considered unanswered."""

_AGAIN_IN = 0.5


@dataclass(frozen=True, slots=True)
class Script:
    """Scenario parameters. See `Chaos.play`."""

    agent: str
    prompts: Sequence[str]
    runs: int
    seconds: float
    cancelled: float
    paired: float
    answer: Answer


class Play:
    """Scenario execution. `witnesses` contains the client observations in start order."""

    def __init__(self, runtime: Runtime, script: Script, dice: random.Random) -> None:
        """Create a scenario without starting it."""
        self._runtime, self._script, self._dice = runtime, script, dice
        self.witnesses: list[Witness] = []
        self._following: dict[str, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start runs at random intervals, and cancel some of them."""
        script, dice, context_id = self._script, self._dice, None
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for number in range(script.runs):
            if not (context_id and dice.random() < script.paired):
                context_id = f"chaos-{dice.getrandbits(64):x}"
            prompt = script.prompts[number % len(script.prompts)]
            record = await self._runtime.start(script.agent, prompt, context_id=context_id)
            witness = Witness(record.task_id, context_id, prompt)
            self.witnesses.append(witness)
            self._following[record.task_id] = asyncio.create_task(self._follow(witness))
            if dice.random() < script.cancelled:
                self._do(self._cancel(witness, dice.uniform(0, 3)))
            # Use absolute times, so that delays do not extend the scenario.
            due = begun + script.seconds * (number + dice.uniform(0.5, 1.5)) / script.runs
            await asyncio.sleep(min(due, begun + script.seconds) - loop.time())
        await asyncio.sleep(begun + script.seconds - loop.time())

    async def rest(self, patience: float) -> None:
        """Wait until all runs have ended or need input, or the timeout expires.

        The checker validates the states afterwards.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + patience
        while loop.time() < ends and (left := [key for key, task in self._following.items() if not task.done()]):
            await asyncio.wait([self._following[task_id] for task_id in left], timeout=1)
            records = [await self._runtime.get_record(task_id) for task_id in left]
            # Later runs in the conversation can drop questions.
            since = (time.time() - _FORGOTTEN) * 1000
            if all(record.state in WAITING and record.updated < since for record in records):
                break
        if self._others:
            await asyncio.wait(self._others, timeout=max(0, ends - loop.time()))

    async def end(self) -> None:
        """Cancel all clients."""
        tasks = [*self._following.values(), *self._others]
        for task in tasks:
            task.cancel()
        await wait_all(tasks)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def _follow(self, witness: Witness) -> None:
        """Follow a run and answer its questions, like a browser."""
        cursor: str | None = None
        while True:
            try:
                async for event in self._runtime.follow(witness.task_id, after=cursor):
                    if event.durable:
                        witness.seen.append(seen(event))
                        cursor = event.cursor
                    if isinstance(event, InputRequiredEvent):
                        self._do(self._answer(witness, event.input_id, self._script.answer(event)))
                witness.saw_its_end = True
                return
            except EventLogError as error:
                log.info("the run %s is followed once more: %s", witness.task_id, error)
                await asyncio.sleep(_AGAIN_IN)
            except Exception as error:
                log.exception("chaos: the run %s cannot be followed", witness.task_id)
                witness.failed = repr(error)
                return

    async def _answer(self, witness: Witness, input_id: str, value: Any) -> None:
        try:
            await _insist(lambda: self._runtime.answer(witness.task_id, {input_id: value}))
            witness.answered.append(input_id)
        except (InvalidInput, RunOver) as error:
            # Either a later run dropped the question or the run has already ended.
            witness.refused[input_id] = str(error)

    async def _cancel(self, witness: Witness, after: float) -> None:
        await asyncio.sleep(after)
        witness.cancelling = True
        try:
            await _insist(lambda: self._runtime.cancel(witness.task_id, "chaos"))
            witness.cancelled_at = round(time.time() * 1000)
        except ConflictError as error:
            # The command was stored but not acknowledged.
            log.info("the run %s is not cancelled yet: %s", witness.task_id, error)


async def _insist(do: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Retry an operation while the log is unavailable, like a client."""
    while True:
        try:
            return await do()
        except ConflictError:
            raise
        except EventLogError:
            await asyncio.sleep(_AGAIN_IN)
