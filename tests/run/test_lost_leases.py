"""Lease loss during any log operation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal

import pytest

from rxloop import Agent, RunContext, RxloopError, tool
from rxloop.errors import UnknownRun
from rxloop.pipeline.requests import ModelRequest
from rxloop.testing import ScriptedModel, call, virtual_time
from support.processes.machines import Machine, states, two_machines
from support.run_checks import assert_no_tasks

Kind = Literal["run", "chosen", "submitted", "answered", "cancelled", "released"]
_LOG_METHODS = (
    "append",
    "read",
    "list_runs",
    "get_record",
    "acquire_lease",
    "has_lease",
    "release_lease",
    "read_commands",
    "send_command",
)
TASK, YES = "7f6f5a3e-0000-4000-8000-000000000001", {"1.0.1": True}
_MAX_OPERATIONS = 40
"""Upper bound for the number of log operations."""


class LeaseLoss:
    """Makes a machine lose its lease immediately before its n-th log operation."""

    def __init__(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch, operation: int, takeover: Callable[[], Any]
    ) -> None:
        self.count = 0
        self.lost = False
        self._machine, self._operation, self._takeover = machine, operation, takeover
        for name in _LOG_METHODS:
            monkeypatch.setattr(machine.log, name, self._count_operations(getattr(machine.log, name)))

    def _count_operations(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def count_and_run(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self._operation:
                await self._lose_leases()
            return await method(*arguments, **options)

        return count_and_run

    async def _lose_leases(self) -> None:
        log = self._machine.log
        held_contexts = [context for context, (holder, *_) in log.shared.leases.items() if holder is log]
        for context_id in held_contexts:
            self.lost = True
            notify = log.lose_lease(context_id)
            await self._takeover()
            # Writes without a lease are accepted until another process acquires one.
            log._acquired_contexts.clear()
            asyncio.get_running_loop().call_soon(notify)


def make_agent(machine: Machine, effects: list[str | None]) -> Agent[None, str]:
    """Return an agent that requests approval for a payment, pays and answers."""

    @tool(approve=True)
    async def pay(ctx: RunContext[Any]) -> str:
        """Pays."""
        effects.append(ctx.idempotency_key)
        return "paid"

    def answer(request: ModelRequest) -> Any:
        return "done" if request.messages[-1].role == "tool" else call("pay")

    return Agent(ScriptedModel(*[answer] * 9), tools=[pay], log=machine.log)


@pytest.mark.parametrize("is_taken_over", [False, True], ids=["released", "taken over"])
@pytest.mark.parametrize("kind", ["run", "chosen", "submitted", "answered", "cancelled", "released"])
def test_run_reaches_its_end_when_its_process_loses_the_lease(kind: Kind, is_taken_over: bool) -> None:
    lost = 0
    for operation in range(1, _MAX_OPERATIONS):
        with virtual_time() as time, pytest.MonkeyPatch.context() as patch:
            lost += time.run(_run_scenario(kind, operation, patch, is_taken_over))
    assert 3 < lost < _MAX_OPERATIONS - 2


async def _run_scenario(kind: Kind, operation: int, patch: pytest.MonkeyPatch, is_taken_over: bool) -> bool:
    """Run one scenario with two machines and return whether a lease was lost."""
    a, b = two_machines()
    effects: list[str | None] = []
    first_agent, second_agent = make_agent(a, effects), make_agent(b, effects)
    if kind not in ("run", "chosen"):
        await second_agent.submit("Go", task_id=TASK, context_id="c")
    if kind == "answered":
        await second_agent.get_run(TASK).execute()
        await second_agent.get_run(TASK).answer(YES)

    async def take_over() -> None:
        # New runs may not exist yet.
        with suppress(UnknownRun):
            if is_taken_over:
                await second_agent.get_run(TASK).execute()

    loss = LeaseLoss(a, patch, operation, take_over)
    acknowledged = True
    try:
        await _perform(kind, first_agent)
    except RxloopError:
        acknowledged = False
    patch.undo()
    for record in await b.log.list_runs(unfinished=True):
        if (
            record.state != "canceled"
            and (await second_agent.get_run(record.task_id).execute()).state == "input-required"
        ):
            await second_agent.get_run(record.task_id).answer(YES)
            await second_agent.get_run(record.task_id).execute()
    description = f"{kind}, lost at {operation}, is_taken_over={is_taken_over}"
    for record in await b.log.list_runs():
        ends = await states(b, record.task_id)
        assert ends[-1] == ("canceled" if kind == "cancelled" and acknowledged else "completed"), (description, ends)
        assert "failed" not in ends, (description, ends)
    # No effect happened twice, and the conversation continues.
    assert len(effects) == len(set(effects)), description
    assert a.log.shared.leases == {}, description
    assert (await second_agent.run("Next", context_id="c")).state == "input-required", description
    await assert_no_tasks()
    return loss.lost


async def _perform(kind: Kind, agent: Agent[None, str]) -> None:
    match kind:
        case "run":
            await agent.run("Go", context_id="c")
        case "chosen":
            await agent.run("Go", context_id="c", task_id=TASK)
        case "cancelled":
            await agent.get_run(TASK).cancel()
        case "released":
            await (await agent.resume(TASK).begin()).release()
        case _:
            await agent.get_run(TASK).execute()
