"""Runs that nobody holds: submitted, and brought to rest by any number of callers, anywhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, Event, Limits, MemoryEventLog, RunContext, SqliteEventLog, follow
from rxloop.errors import LogUnreachable, RunOver, RxloopError, UnknownRun
from rxloop.pipeline import log_retry
from rxloop.pipeline.event_log import EventLog
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.processes.machines import Machines, states
from support.run_checks import finals, nothing_left, until
from support.runs import collect


@pytest.mark.parametrize("ending", ["done", RuntimeError("broken"), call("pay", amount=5)])
async def test_a_run_that_is_at_rest_is_left_as_it_is(machines: Machines, ending: Any) -> None:
    a, b = machines
    record = await a.agent(ending).get_run((await a.agent().submit("Go")).task_id).execute()
    held = await a.log.read(record.task_id)

    assert await b.agent().get_run(record.task_id).execute() == record
    assert record.state == {"str": "completed", "RuntimeError": "failed"}.get(type(ending).__name__, "input-required")
    assert await a.log.read(record.task_id) == held
    assert b.log.taken == []


async def test_a_run_that_was_cancelled_is_at_rest(machines: Machines) -> None:
    a, b = machines
    record = await a.agent().submit("Go")
    await a.agent().get_run(record.task_id).cancel()
    assert (await b.agent().get_run(record.task_id).execute()).state == "canceled"


def test_any_number_settle_a_run_and_it_is_carried_out_once(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            record = await a.agent().submit("Go")
            agents = [machine.agent(call("work"), "done") for machine in (a, b, a, b)]
            records = await asyncio.gather(*(agent.get_run(record.task_id).execute() for agent in agents))
            assert [record.state for record in records] == ["completed"] * 4
            assert (a.begun + b.begun, time.now) == (1, 60)
            assert await states(a, record.task_id) == ["completed"]
            await nothing_left()

        time.run(main())


def test_settling_a_run_that_somebody_carries_out_waits_for_its_end(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            run = await a.agent(call("work"), "done").run("Go").begin()
            record = await b.agent().get_run(run.task_id).execute()
            assert (record.state, time.now, b.begun) == ("completed", 60, 0)
            await run

        time.run(main())


def test_the_time_for_which_others_go_on_is_none_of_ones_own(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            limits = Limits(seconds=50)
            first = await a.agent(call("work"), call("work"), "done").run("Go", context_id="c").begin()
            second = await b.agent().submit("And now?", context_id="d", limits=limits)
            turn = await b.agent(frames("-never")).run("Hold", context_id="d").begin()
            settling = asyncio.ensure_future(a.agent("second").get_run(second.task_id).execute())
            await first
            await turn.aclose()
            assert ((await settling).state, time.now > 100) == ("completed", True)

        time.run(main())


def test_a_run_whose_machine_died_is_taken_over(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            run = await a.agent(call("work"), "done").run("Go", context_id="c").begin()
            await until(lambda: a.begun)
            settling = asyncio.ensure_future(b.agent("mine").get_run(run.task_id).execute())
            await asyncio.sleep(3)
            assert b.log.taken == []
            lost = a.log.freezes("c")
            record = await settling
            assert (record.state, record.attempt, time.now <= 4) == ("completed", 2, True)
            lost()
            await run.aclose()
            assert await states(a, run.task_id) == ["completed"]

        time.run(main())


def test_who_is_fenced_while_settling_settles_on_and_finds_the_end(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            submitted = await a.agent().submit("Go", context_id="c")
            first = asyncio.ensure_future(a.agent(call("work"), "done").get_run(submitted.task_id).execute())
            await until(lambda: a.begun)
            lost = a.log.freezes("c")
            second = await b.agent("mine").get_run(submitted.task_id).execute()
            lost()
            assert await first == second
            assert (second.state, a.cut) == ("completed", 1)

        time.run(main())


def test_who_is_cancelled_while_settling_releases_the_run(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            submitted = await a.agent().submit("Go")
            settling = asyncio.ensure_future(a.agent(call("work"), "never").get_run(submitted.task_id).execute())
            await until(lambda: a.begun)
            settling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await settling
            assert a.log.shared.turns == {}
            assert await states(a, submitted.task_id) == []
            assert (await b.agent("done").get_run(submitted.task_id).execute()).state == "completed"
            await nothing_left()

        time.run(main())


def test_who_is_cancelled_while_it_waits_for_the_turn_leaves_nothing(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            run = await a.agent(call("work"), "done").run("Go").begin()
            settling = asyncio.ensure_future(b.agent().get_run(run.task_id).execute())
            await asyncio.sleep(2)
            settling.cancel()
            await asyncio.wait([settling])
            assert (await run).output == "done"
            await nothing_left()

        time.run(main())


def test_an_earlier_run_of_the_conversation_goes_first(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            first = await a.agent().submit("one", context_id="c")
            second = await a.agent().submit("two", context_id="c")
            later = asyncio.ensure_future(b.agent("second").get_run(second.task_id).execute())
            await asyncio.sleep(5)
            assert await states(b, second.task_id) == []
            await a.agent("first").get_run(first.task_id).execute()
            assert (await later).state == "completed"
            assert time.now <= 5.5
            result = await b.agent().resume(second.task_id)
            assert [message.text for message in result.messages] == ["one", "first", "two", "second"]

        time.run(main())


def test_however_many_wait_in_a_conversation_one_looks_for_all_of_them(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machines
    asked: Counter[str] = Counter()

    def counted(name: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **options: Any) -> Any:
            asked[name] += 1
            return ask(*args, **options)

        return count

    for name in ("read", "list_runs", "follow", "read_commands", "get_record"):
        monkeypatch.setattr(b.log, name, counted(name, getattr(b.log, name)))
    with virtual_time() as time:

        async def main() -> None:
            first = await a.agent(call("work"), "first").run("one", context_id="c").begin()
            waiting = [await a.agent().submit(str(number), context_id="c") for number in range(20)]
            settling = [asyncio.ensure_future(b.agent("done").get_run(record.task_id).execute()) for record in waiting]
            await asyncio.sleep(2)
            asked.clear()
            await asyncio.sleep(50)
            assert asked == {"list_runs": 100, "follow": 100}

            # One that somebody else ends in the queue waits no longer.
            await a.agent().get_run(waiting[10].task_id).cancel()
            assert (await settling[10]).state == "canceled"
            settling[19].cancel()
            assert time.now < 60
            ends = await asyncio.gather(*settling, return_exceptions=True)
            expected = [*["completed"] * 10, "canceled", *["completed"] * 8, None]
            assert [getattr(end, "state", None) for end in ends] == expected
            began = [(await a.log.read(r.task_id))[1].timestamp for r in (first, *waiting[:10], *waiting[11:19])]
            assert began == sorted(began)
            assert time.now < 66
            await nothing_left()

        time.run(main())


def test_a_log_that_fails_while_runs_wait_in_a_conversation_is_told_to_all_of_them(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_retry, "PATIENCE", 0)
    a, b = machines
    with virtual_time() as time:

        async def away(**options: Any) -> Any:
            raise OSError("the server restarts")

        async def main() -> None:
            async with a.agent(call("work"), "first").run("one", context_id="c"):
                waiting = [await a.agent().submit(str(number), context_id="c") for number in range(3)]
                settling = [
                    asyncio.ensure_future(b.agent("done").get_run(record.task_id).execute()) for record in waiting
                ]
                await asyncio.sleep(2)
                with monkeypatch.context() as patched:
                    patched.setattr(b.log, "list_runs", away)
                    told = await asyncio.gather(*settling, return_exceptions=True)
                assert [type(error) for error in told] == [LogUnreachable] * 3
            await b.agent().get_run(waiting[0].task_id).cancel()
            assert (await b.agent("done").get_run(waiting[1].task_id).execute()).state == "completed"
            await nothing_left()

        time.run(main())


async def test_on_input_is_asked_once(machines: Machines) -> None:
    a, b = machines
    waiting = await a.agent(call("pay", amount=5)).get_run((await a.agent().submit("Pay")).task_id).execute()
    asked: list[str] = []

    def no_answer(question: Any) -> Any:
        from rxloop.errors import Paused

        asked.append(question.input_id)
        raise Paused

    assert (await b.agent().get_run(waiting.task_id).execute(on_input=no_answer)).state == "input-required"
    assert asked == ["1.0.1"]
    assert (await b.agent("paid").get_run(waiting.task_id).execute(on_input=lambda question: True)).state == "completed"
    assert b.paid == [5]


async def test_a_tool_that_settles_its_own_run_is_refused(machines: Machines) -> None:
    from rxloop import tool

    a, _ = machines

    @tool
    async def settles(ctx: RunContext[Any]) -> str:
        """Settles."""
        await a.agent().get_run(ctx.task_id).execute()
        return "never"

    a.tools.append(settles)
    result = await a.agent(call("settles"), "done").run("Go")
    assert "settles the run itself" in result.messages[2].text


@pytest.mark.parametrize("made", [MemoryEventLog, lambda: SqliteEventLog("runs.db")], ids=["memory", "sqlite"])
@pytest.mark.parametrize("model", ["Done.", ValueError("broken"), call("asks")], ids=["completed", "failed", "waits"])
async def test_the_record_of_a_run_is_the_one_that_the_log_has(
    made: Callable[[], EventLog], model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def asks(ctx: RunContext[None]) -> bool:
        return await ctx.ask("Really?")

    log = made()
    agent = Agent(ScriptedModel(model), tools=[asks], name="clerk", log=log)
    submitted = await agent.submit("Hi", owner="ann", metadata={"public": {"a": 1}})
    assert submitted == await log.get_record(submitted.task_id)
    assert await agent.get_run(submitted.task_id).execute() == await log.get_record(submitted.task_id)
    await log.aclose()


async def test_an_unknown_run_cannot_be_settled(machines: Machines) -> None:
    with pytest.raises(UnknownRun):
        await machines[0].agent().get_run("nowhere").execute()


async def test_a_log_that_cannot_be_reached_is_told_to_who_settles(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_retry, "PATIENCE", 0)
    a, b = machines
    record = await a.agent().submit("Go")

    async def away(*args: Any, **options: Any) -> None:
        raise OSError("the server restarts")

    with monkeypatch.context() as patched:
        patched.setattr(a.log, "append", away)
        with pytest.raises(LogUnreachable, match="the server restarts"):
            await a.agent("done").get_run(record.task_id).execute()
    assert (await b.agent("done").get_run(record.task_id).execute()).state == "completed"


async def test_an_agent_that_is_closed_settles_nothing(machines: Machines) -> None:
    a, b = machines
    agent = a.agent(frames("-never"))
    record = await a.agent().submit("Go")
    settling = asyncio.ensure_future(agent.get_run(record.task_id).execute())
    await until(lambda: a.log.taken)
    await agent.aclose(release=1)
    with pytest.raises(RxloopError, match="is closed"):
        await settling
    assert (await b.agent("done").get_run(record.task_id).execute()).state == "completed"


def test_a_follower_sees_the_whole_run_whoever_carries_it_out(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> list[Event]:
            record = await a.agent().submit("Go")
            following = asyncio.ensure_future(collect(follow(a.log, record.task_id, until="end")))
            first = asyncio.ensure_future(a.agent(call("work"), "never").get_run(record.task_id).execute())
            await until(lambda: a.begun)
            first.cancel()
            await b.agent("done").get_run(record.task_id).execute()
            events = await following
            assert list(await a.log.read(record.task_id)) == events
            return events

        assert [event.attempt for event in finals(time.run(main()))] == [2]


async def test_one_process_settles_and_sends_on_a_log_with_six_methods() -> None:
    memory = MemoryEventLog()
    six = {name: getattr(memory, name) for name in EventLog.__abstractmethods__}
    methods = {name: staticmethod(method) for name, method in six.items()}
    log: Any = type("Plain", (EventLog,), methods)()
    record = await Agent(ScriptedModel(), log=log).submit("Go")
    agents = [Agent(ScriptedModel("done"), log=log) for _ in range(3)]
    records = await asyncio.gather(*(agent.get_run(record.task_id).execute() for agent in agents))
    assert [record.state for record in records] == ["completed"] * 3
    with pytest.raises(RunOver, match="is completed"):
        await agents[0].get_run(record.task_id).send("Hello")
    waiting = await agents[0].submit("Go")
    await agents[0].get_run(waiting.task_id).send("Hello")
    assert [command.kind for _, command in await log.read_commands(waiting.task_id)] == ["say"]


async def test_a_run_that_is_cancelled_while_somebody_is_about_to_settle_it_stays_so() -> None:
    class Log(MemoryEventLog):
        cancels: Any = None

        async def list_runs(self, **options: Any) -> Any:
            cancels, self.cancels = self.cancels, None
            if cancels is not None:
                await cancels()  # after the state of the run was read, and before its attempt begins
            return await super().list_runs(**options)

    log = Log()
    model = ScriptedModel("Never asked.")
    agent = Agent(model, log=log)
    record = await agent.submit("Go")
    log.cancels = lambda: agent.get_run(record.task_id).cancel("never mind")

    assert (await agent.get_run(record.task_id).execute()).state == "canceled"
    assert model.requests == []
    assert [event.state for event in finals(await log.read(record.task_id))] == ["canceled"]
    await nothing_left()
