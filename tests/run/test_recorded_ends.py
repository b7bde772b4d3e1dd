"""Recorded run endings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rxloop import (
    Agent,
    Event,
    Limits,
    LLMCallEvent,
    MemoryEventLog,
    Result,
    Run,
    RunCancelled,
    RunContext,
    RunError,
    StatusUpdateEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    op,
    tool,
)
from rxloop.errors import ConflictError, EventLogError
from rxloop.state.history import CANCELED_CALL, INTERRUPTED, NEVER_BEGAN
from rxloop.testing import ScriptedModel, call, virtual_time
from support.bank import Bank, log_after_crash
from support.run_checks import assert_no_tasks, final_events, run_ready_tasks
from support.runs import collect, outcome

# -- cancellation before the first event


async def test_cancel_right_after_resume_is_recorded() -> None:
    bank = Bank()
    complete = await bank.agent(call("pay", amount=5), "done").run("Pay", on_input=lambda question: True)
    bank.log = await log_after_crash(bank.log, complete.task_id, LLMCallEvent)
    bank.paid.clear()

    run = bank.agent("never said").resume(complete.task_id)
    run.cancel("not now")

    with pytest.raises(RunCancelled, match="not now"):
        await run
    last = await bank.last_event(complete.task_id)
    assert (last.state, last.attempt) == ("canceled", 2)
    assert bank.paid == []
    assert [record.state for record in await bank.log.list_runs(unfinished=True)] == ["canceled"]
    await assert_no_tasks()


async def test_cancel_by_a_dropped_handle_right_after_resume_is_recorded() -> None:
    bank = Bank()
    complete = await bank.agent("done").run("Hi")
    bank.log = await log_after_crash(bank.log, complete.task_id, LLMCallEvent)

    async with bank.agent("never said").resume(complete.task_id):
        pass

    assert (await bank.last_event(complete.task_id)).state == "canceled"


class SlowReadLog(MemoryEventLog):
    """Log with slow reads."""

    seconds = 0.0

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        await asyncio.sleep(self.seconds)
        return await super().read(task_id, after_seq=after_seq, deltas=deltas)


@pytest.mark.parametrize("seconds", [1.0, 3600.0])
@pytest.mark.parametrize("limit", [False, True])
def test_attempt_canceled_before_its_start_waits_for_the_log_for_a_limited_time(seconds: float, limit: bool) -> None:
    bank = Bank(SlowReadLog())
    with virtual_time() as time:
        paused = time.run(bank.request_payment())
        SlowReadLog.seconds = seconds
        try:
            limits = Limits(seconds=0.5) if limit else Limits()
            run = bank.agent().resume(paused.task_id, inputs={"1.0.1": True}, limits=limits)
            if not limit:
                time.at(time.now + 0.5, run.cancel)
            final = time.run(outcome(run))
        finally:
            SlowReadLog.seconds = 0.0
        assert time.now < 20
        last = time.run(bank.last_event(paused.task_id))
    if seconds == 1.0:
        assert final.state == last.state == ("failed" if limit else "canceled")
    else:
        # Without a recorded failure, callers get either a cancellation or a retryable error.
        assert (last.state, last.attempt) == ("input-required", 1)
        assert final.state == ("working" if limit else "canceled")
        assert final.error is not None
        assert (final.error.code, final.error.retryable) == (("log", True) if limit else ("canceled", False))


def test_cancel_by_id_raises_when_it_cannot_be_recorded() -> None:
    bank = Bank(SlowReadLog())
    with virtual_time() as time:
        paused = time.run(bank.request_payment())

        async def cancel() -> None:
            asyncio.get_running_loop().call_later(0.5, setattr, SlowReadLog, "seconds", 3600.0)
            SlowReadLog.seconds = 1.0
            with pytest.raises(
                EventLogError, match=r"could not be logged: use agent.get_run\(task_id\).cancel\(\) to cancel it again"
            ):
                await bank.agent().get_run(paused.task_id).cancel()

        try:
            time.run(cancel())
        finally:
            SlowReadLog.seconds = 0.0
        assert time.run(bank.last_event(paused.task_id)).state == "input-required"


# -- resuming while another run holds the lease


def start_blocking_run(bank: Bank, **options: Any) -> tuple[asyncio.Event, Run[str]]:
    """Start a run that blocks its conversation until released."""
    end = asyncio.Event()

    @tool
    async def holds() -> str:
        """Holds the conversation."""
        await end.wait()
        return "ok"

    run = bank.agent(call("holds"), "done", tools=[holds]).run("Go", context_id="c", **options)
    run.events.subscribe(lambda event: None)
    return end, run


async def test_cancel_of_a_resume_that_waits_for_the_lease_is_recorded() -> None:
    bank = Bank()
    paused = await bank.request_payment(context_id="c")
    end, blocking_run = start_blocking_run(bank)
    await run_ready_tasks()

    run = bank.agent().resume(paused.task_id, inputs={"1.0.1": True}, when_busy="wait")
    run.events.subscribe(lambda event: None)
    await run_ready_tasks()
    run.cancel("not now")
    with pytest.raises(RunCancelled, match="not now"):
        await run

    assert (await bank.last_event(paused.task_id)).state == "canceled"
    end.set()
    assert (await blocking_run).output == "done"
    assert bank.paid == []
    await assert_no_tasks()


async def test_cancel_of_a_resume_that_waits_for_its_own_run_does_not_end_the_run() -> None:
    bank = Bank()
    end, blocking_run = start_blocking_run(bank)
    await run_ready_tasks()

    run = bank.agent().resume(blocking_run.task_id, when_busy="wait")
    run.events.subscribe(lambda event: None)
    await run_ready_tasks()
    run.cancel("not now")
    with pytest.raises(RunCancelled, match="not now"):
        await run

    end.set()
    assert (await blocking_run).output == "done"
    await assert_no_tasks()


async def test_concurrent_resumes_get_the_same_result() -> None:
    bank = Bank()
    paused = await bank.request_payment()
    runs = [bank.agent("done").resume(paused.task_id, inputs={"1.0.1": True}, when_busy="wait") for _ in range(3)]

    results = await asyncio.gather(*runs)

    assert [result.output for result in results] == ["done"] * 3
    assert len(bank.paid) == 1


# -- two concurrent attempts


class SynchronizedLog(MemoryEventLog):
    """One of two logs with shared runs, like two processes with one file. Both read before either writes."""

    def __init__(self, shared: MemoryEventLog, barrier: asyncio.Barrier) -> None:
        super().__init__()
        self._runs, self._by_context = shared._runs, shared._by_context
        self._barrier = barrier
        self._has_read = False

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        events = await super().read(task_id, after_seq=after_seq, deltas=deltas)
        if not self._has_read:
            self._has_read = True
            await self._barrier.wait()
        return events


def test_one_of_two_concurrent_resumes_continues() -> None:
    with virtual_time() as time:  # both attempts write the same bytes

        async def main() -> None:
            bank = Bank()
            paused = await bank.request_payment()
            barrier = asyncio.Barrier(2)
            runs = [
                bank.agent("done", log=SynchronizedLog(bank.log, barrier)).resume(
                    paused.task_id, inputs={"1.0.1": True}
                )
                for _ in range(2)
            ]

            outcomes = await asyncio.gather(*runs, return_exceptions=True)

            assert len(bank.paid) == 1
            [result] = [end for end in outcomes if isinstance(end, Result)]
            [error] = [end for end in outcomes if isinstance(end, Exception)]
            assert result.output == "done"
            assert isinstance(error, ConflictError)
            assert "resumed elsewhere at the same time" in str(error)
            assert "follow(log" in str(error)
            assert len(final_events(await bank.log.read(paused.task_id))) == 2
            await assert_no_tasks()

        time.run(main())


async def test_overtaken_attempt_fails_with_code_conflict() -> None:
    log = MemoryEventLog()
    overtaken_event = asyncio.Event()

    @tool
    async def overtaken(ctx: RunContext[Any]) -> str:
        """Simulate a takeover by another process."""
        events = await log.read(ctx.task_id)
        status = StatusUpdateEvent(
            context_id=ctx.context_id, task_id=ctx.task_id, seq=len(events) + 1, attempt=2, timestamp=1,
            state="working", resumed=True, after_seq=len(events),
        )  # fmt: skip
        await log.append(ctx.task_id, [status], expected_seq=len(events), writer="elsewhere")
        overtaken_event.set()
        return "done"

    run = Agent(ScriptedModel(call("overtaken"), "never said"), tools=[overtaken], log=log).run("Go")
    events = await collect(run.pipe(op.grammar()))

    with pytest.raises(RunError, match="another process is executing run") as caught:
        await run
    assert caught.value.code == "conflict"
    last = events[-1]
    assert isinstance(last, StatusUpdateEvent)
    assert last.final
    assert (last.state, last.reason) == ("working", "error")
    recorded = await log.read(run.task_id)
    assert final_events(recorded) == []
    await assert_no_tasks()


# -- started and unstarted calls


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("cause", ["cancel", "limit", "dropped"])
def test_result_of_interrupted_call_states_whether_it_had_started(cause: str, idempotent: bool) -> None:
    started: list[int] = []

    @tool(idempotent=idempotent)
    async def pay(amount: int) -> str:
        """Pay, then hang."""
        started.append(amount)
        await asyncio.sleep(3600)
        return "paid"

    log = MemoryEventLog()
    turn = [call("pay", "a", amount=1), call("pay", "b", amount=2)]
    limits = Limits(seconds=2) if cause == "limit" else None
    agent = Agent(ScriptedModel(turn), tools=[pay], log=log, loop=[op.call_model(), op.run_tools(1)], limits=limits)
    with virtual_time() as time:

        async def main() -> None:
            run = agent.run("Go", context_id="c")
            run.events.subscribe(lambda event: None) if cause == "limit" else None
            if cause == "dropped":
                async with run:
                    await asyncio.sleep(2)
            elif cause == "cancel":
                asyncio.get_running_loop().call_later(2, run.cancel)
                await outcome(run)
            else:
                await outcome(run)
            results = {e.call.id: e for e in await log.read(run.task_id) if isinstance(e, ToolCompleteEvent)}
            assert started == [1]
            assert results["a"].content == (CANCELED_CALL if idempotent else INTERRUPTED)
            assert results["b"].content == NEVER_BEGAN
            assert {event.error for event in results.values()} == {"canceled"}
            # The next run of the conversation reads the same results.
            model = ScriptedModel("I see.")
            await Agent(model, tools=[pay], log=log).run("And?", context_id="c")
            assert [m.text for m in model.requests[0].messages if m.role == "tool"] == [
                results["a"].content,
                NEVER_BEGAN,
            ]

        time.run(main())


async def test_next_run_reads_the_same_results_after_a_run_without_end() -> None:
    bank = Bank()
    calls = [call("pay", "a", amount=1), call("pay", "b", amount=2)]

    @tool
    async def pay(amount: int) -> str:
        """Pays."""
        return "paid"

    complete_run = await bank.agent(calls, "done", tools=[pay], loop=[op.call_model(), op.run_tools(1)]).run("Go")
    truncated_log = await log_after_crash(bank.log, complete_run.task_id, ToolStartEvent)
    context_id = (await truncated_log.read(complete_run.task_id))[0].context_id
    model = ScriptedModel("I see.")

    await Agent(model, log=truncated_log).run("And?", context_id=context_id)

    assert [m.text for m in model.requests[0].messages if m.role == "tool"] == [INTERRUPTED, NEVER_BEGAN]


def test_timeout_of_a_tool_reports_an_unknown_effect() -> None:
    @tool(timeout=1)
    async def pay() -> str:
        """Pays."""
        await asyncio.sleep(5)
        return "paid"

    @tool(timeout=1, idempotent=True)
    async def look() -> str:
        """Looks."""
        await asyncio.sleep(5)
        return "seen"

    model = ScriptedModel([call("pay"), call("look")], "done")
    with virtual_time() as time:
        time.run(Agent(model, tools=[pay, look]).run("Go"))

    paid, looked = (message.text for message in model.requests[1].messages[2:])
    assert "it is not known whether it had its effect" in paid
    assert looked == "look timed out after 1 s."


async def test_tool_gets_the_idempotency_key_of_its_call() -> None:
    bank = Bank()
    paused = await bank.request_payment()
    await bank.agent("done").resume(paused.task_id, inputs={"1.0.1": True})

    [start] = [e for e in await bank.log.read(paused.task_id) if isinstance(e, ToolStartEvent)]
    assert bank.paid == [start.idempotency_key] == [f"{paused.task_id}:1:0"]
