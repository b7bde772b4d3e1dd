"""Runs with pending approvals, and counters of commands."""

from __future__ import annotations

from typing import Any

from rxloop.state.fold import fold_all
from rxloop.testing import call
from support.processes.machines import Machine


async def start_waiting_run(machine: Machine, **options: Any) -> str:
    """Start a run, wait for its approval request, and return its id."""
    return (await machine.agent(call("pay", amount=5)).run("Pay", **options)).task_id


async def count_read_commands(machine: Machine, task_id: str) -> int:
    return fold_all(await machine.log.read(task_id)).last_command
