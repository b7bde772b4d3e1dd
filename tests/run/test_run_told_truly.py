"""A stop is told truly: what the log says of a run is what happened, whoever stops it and whenever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from run_checks import finals, nothing_left, settled
from runs import collect, first_events, outcome, shape
from rxloop import (
    Agent,
    ConflictError,
    Event,
    EventLogError,
    InputReceivedEvent,
    Limits,
    LLMCallEvent,
    MemoryEventLog,
    Result,
    Run,
    RunCancelled,
    RunContext,
    RunError,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    UnknownRun,
    follow,
    op,
    tool,
)
from rxloop.errors import (
    ConfigurationError,
    ContextBusy,
    InvalidInput,
    Overloaded,
    ProviderConnectionError,
    RateLimited,
)
from rxloop.pipeline import patience
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import Message
from rxloop.state.batch import CANCELED_CALL, INTERRUPTED, NEVER_BEGAN
from rxloop.state.run_state import fold_all
from rxloop.testing import ScriptedModel, call, virtual_time


class Bank:
    """Payments, which are asked for, made and counted."""

    def __init__(self, log: MemoryEventLog | None = None) -> None:
        self.log = log or MemoryEventLog()
        self.paid: list[str] = []

        @tool(approve=True)
        async def pay(amount: int, ctx: RunContext[Any]) -> str:
            """Pays."""
            self.paid.append(ctx.idempotency_key)
            return f"paid {amount}"

        self.pay = pay

    def agent(self, *turns: Any, **fields: Any) -> Agent:
        options: dict[str, Any] = {"tools": [self.pay], "log": self.log, **fields}
        return Agent(ScriptedModel(*turns), **options)

    async def waiting(self, **options: Any) -> Result[str]:
        return await self.agent(call("pay", "p", amount=5)).run("Pay", **options)

    async def last(self, task_id: str) -> StatusUpdateEvent:
        event = (await self.log.read(task_id))[-1]
        assert isinstance(event, StatusUpdateEvent)
        return event


async def crashed(log: MemoryEventLog, task_id: str, kind: type[Event]) -> MemoryEventLog:
    """What a crash leaves behind right after the first event of a kind."""
    events = await log.read(task_id)
    return await first_events(log, task_id, next(event.seq for event in events if isinstance(event, kind)))


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
    assert [record.state for record in await bank.log.runs(unfinished=True)] == ["canceled"]
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
                await bank.agent().cancel(waiting.task_id)

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


# -- the way from a question to the pause, and back


async def test_a_run_that_was_killed_at_its_question_goes_up_to_it_and_pauses() -> None:
    bank = Bank()
    waiting = await bank.waiting()
    asked = next(e.seq for e in await bank.log.read(waiting.task_id) if e.kind == "input-required")
    bank.log = await first_events(bank.log, waiting.task_id, asked)

    again = await bank.agent().resume(waiting.task_id)

    assert (again.state, bank.paid) == ("input-required", [])
    assert (await bank.agent("done").resume(waiting.task_id, inputs={"1.0.1": True})).output == "done"
    assert len(bank.paid) == 1


async def test_an_answer_survives_a_kill_before_the_tool_had_it() -> None:
    bank = Bank()

    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks in its middle."""
        return "yes" if await ctx.ask("Really?") else "no"

    waiting = await bank.agent(call("asks"), tools=[asks]).run("Go")
    asked = next(e.seq for e in await bank.log.read(waiting.task_id) if e.kind == "input-required")
    bank.log = await first_events(bank.log, waiting.task_id, asked)
    await bank.agent("done", tools=[asks]).resume(waiting.task_id, inputs={"1.0.1": True})
    events = await bank.log.read(waiting.task_id)
    bank.log = await crashed(bank.log, waiting.task_id, InputReceivedEvent)

    result = await bank.agent("done", tools=[asks]).resume(waiting.task_id)

    assert [message.text for message in result.messages if message.role == "tool"] == ["yes"]
    assert [e.kind for e in events].count("tool-complete") == 1


async def test_the_same_answer_twice_is_passed_over() -> None:
    bank = Bank()
    waiting = await bank.waiting()
    answers = {"1.0.1": True}
    first = await bank.agent("done").resume(waiting.task_id, inputs=answers)

    again = await bank.agent("never said").resume(waiting.task_id, inputs=answers)

    assert (again.output, len(bank.paid)) == (first.output, 1)
    bank.log = await crashed(bank.log, waiting.task_id, InputReceivedEvent)
    once_more = await bank.agent("done").resume(waiting.task_id, inputs=answers)
    assert once_more.output == "done"
    assert [e.kind for e in await bank.log.read(waiting.task_id)].count("input-received") == 1


@pytest.mark.parametrize("other", [False, 1, "true", None])
async def test_another_answer_to_an_answered_question_is_refused(other: Any) -> None:
    bank = Bank()
    waiting = await bank.waiting()
    await bank.agent("done").resume(waiting.task_id, inputs={"1.0.1": True})

    with pytest.raises(InvalidInput, match="has its answer already: True"):
        await bank.agent().resume(waiting.task_id, inputs={"1.0.1": other})


@pytest.mark.parametrize("state", ["completed", "failed", "canceled"])
async def test_answers_for_a_run_that_is_over_are_refused_by_its_state(state: str) -> None:  # L102
    bank = Bank()
    turns = {"completed": "done", "failed": RuntimeError("broken"), "canceled": "never said"}
    run = bank.agent(turns[state]).run("Hi")
    if state == "canceled":
        run.cancel()
    assert (await outcome(run)).state == state
    before = await bank.log.read(run.task_id)

    with pytest.raises(InvalidInput, match=f"is {state} and does not wait for 'zz'; it waits for nothing"):
        await bank.agent().resume(run.task_id, inputs={"zz": 1})

    assert await bank.log.read(run.task_id) == before


async def test_a_run_of_which_only_the_task_is_written_is_begun_by_a_resume() -> None:
    bank = Bank()
    task = TaskEvent(
        context_id="c",
        task_id="t",
        seq=1,
        attempt=1,
        timestamp=5,
        messages=[Message.user("Hi")],
        model="m",
        agent_name="a",
    )
    await bank.log.append("t", [task], expected_seq=0)

    run = bank.agent("Hello.").resume("t")
    events = await collect(run.pipe(op.grammar()))

    assert (await run).output == "Hello."
    assert events[0] == task
    begun = events[1]
    assert isinstance(begun, StatusUpdateEvent)
    assert (begun.attempt, begun.resumed, begun.after_seq) == (1, False, None)
    assert [event.seq for event in events if event.durable] == list(range(1, len(await bank.log.read("t")) + 1))


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
        await log.append(ctx.task_id, [taken], expected_seq=len(events), owner="elsewhere")
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


# -- a log that is away


class Away(MemoryEventLog):
    """Takes nothing for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, owner: str = "") -> None:
        if self.away:
            raise OSError("the server restarts")
        await super().append(task_id, events, expected_seq=expected_seq, owner=owner)


@pytest.mark.parametrize("seconds", [1.0, patience.PATIENCE - 3])
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
        self.away = False

    def _ask(self) -> None:
        self.asked += 1
        if self.away:
            raise OSError("the server restarts")

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Any:
        self._ask()
        return await super().read(task_id, after_seq=after_seq, deltas=deltas)

    async def runs(self, *, context_id: str | None = None, unfinished: bool = False) -> Any:
        self._ask()
        return await super().runs(context_id=context_id, unfinished=unfinished)


GOES_ON: dict[str, Callable[[Agent[None, str], Result[str]], Run[str]]] = {
    "resume": lambda agent, before: agent.resume(before.task_id, inputs={"1.0.1": True}),
    "fork": lambda agent, before: agent.fork(before.task_id, 1),
    "conversation": lambda agent, before: agent.run("And now?", context_id=before.context_id),
}


@pytest.mark.parametrize("way", GOES_ON)
@pytest.mark.parametrize("seconds", [1.0, patience.PATIENCE - 3])
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
    assert log.asked < 30
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
        assert patience.PATIENCE - 3 < time.now - begun < patience.PATIENCE + 3
        log.away = False
        assert len(time.run(log.runs())) == 1
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
        assert time.now - begun < 2 * patience.PATIENCE


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
        assert time.now >= patience.PATIENCE - 3
        held = time.run(log.read(run.task_id))
        assert finals(held) == []
        log.away = False
        result = time.run(Agent(ScriptedModel("done"), tools=[pay], log=log).resume(run.task_id))

    assert (result.output, paid) == ("done", [1])
    assert shape(result.messages)[2] == f"tool: {INTERRUPTED}"


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


# -- cancelling by the id


async def test_a_run_that_waits_for_an_answer_can_be_cancelled() -> None:
    bank = Bank()
    waiting = await bank.waiting(context_id="c")
    following = asyncio.ensure_future(collect(follow(bank.log, waiting.task_id)))

    await bank.agent().cancel(waiting.task_id, "changed my mind")

    last = await bank.last(waiting.task_id)
    assert (last.state, last.pending) == ("canceled", [])
    assert last.error is not None
    assert last.error.message == "changed my mind"
    [closed] = [e for e in await bank.log.read(waiting.task_id) if isinstance(e, ToolCompleteEvent)]
    assert (closed.content, closed.error, bank.paid) == (CANCELED_CALL, "canceled", [])
    await following
    with pytest.raises(InvalidInput, match="is canceled"):
        await bank.agent().resume(waiting.task_id, inputs={"1.0.1": True})
    assert (await bank.agent("Fine.").run("And now?", context_id="c")).output == "Fine."
    await nothing_left()


async def test_a_run_that_a_crash_left_can_be_cancelled_and_no_model_is_asked() -> None:
    bank = Bank()
    done = await bank.agent(call("pay", amount=5), "done").run("Pay", on_input=lambda question: True)
    bank.log = await crashed(bank.log, done.task_id, ToolStartEvent)
    bank.paid.clear()

    def instructions(ctx: RunContext[Any]) -> str:
        raise AssertionError("nothing is prepared to cancel a run")

    await bank.agent(instructions=instructions).cancel(done.task_id)

    events = await bank.log.read(done.task_id)
    assert [e.content for e in events if isinstance(e, ToolCompleteEvent)] == [INTERRUPTED]
    assert (await bank.last(done.task_id)).state == "canceled"
    assert bank.paid == []
    state = fold_all(events)
    assert (state.state, state.batch) == ("canceled", None)


async def test_a_run_that_goes_on_in_this_process_is_cancelled_there_whatever_agent_made_it() -> None:
    @tool
    async def slow() -> str:
        """Never comes back."""
        await asyncio.get_running_loop().create_future()
        return "late"

    bank = Bank()
    run = bank.agent(call("slow"), tools=[slow]).run("Go")
    async for event in run:
        if isinstance(event, ToolStartEvent):
            await Bank().agent().cancel(run.task_id, "enough")
    with pytest.raises(RunCancelled, match="enough"):
        await run
    assert len(finals(await bank.log.read(run.task_id))) == 1
    await nothing_left()


async def test_a_run_without_a_log_is_cancelled_where_it_goes_on() -> None:
    agent = Agent(ScriptedModel("Hi"), log=None)
    run = agent.run("Hi")
    async with run:
        await agent.cancel(run.task_id)
        with pytest.raises(RunCancelled):
            await run
    with pytest.raises(ConfigurationError, match="needs the log"):
        await agent.cancel("somewhere")


@pytest.mark.parametrize("turn", ["done", RuntimeError("broken")])
async def test_a_run_that_is_over_stays_as_it_is_when_it_is_cancelled(turn: Any) -> None:
    bank = Bank()
    run = bank.agent(turn).run("Hi")
    await outcome(run)
    before = await bank.log.read(run.task_id)

    await bank.agent().cancel(run.task_id)
    await bank.agent().cancel(run.task_id)

    assert await bank.log.read(run.task_id) == before


async def test_cancelling_twice_leaves_one_end() -> None:
    bank = Bank()
    waiting = await bank.waiting()
    await bank.agent().cancel(waiting.task_id)
    await bank.agent().cancel(waiting.task_id)

    assert [event.state for event in finals(await bank.log.read(waiting.task_id))] == ["input-required", "canceled"]


async def test_an_unknown_run_cannot_be_cancelled() -> None:
    with pytest.raises(UnknownRun, match="nowhere"):
        await Bank().agent().cancel("nowhere")


async def test_a_cancel_does_not_wait_for_the_run_that_goes_on_in_the_conversation() -> None:
    bank = Bank()
    waiting = await bank.waiting(context_id="c")

    @tool
    async def cancels() -> str:
        """Cancels the run before this one."""
        await bank.agent().cancel(waiting.task_id)
        return "ok"

    result = await bank.agent(call("cancels"), "done", tools=[cancels]).run("Go", context_id="c")

    assert result.output == "done"
    assert (await bank.last(waiting.task_id)).state == "canceled"


async def test_a_cancel_is_refused_where_another_process_writes_the_run() -> None:
    bank = Bank()
    waiting = await bank.waiting()

    class Quicker(MemoryEventLog):
        async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, owner: str = "") -> None:
            raise ConflictError("somebody else")

    log = Quicker()
    log._runs = bank.log._runs
    with pytest.raises(ConflictError, match="another process, and cannot be cancelled from here"):
        await bank.agent(log=log).cancel(waiting.task_id)


# -- failures that pass


@pytest.mark.parametrize("error", [Overloaded("503"), RateLimited("429"), ProviderConnectionError("broken")])
async def test_a_run_that_failed_by_something_that_passes_goes_on(error: Exception) -> None:
    bank = Bank()
    steps: list[int] = []

    @tool
    async def step() -> str:
        """A step."""
        steps.append(1)
        return "ok"

    run = bank.agent(call("step"), call("step"), error, tools=[step]).run("Go", context_id="c")
    with pytest.raises(RunError) as caught:
        await run
    assert caught.value.result.error is not None
    assert caught.value.result.error.retryable
    # Nobody takes it up by itself.
    assert await bank.log.runs(unfinished=True) == []

    again = bank.agent("done", tools=[step]).resume(run.task_id)
    events = await collect(again)

    assert ((await again).output, len(steps)) == ("done", 2)
    assert {event.attempt for event in events} == {2}
    whole = await bank.log.read(run.task_id)
    assert [event.state for event in finals(whole)] == ["failed", "completed"]


@pytest.mark.parametrize("error", [RuntimeError("a mistake"), ValueError("bad")])
async def test_a_run_that_failed_for_good_gives_its_end_once_more(error: Exception) -> None:
    bank = Bank()
    run = bank.agent(error).run("Go")
    await outcome(run)
    before = await bank.log.read(run.task_id)

    again = await outcome(bank.agent("never said").resume(run.task_id))

    assert again.state == "failed"
    assert await bank.log.read(run.task_id) == before


async def test_a_conversation_that_is_busy_refuses_a_cancelled_attempt_too() -> None:
    bank = Bank()
    waiting = await bank.waiting(context_id="c")
    held = asyncio.Event()

    @tool
    async def holds() -> str:
        """Holds the conversation."""
        with pytest.raises(ContextBusy):
            await bank.agent().resume(waiting.task_id, inputs={"1.0.1": True})
        held.set()
        return "ok"

    await bank.agent(call("holds"), "done", tools=[holds]).run("Go", context_id="c")
    assert held.is_set()


def test_the_model_that_is_asked_again_is_told_of_nothing_twice() -> None:
    """The order of the parts: an answer, a cancel, another resume."""
    with virtual_time() as time:

        async def main() -> None:
            bank = Bank()
            waiting = await bank.waiting()
            run = bank.agent().resume(waiting.task_id, inputs={"1.0.1": True})
            run.cancel()
            await outcome(run)
            model = ScriptedModel("I see.")
            requests: list[ModelRequest] = model.requests
            result = await Agent(model, tools=[bank.pay], log=bank.log).resume(waiting.task_id)
            assert (result.output, bank.paid) == ("I see.", [])
            assert [message.text for message in requests[0].messages if message.role == "tool"] == [NEVER_BEGAN]

        time.run(main())


async def test_the_log_that_cannot_be_reached_refuses_who_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE", 0)
    log = Away()
    bank = Bank(log)
    waiting = await bank.waiting()
    log.away = True

    with pytest.raises(EventLogError, match="the server restarts"):
        await bank.agent().resume(waiting.task_id, inputs={"1.0.1": True})

    log.away = False
    assert (await bank.agent("done").resume(waiting.task_id, inputs={"1.0.1": True})).output == "done"
    await nothing_left()
