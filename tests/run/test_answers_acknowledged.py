"""An answer that was acknowledged is taken, whatever else begins or ends in its conversation at that moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rxloop import (
    Agent,
    Event,
    InputReceivedEvent,
    LLMCallEvent,
    MemoryEventLog,
    Message,
    PostgresEventLog,
    SqliteEventLog,
    StatusUpdateEvent,
    TaskEvent,
    tool,
)
from rxloop.errors import ContextBusy, EventLogError, NotAsked
from rxloop.protocol.commands import AnswerCommand, CancelCommand, Command, MessageCommand
from rxloop.testing import ScriptedModel, call

ANSWER = {"1.0.1": True}
POSTGRES = pytest.param("postgres", marks=pytest.mark.service("postgres"))
Log = MemoryEventLog | SqliteEventLog | PostgresEventLog


@pytest.fixture(params=["memory", "sqlite", POSTGRES])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Log]:
    kept: Log
    if request.param == "postgres":
        kept = PostgresEventLog(request.getfixturevalue("postgres_database"))
    else:
        kept = MemoryEventLog() if request.param == "memory" else SqliteEventLog(tmp_path / "runs.db")
    yield kept
    await kept.aclose()


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


def agent(log: Log, *turns: Any, **options: Any) -> Agent[None, str]:
    return Agent(ScriptedModel(*turns), tools=[pay], log=log, **options)


async def waiting(log: Log, context_id: str = "c") -> str:
    """A run of a conversation that waits for an approval."""
    asking = agent(log, call("pay", amount=5))
    return (await asking.get_run((await asking.submit("Pay", context_id=context_id)).task_id).execute()).task_id


async def taken(log: Log, task_id: str) -> bool:
    """Whether a run takes an answer when somebody settles it."""
    await agent(log, "Paid.").get_run(task_id).execute()
    return any(isinstance(event, InputReceivedEvent) for event in await log.read(task_id))


async def test_a_later_run_that_is_cancelled_before_it_begins_lets_no_question_go(log: Log) -> None:
    asked = await waiting(log)
    later = await agent(log).submit("And now?", context_id="c")
    await agent(log).get_run(asked).answer(ANSWER)
    await agent(log).get_run(later.task_id).cancel()
    assert await taken(log, asked)


async def test_a_question_is_answered_after_a_later_run_was_cancelled_before_it_began(log: Log) -> None:
    asked = await waiting(log)
    later = await agent(log).submit("And now?", context_id="c")
    await agent(log).get_run(later.task_id).cancel()
    await agent(log).get_run(asked).answer(ANSWER)
    assert await taken(log, asked)


async def test_a_run_that_was_cancelled_before_it_began_drops_no_answer_when_it_is_resumed(log: Log) -> None:
    asked = await waiting(log)
    later = await agent(log).submit("And now?", context_id="c")
    await agent(log).get_run(later.task_id).cancel()
    await agent(log).get_run(asked).answer(ANSWER)
    with pytest.raises(ContextBusy, match=f"{asked}.* has got its answer"):
        await agent(log, "Never.").resume(later.task_id)
    assert await taken(log, asked)


async def test_a_run_that_is_begun_with_a_cancel_in_its_mail_lets_no_question_go(log: Log) -> None:
    asked = await waiting(log)
    later = await agent(log).submit("And now?", context_id="c")
    # A worker takes it up at the moment in which somebody cancels it.
    await log.send_command(later.task_id, CancelCommand())
    assert (await agent(log, "Never.").get_run(later.task_id).execute()).state == "canceled"
    await agent(log).get_run(asked).answer(ANSWER)
    assert await taken(log, asked)


async def test_a_run_that_goes_on_after_it_was_cancelled_lets_the_question_go(log: Log) -> None:
    asked = await waiting(log)
    later = await agent(log).submit("And now?", context_id="c")
    await log.send_command(later.task_id, CancelCommand())
    assert (await agent(log, "Never.").get_run(later.task_id).execute()).state == "canceled"
    assert (await agent(log, "Well.").resume(later.task_id)).output == "Well."
    with pytest.raises(NotAsked, match=later.task_id):
        await agent(log).get_run(asked).answer(ANSWER)


async def test_a_run_that_is_cancelled_before_it_begins_is_never_seen_under_way(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = await agent(log).submit("And now?", context_id="c")
    append, states = log.append, list[str]()

    async def noted(task_id: str, events: Sequence[Event], **options: Any) -> None:
        await append(task_id, events, **options)
        states.append((await log.get_record(task_id)).state)

    monkeypatch.setattr(log, "append", noted)
    await agent(log).get_run(later.task_id).cancel()
    assert states == ["canceled"]


async def test_an_answer_is_told_that_it_is_too_late_once_a_later_run_is_about_to_begin(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = await waiting(log)
    append, told = log.append, list[str]()

    async def held(task_id: str, events: Sequence[Event], **options: Any) -> None:
        if not told:
            # The later run has looked at the mail, and is not in the log yet.
            try:
                await agent(log).get_run(asked).answer(ANSWER)
                told.append("acknowledged")
            except NotAsked as error:
                told.append(str(error))
        await append(task_id, events, **options)

    monkeypatch.setattr(log, "append", held)
    later = agent(log, "Fine.").run("Never mind", context_id="c")
    assert (await later).output == "Fine."
    assert (told[0] == "acknowledged") == await taken(log, asked)
    assert f"the later run {later.task_id} of the conversation c dropped its questions" in told[0]


async def test_a_later_run_gives_way_to_an_answer_that_comes_just_before_it_lets_the_question_go(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = await waiting(log)
    send = log.send_command

    async def late(task_id: str, mail: Command) -> int:
        # The later run has looked at the mail, and is about to write that it lets the question go.
        monkeypatch.setattr(log, "send_command", send)
        await agent(log).get_run(asked).answer(ANSWER)
        return await send(task_id, mail)

    monkeypatch.setattr(log, "send_command", late)
    with pytest.raises(ContextBusy, match=f"{asked}.* has got its answer"):
        await agent(log, "Never.").run("Never mind", context_id="c")
    assert await taken(log, asked)


async def test_a_question_that_a_run_lets_go_which_dies_before_it_begins_is_answered_by_a_resume(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = await waiting(log)
    later = await agent(log).submit("And now?", context_id="c")

    async def dies(*arguments: Any, **options: Any) -> None:
        raise EventLogError("the disk is gone", retryable=False)

    with monkeypatch.context() as patched:
        patched.setattr(log, "append", dies)
        for _ in range(2):
            with pytest.raises(Exception, match="the disk is gone"):
                await agent(log, "Never.").resume(later.task_id)
    assert len(await log.read_commands(asked)) == 1
    with pytest.raises(NotAsked, match=later.task_id):
        await agent(log).get_run(asked).answer(ANSWER)
    assert not await taken(log, asked)
    assert (await agent(log, "Paid.").resume(asked, inputs=ANSWER)).output == "Paid."
    assert (await agent(log, "Well.").get_run(later.task_id).execute()).state == "completed"


async def test_an_answer_before_the_word_that_its_question_is_let_go_counts_and_one_behind_it_does_not(
    log: Log,
) -> None:
    answered, late = await waiting(log, "c"), await waiting(log, "d")
    word = MessageCommand(messages=[], superseding_task_id="later")
    await agent(log).get_run(answered).answer(ANSWER)
    await log.send_command(answered, word)
    # Once more, as somebody does who did not hear that it had arrived.
    await agent(log).get_run(answered).answer(ANSWER)
    assert await taken(log, answered)
    await log.send_command(late, word)
    await log.send_command(late, AnswerCommand(inputs=ANSWER))
    assert not await taken(log, late)


async def test_only_the_run_before_it_is_told_by_a_later_one_that_its_question_is_let_go(log: Log) -> None:
    first = await waiting(log)
    second = await agent(log, call("pay", amount=6)).run("Pay another", context_id="c")
    await agent(log, "Fine.").run("Never mind", context_id="c")
    assert [len(await log.read_commands(task_id)) for task_id in (first, second.task_id)] == [1, 1]


@pytest.mark.parametrize("asked_its_model", [False, True])
async def test_a_later_run_that_failed_before_it_did_anything_lets_no_question_go(asked_its_model: bool) -> None:
    log = MemoryEventLog()
    asked = await waiting(log)
    # Its time ran out while it waited for its turn, or just after.
    task = TaskEvent(messages=[Message.user("Go")], model="m", agent_name="a")
    end = StatusUpdateEvent(state="failed", final=True, reason="timeout")
    calls = (
        [LLMCallEvent(step="1", iteration=1, model="m", message_count=1, tool_count=0, estimated_input_tokens=1)]
        if asked_its_model
        else []
    )
    events: list[Event] = [task, StatusUpdateEvent(state="working"), *calls, end]
    place = {"task_id": "late", "context_id": "c", "attempt": 1, "timestamp": 1}
    written = [event.model_copy(update={**place, "seq": seq}) for seq, event in enumerate(events, 1)]
    await log.append("late", written, expected_seq=0)
    if asked_its_model:
        with pytest.raises(NotAsked, match="late"):
            await agent(log).get_run(asked).answer(ANSWER)
    else:
        await agent(log).get_run(asked).answer(ANSWER)
        assert await taken(log, asked)
