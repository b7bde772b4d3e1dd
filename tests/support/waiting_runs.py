"""Runs that wait for an approval, and the number of commands they have read."""

from __future__ import annotations

from typing import Any

from rxloop.state.fold import fold_all
from rxloop.testing import call
from support.processes.machines import Machine


async def start_waiting_run(machine: Machine, **options: Any) -> str:
    """Start a run that waits for an approval and return its id."""
    return (await machine.agent(call("pay", amount=5)).run("Pay", **options)).task_id


async def count_read_commands(machine: Machine, task_id: str) -> int:
    return fold_all(await machine.log.read(task_id)).last_command
