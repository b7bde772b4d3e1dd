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
from rxloop.testing.chaos.report import ACTIVE, Witness, summarize

log = logging.getLogger("rxloop")

Answer = Callable[[InputRequiredEvent], Any]
"""Callback for answering questions."""

_QUIET_TIME = 5.0
"""Seconds without a new event after which an idle run is expected to stay idle."""

_RETRY_DELAY = 0.5


@dataclass(frozen=True, slots=True)
class ScenarioOptions:
    """Scenario parameters. See `Chaos.run_scenario`."""

    agent: str
    prompts: Sequence[str]
    runs: int
    seconds: float
    cancel_fraction: float
    follow_up_fraction: float
    answer: Answer


class Scenario:
    """Scenario execution. `witnesses` contains the client observations in start order."""

    def __init__(self, runtime: Runtime, options: ScenarioOptions, rng: random.Random) -> None:
        """Create a scenario without starting it."""
        self._runtime, self._options, self._rng = runtime, options, rng
        self.witnesses: list[Witness] = []
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._commands: dict[asyncio.Task[None], str] = {}

    async def start(self) -> None:
        """Start runs at random intervals, and cancel some of them."""
        options, rng, context_id = self._options, self._rng, None
        loop = asyncio.get_running_loop()
        started = loop.time()
        for number in range(options.runs):
            if not (context_id and rng.random() < options.follow_up_fraction):
                context_id = f"chaos-{rng.getrandbits(64):x}"
            prompt = options.prompts[number % len(options.prompts)]
            record = await self._runtime.start(options.agent, prompt, context_id=context_id)
            witness = Witness(record.task_id, context_id, prompt)
            self.witnesses.append(witness)
            self._followers[record.task_id] = asyncio.create_task(self._follow(witness))
            if rng.random() < options.cancel_fraction:
                self._spawn(witness, self._cancel(witness, rng.uniform(0, 3)))
            # Use absolute times, so that delays do not extend the scenario.
            due = started + options.seconds * (number + rng.uniform(0.5, 1.5)) / options.runs
            await asyncio.sleep(min(due, started + options.seconds) - loop.time())
        await asyncio.sleep(started + options.seconds - loop.time())

    async def wait_until_idle(self, time_limit: float) -> None:
        """Wait until all runs have ended or need input, or the time limit ends.

        Runs that are not idle by then are marked as unfinished. The checker validates the states afterwards.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + time_limit
        while (followed := self._list_followed()) or self._commands:
            # Later runs in the conversation can drop questions.
            latest = (time.time() - _QUIET_TIME) * 1000
            records = [await self._runtime.get_record(witness.task_id) for witness in followed]
            quiet = {record.task_id for record in records if record.state not in ACTIVE and record.updated < latest}
            quiet.difference_update(self._commands.values())
            if not self._commands and all(record.state in WAITING and record.task_id in quiet for record in records):
                return
            seconds = deadline - loop.time()
            if seconds <= 0:
                for witness in followed:
                    witness.unfinished = witness.task_id not in quiet
                return
            followers = [self._followers[witness.task_id] for witness in followed]
            await asyncio.wait([*followers, *self._commands], timeout=min(1, seconds))

    async def stop(self) -> None:
        """Cancel all clients."""
        tasks = [*self._followers.values(), *self._commands]
        for task in tasks:
            task.cancel()
        await wait_all(tasks)

    def _list_followed(self) -> list[Witness]:
        return [witness for witness in self.witnesses if not self._followers[witness.task_id].done()]

    def _spawn(self, witness: Witness, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._commands[task] = witness.task_id
        task.add_done_callback(self._commands.pop)

    async def _follow(self, witness: Witness) -> None:
        """Follow a run and answer its questions, like a browser."""
        cursor: str | None = None
        while True:
            try:
                async for event in self._runtime.follow(witness.task_id, after=cursor):
                    if event.durable:
                        witness.received.append(summarize(event))
                        cursor = event.cursor
                    if isinstance(event, InputRequiredEvent):
                        self._spawn(witness, self._answer(witness, event.input_id, self._options.answer(event)))
                witness.reached_end = True
                return
            except EventLogError as error:
                log.info("Following run %s again: %s", witness.task_id, error)
                await asyncio.sleep(_RETRY_DELAY)
            except Exception as error:
                log.exception("Chaos test: cannot follow run %s", witness.task_id)
                witness.failed = repr(error)
                return

    async def _answer(self, witness: Witness, input_id: str, value: Any) -> None:
        try:
            await _retry(lambda: self._runtime.answer(witness.task_id, {input_id: value}))
            witness.answered.append(input_id)
        except (InvalidInput, RunOver) as error:
            # Either a later run dropped the question or the run has already ended.
            witness.refused[input_id] = str(error)

    async def _cancel(self, witness: Witness, delay: float) -> None:
        await asyncio.sleep(delay)
        witness.cancel_requested = True
        try:
            await _retry(lambda: self._runtime.cancel(witness.task_id, "chaos"))
            witness.cancelled_at = round(time.time() * 1000)
        except ConflictError as error:
            # The command was stored but not acknowledged.
            log.info("Cancel of run %s not acknowledged: %s", witness.task_id, error)


async def _retry(send: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Retry an operation while the log is unavailable, like a client."""
    while True:
        try:
            return await send()
        except ConflictError:
            raise
        except EventLogError:
            await asyncio.sleep(_RETRY_DELAY)
