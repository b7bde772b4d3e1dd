"""Simulated machines with a shared log. A dead machine releases its leases."""

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
from support.run_checks import final_events

LEASE = 10.0


@dataclass
class SharedState:
    """State shared by all machines."""

    log: MemoryEventLog = field(default_factory=MemoryEventLog)
    leases: dict[str, tuple[MachineLog, str, Callable[[], None]]] = field(default_factory=dict)
    """Lease owner, run and callback by conversation."""
    commands: list[tuple[int, str, Command]] = field(default_factory=list)
    watchers: dict[object, tuple[str, Callable[[], None]]] = field(default_factory=dict)
    lease_checks: int = 0
    """Number of lease checks."""


class MachineLog(MemoryEventLog):
    """Log with private leases and shared data."""

    lease_seconds = LEASE

    def __init__(self, shared: SharedState) -> None:
        super().__init__()
        self.shared = shared
        self._runs = shared.log._runs
        self._by_context = shared.log._by_context
        self._acquired_contexts: dict[str, str] = {}
        self.acquired: list[str] = []
        """Conversations in order of lease acquisition."""

    async def acquire_lease(self, conversation: str, task_id: str, on_lost: Callable[[], None]) -> bool:
        if conversation in self.shared.leases:
            return False
        self.shared.leases[conversation] = self, task_id, on_lost
        self._acquired_contexts[task_id] = conversation
        self.acquired.append(conversation)
        return True

    async def has_lease(self, conversation: str, task_id: str) -> bool:
        self.shared.lease_checks += 1
        return self._has_lease(conversation, task_id)

    def _has_lease(self, context_id: str, task_id: str) -> bool:
        holder = self.shared.leases.get(context_id)
        return holder is not None and holder[:2] == (self, task_id)

    async def release_lease(self, conversation: str, task_id: str) -> None:
        if self._has_lease(conversation, task_id):
            del self.shared.leases[conversation]
        self._acquired_contexts.pop(task_id, None)

    async def list_orphaned(self, **submitted: Any) -> Sequence[RunRecord]:
        held = {task_id for _, task_id, _ in self.shared.leases.values()}
        return [record for record in await self.list_runs() if record.state == "working" and record.task_id not in held]

    async def send_command(self, task_id: str, command: Command) -> int:
        self._run(task_id)
        self.shared.commands.append((len(self.shared.commands) + 1, task_id, command))
        for watched, arrived in list(self.shared.watchers.values()):
            if watched == task_id:
                asyncio.get_running_loop().call_soon(arrived)
        return len(self.shared.commands)

    async def read_commands(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Command]]:
        self._run(task_id)
        return [(number, mail) for number, to, mail in self.shared.commands if to == task_id and number > after]

    def watch_commands(self, task_id: str, notify: Callable[[], None]) -> Callable[[], None]:
        token = object()
        self.shared.watchers[token] = task_id, notify
        return lambda: self.shared.watchers.pop(token, None) and None

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        if task_id in self._acquired_contexts and not self._has_lease(self._acquired_contexts[task_id], task_id):
            raise Fenced(f"the lease of {task_id} belongs to another owner")
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)

    def lose_lease(self, context_id: str) -> Callable[[], None]:
        """Expire a lease, as if the machine were frozen, returning its callback."""
        _, _, lost = self.shared.leases.pop(context_id)
        return lost


class Machine:
    """Simulated machine with a slow tool and an approval tool."""

    def __init__(self, shared: SharedState) -> None:
        self.log = MachineLog(shared)
        self.started = 0
        self.canceled = 0
        self.paid: list[int] = []

        @tool
        async def work() -> str:
            """Works for a minute."""
            self.started += 1
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.canceled += 1
                raise
            return "worked"

        @tool(approve=True)
        async def pay(amount: int) -> str:
            """Pays."""
            self.paid.append(amount)
            return "paid"

        self.tools: list[Any] = [work, pay]

    def agent(self, *turns: Any) -> Agent[None, str]:
        """Return a scripted agent on the log of this machine."""
        return Agent(ScriptedModel(*turns), tools=self.tools, log=self.log)


Machines = tuple[Machine, Machine]


def two_machines() -> Machines:
    """Return two machines on one log."""
    shared = SharedState()
    return Machine(shared), Machine(shared)


async def states(machine: Machine, task_id: str) -> list[str]:
    """Return the final state of each attempt in the log."""
    return [event.state for event in final_events(await machine.log.read(task_id))]
