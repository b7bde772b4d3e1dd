"""Two processes on one file, killed and frozen at random while they start, settle, answer, cancel and release runs.

`RXLOOP_INTERLEAVINGS=200 pytest tests/crash/test_machines.py` tries more of them, `RXLOOP_FIRST=17` begins with that
one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import uuid
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rxloop import Event, RunRecord, SqliteEventLog, StatusUpdateEvent
from rxloop.protocol.events import InputReceivedEvent, MessageAddedEvent, ToolStartEvent
from rxloop.state.fold import fold_all
from support.crash.replica import LEASE
from support.processes.bound_processes import PREFIX

REPLICA = Path(__file__).parents[1] / "support/crash/replica.py"
FIRST = int(os.environ.get("RXLOOP_FIRST", "1"))
TRIALS = int(os.environ.get("RXLOOP_INTERLEAVINGS", "3"))
ACTIONS = 60
PATIENCE = 60.0
"""Seconds within which every order is carried out by a process that nobody kills."""

REFUSALS = {"ContextBusy", "InvalidInput", "NotAsked", "UnknownRun", "RunExists", "ConflictError", "Fenced", "RunOver"}
"""How an order may be refused: the run, or the conversation, is not as who gave it thought."""


class Replica:
    """One process, or the next one in its place."""

    def __init__(self, folder: Path) -> None:
        self._arguments = [str(REPLICA), str(folder / "runs.db"), str(folder / "effects")]
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ids = iter(range(1_000_000))
        self._up = asyncio.Event()
        self.told: list[dict[str, Any]] = []
        self.frozen = False
        self.slowest: tuple[Any, ...] = (0.0,)
        """The order that took the longest: its seconds, what it was, and what came of it."""

    async def start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *PREFIX, sys.executable, *self._arguments, stdin=pipe, stdout=pipe
        )
        assert self._process.stdout is not None
        assert b"ready" in await self._process.stdout.readline()
        self._reading = asyncio.create_task(self._read(self._process))
        self._up.set()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            said = json.loads(line)
            answer = self._waiting.pop(said["id"], None) if "id" in said else None
            if answer is not None and not answer.done():
                answer.set_result(said)
            elif "durable" in said:
                self.told.append(said)

    async def order(self, do: str, **fields: Any) -> dict[str, Any] | None:
        """What came of an order; None if the process died."""
        await self._up.wait()
        loop = asyncio.get_running_loop()
        number, begun = next(self._ids), loop.time()
        answer = self._waiting[number] = loop.create_future()
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.write(json.dumps({"id": number, "do": do, **fields}).encode() + b"\n")
        await asyncio.wait([answer], timeout=PATIENCE)
        if not answer.done():
            # It tells where its tasks are, which pytest shows.
            self._process.send_signal(signal.SIGUSR1)
            await asyncio.sleep(2)
        assert answer.done(), f"{do} {fields} hangs in {self._process.pid}"
        if answer.cancelled():
            return None
        said = answer.result()
        assert "ok" in said or said["error"] in REFUSALS, (do, fields, said)
        self.slowest = max(self.slowest, (loop.time() - begun, do, fields.get("task"), said))
        return said

    async def kill(self) -> None:
        self._up.clear()
        self._process.kill()
        await self._process.wait()
        await self._reading
        for answer in self._waiting.values():
            answer.cancel()
        self._waiting.clear()
        self.frozen = False

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self.frozen = False


class Trial:
    """One interleaving: what was ordered, what was acknowledged, and what the log has of it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.log = SqliteEventLog(folder / "runs.db", lease=LEASE)
        self.replicas = [Replica(folder), Replica(folder)]
        self.runs: list[str] = []
        self.there: set[str] = set()
        """The runs of which a process has said that they are in the log."""
        self.cancelled: set[str] = set()
        self.answered: dict[str, dict[str, bool]] = {}
        self.said: Counter[str] = Counter()
        self.orders: list[asyncio.Task[None]] = []

    async def play(self) -> None:
        for replica in self.replicas:
            await replica.start()
        for number in range(4):
            self._soon(self._new(self.random.choice(self.replicas), f"c{number}"))
        for _ in range(ACTIONS):
            await self._act()
            await asyncio.sleep(self.random.random() * 0.12)
        await self._rest()

    async def _act(self) -> None:
        replica, run = self.random.choice(self.replicas), self.random.choice(self.runs) if self.runs else None
        action = self.random.choices(
            ("new", "settle", "resume", "say", "cancel", "answer", "release", "freeze", "kill"),
            (4, 14, 3, 8, 2, 18, 2, 2, 2),
        )[0]
        if action == "new" or run is None:
            self._soon(self._new(replica, f"c{self.random.randrange(6)}"))
        elif action == "freeze" and not replica.frozen:
            replica.freeze()
            asyncio.get_running_loop().call_later(self.random.choice((0.2, 1.5, 2.5)) * LEASE, self._thaw, replica)
        elif action == "kill":
            await replica.kill()
            await replica.start()
        elif action == "say":
            self._soon(self._say(replica, run))
        elif action == "cancel":
            self._soon(self._cancel(replica, run))
        elif action == "answer":
            self._soon(self._answer(replica, run))
        elif action == "release":
            self._soon(self._order(replica, "release", task=run, grace=self.random.choice((0, 0.05))))
        elif action in ("settle", "resume"):
            self._soon(self._order(replica, action, task=run))

    def _thaw(self, replica: Replica) -> None:
        if replica.frozen:
            replica.thaw()

    def _soon(self, work: Coroutine[Any, Any, Any]) -> None:
        self.orders.append(asyncio.create_task(work))

    async def _order(self, replica: Replica, do: str, **fields: Any) -> dict[str, Any] | None:
        return await replica.order(do, **fields)

    async def _new(self, replica: Replica, context: str) -> None:
        task = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        self.runs.append(task)
        do = self.random.choice(("submit", "start"))
        said = await replica.order(do, task=task, context=context)
        # One that was released, or cancelled, before the log had any of it has never been.
        if said is not None and said.get("ok", "canceled") != "canceled":
            self.there.add(task)

    async def _say(self, replica: Replica, run: str) -> None:
        text = f"say {self.random.getrandbits(64)}"
        said = await replica.order("say", task=run, text=text)
        if said is not None and "ok" in said:
            self.said[text] += 1

    async def _cancel(self, replica: Replica, run: str) -> None:
        said = await replica.order("cancel", task=run)
        if said is not None and "ok" in said:
            self.cancelled.add(run)

    async def _answer(self, replica: Replica, run: str) -> None:
        inputs = {name: self.random.random() < 0.8 for name in await self._questions(run)}
        said = await replica.order("answer", task=run, inputs=inputs) if inputs else None
        if said is not None and "ok" in said:
            self.answered.setdefault(run, {}).update(inputs)

    async def _questions(self, run: str) -> list[str]:
        try:
            return list(fold_all(await self.log.read(run)).pending)
        except LookupError:
            return []

    async def _rest(self) -> None:
        """Bring everything to rest: whoever is alive settles every run, and every question is answered."""
        for replica in self.replicas:
            if replica.frozen:
                replica.thaw()
        # What is still ordered waits for runs that nobody has settled yet, and wakes others that were at rest.
        await asyncio.gather(self._settle_all(), *(self._settle_after(order) for order in self.orders))

    async def _settle_after(self, order: asyncio.Task[None]) -> None:
        if not order.done():
            await asyncio.wait([order])
            await self._settle_all()
        await order

    async def _settle_all(self) -> None:
        while unfinished := [r.task_id for r in await self.log.list_runs(unfinished=True) if r.state != "canceled"]:
            await asyncio.gather(
                *(replica.order("settle", task=run) for run in unfinished for replica in self.replicas)
            )
            for run in unfinished:
                inputs = dict.fromkeys(await self._questions(run), True)
                said = await self.replicas[0].order("answer", task=run, inputs=inputs) if inputs else None
                if said is not None and "dropped its questions" in said.get("why", ""):
                    await self.replicas[0].order("cancel", task=run)

    async def tell(self) -> None:
        """Print which runs are not over, and the letters to them."""
        for record in await self.log.list_runs(unfinished=True):
            print(record, await self.log.read_commands(record.task_id))

    async def aclose(self) -> None:
        for order in self.orders:
            order.cancel()
        for replica in self.replicas:
            await replica.kill()
        await self.log.aclose()

    # -- the judge

    async def judge(self) -> None:
        records = await self.log.list_runs()
        assert self.there <= {record.task_id for record in records}
        texts: Counter[str] = Counter()
        started: Counter[str] = Counter()
        for record in records:
            events = await self.log.read(record.task_id)
            self._one_writer(events)
            self._each_letter_once(events)
            state = fold_all(events)
            assert state.state in ("completed", "canceled"), state
            if record.task_id in self.cancelled:
                finals = [event.state for event in events if isinstance(event, StatusUpdateEvent) and event.final]
                assert "canceled" in finals or state.state == "completed", finals
            for input_id, value in self.answered.get(record.task_id, {}).items():
                received = [e.value for e in events if isinstance(e, InputReceivedEvent) and e.input_id == input_id]
                ended_by_cancel = any(e.state == "canceled" for e in events if isinstance(e, StatusUpdateEvent))
                assert len(received) == 1 or (not received and ended_by_cancel), (record.task_id, input_id, value)
            for event in events:
                if isinstance(event, MessageAddedEvent) and str(event.content).startswith("say "):
                    texts[str(event.content)] += 1
                elif isinstance(event, ToolStartEvent) and event.idempotency_key:
                    started[event.idempotency_key] += 1
        assert all(count == 1 for count in texts.values()), texts
        effects = Counter((self.folder / "effects").read_text().split()) if (self.folder / "effects").exists() else {}
        assert all(count == 1 for count in effects.values()), effects
        # What has begun was in the log before.
        assert effects.keys() <= started.keys()
        await self._kept()
        if "RXLOOP_INTERLEAVINGS" in os.environ:
            self._report(records)

    def _report(self, records: Sequence[RunRecord]) -> None:
        attempts = sum(record.attempt - 1 for record in records)
        states = Counter(record.state for record in records)
        print(
            f"{len(records)} runs {dict(states)}, {attempts} further attempts, {len(self.cancelled)} cancels, "
            f"{sum(map(len, self.answered.values()))} answers and {len(self.said)} messages acknowledged; "
            f"slowest: {max((replica.slowest for replica in self.replicas), key=lambda order: order[0])}"
        )

    def _one_writer(self, events: Any) -> None:
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        attempts = [event.attempt for event in events]
        assert attempts == sorted(attempts)
        for before, event in pairwise(events):
            if event.attempt != before.attempt:
                assert isinstance(event, StatusUpdateEvent)
                assert event.resumed
            if isinstance(before, StatusUpdateEvent) and before.final:
                assert event.attempt == before.attempt + 1
                assert before.state not in ("completed", "failed")

    def _each_letter_once(self, events: Any) -> None:
        cancels = [e.metadata["mail_id"] for e in events if isinstance(e, StatusUpdateEvent) and e.final and e.metadata]
        assert len(cancels) == len(set(cancels))
        inputs = Counter(event.input_id for event in events if isinstance(event, InputReceivedEvent))
        assert all(count == 1 for count in inputs.values()), inputs

    async def _kept(self) -> None:
        """Every event that a process has acknowledged is in the log, and of the attempt that it was of."""
        logs: dict[str, list[Event]] = {}
        for said in (line for replica in self.replicas for line in replica.told):
            task = said["task"]
            if task not in logs:
                logs[task] = list(await self.log.read(task))
            assert logs[task][said["durable"] - 1].attempt <= said["attempt"]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + TRIALS))
async def test_whatever_happens_to_two_processes_each_run_is_written_by_one_and_comes_to_its_end(
    tmp_path: Path, seed: int
) -> None:
    trial = Trial(tmp_path, seed)
    try:
        await trial.play()
        await trial.judge()
    except AssertionError:
        await trial.tell()
        raise
    finally:
        await trial.aclose()
