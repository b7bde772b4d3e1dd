"""A stop is told truly: what the log says of a run is what happened, whoever stops it and whenever."""

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
from rxloop.errors import ConflictError
from rxloop.state.history import CANCELED_CALL, INTERRUPTED, NEVER_BEGAN
from rxloop.testing import ScriptedModel, call, virtual_time
from support.bank import Bank, crashed
from support.run_checks import finals, nothing_left, settled
from support.runs import collect, outcome

# -- a cancel before the first event


async def test_a_cancel_right_after_a_resume_is_in_the_log() -> None:
    bank = Bank()
    done = await bank.agent(call("pay", amount=5), "done").run("Pay", on_input=lambda question: True)
    bank.log = await crashed(bank.log, done.task_id, LLMCallEvent)
    bank.paid.clear()

    run = bank.agent("never said").resume(done.task_id)
    run.cancel("not now")

    with pytest.raises(RunCancelled, match="not now"):
        await run
    last = await bank.last(done.task_id)
    assert (last.state, last.attempt, bank.paid) == ("canceled", 2, [])
    assert [record.state for record in await bank.log.list_runs(unfinished=True)] == ["canceled"]
    await nothing_left()


async def test_a_handle_that_is_dropped_right_after_a_resume_is_in_the_log() -> None:
    bank = Bank()
    done = await bank.agent("done").run("Hi")
    bank.log = await crashed(bank.log, done.task_id, LLMCallEvent)

    async with bank.agent("never said").resume(done.task_id):
        pass

    assert (await bank.last(done.task_id)).state == "canceled"


class SlowToRead(MemoryEventLog):
    """Takes a while to give what it has."""

    seconds = 0.0

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        await asyncio.sleep(self.seconds)
        return await super().read(task_id, after_seq=after_seq, deltas=deltas)


@pytest.mark.parametrize("seconds", [1.0, 3600.0])
@pytest.mark.parametrize("limit", [False, True])
def test_an_attempt_that_ends_before_it_began_waits_for_the_log_but_not_for_ever(seconds: float, limit: bool) -> None:
    bank = Bank(SlowToRead())
    with virtual_time() as time:
        waiting = time.run(bank.waiting())
        SlowToRead.seconds = seconds
        try:
            limits = Limits(seconds=0.5) if limit else Limits()
            run = bank.agent().resume(waiting.task_id, inputs={"1.0.1": True}, limits=limits)
            if not limit:
                time.at(time.now + 0.5, run.cancel)
            told = time.run(outcome(run))
        finally:
            SlowToRead.seconds = 0.0
        assert time.now < 20
        last = time.run(bank.last(waiting.task_id))
    if seconds == 1.0:
        assert told.state == last.state == ("failed" if limit else "canceled")
    else:
        # The run is as it was: who gave it up is told that, and nobody of a failure that the log does not have.
        assert (last.state, last.attempt) == ("input-required", 1)
        assert told.state == ("working" if limit else "canceled")
        assert told.error is not None
        assert (told.error.code, told.error.retryable) == (("log", True) if limit else ("canceled", False))


def test_a_cancel_by_id_that_the_log_does_not_get_is_no_cancel() -> None:
    bank = Bank(SlowToRead())
    with virtual_time() as time:
        waiting = time.run(bank.waiting())

        async def cancel() -> None:
            asyncio.get_running_loop().call_later(0.5, setattr, SlowToRead, "seconds", 3600.0)
            SlowToRead.seconds = 1.0
            with pytest.raises(RunError, match="could not be recorded"):
                await bank.agent().get_run(waiting.task_id).cancel()

        try:
            time.run(cancel())
        finally:
            SlowToRead.seconds = 0.0
        assert time.run(bank.last(waiting.task_id)).state == "input-required"


# -- a resume that waits for its turn


def holding(bank: Bank, **options: Any) -> tuple[asyncio.Event, Run[str]]:
    """A run of the conversation that goes on until it is told to end."""
    end = asyncio.Event()

    @tool
    async def holds() -> str:
        """Holds the conversation."""
        await end.wait()
        return "ok"

    run = bank.agent(call("holds"), "done", tools=[holds]).run("Go", context_id="c", **options)
    run.events.subscribe(lambda event: None)
    return end, run


async def test_a_resume_that_is_cancelled_while_it_waits_for_its_turn_is_in_the_log() -> None:
    bank = Bank()
    waiting = await bank.waiting(context_id="c")
    end, other = holding(bank)
    await settled()

    run = bank.agent().resume(waiting.task_id, inputs={"1.0.1": True}, when_busy="wait")
    run.events.subscribe(lambda event: None)
    await settled()
    run.cancel("not now")
    with pytest.raises(RunCancelled, match="not now"):
        await run

    assert (await bank.last(waiting.task_id)).state == "canceled"
    end.set()
    assert (await other).output == "done"
    assert bank.paid == []
    await nothing_left()


async def test_a_resume_that_waits_behind_its_own_run_does_not_end_it_when_it_is_cancelled() -> None:
    bank = Bank()
    end, other = holding(bank)
    await settled()

    run = bank.agent().resume(other.task_id, when_busy="wait")
    run.events.subscribe(lambda event: None)
    await settled()
    run.cancel("not now")
    with pytest.raises(RunCancelled, match="not now"):
        await run

    end.set()
    assert (await other).output == "done"
    await nothing_left()


async def test_all_who_wait_to_resume_a_run_get_its_end() -> None:
    bank = Bank()
    waiting = await bank.waiting()
    runs = [bank.agent("done").resume(waiting.task_id, inputs={"1.0.1": True}, when_busy="wait") for _ in range(3)]

    results = await asyncio.gather(*runs)

    assert [result.output for result in results] == ["done"] * 3
    assert len(bank.paid) == 1


# -- two who go on at once


class Meeting(MemoryEventLog):
    """One of two logs that keep the same runs, as two processes see one file: both have read before either goes on."""

    def __init__(self, kept: MemoryEventLog, both_have_read: asyncio.Barrier) -> None:
        super().__init__()
        self._runs, self._by_context = kept._runs, kept._by_context
        self._both_have_read = both_have_read
        self._met = False

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        events = await super().read(task_id, after_seq=after_seq, deltas=deltas)
        if not self._met:
            self._met = True
            await self._both_have_read.wait()
        return events


def test_of_two_who_answer_at_the_same_moment_one_goes_on() -> None:
    with virtual_time() as time:  # in which both make the same bytes

        async def main() -> None:
            bank = Bank()
            waiting = await bank.waiting()
            barrier = asyncio.Barrier(2)
            runs = [
                bank.agent("done", log=Meeting(bank.log, barrier)).resume(waiting.task_id, inputs={"1.0.1": True})
                for _ in range(2)
            ]

            ends = await asyncio.gather(*runs, return_exceptions=True)

            assert len(bank.paid) == 1
            [won] = [end for end in ends if isinstance(end, Result)]
            [lost] = [end for end in ends if isinstance(end, Exception)]
            assert won.output == "done"
            assert isinstance(lost, ConflictError)
            assert "taken up elsewhere at the same moment" in str(lost)
            assert "follow(log" in str(lost)
            assert len(finals(await bank.log.read(waiting.task_id))) == 2
            await nothing_left()

        time.run(main())


async def test_who_is_overtaken_ends_with_a_code_of_its_own_and_says_that_the_run_goes_on() -> None:
    log = MemoryEventLog()
    going = asyncio.Event()

    @tool
    async def overtaken(ctx: RunContext[Any]) -> str:
        """Another process takes the run up meanwhile."""
        events = await log.read(ctx.task_id)
        taken = StatusUpdateEvent(
            context_id=ctx.context_id, task_id=ctx.task_id, seq=len(events) + 1, attempt=2, timestamp=1,
            state="working", resumed=True, after_seq=len(events),
        )  # fmt: skip
        await log.append(ctx.task_id, [taken], expected_seq=len(events), writer="elsewhere")
        going.set()
        return "done"

    run = Agent(ScriptedModel(call("overtaken"), "never said"), tools=[overtaken], log=log).run("Go")
    events = await collect(run.pipe(op.grammar()))

    with pytest.raises(RunError, match="another process goes on with the run") as caught:
        await run
    assert caught.value.code == "conflict"
    last = events[-1]
    assert isinstance(last, StatusUpdateEvent)
    assert (last.final, last.state, last.reason) == (True, "working", "error")
    held = await log.read(run.task_id)
    assert finals(held) == []
    await nothing_left()


# -- what was begun, and what was not


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("stop", ["cancel", "limit", "dropped"])
def test_a_call_that_is_cut_off_is_told_by_whether_it_was_begun(stop: str, idempotent: bool) -> None:
    begun: list[int] = []

    @tool(idempotent=idempotent)
    async def pay(amount: int) -> str:
        """Pays, and takes long to say so."""
        begun.append(amount)
        await asyncio.sleep(3600)
        return "paid"

    log = MemoryEventLog()
    turn = [call("pay", "a", amount=1), call("pay", "b", amount=2)]
    limits = Limits(seconds=2) if stop == "limit" else None
    agent = Agent(ScriptedModel(turn), tools=[pay], log=log, loop=[op.call_model(), op.run_tools(1)], limits=limits)
    with virtual_time() as time:

        async def main() -> None:
            run = agent.run("Go", context_id="c")
            run.events.subscribe(lambda event: None) if stop == "limit" else None
            if stop == "dropped":
                async with run:
                    await asyncio.sleep(2)
            elif stop == "cancel":
                asyncio.get_running_loop().call_later(2, run.cancel)
                await outcome(run)
            else:
                await outcome(run)
            told = {e.call.id: e for e in await log.read(run.task_id) if isinstance(e, ToolCompleteEvent)}
            assert begun == [1]
            assert told["a"].content == (CANCELED_CALL if idempotent else INTERRUPTED)
            assert told["b"].content == NEVER_BEGAN
            assert {event.error for event in told.values()} == {"canceled"}
            # The next run of the conversation reads the same.
            model = ScriptedModel("I see.")
            await Agent(model, tools=[pay], log=log).run("And?", context_id="c")
            assert [m.text for m in model.requests[0].messages if m.role == "tool"] == [
                told["a"].content,
                NEVER_BEGAN,
            ]

        time.run(main())


async def test_a_run_that_never_ended_leaves_the_same_words_to_the_next_one() -> None:
    bank = Bank()
    calls = [call("pay", "a", amount=1), call("pay", "b", amount=2)]

    @tool
    async def pay(amount: int) -> str:
        """Pays."""
        return "paid"

    whole = await bank.agent(calls, "done", tools=[pay], loop=[op.call_model(), op.run_tools(1)]).run("Go")
    cut = await crashed(bank.log, whole.task_id, ToolStartEvent)
    context_id = (await cut.read(whole.task_id))[0].context_id
    model = ScriptedModel("I see.")

    await Agent(model, log=cut).run("And?", context_id=context_id)

    assert [m.text for m in model.requests[0].messages if m.role == "tool"] == [INTERRUPTED, NEVER_BEGAN]


def test_a_tool_that_takes_too_long_may_have_had_its_effect() -> None:
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


async def test_a_tool_knows_the_key_of_its_call() -> None:
    bank = Bank()
    waiting = await bank.waiting()
    await bank.agent("done").resume(waiting.task_id, inputs={"1.0.1": True})

    [start] = [e for e in await bank.log.read(waiting.task_id) if isinstance(e, ToolStartEvent)]
    assert bank.paid == [start.idempotency_key] == [f"{waiting.task_id}:1:0"]
