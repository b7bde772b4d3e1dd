"""Several machines on one log, all of them in this process: what one of them holds is free when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rxloop import Agent, Event, MemoryEventLog, tool
from rxloop.errors import Fenced
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.commands import Command
from rxloop.testing import ScriptedModel
from support.run_checks import finals

LEASE = 10.0


@dataclass
class Shared:
    """What all machines see."""

    log: MemoryEventLog = field(default_factory=MemoryEventLog)
    turns: dict[str, tuple[MachineLog, str, Callable[[], None]]] = field(default_factory=dict)
    """By conversation: the log object that has the turn, for which run, and whom to tell when it is lost."""
    letters: list[tuple[int, str, Command]] = field(default_factory=list)
    watching: dict[object, tuple[str, Callable[[], None]]] = field(default_factory=dict)
    asked: int = 0
    """How often a machine has asked whether it still has a turn."""


class MachineLog(MemoryEventLog):
    """The log object of one machine: what is in it is in those of the others, and its turns are its own."""

    lease_seconds = LEASE

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.shared = shared
        self._runs = shared.log._runs
        self._by_context = shared.log._by_context
        self._had: dict[str, str] = {}
        self.taken: list[str] = []
        """The conversations whose turn was given, in order."""

    async def acquire_lease(self, context_id: str, task_id: str, on_lost: Callable[[], None]) -> bool:
        if context_id in self.shared.turns:
            return False
        self.shared.turns[context_id] = self, task_id, on_lost
        self._had[task_id] = context_id
        self.taken.append(context_id)
        return True

    async def has_lease(self, context_id: str, task_id: str) -> bool:
        self.shared.asked += 1
        return self._holds(context_id, task_id)

    def _holds(self, context_id: str, task_id: str) -> bool:
        holder = self.shared.turns.get(context_id)
        return holder is not None and holder[:2] == (self, task_id)

    async def release_lease(self, context_id: str, task_id: str) -> None:
        if self._holds(context_id, task_id):
            del self.shared.turns[context_id]
        self._had.pop(task_id, None)

    async def list_orphaned(self, **submitted: Any) -> Sequence[RunRecord]:
        held = {task_id for _, task_id, _ in self.shared.turns.values()}
        return [record for record in await self.list_runs() if record.state == "working" and record.task_id not in held]

    async def send_command(self, task_id: str, command: Command) -> int:
        self._run(task_id)
        self.shared.letters.append((len(self.shared.letters) + 1, task_id, command))
        for watched, arrived in list(self.shared.watching.values()):
            if watched == task_id:
                asyncio.get_running_loop().call_soon(arrived)
        return len(self.shared.letters)

    async def read_commands(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Command]]:
        self._run(task_id)
        return [(number, mail) for number, to, mail in self.shared.letters if to == task_id and number > after]

    def watch_commands(self, task_id: str, notify: Callable[[], None]) -> Callable[[], None]:
        token = object()
        self.shared.watching[token] = task_id, notify
        return lambda: self.shared.watching.pop(token, None) and None

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        if task_id in self._had and not self._holds(self._had[task_id], task_id):
            raise Fenced(f"the turn of {task_id} belongs to somebody else")
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)

    def freezes(self, context_id: str) -> Callable[[], None]:
        """This machine stops for longer than its lease; call what is returned when it finds out."""
        _, _, lost = self.shared.turns.pop(context_id)
        return lost


class Machine:
    """A machine with an agent whose tool takes a minute, and another one that asks before it pays."""

    def __init__(self, shared: Shared) -> None:
        self.log = MachineLog(shared)
        self.begun = 0
        self.cut = 0
        self.paid: list[int] = []

        @tool
        async def work() -> str:
            """Works for a minute."""
            self.begun += 1
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cut += 1
                raise
            return "worked"

        @tool(approve=True)
        async def pay(amount: int) -> str:
            """Pays."""
            self.paid.append(amount)
            return "paid"

        self.tools: list[Any] = [work, pay]

    def agent(self, *turns: Any) -> Agent[None, str]:
        """An agent on the log of this machine that plays a script."""
        return Agent(ScriptedModel(*turns), tools=self.tools, log=self.log)


Machines = tuple[Machine, Machine]


def two_machines() -> Machines:
    """Two machines on one log."""
    shared = Shared()
    return Machine(shared), Machine(shared)


async def states(machine: Machine, task_id: str) -> list[str]:
    """How the attempts of a run ended, as the log has it."""
    return [event.state for event in finals(await machine.log.read(task_id))]
