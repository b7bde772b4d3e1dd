"""Answer commands: validation, single application and rejection of late answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rxloop import (
    Agent,
    InputReceivedEvent,
    MessageAddedEvent,
    SqliteEventLog,
    tool,
)
from rxloop.errors import InvalidInput
from rxloop.protocol.commands import AnswerCommand, CancelCommand, Command
from rxloop.testing import ScriptedModel, call, virtual_time
from support.processes.machines import Machines, two_machines
from support.run_checks import run_ready_tasks, wait_until
from support.waiting_runs import count_read_commands, start_waiting_run


@pytest.fixture
def machines() -> Machines:
    return two_machines()


async def test_answer_is_applied_by_the_process_that_executes_the_run_next(machines: Machines) -> None:
    a, b = machines
    task_id = await start_waiting_run(a)
    await a.agent().get_run(task_id).answer({"1.0.1": True})
    record = await b.agent("paid").get_run(task_id).execute()
    [received] = [e for e in await a.log.read(task_id) if isinstance(e, InputReceivedEvent)]
    assert record.state == "completed"
    assert received.metadata == {"command_id": 1}
    assert b.paid == [5]


async def test_resume_without_inputs_applies_a_sent_answer(machines: Machines) -> None:
    a, b = machines
    task_id = await start_waiting_run(a)
    with pytest.raises(InvalidInput, match="waiting for"):
        await b.agent("paid").resume(task_id)
    await a.agent().get_run(task_id).answer({"1.0.1": True})
    assert (await b.agent("paid").resume(task_id)).output == "paid"
    assert b.paid == [5]


async def test_answer_is_validated_before_it_is_sent(machines: Machines) -> None:
    a, _ = machines
    task_id = await start_waiting_run(a)
    for inputs in ({"1.0.1": "perhaps"}, {"nothing": True}):
        with pytest.raises(InvalidInput):
            await a.agent().get_run(task_id).answer(inputs)
    await a.agent().get_run(task_id).answer({"1.0.1": True})
    await a.agent().get_run(task_id).answer({"1.0.1": True})
    with pytest.raises(InvalidInput, match="was already answered"):
        await a.agent().get_run(task_id).answer({"1.0.1": False})
    assert len(a.log.shared.commands) == 1


async def test_answer_to_a_finished_run_is_rejected(machines: Machines) -> None:
    a, _ = machines
    run = a.agent("done").run("Go")
    await run
    with pytest.raises(InvalidInput, match="is completed"):
        await a.agent().get_run(run.task_id).answer({"1.0.1": True})


async def test_answer_to_a_dropped_question_is_rejected(machines: Machines) -> None:
    a, _ = machines
    task_id = await start_waiting_run(a, context_id="c")
    await a.agent("Fine.").run("Never mind", context_id="c")
    with pytest.raises(InvalidInput, match="dropped its questions"):
        await a.agent().get_run(task_id).answer({"1.0.1": True})


async def test_stored_answer_to_a_dropped_question_does_not_count(machines: Machines) -> None:
    a, _ = machines
    task_id = await start_waiting_run(a, context_id="c")
    await a.agent("Fine.").run("Never mind", context_id="c")
    await a.log.send_command(task_id, AnswerCommand(inputs={"1.0.1": True}))
    for answer in (True, False):
        with pytest.raises(InvalidInput, match="dropped its questions"):
            await a.agent().get_run(task_id).answer({"1.0.1": answer})


async def test_first_of_two_concurrent_answers_is_applied_and_the_second_is_rejected(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machines
    task_id = await start_waiting_run(a)
    send = b.log.send_command

    async def answer_first_and_send(task_id: str, command: Command) -> int:
        # Both processes have read the question as open.
        await a.log.send_command(task_id, AnswerCommand(inputs={"1.0.1": True}))
        return await send(task_id, command)

    monkeypatch.setattr(b.log, "send_command", answer_first_and_send)
    with pytest.raises(InvalidInput, match="was already answered with True and cannot be changed to False"):
        await b.agent().get_run(task_id).answer({"1.0.1": False})
    await a.agent().get_run(task_id).answer({"1.0.1": True})
    assert (await b.agent("paid").get_run(task_id).execute()).state == "completed"
    assert b.paid == [5]


@pytest.mark.parametrize("cancels_first", [False, True])
async def test_different_answer_is_rejected_while_a_cancel_is_pending(machines: Machines, cancels_first: bool) -> None:
    a, b = machines
    task_id = await start_waiting_run(a)
    if cancels_first:
        await a.log.send_command(task_id, CancelCommand())
    await a.agent().get_run(task_id).answer({"1.0.1": True})
    if not cancels_first:
        await a.log.send_command(task_id, CancelCommand())
    await a.agent().get_run(task_id).answer({"1.0.1": True})
    with pytest.raises(InvalidInput, match="was already answered with True and cannot be changed to False"):
        await b.agent().get_run(task_id).answer({"1.0.1": False})
    assert (await b.agent("paid").get_run(task_id).execute()).state == "canceled"
    assert b.paid == []


async def test_one_of_contradicting_concurrent_answers_is_accepted_in_a_sqlite_log(
    tmp_path: Path,
) -> None:
    logs = [SqliteEventLog(tmp_path / "runs.db") for _ in range(4)]
    paid: list[str] = []

    @tool(approve=True)
    async def pay(to: str) -> str:
        """Pays."""
        paid.append(to)
        return "paid"

    agents = [Agent(ScriptedModel(), tools=[pay], log=log) for log in logs]
    for number in range(8):
        asking_agent = Agent(ScriptedModel(call("pay", to=str(number)), "done"), tools=[pay], log=logs[0])
        record = await asking_agent.get_run((await asking_agent.submit("Pay")).task_id).execute()
        answers = [bool(index % 2) for index in range(len(agents))]
        outcomes = await asyncio.gather(
            *(agent.get_run(record.task_id).answer({"1.0.1": yes}) for agent, yes in zip(agents, answers, strict=True)),
            return_exceptions=True,
        )
        accepted = {yes for yes, refusal in zip(answers, outcomes, strict=True) if refusal is None}
        assert len(accepted) == 1, outcomes
        assert all(refusal is None or isinstance(refusal, InvalidInput) for refusal in outcomes)
        await asking_agent.get_run(record.task_id).execute()
        assert (str(number) in paid) == accepted.pop()
    for log in logs:
        await log.aclose()


async def test_answer_is_rejected_when_another_answer_was_applied_first(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machines
    task_id = await start_waiting_run(a)
    send = b.log.send_command

    async def answer_first_and_send(task_id: str, command: Command) -> int:
        await a.log.send_command(task_id, AnswerCommand(inputs={"1.0.1": True}))
        await a.agent("paid").get_run(task_id).execute()
        return await send(task_id, command)

    monkeypatch.setattr(b.log, "send_command", answer_first_and_send)
    with pytest.raises(InvalidInput, match="was already answered"):
        await b.agent().get_run(task_id).answer({"1.0.1": False})


async def test_answer_is_rejected_when_the_question_is_dropped_concurrently(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machines
    task_id = await start_waiting_run(a, context_id="c")
    send = b.log.send_command

    async def answer_first_and_send(task_id: str, command: Command) -> int:
        await a.agent("Fine.").run("Never mind", context_id="c")
        return await send(task_id, command)

    monkeypatch.setattr(b.log, "send_command", answer_first_and_send)
    with pytest.raises(InvalidInput, match="dropped its questions"):
        await b.agent().get_run(task_id).answer({"1.0.1": True})


async def test_invalid_answer_commands_are_skipped_once(machines: Machines, caplog: pytest.LogCaptureFixture) -> None:
    a, b = machines
    task_id = await start_waiting_run(a)
    await a.log.send_command(task_id, AnswerCommand(inputs={"1.0.1": "perhaps", "nothing": 1}))
    assert (await b.agent().get_run(task_id).execute()).state == "input-required"
    assert caplog.text == ""

    await a.log.send_command(task_id, AnswerCommand(inputs={"1.0.1": True}))
    await a.log.send_command(task_id, AnswerCommand(inputs={"1.0.1": False}))
    assert (await b.agent("paid").get_run(task_id).execute()).state == "completed"
    assert b.paid == [5]
    assert await count_read_commands(a, task_id) == 3
    assert [text.split(" ")[2] for text in caplog.messages if text.startswith("Skipping command")] == ["1", "1", "3"]


def test_answer_starts_its_call_while_another_call_runs(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            # Both tools run in parallel, and one needs a minute.
            submitted = await a.agent().submit("Go")
            asking_agent = a.agent([call("pay", amount=5), call("work")], "paid")
            execution = asyncio.ensure_future(asking_agent.get_run(submitted.task_id).execute())
            await wait_until(lambda: a.started)
            await run_ready_tasks()
            await asyncio.sleep(1)
            await b.agent().get_run(submitted.task_id).answer({"1.0.1": True})
            await b.agent().get_run(submitted.task_id).send("Thank you")
            await wait_until(lambda: a.paid)
            assert time.now < 60
            record = await execution
            assert (record.state, record.attempt) == ("completed", 1)
            assert a.paid == [5]
            assert time.now == 60
            events = await b.log.read(submitted.task_id)
            assert [e.metadata for e in events if e.metadata] == [{"command_id": 1}, {"command_id": 2}]
            [message] = [e for e in events if isinstance(e, MessageAddedEvent)]
            assert (message.attempt, message.content) == (1, "Thank you")

        time.run(main())
