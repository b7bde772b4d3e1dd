"""Answers that are sent to a run, wherever it goes on: checked, taken once, and refused when it is too late."""

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
from rxloop.protocol.commands import AnswerCommand, Command
from rxloop.testing import ScriptedModel, call, virtual_time
from support.processes.machines import Machines, two_machines
from support.run_checks import settled, until
from support.waiting_runs import read_commands, waiting


@pytest.fixture
def machines() -> Machines:
    return two_machines()


async def test_an_answer_is_taken_by_whoever_settles_next(machines: Machines) -> None:
    a, b = machines
    task_id = await waiting(a)
    await a.agent().get_run(task_id).answer({"1.0.1": True})
    record = await b.agent("paid").get_run(task_id).execute()
    [received] = [e for e in await a.log.read(task_id) if isinstance(e, InputReceivedEvent)]
    assert (record.state, received.metadata, b.paid) == ("completed", {"mail_id": 1}, [5])


async def test_a_plain_resume_takes_an_answer_too(machines: Machines) -> None:
    a, b = machines
    task_id = await waiting(a)
    with pytest.raises(InvalidInput, match="waits for"):
        await b.agent("paid").resume(task_id)
    await a.agent().get_run(task_id).answer({"1.0.1": True})
    assert (await b.agent("paid").resume(task_id)).output == "paid"
    assert b.paid == [5]


async def test_an_answer_is_checked_before_it_is_sent(machines: Machines) -> None:
    a, _ = machines
    task_id = await waiting(a)
    for inputs in ({"1.0.1": "perhaps"}, {"nothing": True}):
        with pytest.raises(InvalidInput):
            await a.agent().get_run(task_id).answer(inputs)
    await a.agent().get_run(task_id).answer({"1.0.1": True})
    await a.agent().get_run(task_id).answer({"1.0.1": True})
    with pytest.raises(InvalidInput, match="has its answer already"):
        await a.agent().get_run(task_id).answer({"1.0.1": False})
    assert len(a.log.shared.letters) == 1


async def test_an_answer_to_a_run_that_is_over_is_refused(machines: Machines) -> None:
    a, _ = machines
    run = a.agent("done").run("Go")
    await run
    with pytest.raises(InvalidInput, match="is completed"):
        await a.agent().get_run(run.task_id).answer({"1.0.1": True})


async def test_an_answer_to_a_question_that_was_let_go_is_refused(machines: Machines) -> None:
    a, _ = machines
    task_id = await waiting(a, context_id="c")
    await a.agent("Fine.").run("Never mind", context_id="c")
    with pytest.raises(InvalidInput, match="dropped its questions"):
        await a.agent().get_run(task_id).answer({"1.0.1": True})


async def test_an_answer_in_the_mail_of_a_run_whose_question_was_let_go_is_no_answer(machines: Machines) -> None:
    a, _ = machines
    task_id = await waiting(a, context_id="c")
    await a.agent("Fine.").run("Never mind", context_id="c")
    await a.log.send_command(task_id, AnswerCommand(inputs={"1.0.1": True}))
    for answer in (True, False):
        with pytest.raises(InvalidInput, match="dropped its questions"):
            await a.agent().get_run(task_id).answer({"1.0.1": answer})


async def test_of_two_answers_at_the_same_moment_the_first_one_counts_and_the_other_is_told_so(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machines
    task_id = await waiting(a)
    send = b.log.send_command

    async def late(task_id: str, mail: Command) -> int:
        # Both have found the question open.
        await a.log.send_command(task_id, AnswerCommand(inputs={"1.0.1": True}))
        return await send(task_id, mail)

    monkeypatch.setattr(b.log, "send_command", late)
    with pytest.raises(InvalidInput, match="has its answer already: True, which False cannot replace"):
        await b.agent().get_run(task_id).answer({"1.0.1": False})
    await a.agent().get_run(task_id).answer({"1.0.1": True})
    assert (await b.agent("paid").get_run(task_id).execute()).state == "completed"
    assert b.paid == [5]


async def test_of_contradicting_answers_at_once_over_a_file_one_is_accepted_and_taken(
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
        asking = Agent(ScriptedModel(call("pay", to=str(number)), "done"), tools=[pay], log=logs[0])
        record = await asking.get_run((await asking.submit("Pay")).task_id).execute()
        answers = [bool(place % 2) for place in range(len(agents))]
        told = await asyncio.gather(
            *(agent.get_run(record.task_id).answer({"1.0.1": yes}) for agent, yes in zip(agents, answers, strict=True)),
            return_exceptions=True,
        )
        accepted = {yes for yes, refusal in zip(answers, told, strict=True) if refusal is None}
        assert len(accepted) == 1, told
        assert all(refusal is None or isinstance(refusal, InvalidInput) for refusal in told)
        await asking.get_run(record.task_id).execute()
        assert (str(number) in paid) == accepted.pop()
    for log in logs:
        await log.aclose()


async def test_an_answer_that_the_other_one_was_quicker_to_be_taken_for_is_told_so(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machines
    task_id = await waiting(a)
    send = b.log.send_command

    async def late(task_id: str, mail: Command) -> int:
        await a.log.send_command(task_id, AnswerCommand(inputs={"1.0.1": True}))
        await a.agent("paid").get_run(task_id).execute()
        return await send(task_id, mail)

    monkeypatch.setattr(b.log, "send_command", late)
    with pytest.raises(InvalidInput, match="has its answer already"):
        await b.agent().get_run(task_id).answer({"1.0.1": False})


async def test_an_answer_to_a_question_that_is_let_go_at_the_same_moment_is_told_so(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machines
    task_id = await waiting(a, context_id="c")
    send = b.log.send_command

    async def late(task_id: str, mail: Command) -> int:
        await a.agent("Fine.").run("Never mind", context_id="c")
        return await send(task_id, mail)

    monkeypatch.setattr(b.log, "send_command", late)
    with pytest.raises(InvalidInput, match="dropped its questions"):
        await b.agent().get_run(task_id).answer({"1.0.1": True})


async def test_wrong_letters_are_passed_over_and_never_come_again(
    machines: Machines, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = machines
    task_id = await waiting(a)
    await a.log.send_command(task_id, AnswerCommand(inputs={"1.0.1": "perhaps", "nothing": 1}))
    assert (await b.agent().get_run(task_id).execute()).state == "input-required"
    assert caplog.text == ""

    await a.log.send_command(task_id, AnswerCommand(inputs={"1.0.1": True}))
    await a.log.send_command(task_id, AnswerCommand(inputs={"1.0.1": False}))
    assert (await b.agent("paid").get_run(task_id).execute()).state == "completed"
    assert (b.paid, await read_commands(a, task_id)) == ([5], 3)
    assert [text.split(" ")[1] for text in caplog.messages if "comes to nothing" in text] == ["1", "1", "3"]


def test_an_answer_starts_its_call_while_another_call_is_at_work(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            # The question is asked while the other tool works for a minute.
            submitted = await a.agent().submit("Go")
            asking = a.agent([call("pay", amount=5), call("work")], "paid")
            settling = asyncio.ensure_future(asking.get_run(submitted.task_id).execute())
            await until(lambda: a.begun)
            await settled()
            await asyncio.sleep(1)
            await b.agent().get_run(submitted.task_id).answer({"1.0.1": True})
            await b.agent().get_run(submitted.task_id).send("Thank you")
            await until(lambda: a.paid)
            assert time.now < 60
            record = await settling
            assert (record.state, record.attempt, a.paid, time.now) == ("completed", 1, [5], 60)
            events = await b.log.read(submitted.task_id)
            assert [e.metadata for e in events if e.metadata] == [{"mail_id": 1}, {"mail_id": 2}]
            [said] = [e for e in events if isinstance(e, MessageAddedEvent)]
            assert (said.attempt, said.content) == (1, "Thank you")

        time.run(main())
