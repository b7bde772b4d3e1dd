"""Interleavings of two processes that share a file and are killed and frozen at random.

`RXLOOP_INTERLEAVINGS=200 pytest tests/crash/test_interleavings.py` tries 200 seeds, and `RXLOOP_FIRST=17` starts with
seed 17.
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
INTERLEAVINGS = int(os.environ.get("RXLOOP_INTERLEAVINGS", "3"))
ACTIONS = 60
TIME_LIMIT = 60.0
"""Seconds within which a live process must execute an order."""

REFUSALS = {"ContextBusy", "InvalidInput", "NotAsked", "UnknownRun", "RunExists", "ConflictError", "Fenced", "RunOver"}
"""Expected errors, since orders are chosen without knowing the current state."""


class Replica:
    """Replica process, restarted after each kill."""

    def __init__(self, folder: Path) -> None:
        self._arguments = [str(REPLICA), str(folder / "runs.db"), str(folder / "effects")]
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ids = iter(range(1_000_000))
        self._running = asyncio.Event()
        self.checkpoints: list[dict[str, Any]] = []
        self.frozen = False
        self.slowest: tuple[Any, ...] = (0.0,)
        """Slowest order: seconds, order, task, and reply."""

    async def start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *PREFIX, sys.executable, *self._arguments, stdin=pipe, stdout=pipe
        )
        assert self._process.stdout is not None
        assert b"ready" in await self._process.stdout.readline()
        self._reader = asyncio.create_task(self._read(self._process))
        self._running.set()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            reply = json.loads(line)
            future = self._pending.pop(reply["id"], None) if "id" in reply else None
            if future is not None and not future.done():
                future.set_result(reply)
            elif "durable" in reply:
                self.checkpoints.append(reply)

    async def order(self, do: str, **fields: Any) -> dict[str, Any] | None:
        """Return the reply to an order, or None if the process was killed."""
        await self._running.wait()
        loop = asyncio.get_running_loop()
        number, start = next(self._ids), loop.time()
        future = self._pending[number] = loop.create_future()
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.write(json.dumps({"id": number, "do": do, **fields}).encode() + b"\n")
        await asyncio.wait([future], timeout=TIME_LIMIT)
        if not future.done():
            # On this signal, the process prints its tasks to stderr.
            self._process.send_signal(signal.SIGUSR1)
            await asyncio.sleep(2)
        assert future.done(), f"{do} {fields} hangs in {self._process.pid}"
        if future.cancelled():
            return None
        reply = future.result()
        assert "ok" in reply or reply["error"] in REFUSALS, (do, fields, reply)
        self.slowest = max(self.slowest, (loop.time() - start, do, fields.get("task"), reply))
        return reply

    async def kill(self) -> None:
        self._running.clear()
        self._process.kill()
        await self._process.wait()
        await self._reader
        for future in self._pending.values():
            future.cancel()
        self._pending.clear()
        self.frozen = False

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self.frozen = False


class Interleaving:
    """Random orders for two replicas. Replies are later compared with the log."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.log = SqliteEventLog(folder / "runs.db", lease=LEASE)
        self.replicas = [Replica(folder), Replica(folder)]
        self.runs: list[str] = []
        self.acknowledged: set[str] = set()
        """Runs that are in the log according to a reply."""
        self.cancelled: set[str] = set()
        self.answered: dict[str, dict[str, bool]] = {}
        self.messages: Counter[str] = Counter()
        self.orders: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        for replica in self.replicas:
            await replica.start()
        for number in range(4):
            self._start_order(self._start_run(self.random.choice(self.replicas), f"c{number}"))
        for _ in range(ACTIONS):
            await self._act()
            await asyncio.sleep(self.random.random() * 0.12)
        await self._finish_all()

    async def _act(self) -> None:
        replica, run = self.random.choice(self.replicas), self.random.choice(self.runs) if self.runs else None
        action = self.random.choices(
            ("new", "execute", "resume", "send", "cancel", "answer", "release", "freeze", "kill"),
            (4, 14, 3, 8, 2, 18, 2, 2, 2),
        )[0]
        if action == "new" or run is None:
            self._start_order(self._start_run(replica, f"c{self.random.randrange(6)}"))
        elif action == "freeze" and not replica.frozen:
            replica.freeze()
            asyncio.get_running_loop().call_later(self.random.choice((0.2, 1.5, 2.5)) * LEASE, self._thaw, replica)
        elif action == "kill":
            await replica.kill()
            await replica.start()
        elif action == "send":
            self._start_order(self._send(replica, run))
        elif action == "cancel":
            self._start_order(self._cancel(replica, run))
        elif action == "answer":
            self._start_order(self._answer(replica, run))
        elif action == "release":
            self._start_order(self._order(replica, "release", task=run, grace=self.random.choice((0, 0.05))))
        elif action in ("execute", "resume"):
            self._start_order(self._order(replica, action, task=run))

    def _thaw(self, replica: Replica) -> None:
        if replica.frozen:
            replica.thaw()

    def _start_order(self, work: Coroutine[Any, Any, Any]) -> None:
        self.orders.append(asyncio.create_task(work))

    async def _order(self, replica: Replica, do: str, **fields: Any) -> dict[str, Any] | None:
        return await replica.order(do, **fields)

    async def _start_run(self, replica: Replica, context: str) -> None:
        task = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        self.runs.append(task)
        do = self.random.choice(("submit", "start"))
        reply = await replica.order(do, task=task, context=context)
        # A run that was released or cancelled before its first write does not exist.
        if reply is not None and reply.get("ok", "canceled") != "canceled":
            self.acknowledged.add(task)

    async def _send(self, replica: Replica, run: str) -> None:
        text = f"say {self.random.getrandbits(64)}"
        reply = await replica.order("send", task=run, text=text)
        if reply is not None and "ok" in reply:
            self.messages[text] += 1

    async def _cancel(self, replica: Replica, run: str) -> None:
        reply = await replica.order("cancel", task=run)
        if reply is not None and "ok" in reply:
            self.cancelled.add(run)

    async def _answer(self, replica: Replica, run: str) -> None:
        inputs = {name: self.random.random() < 0.8 for name in await self._questions(run)}
        reply = await replica.order("answer", task=run, inputs=inputs) if inputs else None
        if reply is not None and "ok" in reply:
            self.answered.setdefault(run, {}).update(inputs)

    async def _questions(self, run: str) -> list[str]:
        try:
            return list(fold_all(await self.log.read(run)).pending)
        except LookupError:
            return []

    async def _finish_all(self) -> None:
        """Execute all runs and answer all questions until no run is unfinished."""
        for replica in self.replicas:
            if replica.frozen:
                replica.thaw()
        # Pending orders may wait for runs that no replica executes, or start runs that were idle.
        await asyncio.gather(self._execute_all(), *(self._execute_after(order) for order in self.orders))

    async def _execute_after(self, order: asyncio.Task[None]) -> None:
        if not order.done():
            await asyncio.wait([order])
            await self._execute_all()
        await order

    async def _execute_all(self) -> None:
        while unfinished := [r.task_id for r in await self.log.list_runs(unfinished=True) if r.state != "canceled"]:
            await asyncio.gather(
                *(replica.order("execute", task=run) for run in unfinished for replica in self.replicas)
            )
            for run in unfinished:
                inputs = dict.fromkeys(await self._questions(run), True)
                reply = await self.replicas[0].order("answer", task=run, inputs=inputs) if inputs else None
                if reply is not None and "dropped its questions" in reply.get("why", ""):
                    await self.replicas[0].order("cancel", task=run)

    async def print_unfinished(self) -> None:
        """Print the unfinished runs and their commands."""
        for record in await self.log.list_runs(unfinished=True):
            print(record, await self.log.read_commands(record.task_id))

    async def aclose(self) -> None:
        for order in self.orders:
            order.cancel()
        for replica in self.replicas:
            await replica.kill()
        await self.log.aclose()

    # -- checks

    async def check(self) -> None:
        records = await self.log.list_runs()
        assert self.acknowledged <= {record.task_id for record in records}
        message_counts: Counter[str] = Counter()
        start_counts: Counter[str] = Counter()
        for record in records:
            events = await self.log.read(record.task_id)
            self._check_attempts(events)
            self._check_commands(events)
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
                    message_counts[str(event.content)] += 1
                elif isinstance(event, ToolStartEvent) and event.idempotency_key:
                    start_counts[event.idempotency_key] += 1
        assert all(count == 1 for count in message_counts.values()), message_counts
        effects = Counter((self.folder / "effects").read_text().split()) if (self.folder / "effects").exists() else {}
        assert all(count == 1 for count in effects.values()), effects
        # Tool starts must be durable before the tool runs.
        assert effects.keys() <= start_counts.keys()
        await self._check_checkpoints()
        if "RXLOOP_INTERLEAVINGS" in os.environ:
            self._print_summary(records)

    def _print_summary(self, records: Sequence[RunRecord]) -> None:
        attempts = sum(record.attempt - 1 for record in records)
        states = Counter(record.state for record in records)
        print(
            f"{len(records)} runs {dict(states)}, {attempts} further attempts, {len(self.cancelled)} cancels, "
            f"{sum(map(len, self.answered.values()))} answers and {len(self.messages)} messages acknowledged; "
            f"slowest: {max((replica.slowest for replica in self.replicas), key=lambda order: order[0])}"
        )

    def _check_attempts(self, events: Any) -> None:
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

    def _check_commands(self, events: Any) -> None:
        cancels = [
            e.metadata["command_id"] for e in events if isinstance(e, StatusUpdateEvent) and e.final and e.metadata
        ]
        assert len(cancels) == len(set(cancels))
        inputs = Counter(event.input_id for event in events if isinstance(event, InputReceivedEvent))
        assert all(count == 1 for count in inputs.values()), inputs

    async def _check_checkpoints(self) -> None:
        """Check that later attempts have not replaced durable events."""
        logs: dict[str, list[Event]] = {}
        for checkpoint in (line for replica in self.replicas for line in replica.checkpoints):
            task = checkpoint["task"]
            if task not in logs:
                logs[task] = list(await self.log.read(task))
            assert logs[task][checkpoint["durable"] - 1].attempt <= checkpoint["attempt"]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + INTERLEAVINGS))
async def test_each_run_has_one_writer_and_ends_when_two_processes_are_killed_and_frozen(
    tmp_path: Path, seed: int
) -> None:
    interleaving = Interleaving(tmp_path, seed)
    try:
        await interleaving.run()
        await interleaving.check()
    except AssertionError:
        await interleaving.print_unfinished()
        raise
    finally:
        await interleaving.aclose()
