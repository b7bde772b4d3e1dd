"""A log that is away for a moment disturbs nobody; one that stays away is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rxloop import Agent, Event, MemoryEventLog, Result, Run, RunCancelled, RunError, tool
from rxloop.errors import EventLogError
from rxloop.pipeline import log_retry
from rxloop.state.history import INTERRUPTED
from rxloop.testing import ScriptedModel, call, virtual_time
from support.bank import Bank
from support.run_checks import finals, nothing_left
from support.runs import collect, shape


class Away(MemoryEventLog):
    """Takes nothing for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        if self.away:
            raise OSError("the server restarts")
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


@pytest.mark.parametrize("seconds", [1.0, log_retry.PATIENCE - 3])
def test_a_log_that_is_away_for_a_moment_disturbs_no_run(seconds: float) -> None:
    log = Away()
    paid: list[int] = []

    @tool
    async def pay(amount: int) -> str:
        """Pays."""
        paid.append(amount)
        await asyncio.sleep(0.5)
        log.away = True
        asyncio.get_running_loop().call_later(seconds, setattr, log, "away", False)
        return "paid"

    with virtual_time() as time:
        model = ScriptedModel(call("pay", amount=1), call("pay", amount=2), "done")
        run = Agent(model, tools=[pay], log=log).run("Go")
        result = time.run(run)
        events = time.run(collect(run))

    assert (result.output, paid) == ("done", [1, 2])
    assert log._runs[result.task_id].events == [event for event in events if event.durable]


class Unreadable(MemoryEventLog):
    """Gives nothing for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        """How often it was asked while it was away."""
        self.away = False

    def _ask(self) -> None:
        if self.away:
            self.asked += 1
            raise OSError("the server restarts")

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Any:
        self._ask()
        return await super().read(task_id, after_seq=after_seq, deltas=deltas)

    async def list_runs(self, **options: Any) -> Any:
        self._ask()
        return await super().list_runs(**options)


GOES_ON: dict[str, Callable[[Agent[None, str], Result[str]], Run[str]]] = {
    "resume": lambda agent, before: agent.resume(before.task_id, inputs={"1.0.1": True}),
    "fork": lambda agent, before: agent.fork(before.task_id, 1),
    "conversation": lambda agent, before: agent.run("And now?", context_id=before.context_id),
}


@pytest.mark.parametrize("way", GOES_ON)
@pytest.mark.parametrize("seconds", [1.0, log_retry.PATIENCE - 3])
def test_a_log_that_cannot_be_read_for_a_moment_refuses_nobody(
    way: str, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    log = Unreadable()
    bank = Bank(log)
    with virtual_time() as time:
        waiting = time.run(bank.waiting())
        log.away, log.asked = True, 0
        time.at(time.now + seconds, lambda: setattr(log, "away", False))
        begun = time.now
        result = time.run(GOES_ON[way](bank.agent("Done."), waiting))
        assert seconds <= time.now - begun < seconds + 3
    assert (result.output, result.state) == ("Done.", "completed")
    assert log.asked < 20
    assert caplog.text.count("the event log cannot be read; trying again: the server restarts") == 1


@pytest.mark.parametrize("way", GOES_ON)
def test_a_log_that_cannot_be_read_for_long_refuses_in_the_end_and_nothing_was_done(way: str) -> None:
    log = Unreadable()
    bank = Bank(log)
    with virtual_time() as time:
        waiting = time.run(bank.waiting())
        log.away, begun = True, time.now
        with pytest.raises(EventLogError, match="the server restarts"):
            time.run(GOES_ON[way](bank.agent("Done."), waiting))
        assert log_retry.PATIENCE - 3 < time.now - begun < log_retry.PATIENCE + 3
        log.away = False
        assert len(time.run(log.list_runs())) == 1
        assert bank.paid == []


def test_who_cancels_need_not_wait_for_a_log_that_cannot_be_read() -> None:
    log = Unreadable()
    bank = Bank(log)
    with virtual_time() as time:
        waiting = time.run(bank.waiting())
        log.away, begun = True, time.now
        run = GOES_ON["conversation"](bank.agent("Done."), waiting)
        time.at(time.now + 1, run.cancel)
        with pytest.raises(RunCancelled):
            time.run(run)
        assert time.now - begun < 2 * log_retry.PATIENCE


def test_a_run_whose_log_is_gone_can_go_on_when_the_log_is_back() -> None:
    log = Away()
    paid: list[int] = []

    @tool
    async def pay(amount: int) -> str:
        """Pays."""
        paid.append(amount)
        log.away = True
        return "paid"

    with virtual_time() as time:
        run = Agent(ScriptedModel(call("pay", amount=1), "never said"), tools=[pay], log=log).run("Go")
        with pytest.raises(RunError, match="the server restarts") as caught:
            time.run(run)
        assert caught.value.code == "log"
        assert time.now >= log_retry.PATIENCE - 3
        held = time.run(log.read(run.task_id))
        assert finals(held) == []
        log.away = False
        result = time.run(Agent(ScriptedModel("done"), tools=[pay], log=log).resume(run.task_id))

    assert (result.output, paid) == ("done", [1])
    assert shape(result.messages)[2] == f"tool: {INTERRUPTED}"


async def test_the_log_that_cannot_be_reached_refuses_who_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_retry, "PATIENCE", 0)
    log = Away()
    bank = Bank(log)
    waiting = await bank.waiting()
    log.away = True

    with pytest.raises(EventLogError, match="the server restarts"):
        await bank.agent().resume(waiting.task_id, inputs={"1.0.1": True})

    log.away = False
    assert (await bank.agent("done").resume(waiting.task_id, inputs={"1.0.1": True})).output == "done"
    await nothing_left()
