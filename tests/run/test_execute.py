"""Execution of submitted runs by any number of callers in any process."""

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
from support.run_checks import assert_no_tasks, final_events, wait_until
from support.runs import collect


@pytest.mark.parametrize("ending", ["done", RuntimeError("broken"), call("pay", amount=5)])
async def test_execute_leaves_an_idle_run_unchanged(machines: Machines, ending: Any) -> None:
    a, b = machines
    record = await a.agent(ending).get_run((await a.agent().submit("Go")).task_id).execute()
    recorded = await a.log.read(record.task_id)

    assert await b.agent().get_run(record.task_id).execute() == record
    assert record.state == {"str": "completed", "RuntimeError": "failed"}.get(type(ending).__name__, "input-required")
    assert await a.log.read(record.task_id) == recorded
    assert b.log.acquired == []


async def test_execute_leaves_a_canceled_run_unchanged(machines: Machines) -> None:
    a, b = machines
    record = await a.agent().submit("Go")
    await a.agent().get_run(record.task_id).cancel()
    assert (await b.agent().get_run(record.task_id).execute()).state == "canceled"


def test_run_is_executed_once_by_concurrent_callers(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            record = await a.agent().submit("Go")
            agents = [machine.agent(call("work"), "done") for machine in (a, b, a, b)]
            records = await asyncio.gather(*(agent.get_run(record.task_id).execute() for agent in agents))
            assert [record.state for record in records] == ["completed"] * 4
            assert a.started + b.started == 1
            assert time.now == 60
            assert await states(a, record.task_id) == ["completed"]
            await assert_no_tasks()

        time.run(main())


def test_execute_waits_for_the_end_of_a_run_of_another_process(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            run = await a.agent(call("work"), "done").run("Go").begin()
            record = await b.agent().get_run(run.task_id).execute()
            assert record.state == "completed"
            assert time.now == 60
            assert b.started == 0
            await run

        time.run(main())


def test_time_limit_excludes_waiting_for_other_runs(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            limits = Limits(seconds=50)
            first = await a.agent(call("work"), call("work"), "done").run("Go", context_id="c").begin()
            second = await b.agent().submit("And now?", context_id="d", limits=limits)
            blocking_run = await b.agent(frames("-never")).run("Hold", context_id="d").begin()
            execution = asyncio.ensure_future(a.agent("second").get_run(second.task_id).execute())
            await first
            await blocking_run.aclose()
            assert (await execution).state == "completed"
            assert time.now > 100

        time.run(main())


def test_execute_takes_over_the_run_of_a_dead_machine(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            run = await a.agent(call("work"), "done").run("Go", context_id="c").begin()
            await wait_until(lambda: a.started)
            execution = asyncio.ensure_future(b.agent("mine").get_run(run.task_id).execute())
            await asyncio.sleep(3)
            assert b.log.acquired == []
            notify_loss = a.log.lose_lease("c")
            record = await execution
            assert (record.state, record.attempt) == ("completed", 2)
            assert time.now <= 4
            notify_loss()
            await run.aclose()
            assert await states(a, run.task_id) == ["completed"]

        time.run(main())


def test_execute_continues_after_losing_its_lease(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            submitted = await a.agent().submit("Go", context_id="c")
            first = asyncio.ensure_future(a.agent(call("work"), "done").get_run(submitted.task_id).execute())
            await wait_until(lambda: a.started)
            notify_loss = a.log.lose_lease("c")
            second = await b.agent("mine").get_run(submitted.task_id).execute()
            notify_loss()
            assert await first == second
            assert second.state == "completed"
            assert a.canceled == 1

        time.run(main())


def test_canceled_execute_releases_the_run(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            submitted = await a.agent().submit("Go")
            execution = asyncio.ensure_future(a.agent(call("work"), "never").get_run(submitted.task_id).execute())
            await wait_until(lambda: a.started)
            execution.cancel()
            with pytest.raises(asyncio.CancelledError):
                await execution
            assert a.log.shared.leases == {}
            assert await states(a, submitted.task_id) == []
            assert (await b.agent("done").get_run(submitted.task_id).execute()).state == "completed"
            await assert_no_tasks()

        time.run(main())


def test_execute_canceled_while_waiting_for_the_lease_leaks_nothing(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            run = await a.agent(call("work"), "done").run("Go").begin()
            execution = asyncio.ensure_future(b.agent().get_run(run.task_id).execute())
            await asyncio.sleep(2)
            execution.cancel()
            await asyncio.wait([execution])
            assert (await run).output == "done"
            await assert_no_tasks()

        time.run(main())


def test_execute_waits_for_earlier_runs_of_the_conversation(machines: Machines) -> None:
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


def test_waiting_executions_of_a_conversation_share_one_poller(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machines
    calls: Counter[str] = Counter()

    def count_calls(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return method(*args, **options)

        return count

    for name in ("read", "list_runs", "follow", "read_commands", "get_record"):
        monkeypatch.setattr(b.log, name, count_calls(name, getattr(b.log, name)))
    with virtual_time() as time:

        async def main() -> None:
            first = await a.agent(call("work"), "first").run("one", context_id="c").begin()
            records = [await a.agent().submit(str(number), context_id="c") for number in range(20)]
            executions = [
                asyncio.ensure_future(b.agent("done").get_run(record.task_id).execute()) for record in records
            ]
            await asyncio.sleep(2)
            calls.clear()
            await asyncio.sleep(50)
            assert calls == {"list_runs": 100, "follow": 100}

            # An execution stops waiting when another process ends its run in the queue.
            await a.agent().get_run(records[10].task_id).cancel()
            assert (await executions[10]).state == "canceled"
            executions[19].cancel()
            assert time.now < 60
            outcomes = await asyncio.gather(*executions, return_exceptions=True)
            expected = [*["completed"] * 10, "canceled", *["completed"] * 8, None]
            assert [getattr(end, "state", None) for end in outcomes] == expected
            started = [(await a.log.read(r.task_id))[1].timestamp for r in (first, *records[:10], *records[11:19])]
            assert started == sorted(started)
            assert time.now < 66
            await assert_no_tasks()

        time.run(main())


def test_all_waiting_executions_raise_when_the_log_fails(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_retry, "RETRY_SECONDS", 0)
    a, b = machines
    with virtual_time() as time:

        async def fail_read(**options: Any) -> Any:
            raise OSError("the server restarts")

        async def main() -> None:
            async with a.agent(call("work"), "first").run("one", context_id="c"):
                queued_records = [await a.agent().submit(str(number), context_id="c") for number in range(3)]
                execution = [
                    asyncio.ensure_future(b.agent("done").get_run(record.task_id).execute())
                    for record in queued_records
                ]
                await asyncio.sleep(2)
                with monkeypatch.context() as patched:
                    patched.setattr(b.log, "list_runs", fail_read)
                    outcomes = await asyncio.gather(*execution, return_exceptions=True)
                    assert [type(error) for error in outcomes] == [LogUnreachable] * 3
            await b.agent().get_run(queued_records[0].task_id).cancel()
            assert (await b.agent("done").get_run(queued_records[1].task_id).execute()).state == "completed"
            await assert_no_tasks()

        time.run(main())


async def test_execute_calls_on_input_once(machines: Machines) -> None:
    a, b = machines
    paused = await a.agent(call("pay", amount=5)).get_run((await a.agent().submit("Pay")).task_id).execute()
    input_ids: list[str] = []

    def pause(question: Any) -> Any:
        from rxloop.errors import Paused

        input_ids.append(question.input_id)
        raise Paused

    assert (await b.agent().get_run(paused.task_id).execute(on_input=pause)).state == "input-required"
    assert input_ids == ["1.0.1"]
    assert (await b.agent("paid").get_run(paused.task_id).execute(on_input=lambda question: True)).state == "completed"
    assert b.paid == [5]


async def test_execute_is_rejected_in_a_tool_of_the_same_run(machines: Machines) -> None:
    from rxloop import tool

    a, _ = machines

    @tool
    async def execute_own_run(ctx: RunContext[Any]) -> str:
        """Execute the own run."""
        await a.agent().get_run(ctx.task_id).execute()
        return "never"

    a.tools.append(execute_own_run)
    result = await a.agent(call("execute_own_run"), "done").run("Go")
    assert "must not execute its own run" in result.messages[2].text


@pytest.mark.parametrize("make_log", [MemoryEventLog, lambda: SqliteEventLog("runs.db")], ids=["memory", "sqlite"])
@pytest.mark.parametrize("model", ["Done.", ValueError("broken"), call("asks")], ids=["completed", "failed", "waits"])
async def test_submit_and_execute_return_the_record_of_the_log(
    make_log: Callable[[], EventLog], model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def asks(ctx: RunContext[None]) -> bool:
        return await ctx.ask("Really?")

    log = make_log()
    agent = Agent(ScriptedModel(model), tools=[asks], name="clerk", log=log)
    submitted = await agent.submit("Hi", owner="ann", metadata={"public": {"a": 1}})
    assert submitted == await log.get_record(submitted.task_id)
    assert await agent.get_run(submitted.task_id).execute() == await log.get_record(submitted.task_id)
    await log.aclose()


async def test_execute_of_unknown_run_raises(machines: Machines) -> None:
    with pytest.raises(UnknownRun):
        await machines[0].agent().get_run("nowhere").execute()


async def test_execute_raises_when_the_log_is_unreachable(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_retry, "RETRY_SECONDS", 0)
    a, b = machines
    record = await a.agent().submit("Go")

    async def fail_append(*args: Any, **options: Any) -> None:
        raise OSError("the server restarts")

    with monkeypatch.context() as patched:
        patched.setattr(a.log, "append", fail_append)
        with pytest.raises(LogUnreachable, match="the server restarts"):
            await a.agent("done").get_run(record.task_id).execute()
    assert (await b.agent("done").get_run(record.task_id).execute()).state == "completed"


async def test_execute_raises_when_the_agent_is_closed(machines: Machines) -> None:
    a, b = machines
    agent = a.agent(frames("-never"))
    record = await a.agent().submit("Go")
    execution = asyncio.ensure_future(agent.get_run(record.task_id).execute())
    await wait_until(lambda: a.log.acquired)
    await agent.aclose(release=1)
    with pytest.raises(RxloopError, match="is closed"):
        await execution
    assert (await b.agent("done").get_run(record.task_id).execute()).state == "completed"


def test_follower_sees_all_attempts_of_different_processes(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> list[Event]:
            record = await a.agent().submit("Go")
            follower = asyncio.ensure_future(collect(follow(a.log, record.task_id, until="end")))
            first = asyncio.ensure_future(a.agent(call("work"), "never").get_run(record.task_id).execute())
            await wait_until(lambda: a.started)
            first.cancel()
            await b.agent("done").get_run(record.task_id).execute()
            events = await follower
            assert list(await a.log.read(record.task_id)) == events
            return events

        assert [event.attempt for event in final_events(time.run(main()))] == [2]


async def test_execute_and_send_work_on_a_log_with_only_the_abstract_methods() -> None:
    memory = MemoryEventLog()
    methods_by_name = {name: getattr(memory, name) for name in EventLog.__abstractmethods__}
    methods = {name: staticmethod(method) for name, method in methods_by_name.items()}
    log: Any = type("Plain", (EventLog,), methods)()
    record = await Agent(ScriptedModel(), log=log).submit("Go")
    agents = [Agent(ScriptedModel("done"), log=log) for _ in range(3)]
    records = await asyncio.gather(*(agent.get_run(record.task_id).execute() for agent in agents))
    assert [record.state for record in records] == ["completed"] * 3
    with pytest.raises(RunOver, match="is completed"):
        await agents[0].get_run(record.task_id).send("Hello")
    submitted = await agents[0].submit("Go")
    await agents[0].get_run(submitted.task_id).send("Hello")
    assert [command.kind for _, command in await log.read_commands(submitted.task_id)] == ["message"]


async def test_execute_respects_a_cancel_that_precedes_its_attempt() -> None:
    class CancelingLog(MemoryEventLog):
        cancel: Any = None

        async def list_runs(self, **options: Any) -> Any:
            cancel, self.cancel = self.cancel, None
            if cancel is not None:
                await cancel()  # between state read and attempt start
            return await super().list_runs(**options)

    log = CancelingLog()
    model = ScriptedModel("Never asked.")
    agent = Agent(model, log=log)
    record = await agent.submit("Go")
    log.cancel = lambda: agent.get_run(record.task_id).cancel("never mind")

    assert (await agent.get_run(record.task_id).execute()).state == "canceled"
    assert model.requests == []
    assert [event.state for event in final_events(await log.read(record.task_id))] == ["canceled"]
    await assert_no_tasks()
