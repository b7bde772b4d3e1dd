"""A short outage of the log is bridged by retries. A long outage is reported."""

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
from support.run_checks import assert_no_tasks, final_events
from support.runs import collect, shape


class UnwritableLog(MemoryEventLog):
    """Log that can become unwritable."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        if self.is_down:
            raise OSError("the server restarts")
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


@pytest.mark.parametrize("seconds", [1.0, log_retry.RETRY_SECONDS - 3])
def test_run_survives_a_short_write_outage_of_its_log(seconds: float) -> None:
    log = UnwritableLog()
    paid: list[int] = []

    @tool
    async def pay(amount: int) -> str:
        """Pays."""
        paid.append(amount)
        await asyncio.sleep(0.5)
        log.is_down = True
        asyncio.get_running_loop().call_later(seconds, setattr, log, "is_down", False)
        return "paid"

    with virtual_time() as time:
        model = ScriptedModel(call("pay", amount=1), call("pay", amount=2), "done")
        run = Agent(model, tools=[pay], log=log).run("Go")
        result = time.run(run)
        events = time.run(collect(run))

    assert result.output == "done"
    assert paid == [1, 2]
    assert log._runs[result.task_id].events == [event for event in events if event.durable]


class UnreadableLog(MemoryEventLog):
    """Log that can become unreadable."""

    def __init__(self) -> None:
        super().__init__()
        self.failed_reads = 0
        """Number of reads during the outage."""
        self.is_down = False

    def _check(self) -> None:
        if self.is_down:
            self.failed_reads += 1
            raise OSError("the server restarts")

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Any:
        self._check()
        return await super().read(task_id, after_seq=after_seq, deltas=deltas)

    async def list_runs(self, **options: Any) -> Any:
        self._check()
        return await super().list_runs(**options)


CONTINUATIONS: dict[str, Callable[[Agent[None, str], Result[str]], Run[str]]] = {
    "resume": lambda agent, before: agent.resume(before.task_id, inputs={"1.0.1": True}),
    "fork": lambda agent, before: agent.fork(before.task_id, 1),
    "conversation": lambda agent, before: agent.run("And now?", context_id=before.context_id),
}


@pytest.mark.parametrize("continuation", CONTINUATIONS)
@pytest.mark.parametrize("seconds", [1.0, log_retry.RETRY_SECONDS - 3])
def test_run_continues_after_a_short_read_outage_of_its_log(
    continuation: str, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    log = UnreadableLog()
    bank = Bank(log)
    with virtual_time() as time:
        paused = time.run(bank.request_payment())
        log.is_down, log.failed_reads = True, 0
        time.at(time.now + seconds, lambda: setattr(log, "is_down", False))
        start = time.now
        result = time.run(CONTINUATIONS[continuation](bank.agent("Done."), paused))
        assert seconds <= time.now - start < seconds + 3
    assert result.state == "completed"
    assert result.output == "Done."
    assert log.failed_reads < 20
    assert caplog.text.count("the event log cannot be read; trying again: the server restarts") == 1


@pytest.mark.parametrize("continuation", CONTINUATIONS)
def test_run_is_refused_without_effects_after_a_long_read_outage(continuation: str) -> None:
    log = UnreadableLog()
    bank = Bank(log)
    with virtual_time() as time:
        paused = time.run(bank.request_payment())
        log.is_down, start = True, time.now
        with pytest.raises(EventLogError, match="the server restarts"):
            time.run(CONTINUATIONS[continuation](bank.agent("Done."), paused))
        assert log_retry.RETRY_SECONDS - 3 < time.now - start < log_retry.RETRY_SECONDS + 3
        log.is_down = False
        assert len(time.run(log.list_runs())) == 1
        assert bank.paid == []


def test_cancel_does_not_wait_for_an_unreadable_log() -> None:
    log = UnreadableLog()
    bank = Bank(log)
    with virtual_time() as time:
        paused = time.run(bank.request_payment())
        log.is_down, start = True, time.now
        run = CONTINUATIONS["conversation"](bank.agent("Done."), paused)
        time.at(time.now + 1, run.cancel)
        with pytest.raises(RunCancelled):
            time.run(run)
        assert time.now - start < 2 * log_retry.RETRY_SECONDS


def test_run_that_failed_with_its_log_can_be_resumed_when_the_log_is_back() -> None:
    log = UnwritableLog()
    paid: list[int] = []

    @tool
    async def pay(amount: int) -> str:
        """Pays."""
        paid.append(amount)
        log.is_down = True
        return "paid"

    with virtual_time() as time:
        run = Agent(ScriptedModel(call("pay", amount=1), "never said"), tools=[pay], log=log).run("Go")
        with pytest.raises(RunError, match="the server restarts") as caught:
            time.run(run)
        assert caught.value.code == "log"
        assert time.now >= log_retry.RETRY_SECONDS - 3
        recorded = time.run(log.read(run.task_id))
        assert final_events(recorded) == []
        log.is_down = False
        result = time.run(Agent(ScriptedModel("done"), tools=[pay], log=log).resume(run.task_id))

    assert result.output == "done"
    assert paid == [1]
    assert shape(result.messages)[2] == f"tool: {INTERRUPTED}"


async def test_resume_raises_when_the_log_is_unwritable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_retry, "RETRY_SECONDS", 0)
    log = UnwritableLog()
    bank = Bank(log)
    paused = await bank.request_payment()
    log.is_down = True

    with pytest.raises(EventLogError, match="the server restarts"):
        await bank.agent().resume(paused.task_id, inputs={"1.0.1": True})

    log.is_down = False
    assert (await bank.agent("done").resume(paused.task_id, inputs={"1.0.1": True})).output == "done"
    await assert_no_tasks()
