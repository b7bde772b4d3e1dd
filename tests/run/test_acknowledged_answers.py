"""An acknowledged answer is applied, even if another run of the conversation starts or ends at that moment."""

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
    event_log: Log
    if request.param == "postgres":
        event_log = PostgresEventLog(request.getfixturevalue("postgres_database"))
    else:
        event_log = MemoryEventLog() if request.param == "memory" else SqliteEventLog(tmp_path / "runs.db")
    yield event_log
    await event_log.aclose()


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


def agent(log: Log, *turns: Any, **options: Any) -> Agent[None, str]:
    return Agent(ScriptedModel(*turns), tools=[pay], log=log, **options)


async def create_waiting_run(log: Log, context_id: str = "c") -> str:
    """Create a run waiting for approval and return its id."""
    asking_agent = agent(log, call("pay", amount=5))
    return (
        await asking_agent.get_run((await asking_agent.submit("Pay", context_id=context_id)).task_id).execute()
    ).task_id


async def applies_answer(log: Log, task_id: str) -> bool:
    """True if the run applies an answer when a process executes it."""
    await agent(log, "Paid.").get_run(task_id).execute()
    return any(isinstance(event, InputReceivedEvent) for event in await log.read(task_id))


async def test_answered_question_survives_cancel_of_unstarted_later_run(log: Log) -> None:
    waiting_id = await create_waiting_run(log)
    later = await agent(log).submit("And now?", context_id="c")
    await agent(log).get_run(waiting_id).answer(ANSWER)
    await agent(log).get_run(later.task_id).cancel()
    assert await applies_answer(log, waiting_id)


async def test_question_can_be_answered_after_cancel_of_unstarted_later_run(log: Log) -> None:
    waiting_id = await create_waiting_run(log)
    later = await agent(log).submit("And now?", context_id="c")
    await agent(log).get_run(later.task_id).cancel()
    await agent(log).get_run(waiting_id).answer(ANSWER)
    assert await applies_answer(log, waiting_id)


async def test_resume_of_canceled_unstarted_run_is_refused_while_an_answer_is_pending(log: Log) -> None:
    waiting_id = await create_waiting_run(log)
    later = await agent(log).submit("And now?", context_id="c")
    await agent(log).get_run(later.task_id).cancel()
    await agent(log).get_run(waiting_id).answer(ANSWER)
    with pytest.raises(ContextBusy, match=f"{waiting_id}.* was answered"):
        await agent(log, "Never.").resume(later.task_id)
    assert await applies_answer(log, waiting_id)


async def test_run_started_with_cancel_in_inbox_drops_no_question(log: Log) -> None:
    waiting_id = await create_waiting_run(log)
    later = await agent(log).submit("And now?", context_id="c")
    # Simulate a worker that starts this run during cancellation.
    await log.send_command(later.task_id, CancelCommand())
    assert (await agent(log, "Never.").get_run(later.task_id).execute()).state == "canceled"
    await agent(log).get_run(waiting_id).answer(ANSWER)
    assert await applies_answer(log, waiting_id)


async def test_resume_of_canceled_run_drops_the_earlier_question(log: Log) -> None:
    waiting_id = await create_waiting_run(log)
    later = await agent(log).submit("And now?", context_id="c")
    await log.send_command(later.task_id, CancelCommand())
    assert (await agent(log, "Never.").get_run(later.task_id).execute()).state == "canceled"
    assert (await agent(log, "Well.").resume(later.task_id)).output == "Well."
    with pytest.raises(NotAsked, match=later.task_id):
        await agent(log).get_run(waiting_id).answer(ANSWER)


async def test_unstarted_run_is_never_recorded_as_working_when_canceled(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = await agent(log).submit("And now?", context_id="c")
    append, states = log.append, list[str]()

    async def append_and_record_state(task_id: str, events: Sequence[Event], **options: Any) -> None:
        await append(task_id, events, **options)
        states.append((await log.get_record(task_id)).state)

    monkeypatch.setattr(log, "append", append_and_record_state)
    await agent(log).get_run(later.task_id).cancel()
    assert states == ["canceled"]


async def test_answer_is_rejected_as_late_when_a_later_run_is_about_to_start(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting_id = await create_waiting_run(log)
    append, replies = log.append, list[str]()

    async def answer_and_append(task_id: str, events: Sequence[Event], **options: Any) -> None:
        if not replies:
            # Answer between inbox read and first write.
            try:
                await agent(log).get_run(waiting_id).answer(ANSWER)
                replies.append("acknowledged")
            except NotAsked as error:
                replies.append(str(error))
        await append(task_id, events, **options)

    monkeypatch.setattr(log, "append", answer_and_append)
    later = agent(log, "Fine.").run("Never mind", context_id="c")
    assert (await later).output == "Fine."
    assert (replies[0] == "acknowledged") == await applies_answer(log, waiting_id)
    assert f"the later run {later.task_id} of the conversation c dropped its questions" in replies[0]


async def test_later_run_is_refused_when_an_answer_arrives_before_it_drops_the_question(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting_id = await create_waiting_run(log)
    send = log.send_command

    async def answer_and_send(task_id: str, command: Command) -> int:
        # Answer between inbox read and drop command.
        monkeypatch.setattr(log, "send_command", send)
        await agent(log).get_run(waiting_id).answer(ANSWER)
        return await send(task_id, command)

    monkeypatch.setattr(log, "send_command", answer_and_send)
    with pytest.raises(ContextBusy, match=f"{waiting_id}.* was answered"):
        await agent(log, "Never.").run("Never mind", context_id="c")
    assert await applies_answer(log, waiting_id)


async def test_resume_answers_question_dropped_by_a_run_that_never_started(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting_id = await create_waiting_run(log)
    later = await agent(log).submit("And now?", context_id="c")

    async def fail_append(*arguments: Any, **options: Any) -> None:
        raise EventLogError("the disk is gone", retryable=False)

    with monkeypatch.context() as patched:
        patched.setattr(log, "append", fail_append)
        for _ in range(2):
            with pytest.raises(Exception, match="the disk is gone"):
                await agent(log, "Never.").resume(later.task_id)
    assert len(await log.read_commands(waiting_id)) == 1
    with pytest.raises(NotAsked, match=later.task_id):
        await agent(log).get_run(waiting_id).answer(ANSWER)
    assert not await applies_answer(log, waiting_id)
    assert (await agent(log, "Paid.").resume(waiting_id, inputs=ANSWER)).output == "Paid."
    assert (await agent(log, "Well.").get_run(later.task_id).execute()).state == "completed"


async def test_answer_is_applied_only_if_it_precedes_the_drop_of_its_question(
    log: Log,
) -> None:
    answered, dropped = await create_waiting_run(log, "c"), await create_waiting_run(log, "d")
    drop = MessageCommand(messages=[], superseding_task_id="later")
    await agent(log).get_run(answered).answer(ANSWER)
    await log.send_command(answered, drop)
    # Without an acknowledgement, clients resend their answers.
    await agent(log).get_run(answered).answer(ANSWER)
    assert await applies_answer(log, answered)
    await log.send_command(dropped, drop)
    await log.send_command(dropped, AnswerCommand(inputs=ANSWER))
    assert not await applies_answer(log, dropped)


async def test_later_run_sends_drop_command_only_to_its_predecessor(log: Log) -> None:
    first = await create_waiting_run(log)
    second = await agent(log, call("pay", amount=6)).run("Pay another", context_id="c")
    await agent(log, "Fine.").run("Never mind", context_id="c")
    assert [len(await log.read_commands(task_id)) for task_id in (first, second.task_id)] == [1, 1]


@pytest.mark.parametrize("has_model_call", [False, True])
async def test_later_run_drops_question_only_if_it_called_the_model_before_failing(has_model_call: bool) -> None:
    log = MemoryEventLog()
    waiting_id = await create_waiting_run(log)
    # This run timed out before its first step.
    task = TaskEvent(messages=[Message.user("Go")], model="m", agent_name="a")
    end = StatusUpdateEvent(state="failed", final=True, reason="timeout")
    calls = (
        [LLMCallEvent(step="1", iteration=1, model="m", message_count=1, tool_count=0, estimated_input_tokens=1)]
        if has_model_call
        else []
    )
    events: list[Event] = [task, StatusUpdateEvent(state="working"), *calls, end]
    stamp = {"task_id": "late", "context_id": "c", "attempt": 1, "timestamp": 1}
    written = [event.model_copy(update={**stamp, "seq": seq}) for seq, event in enumerate(events, 1)]
    await log.append("late", written, expected_seq=0)
    if has_model_call:
        with pytest.raises(NotAsked, match="late"):
            await agent(log).get_run(waiting_id).answer(ANSWER)
    else:
        await agent(log).get_run(waiting_id).answer(ANSWER)
        assert await applies_answer(log, waiting_id)
