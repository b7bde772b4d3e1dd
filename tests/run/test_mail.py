"""A run that somebody else carries out, or nobody at the moment, is cancelled, answered and spoken to by its mail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, Message, MessageAddedEvent, RunCancelled
from rxloop.agents import Steer
from rxloop.errors import ConfigurationError, ConflictError, RunOver
from rxloop.pipeline.log_retry import PATIENCE
from rxloop.protocol.commands import AnswerCommand, CancelCommand, Command, MessageCommand
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.processes.machines import Machines, states, two_machines
from support.run_checks import finals, nothing_left, until
from support.waiting_runs import read_commands, waiting


@pytest.fixture
def machines() -> Machines:
    return two_machines()


# -- cancel


def test_a_run_that_goes_on_elsewhere_is_cancelled_there(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            run = await a.agent(call("work")).run("Go").begin()
            await until(lambda: a.begun)
            await b.agent().get_run(run.task_id).cancel("enough")
            with pytest.raises(RunCancelled, match="enough"):
                await run
            [end] = finals(await b.log.read(run.task_id))
            assert (end.metadata, a.cut, time.now < 1) == ({"mail_id": 1}, 1, True)
            await nothing_left()

        time.run(main())


async def test_a_run_that_waits_is_cancelled_by_whoever_asks(machines: Machines) -> None:
    a, b = machines
    task_id = await waiting(a)
    await b.agent().get_run(task_id).cancel()
    assert await states(a, task_id) == ["input-required", "canceled"]
    assert await read_commands(a, task_id) == 1


async def test_a_run_whose_machine_died_is_cancelled_by_whoever_asks(machines: Machines) -> None:
    a, b = machines
    run = await a.agent(frames("-never")).run("Go", context_id="c").begin()
    a.log.freezes("c")
    await b.agent().get_run(run.task_id).cancel()
    assert await states(b, run.task_id) == ["canceled"]
    await run.aclose()
    assert await states(b, run.task_id) == ["canceled"]


async def test_a_submitted_run_is_cancelled_before_anybody_begins_it(machines: Machines) -> None:
    a, b = machines
    record = await a.agent().submit("Go")
    await b.agent().get_run(record.task_id).cancel()
    assert (await a.agent().get_run(record.task_id).execute()).state == "canceled"


def test_a_cancel_that_nobody_takes_is_told_after_a_while_and_counts_later(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            run = await a.agent(call("work"), "never").run("Go", context_id="c").begin()
            # Alive, as far as the log can tell, and deaf.
            a.log.shared.watching.clear()
            begun = time.now
            with pytest.raises(ConflictError, match="by its mail"):
                await b.agent().get_run(run.task_id).cancel()
            assert PATIENCE <= time.now - begun <= PATIENCE + 1
            await run.release()
            assert (await b.agent().get_run(run.task_id).execute()).state == "canceled"

        time.run(main())


async def test_a_cancel_that_came_twice_does_not_end_what_somebody_resumes_later(machines: Machines) -> None:
    a, b = machines
    task_id = await waiting(a)
    await a.log.send_command(task_id, CancelCommand(reason="first"))
    await b.agent().get_run(task_id).execute()
    await a.log.send_command(task_id, CancelCommand(reason="late"))
    assert (await b.agent().get_run(task_id).execute()).state == "canceled"

    assert (await b.agent("Go on").resume(task_id)).output == "Go on"
    assert await read_commands(a, task_id) == 2


async def test_a_letter_is_taken_once_however_many_attempts_come_after_it(machines: Machines) -> None:
    a, b = machines
    task_id = await waiting(a)
    await b.agent().get_run(task_id).cancel()
    await a.log.send_command(task_id, MessageCommand(messages=[Message.user("On")]))
    resumed = await a.agent(frames("-never")).resume(task_id).begin()
    await resumed.release()

    assert (await b.agent("done").get_run(task_id).execute()).state == "completed"
    assert len([e for e in await a.log.read(task_id) if isinstance(e, MessageAddedEvent)]) == 1


async def test_a_cancel_goes_before_the_answers_and_messages_beside_it(machines: Machines) -> None:
    a, b = machines
    task_id = await waiting(a)
    for letter in (
        AnswerCommand(inputs={"1.0.1": True}),
        CancelCommand(),
        MessageCommand(messages=[Message.user("Hm")]),
    ):
        await a.log.send_command(task_id, letter)
    assert (await b.agent().get_run(task_id).execute()).state == "canceled"
    assert (await read_commands(a, task_id), b.paid) == (3, [])


# -- say


def test_a_message_enters_the_history_of_a_run_that_goes_on_elsewhere(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            run = await a.agent(call("work"), "done").run("Go").begin()
            await until(lambda: a.begun)
            await b.agent().get_run(run.task_id).send("Only half of it")
            result = await run
            assert [message.text for message in result.messages][-2:] == ["Only half of it", "done"]
            [said] = [e for e in await b.log.read(run.task_id) if isinstance(e, MessageAddedEvent)]
            assert (said.cause, said.metadata) == ("steering", {"mail_id": 1})

        time.run(main())


def test_a_message_may_cut_off_the_answer_that_is_being_written(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            run = await a.agent(frames("Well---", frame=1), "Sorry").run("Go").begin()
            await asyncio.sleep(2)
            await b.agent().get_run(run.task_id).send("Stop", interrupt=True)
            result = await run
            assert [message.text for message in result.messages][-2:] == ["Stop", "Sorry"]

        time.run(main())


async def test_a_message_to_a_run_that_waits_comes_with_its_next_attempt(machines: Machines) -> None:
    a, b = machines
    task_id = await waiting(a)
    await a.agent().get_run(task_id).send("In euros, please")
    assert (await b.agent().get_run(task_id).execute()).state == "input-required"
    result = await b.agent("paid").resume(task_id, inputs={"1.0.1": True})
    assert [message.text for message in result.messages][-2:] == ["In euros, please", "paid"]


async def test_a_message_that_was_sent_twice_enters_the_history_once(machines: Machines) -> None:
    a, b = machines
    task_id = await waiting(a)
    for _ in range(2):
        await a.agent().get_run(task_id).send(Message.user("Once", message_id="m1"))
    await b.agent("paid").resume(task_id, inputs={"1.0.1": True})
    assert len([e for e in await a.log.read(task_id) if isinstance(e, MessageAddedEvent)]) == 1


async def test_nothing_can_be_said_to_a_run_that_is_over(machines: Machines) -> None:
    a, _ = machines
    run = a.agent("done").run("Go")
    await run
    with pytest.raises(RunOver, match="is completed"):
        await a.agent().get_run(run.task_id).send("Wait")
    with pytest.raises(ConfigurationError, match="of the user or the system"):
        await a.agent().get_run(run.task_id).send(Message(role="assistant", content="I said"))


def test_a_message_that_comes_while_the_end_is_being_written_is_refused_and_not_lost(machines: Machines) -> None:
    a, b = machines
    append = a.log.append

    async def slow(task_id: str, events: Any, **options: Any) -> None:
        if events[-1].kind == "status-update" and events[-1].final:
            await asyncio.sleep(1)
        await append(task_id, events, **options)

    a.log.append = slow  # type: ignore[method-assign]
    with virtual_time() as time:

        async def main() -> None:
            run = a.agent("done").run("Go").start()
            await asyncio.sleep(0.5)
            with pytest.raises(RunOver, match="came to its end meanwhile"):
                await b.agent().get_run(run.task_id).send("Wait")
            assert (await run).output == "done"

        time.run(main())


def test_a_message_is_taken_when_say_returns(machines: Machines) -> None:
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


async def test_nothing_can_be_said_to_a_run_that_was_cancelled_until_it_is_resumed(machines: Machines) -> None:
    a, _ = machines
    task_id = await waiting(a)
    await a.agent().get_run(task_id).cancel()
    with pytest.raises(RunOver, match=r"is canceled.*resume it"):
        await a.agent().get_run(task_id).send("Wait")


async def test_nothing_can_be_said_to_a_run_whose_question_was_dropped(machines: Machines) -> None:
    a, _ = machines
    task_id = await waiting(a)
    context_id = (await a.log.get_record(task_id)).context_id
    await a.agent("done").run("Never mind", context_id=context_id)
    with pytest.raises(RunOver, match="dropped its question"):
        await a.agent().get_run(task_id).send("Wait")


async def test_a_steer_is_for_steering_and_not_for_say(machines: Machines) -> None:
    a, _ = machines
    task_id = await waiting(a)
    steer: Any = Steer("Stop", interrupt=True)
    with pytest.raises(ConfigurationError, match=r"the message is Steer.*use send\(text, interrupt=True\)"):
        await a.agent().get_run(task_id).send(steer)


def test_mail_that_comes_while_a_run_is_taken_up_is_taken(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            task_id = await waiting(a)
            await a.agent().get_run(task_id).answer({"1.0.1": True})
            take = b.log.read_commands

            async def slow(task_id: str, *, after: int = 0) -> Any:
                found = await take(task_id, after=after)
                if not after:
                    # It is sent right after the mail was read.
                    await a.log.send_command(task_id, CancelCommand())
                return found

            b.log.read_commands = slow  # type: ignore[method-assign]
            with pytest.raises(RunCancelled):
                await b.agent(frames("-never")).resume(task_id)

        time.run(main())


async def test_who_speaks_to_a_run_that_ends_meanwhile_is_told() -> None:
    class Log(MemoryEventLog):
        async def send_command(self, task_id: str, command: Command) -> int:
            await agent.get_run(task_id).execute()
            return await super().send_command(task_id, command)

    log = Log()
    agent = Agent(ScriptedModel("Done."), log=log)
    record = await agent.submit("Go")
    with pytest.raises(RunOver, match="came to its end meanwhile"):
        await agent.get_run(record.task_id).send("And more")
