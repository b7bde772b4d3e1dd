"""The turn of a run is lost at every place at which its process asks the log for something: nothing is lost by that."""

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
from support.run_checks import nothing_left

Kind = Literal["run", "chosen", "submitted", "answered", "cancelled", "released"]
_ASKED = (
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
_PLACES = 40
"""More than any of them has."""


class Loser:
    """Loses the turn of a machine at one of the places at which its log is asked, before the log hears of that."""

    def __init__(self, machine: Machine, monkeypatch: pytest.MonkeyPatch, place: int, then: Callable[[], Any]) -> None:
        self.count = 0
        self.lost = False
        self._machine, self._place, self._then = machine, place, then
        for name in _ASKED:
            monkeypatch.setattr(machine.log, name, self._counted(getattr(machine.log, name)))

    def _counted(self, do: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self._place:
                await self._lose()
            return await do(*arguments, **options)

        return counted

    async def _lose(self) -> None:
        log = self._machine.log
        mine = [context for context, (holder, *_) in log.shared.turns.items() if holder is log]
        for context_id in mine:
            self.lost = True
            told = log.freezes(context_id)
            await self._then()
            # The log takes what comes from whoever has no turn, as long as nobody else has it.
            log._had.clear()
            asyncio.get_running_loop().call_soon(told)


def agent_of(machine: Machine, effects: list[str | None]) -> Agent[None, str]:
    """An agent that asks, pays once somebody has said yes, and says so."""

    @tool(approve=True)
    async def pay(ctx: RunContext[Any]) -> str:
        """Pays."""
        effects.append(ctx.idempotency_key)
        return "paid"

    def say(request: ModelRequest) -> Any:
        return "done" if request.messages[-1].role == "tool" else call("pay")

    return Agent(ScriptedModel(*[say] * 9), tools=[pay], log=machine.log)


@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken"])
@pytest.mark.parametrize("kind", ["run", "chosen", "submitted", "answered", "cancelled", "released"])
def test_whatever_a_process_does_when_it_loses_its_turn_the_run_comes_to_its_end(kind: Kind, taken: bool) -> None:
    lost = 0
    for place in range(1, _PLACES):
        with virtual_time() as time, pytest.MonkeyPatch.context() as patch:
            lost += time.run(_play(kind, place, patch, taken))
    assert 3 < lost < _PLACES - 2


async def _play(kind: Kind, place: int, patch: pytest.MonkeyPatch, taken: bool) -> bool:
    """Play it once, with a machine that loses its turn and another one; give whether there was a turn to lose."""
    a, b = two_machines()
    effects: list[str | None] = []
    ours, others = agent_of(a, effects), agent_of(b, effects)
    if kind not in ("run", "chosen"):
        await others.submit("Go", task_id=TASK, context_id="c")
    if kind == "answered":
        await others.get_run(TASK).execute()
        await others.get_run(TASK).answer(YES)

    async def take() -> None:
        # A run that is new may not be in the log yet.
        with suppress(UnknownRun):
            if taken:
                await others.get_run(TASK).execute()

    loser = Loser(a, patch, place, take)
    acknowledged = True
    try:
        await _act(kind, ours)
    except RxloopError:
        acknowledged = False
    patch.undo()
    for record in await b.log.list_runs(unfinished=True):
        if record.state != "canceled" and (await others.get_run(record.task_id).execute()).state == "input-required":
            await others.get_run(record.task_id).answer(YES)
            await others.get_run(record.task_id).execute()
    where = f"{kind}, lost at {place}, {taken=}"
    for record in await b.log.list_runs():
        ends = await states(b, record.task_id)
        assert ends[-1] == ("canceled" if kind == "cancelled" and acknowledged else "completed"), (where, ends)
        assert "failed" not in ends, (where, ends)
    # Nothing was begun twice, and the conversation goes on.
    assert len(effects) == len(set(effects)), where
    assert a.log.shared.turns == {}, where
    assert (await others.run("Next", context_id="c")).state == "input-required", where
    await nothing_left()
    return loser.lost


async def _act(kind: Kind, agent: Agent[None, str]) -> None:
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
