"""An agent under faults: start runs, kill and freeze the workers that carry them out, and judge."""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rxloop.errors import ConfigurationError, EventLogError, InvalidInput, RunOver
from rxloop.eventlog.postgres import PostgresEventLog
from rxloop.protocol.events import InputRequiredEvent
from rxloop.runtime.runtime import Runtime
from rxloop.testing.chaos._judge import Judge, Seen, seen
from rxloop.testing.chaos._loading import load_agents
from rxloop.testing.chaos._workers import Faults, Worker
from rxloop.testing.chaos.report import Report
from rxloop.workers.postgres import PostgresQueue

log = logging.getLogger("rxloop")

Answer = Callable[[InputRequiredEvent], Any]
"""Gives the answer to a question."""


_FORGOTTEN = 5.0
"""Seconds after which a question that nobody has answered stays without an answer."""


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

        Raises:
            ConfigurationError: There are too few workers, or no such agents.
        """
        if workers < 2:
            raise ConfigurationError(f"chaos needs two workers at least, and not {workers}: one goes on for the other")
        self._agents = load_agents(agents)
        self._dsn, self._lease = dsn, lease
        self._orders: dict[str, Any] = {
            "agents": agents,
            "dsn": dsn,
            "deps": deps,
            "concurrency": concurrency,
            "lease": lease,
            "adopt_every": adopt_every,
            "grace": grace,
        }
        self._count = workers
        self.workers: list[Worker] = []
        """The workers, for faults of your own."""
        self._answered: list[tuple[str, str]] = []
        """What was answered, and somebody was told so: the runs and the questions."""

    async def __aenter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="rxloop-chaos-")
        self._log = PostgresEventLog(self._dsn, lease=self._lease)
        self._queue = PostgresQueue(self._dsn)
        # So that the tables are there before the workers are.
        await self._log.runs(limit=1)
        await self._queue.waiting()
        self.runtime = Runtime(self._agents, log=self._log, queue=self._queue, max_waiting=None)
        """A replica that drives nothing: it starts runs, and follows them."""
        await self.runtime.__aenter__()
        self.workers = [Worker({**self._orders, "folder": self._folder.name}) for _ in range(self._count)]
        try:
            await asyncio.gather(*(worker.start() for worker in self.workers))
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Kill the workers, and close what is open."""
        await asyncio.gather(*(worker.kill() for worker in self.workers))
        await self.runtime.drain(0)
        await self._queue.aclose()
        await self._log.aclose()
        self._folder.cleanup()

    async def play(
        self,
        *prompts: str,
        runs: int = 40,
        seconds: float = 20.0,
        kill_every: float | None = 2.0,
        freeze_every: float | None = 5.0,
        stop_every: float | None = None,
        cancelled: float = 0.05,
        paired: float = 0.2,
        answer: Answer = _agree,
        patience: float = 60.0,
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
            cancelled: The share of runs that are cancelled.
            paired: The share of runs that are begun in the conversation of the one before.
            answer: Answers the questions of the runs, as from a browser.
            patience: Seconds that the runs have to come to rest afterwards.
            seed: Of the dice.

        Returns:
            What the judge has found: see `Report.check`.
        """
        if not prompts:
            raise ConfigurationError('chaos needs something to ask: chaos.play("Pay Bob 5.")')
        dice = random.Random(seed)
        self._answered.clear()
        _clear(Path(self._folder.name))
        faults = Faults(self.workers, self._lease, dice)
        each = {"kill": kill_every, "freeze": freeze_every, "stop": stop_every}
        hitting = [
            asyncio.create_task(faults.every(every, kind), name=f"chaos-{kind}")
            for kind, every in each.items()
            if every is not None
        ]
        following: dict[str, asyncio.Task[Sequence[Seen]]] = {}
        try:
            await self._start(prompts, runs, seconds, cancelled, paired, answer, dice, following)
        finally:
            for task in hitting:
                task.cancel()
            await asyncio.gather(*hitting, return_exceptions=True)
        await self._rest(following, patience)
        judge = Judge(Path(self._folder.name), faults.hit)
        judge.report.faults = faults.done
        await judge.judge(self._log, {task_id: _result(task) for task_id, task in following.items()}, self._answered)
        for task in following.values():
            task.cancel()
        await asyncio.gather(*following.values(), return_exceptions=True)
        return judge.report

    async def _start(
        self,
        prompts: Sequence[str],
        runs: int,
        seconds: float,
        cancelled: float,
        paired: float,
        answer: Answer,
        dice: random.Random,
        following: dict[str, asyncio.Task[Sequence[Seen]]],
    ) -> None:
        agent, context_id = next(iter(self._agents)), None
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        cancelling: list[asyncio.Task[None]] = []
        for number in range(runs):
            if not (context_id and dice.random() < paired):
                context_id = f"chaos-{dice.getrandbits(64):x}"
            record = await self.runtime.start(agent, prompts[number % len(prompts)], context_id=context_id)
            following[record.task_id] = asyncio.create_task(self._follow(record.task_id, answer))
            if dice.random() < cancelled:
                cancelling.append(asyncio.create_task(self._cancel(record.task_id, dice.uniform(0, 3))))
            await asyncio.sleep(seconds / runs * dice.uniform(0.2, 1.2))
        await asyncio.sleep(max(0, ends - loop.time()))
        await asyncio.gather(*cancelling)

    async def _rest(self, following: Mapping[str, asyncio.Task[Any]], patience: float) -> None:
        """Wait until all runs are over, or wait for an answer that nobody gives; the judge says what they are then."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + patience
        while loop.time() < ends and (left := [key for key, task in following.items() if not task.done()]):
            await asyncio.wait([following[task_id] for task_id in left], timeout=1)
            records = [await self.runtime.record(task_id) for task_id in left]
            # A later run of the conversation may have let a question go.
            since = (time.time() - _FORGOTTEN) * 1000
            if all(
                record.state in ("input-required", "auth-required") and record.updated < since for record in records
            ):
                return

    async def _follow(self, task_id: str, answer: Answer) -> Sequence[Seen]:
        """Follow a run to its end, as a browser does, and answer what it asks."""
        got: list[Seen] = []
        cursor: str | None = None
        answering: set[asyncio.Task[None]] = set()
        while True:
            try:
                async for event in self.runtime.follow(task_id, after=cursor):
                    if event.durable:
                        got.append(seen(event))
                        cursor = event.cursor
                    if isinstance(event, InputRequiredEvent):
                        task = asyncio.create_task(self._answer(task_id, event.input_id, answer(event)))
                        answering.add(task)
                        task.add_done_callback(answering.discard)
                return got
            except EventLogError as error:
                log.info("the run %s is followed once more: %s", task_id, error)
                await asyncio.sleep(0.5)

    async def _answer(self, task_id: str, input_id: str, value: Any) -> None:
        # Somebody else may have answered, or the run is over.
        with suppress(InvalidInput, RunOver):
            await _insist(lambda: self.runtime.answer(task_id, {input_id: value}))
            self._answered.append((task_id, input_id))

    async def _cancel(self, task_id: str, after: float) -> None:
        await asyncio.sleep(after)
        await _insist(lambda: self.runtime.cancel(task_id, "chaos"))


def _clear(folder: Path) -> None:
    """Remove the notes of what was played before, and judged."""
    for notes in folder.iterdir():
        notes.unlink()


async def _insist(do: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do something, and do it again while the log is out of reach, as a client does."""
    while True:
        try:
            return await do()
        except EventLogError:
            await asyncio.sleep(0.5)


def _result(task: asyncio.Task[Sequence[Seen]]) -> Sequence[Seen] | None:
    return task.result() if task.done() and not task.cancelled() and task.exception() is None else None
