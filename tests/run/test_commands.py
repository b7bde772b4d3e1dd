"""Cancel, answer and message commands for runs of other processes and for runs without an owner."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, Message, MessageAddedEvent, RunCancelled
from rxloop.agents import Steer
from rxloop.errors import ConfigurationError, ConflictError, RunOver
from rxloop.pipeline.log_retry import RETRY_SECONDS
from rxloop.protocol.commands import AnswerCommand, CancelCommand, Command, MessageCommand
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.processes.machines import Machines, states, two_machines
from support.run_checks import assert_no_tasks, final_events, wait_until
from support.waiting_runs import count_read_commands, start_waiting_run


@pytest.fixture
def machines() -> Machines:
    return two_machines()


# -- cancel


def test_cancel_reaches_a_run_of_another_process(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            run = await a.agent(call("work")).run("Go").begin()
            await wait_until(lambda: a.started)
            await b.agent().get_run(run.task_id).cancel("enough")
            with pytest.raises(RunCancelled, match="enough"):
                await run
            [end] = final_events(await b.log.read(run.task_id))
            assert end.metadata == {"command_id": 1}
            assert a.canceled == 1
            assert time.now < 1
            await assert_no_tasks()

        time.run(main())


async def test_any_process_can_cancel_a_waiting_run(machines: Machines) -> None:
    a, b = machines
    task_id = await start_waiting_run(a)
    await b.agent().get_run(task_id).cancel()
    assert await states(a, task_id) == ["input-required", "canceled"]
    assert await count_read_commands(a, task_id) == 1


async def test_any_process_can_cancel_a_run_of_a_dead_machine(machines: Machines) -> None:
    a, b = machines
    run = await a.agent(frames("-never")).run("Go", context_id="c").begin()
    a.log.lose_lease("c")
    await b.agent().get_run(run.task_id).cancel()
    assert await states(b, run.task_id) == ["canceled"]
    await run.aclose()
    assert await states(b, run.task_id) == ["canceled"]


async def test_submitted_run_can_be_canceled_before_it_starts(machines: Machines) -> None:
    a, b = machines
    record = await a.agent().submit("Go")
    await b.agent().get_run(record.task_id).cancel()
    assert (await a.agent().get_run(record.task_id).execute()).state == "canceled"


def test_cancel_raises_when_the_owner_does_not_react_and_is_applied_later(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            run = await a.agent(call("work"), "never").run("Go", context_id="c").begin()
            # The log considers the owner alive, but the owner receives no notifications.
            a.log.shared.watchers.clear()
            start = time.now
            with pytest.raises(ConflictError, match="stays in its inbox"):
                await b.agent().get_run(run.task_id).cancel()
            assert RETRY_SECONDS <= time.now - start <= RETRY_SECONDS + 1
            await run.release()
            assert (await b.agent().get_run(run.task_id).execute()).state == "canceled"

        time.run(main())


async def test_repeated_cancel_does_not_end_a_later_resumption(machines: Machines) -> None:
    a, b = machines
    task_id = await start_waiting_run(a)
    await a.log.send_command(task_id, CancelCommand(reason="first"))
    await b.agent().get_run(task_id).execute()
    await a.log.send_command(task_id, CancelCommand(reason="late"))
    assert (await b.agent().get_run(task_id).execute()).state == "canceled"

    assert (await b.agent("Go on").resume(task_id)).output == "Go on"
    assert await count_read_commands(a, task_id) == 2


async def test_command_is_applied_once_across_attempts(machines: Machines) -> None:
    a, b = machines
    task_id = await start_waiting_run(a)
    await b.agent().get_run(task_id).cancel()
    await a.log.send_command(task_id, MessageCommand(messages=[Message.user("On")]))
    resumed = await a.agent(frames("-never")).resume(task_id).begin()
    await resumed.release()

    assert (await b.agent("done").get_run(task_id).execute()).state == "completed"
    assert len([e for e in await a.log.read(task_id) if isinstance(e, MessageAddedEvent)]) == 1


async def test_cancel_takes_precedence_over_other_commands_of_the_inbox(machines: Machines) -> None:
    a, b = machines
    task_id = await start_waiting_run(a)
    for command in (
        AnswerCommand(inputs={"1.0.1": True}),
        CancelCommand(),
        MessageCommand(messages=[Message.user("Hm")]),
    ):
        await a.log.send_command(task_id, command)
    assert (await b.agent().get_run(task_id).execute()).state == "canceled"
    assert await count_read_commands(a, task_id) == 3
    assert b.paid == []


# -- send


def test_message_is_added_to_a_run_of_another_process(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            run = await a.agent(call("work"), "done").run("Go").begin()
            await wait_until(lambda: a.started)
            await b.agent().get_run(run.task_id).send("Only half of it")
            result = await run
            assert [item.text for item in result.messages][-2:] == ["Only half of it", "done"]
            [message] = [e for e in await b.log.read(run.task_id) if isinstance(e, MessageAddedEvent)]
            assert (message.cause, message.metadata) == ("steering", {"command_id": 1})

        time.run(main())


def test_message_can_interrupt_an_answer_in_another_process(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            run = await a.agent(frames("Well---", frame=1), "Sorry").run("Go").begin()
            await asyncio.sleep(2)
            await b.agent().get_run(run.task_id).send("Stop", interrupt=True)
            result = await run
            assert [message.text for message in result.messages][-2:] == ["Stop", "Sorry"]

        time.run(main())


async def test_message_to_a_waiting_run_is_added_in_its_next_attempt(machines: Machines) -> None:
    a, b = machines
    task_id = await start_waiting_run(a)
    await a.agent().get_run(task_id).send("In euros, please")
    assert (await b.agent().get_run(task_id).execute()).state == "input-required"
    result = await b.agent("paid").resume(task_id, inputs={"1.0.1": True})
    assert [message.text for message in result.messages][-2:] == ["In euros, please", "paid"]


async def test_message_with_the_same_id_is_added_once(machines: Machines) -> None:
    a, b = machines
    task_id = await start_waiting_run(a)
    for _ in range(2):
        await a.agent().get_run(task_id).send(Message.user("Once", message_id="m1"))
    await b.agent("paid").resume(task_id, inputs={"1.0.1": True})
    assert len([e for e in await a.log.read(task_id) if isinstance(e, MessageAddedEvent)]) == 1


async def test_send_to_a_finished_run_raises(machines: Machines) -> None:
    a, _ = machines
    run = a.agent("done").run("Go")
    await run
    with pytest.raises(RunOver, match="is completed"):
        await a.agent().get_run(run.task_id).send("Wait")
    with pytest.raises(ConfigurationError, match="requires user or system messages"):
        await a.agent().get_run(run.task_id).send(Message(role="assistant", content="I said"))


def test_send_raises_when_the_run_ends_meanwhile_in_another_process(machines: Machines) -> None:
    a, b = machines
    append = a.log.append

    async def append_slowly(task_id: str, events: Any, **options: Any) -> None:
        if events[-1].kind == "status-update" and events[-1].final:
            await asyncio.sleep(1)
        await append(task_id, events, **options)

    a.log.append = append_slowly  # type: ignore[method-assign]
    with virtual_time() as time:

        async def main() -> None:
            run = a.agent("done").run("Go").start()
            await asyncio.sleep(0.5)
            with pytest.raises(RunOver, match="ended before receiving the message"):
                await b.agent().get_run(run.task_id).send("Wait")
            assert (await run).output == "done"

        time.run(main())


def test_message_is_recorded_when_send_returns(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            run = a.agent(call("work"), "done").run("Go").start()
            await asyncio.sleep(1)
            await b.agent().get_run(run.task_id).send("Quick")
            assert [event.kind for event in await a.log.read(run.task_id)][-1] == "message-added"
            assert time.now < 1.5
            await run

        time.run(main())


async def test_send_to_a_canceled_run_raises(machines: Machines) -> None:
    a, _ = machines
    task_id = await start_waiting_run(a)
    await a.agent().get_run(task_id).cancel()
    with pytest.raises(RunOver, match=r"has been canceled.*resume it"):
        await a.agent().get_run(task_id).send("Wait")


async def test_send_to_a_run_with_a_dropped_question_raises(machines: Machines) -> None:
    a, _ = machines
    task_id = await start_waiting_run(a)
    context_id = (await a.log.get_record(task_id)).context_id
    await a.agent("done").run("Never mind", context_id=context_id)
    with pytest.raises(RunOver, match="dropped its question"):
        await a.agent().get_run(task_id).send("Wait")


async def test_send_rejects_a_steer_object(machines: Machines) -> None:
    a, _ = machines
    task_id = await start_waiting_run(a)
    steer: Any = Steer("Stop", interrupt=True)
    with pytest.raises(ConfigurationError, match=r"got Steer.*use send\(text, interrupt=True\)"):
        await a.agent().get_run(task_id).send(steer)


def test_command_that_arrives_while_a_run_is_loaded_is_applied(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            task_id = await start_waiting_run(a)
            await a.agent().get_run(task_id).answer({"1.0.1": True})
            read = b.log.read_commands

            async def read_and_cancel(task_id: str, *, after: int = 0) -> Any:
                commands = await read(task_id, after=after)
                if not after:
                    # The cancel is sent immediately after the inbox was read.
                    await a.log.send_command(task_id, CancelCommand())
                return commands

            b.log.read_commands = read_and_cancel  # type: ignore[method-assign]
            with pytest.raises(RunCancelled):
                await b.agent(frames("-never")).resume(task_id)

        time.run(main())


async def test_send_raises_when_the_run_ends_before_the_message_is_stored() -> None:
    class ExecutingLog(MemoryEventLog):
        async def send_command(self, task_id: str, command: Command) -> int:
            await agent.get_run(task_id).execute()
            return await super().send_command(task_id, command)

    log = ExecutingLog()
    agent = Agent(ScriptedModel("Done."), log=log)
    record = await agent.submit("Go")
    with pytest.raises(RunOver, match="ended before receiving the message"):
        await agent.get_run(record.task_id).send("And more")
