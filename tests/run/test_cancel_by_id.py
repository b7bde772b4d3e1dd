"""Run cancellation by id."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from rxloop import (
    Agent,
    Event,
    MemoryEventLog,
    RunCancelled,
    RunContext,
    ToolCompleteEvent,
    ToolStartEvent,
    follow,
    tool,
)
from rxloop.errors import (
    ConfigurationError,
    ConflictError,
    InvalidInput,
    LogUnreachable,
    UnknownRun,
)
from rxloop.pipeline.records import Snapshot
from rxloop.protocol.commands import CancelCommand, Command
from rxloop.state.fold import fold_all
from rxloop.state.history import CANCELED_CALL, INTERRUPTED
from rxloop.support.tasks import GRACE
from rxloop.testing import ScriptedModel, call, virtual_time
from support.bank import Bank, log_after_crash
from support.run_checks import assert_no_tasks, final_events
from support.runs import collect, outcome


async def test_cancel_ends_a_run_that_waits_for_an_answer() -> None:
    bank = Bank()
    paused = await bank.request_payment(context_id="c")
    follower = asyncio.ensure_future(collect(follow(bank.log, paused.task_id)))

    await bank.agent().get_run(paused.task_id).cancel("changed my mind")

    last = await bank.last_event(paused.task_id)
    assert (last.state, last.pending) == ("canceled", [])
    assert last.error is not None
    assert last.error.message == "changed my mind"
    [completion] = [e for e in await bank.log.read(paused.task_id) if isinstance(e, ToolCompleteEvent)]
    assert (completion.content, completion.error) == (CANCELED_CALL, "canceled")
    assert bank.paid == []
    await follower
    with pytest.raises(InvalidInput, match="is canceled"):
        await bank.agent().resume(paused.task_id, inputs={"1.0.1": True})
    assert (await bank.agent("Fine.").run("And now?", context_id="c")).output == "Fine."
    await assert_no_tasks()


async def test_cancel_ends_a_crashed_run_without_a_model_call() -> None:
    bank = Bank()
    complete_run = await bank.agent(call("pay", amount=5), "done").run("Pay", on_input=lambda question: True)
    bank.log = await log_after_crash(bank.log, complete_run.task_id, ToolStartEvent)
    bank.paid.clear()

    def instructions(ctx: RunContext[Any]) -> str:
        raise AssertionError("nothing is prepared to cancel a run")

    await bank.agent(instructions=instructions).get_run(complete_run.task_id).cancel()

    events = await bank.log.read(complete_run.task_id)
    assert [e.content for e in events if isinstance(e, ToolCompleteEvent)] == [INTERRUPTED]
    assert (await bank.last_event(complete_run.task_id)).state == "canceled"
    assert bank.paid == []
    state = fold_all(events)
    assert (state.state, state.batch) == ("canceled", None)


async def test_cancel_reaches_a_run_of_another_agent_with_the_same_log() -> None:
    @tool
    async def slow() -> str:
        """Never comes back."""
        await asyncio.get_running_loop().create_future()
        return "late"

    bank = Bank()
    run = bank.agent(call("slow"), tools=[slow]).run("Go")
    async for event in run:
        if isinstance(event, ToolStartEvent):
            await bank.agent().get_run(run.task_id).cancel("enough")
    with pytest.raises(RunCancelled, match="enough"):
        await run
    assert len(final_events(await bank.log.read(run.task_id))) == 1
    await assert_no_tasks()


async def test_run_without_log_can_be_canceled_only_in_its_process() -> None:
    agent = Agent(ScriptedModel("Hi"), log=None)
    run = agent.run("Hi")
    async with run:
        await agent.get_run(run.task_id).cancel()
        with pytest.raises(RunCancelled):
            await run
    with pytest.raises(ConfigurationError, match="requires an agent with its event log"):
        await agent.get_run("somewhere").cancel()


@pytest.mark.parametrize("answer", ["done", RuntimeError("broken")])
async def test_cancel_of_finished_run_writes_nothing(answer: Any) -> None:
    bank = Bank()
    run = bank.agent(answer).run("Hi")
    await outcome(run)
    before = await bank.log.read(run.task_id)

    await bank.agent().get_run(run.task_id).cancel()
    await bank.agent().get_run(run.task_id).cancel()

    assert await bank.log.read(run.task_id) == before


async def test_second_cancel_adds_no_final_event() -> None:
    bank = Bank()
    paused = await bank.request_payment()
    await bank.agent().get_run(paused.task_id).cancel()
    await bank.agent().get_run(paused.task_id).cancel()

    assert [event.state for event in final_events(await bank.log.read(paused.task_id))] == [
        "input-required",
        "canceled",
    ]


async def test_concurrent_cancels_write_one_final_event() -> None:
    bank = Bank()
    complete_run = await bank.agent(call("pay", amount=5), "done").run("Pay", on_input=lambda question: True)
    crashed_log = await log_after_crash(bank.log, complete_run.task_id, ToolStartEvent)

    class CompetingLog(MemoryEventLog):
        async def send_command(self, task_id: str, command: Command) -> int:
            number = await super().send_command(task_id, command)
            if len(sent) == 0:
                sent.append(command)
                await bank.agent(log=self).get_run(task_id).cancel("first")
            return number

    sent: list[Command] = []
    log = CompetingLog()
    log._runs, log._by_context = crashed_log._runs, crashed_log._by_context
    await bank.agent(log=log).get_run(complete_run.task_id).cancel("second")

    assert [event.state for event in final_events(await log.read(complete_run.task_id))] == ["canceled"]


async def test_cancel_of_unknown_run_raises() -> None:
    with pytest.raises(UnknownRun, match="nowhere"):
        await Bank().agent().get_run("nowhere").cancel()


async def test_cancel_does_not_wait_for_a_working_run_of_the_conversation() -> None:
    bank = Bank()
    paused = await bank.request_payment(context_id="c")

    @tool
    async def cancels() -> str:
        """Cancel the previous run."""
        await bank.agent().get_run(paused.task_id).cancel()
        return "ok"

    result = await bank.agent(call("cancels"), "done", tools=[cancels]).run("Go", context_id="c")

    assert result.output == "done"
    assert (await bank.last_event(paused.task_id)).state == "canceled"


def test_cancel_raises_after_30_seconds_when_another_process_always_writes_first() -> None:
    bank = Bank()

    class CompetingLog(MemoryEventLog):
        async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
            raise ConflictError("another process")

    with virtual_time() as time:
        paused = time.run(bank.request_payment())
        log = CompetingLog()
        log._runs, log._by_context = bank.log._runs, bank.log._by_context
        with pytest.raises(ConflictError, match="has not ended it within 30 s"):
            time.run(bank.agent(log=log).get_run(paused.task_id).cancel())
        assert 30 <= time.now <= 31


def test_cancel_can_be_repeated_if_the_run_was_not_read_in_time() -> None:
    bank = Bank()

    class StallingLog(MemoryEventLog):
        """Log whose first snapshot takes longer than a cancelled attempt may load its run, as in a frozen process."""

        stalls = 1

        async def snapshot(self, task_id: str, **options: Any) -> Snapshot:
            if self.stalls:
                self.stalls -= 1
                await asyncio.sleep(2 * GRACE)
            return await super().snapshot(task_id, **options)

    with virtual_time() as time:
        paused = time.run(bank.request_payment())
        log = StallingLog()
        log._runs, log._by_context = bank.log._runs, bank.log._by_context
        run = bank.agent(log=log).get_run(paused.task_id)
        with pytest.raises(LogUnreachable, match="before its run was read") as caught:
            time.run(run.cancel())
        assert caught.value.retryable
        time.run(run.cancel())
        events = time.run(log.read(paused.task_id))

    assert [event.state for event in final_events(events)] == ["input-required", "canceled"]


@pytest.mark.parametrize("outage", [40, 90])
@pytest.mark.parametrize("is_stored", [False, True])
def test_cancel_of_an_active_run_is_recorded_or_raises_if_the_log_is_unwritable(outage: float, is_stored: bool) -> None:
    class UnwritableLog(MemoryEventLog):
        is_down = False

        async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
            if self.is_down:
                raise OSError("the server restarts")
            await super().append(task_id, events, expected_seq=expected_seq, writer=writer)

    log, started = UnwritableLog(), asyncio.Event()

    @tool(idempotent=not is_stored)
    async def wait() -> None:
        """Wait."""
        started.set()
        await asyncio.Event().wait()

    async def cancel() -> list[str]:
        agent = Agent(ScriptedModel(call("wait")), tools=[wait], log=log)
        run = agent.run("Go").start()
        await started.wait()
        log.is_down = True
        asyncio.get_running_loop().call_later(outage, setattr, log, "is_down", False)
        try:
            await agent.get_run(run.task_id).cancel()
        except LogUnreachable as error:
            return [str(error).rpartition(": ")[2]]
        assert (await outcome(run)).state == "working"
        return [event.state for event in final_events(await log.read(run.task_id))] if log._runs else ["unknown"]

    with virtual_time() as time:
        states = time.run(cancel())
    raised = ["use agent.get_run(task_id).cancel() to cancel it again"]
    assert states == (["unknown"] if not is_stored else ["canceled"] if outage == 40 else raised)


class _RacingLog(MemoryEventLog):
    """Log that starts another attempt after storing a cancel, and delays the first append of this attempt."""

    def __init__(self, original: MemoryEventLog) -> None:
        super().__init__()
        self._runs, self._by_context = original._runs, original._by_context
        self.start: Callable[[], Awaitable[object]] | None = None
        self.attempt: asyncio.Future[object] | None = None
        self.is_appending = asyncio.Event()

    async def send_command(self, task_id: str, command: Command) -> int:
        number = await super().send_command(task_id, command)
        if self.start is not None and isinstance(command, CancelCommand):
            self.attempt, self.start = asyncio.ensure_future(self.start()), None
            await self.is_appending.wait()
        return number

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        if not self.is_appending.is_set():
            self.is_appending.set()
            await asyncio.sleep(0.2)
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


@pytest.mark.parametrize("kind", ["worker", "answer"])
def test_cancel_leaves_the_end_to_an_attempt_that_started_meanwhile(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    bank = Bank()
    with virtual_time() as time:
        paused = time.run(bank.request_payment())
        log = bank.log = _RacingLog(bank.log)
        agent = bank.agent("Never sent.")

        async def start() -> object:
            if kind == "worker":
                return await agent.get_run(paused.task_id).execute()
            return await outcome(agent.resume(paused.task_id, inputs={"1.0.1": True}))

        async def cancel() -> object:
            log.start = start
            await agent.get_run(paused.task_id).cancel("stop")
            assert log.attempt is not None
            return await log.attempt

        ended = time.run(cancel())
        events = time.run(log.read(paused.task_id))

    assert [event.state for event in final_events(events)] == ["input-required", "canceled"]
    assert bank.paid == []
    assert "conflict" not in str(ended)
    assert "canceled" in str(ended) or "cancelled" in str(ended)
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []


def test_cancel_that_loses_against_another_process_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    bank = Bank()

    class SlowLog(MemoryEventLog):
        async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
            # The other process resumes the run first.
            await bank.agent("done").resume(task_id, inputs={"1.0.1": True})
            await super().append(task_id, events, expected_seq=expected_seq, writer=writer)

    with virtual_time() as time:
        paused = time.run(bank.request_payment())
        log = SlowLog()
        log._runs, log._by_context = bank.log._runs, bank.log._by_context
        time.run(bank.agent(log=log).get_run(paused.task_id).cancel())
        events = time.run(log.read(paused.task_id))

    assert [event.state for event in final_events(events)] == ["input-required", "completed"]
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []


def test_attempt_waits_for_a_cancel_that_ends_its_run_without_the_lease(caplog: pytest.LogCaptureFixture) -> None:
    class SlowLog(MemoryEventLog):
        """Log that delays the appends to a run that is being cancelled, each one longer than the one before."""

        cancelled = ""
        seconds = 0

        async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
            if task_id == self.cancelled:
                go_on.set()
                self.seconds += 2
                await asyncio.sleep(self.seconds)
            await super().append(task_id, events, expected_seq=expected_seq, writer=writer)

    go_on = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        await go_on.wait()
        return "ok"

    async def cancel() -> tuple[object, list[Event]]:
        log = SlowLog()
        agent = Agent(ScriptedModel(call("wait"), "done", "Never sent."), tools=[wait], log=log)
        first = asyncio.ensure_future(outcome(agent.run("Go", context_id="c")))
        await asyncio.sleep(0.1)
        second = await agent.submit("And then?", context_id="c")
        executing = asyncio.ensure_future(agent.get_run(second.task_id).execute())
        await asyncio.sleep(0.1)
        log.cancelled = second.task_id
        # The first run ends while the cancel is being logged, so that the second run acquires the lease.
        await agent.get_run(second.task_id).cancel()
        record = await executing
        assert (await first).output == "done"
        return record.state, list(await log.read(second.task_id))

    with virtual_time() as time:
        state, events = time.run(cancel())

    assert state == "canceled"
    assert [event.state for event in final_events(events)] == ["canceled"]
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []
