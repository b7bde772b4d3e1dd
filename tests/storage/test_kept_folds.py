"""What runs add to their conversation, kept by a log beside their events."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, Event, MemoryEventLog, Message, SqliteEventLog, tool
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContextCompressedEvent,
    StatusUpdateEvent,
    TaskEvent,
    ThoughtStreamEvent,
    UsageEvent,
)
from rxloop.protocol.messages import ImagePart, TextPart, ToolCall
from rxloop.state import run_state
from rxloop.state.history import StoredMessages
from rxloop.state.run_state import RunState
from rxloop.storage import conversation as conversations
from rxloop.storage.conversation import conversation
from rxloop.testing import ScriptedModel, call, turn
from support.runs import outcome


@tool
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is blue"


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


async def fresh(path: Path, *, before: str = "") -> RunState:
    """What a new process finds."""
    log = SqliteEventLog(path)
    state = await conversation(log, "c", before)
    await log.aclose()
    return state


def told(state: RunState) -> tuple[Any, ...]:
    """Everything of a state that the next run begins with."""
    messages = list(state.messages)
    return (
        [message.model_dump_json() for message in messages],
        (state.messages.size, state.messages.newest_user, state.messages.pinned),
        list(state.earlier),
        state.compressed,
        state.measured,
    )


def rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(query).fetchall()
        connection.commit()
        return found


def a_run(number: int, *more: Event, context_id: str = "c", text: str = "") -> list[Event]:
    """A run that is asked and answers, with some events between."""
    fields: dict[str, Any] = {"attempt": 1, "task_id": f"run{number}", "context_id": context_id, "timestamp": number}
    events = [
        TaskEvent(messages=[Message.user(text or f"question {number}")], model="m", agent_name="a"),
        *more,
        ContentCompleteEvent(step="1", content=f"answer {number}", finish_reason="stop"),
        StatusUpdateEvent(state="completed", final=True),
    ]
    return [event.model_copy(update={"seq": seq, **fields}) for seq, event in enumerate(events, 1)]


async def write(path: Path, *runs: list[Event]) -> None:
    log = SqliteEventLog(path)
    for events in runs:
        await log.append(events[0].task_id, events, expected_seq=0)
    await log.aclose()


async def everything(log: MemoryEventLog) -> None:
    """Runs that end in every way, with tools, questions and thoughts."""
    script = ScriptedModel(
        "One.",
        call("look", at="the sky"),
        "Blue.",
        call("pay", amount=3),
        "As you like.",
        call("look", at="sea"),
        turn("Sea.", files=[ImagePart(data=b"\x00\xfe", media_type="image/png")]),
    )
    agent = Agent(script, tools=[look, pay], log=log)
    parts = [TextPart(text="What is this?"), ImagePart(data=b"\x00\xff", media_type="image/png")]
    await agent.run([Message.user("Say one", pinned=True), Message.user(parts)], context_id="c")
    await agent.run("Look at é", context_id="c")
    waiting = await agent.run("Pay", context_id="c")
    assert waiting.pending
    canceled = agent.run("Never", context_id="c")
    canceled.cancel()
    await outcome(canceled)
    await agent.run("Go on", context_id="c")
    await agent.run("And the sea", context_id="c")
    thought = ThoughtStreamEvent(thought_id="t1", content="Hm", index=0)
    compressed = ContextCompressedEvent(tokens_before=9, tokens_after=3, folded=[0], dropped=1)
    extra = a_run(9, thought, UsageEvent(step="1", input_tokens=7), compressed)
    await log.append("run9", extra, expected_seq=0)


async def test_the_kept_folds_of_a_conversation_are_the_fold_of_its_events(path: Path) -> None:
    memory, log = MemoryEventLog(), SqliteEventLog(path)
    await everything(memory)
    for record in await memory.list_runs():
        await log.append(record.task_id, await memory.read(record.task_id), expected_seq=0)
    await log.aclose()
    expected = told(await conversation(memory, "c", before=""))

    assert told(await fresh(path)) == expected
    [(kept,)] = rows(path, "SELECT count(*) FROM folds")
    assert kept == len(await memory.list_runs())
    assert told(await fresh(path)) == expected

    last = (await memory.list_runs())[-2].task_id
    assert told(await fresh(path, before=last)) == told(await conversation(memory, "c", before=last))


async def test_it_is_the_same_however_many_runs_are_put_together(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call_ = ToolCall(id="k", name="look")
    monkeypatch.setattr(run_state, "MAX_EARLIER_IDS", 10)
    monkeypatch.setattr(conversations, "MAX_EARLIER_IDS", 10)
    memory = MemoryEventLog()
    runs = [
        a_run(n, ThoughtStreamEvent(thought_id=f"t{n}", content="Hm", index=0))
        if n % 3
        else a_run(n, ContentCompleteEvent(step="0", content="", tool_calls=[call_.model_copy(update={"id": f"k{n}"})]))
        for n in range(50)
    ]
    for events in runs:
        await memory.append(events[0].task_id, events, expected_seq=0)
    await write(path, *runs)
    expected = told(await conversation(memory, "c", before=""))
    for together in (1_000, 20, 7, 1):
        monkeypatch.setattr(conversations, "_TOGETHER", together)
        assert told(await fresh(path)) == expected
        assert told(await fresh(path)) == expected


async def test_messages_stay_json_until_somebody_looks(path: Path) -> None:
    await write(path, *(a_run(n) for n in range(10)))
    await fresh(path)

    history = (await fresh(path)).messages
    items = history._items  # pyright: ignore[reportPrivateUsage]

    assert all(isinstance(item, StoredMessages) for item in items)
    assert (len(history), history[3].text, history[-2].text) == (20, "answer 1", "question 9")
    assert sum(isinstance(item, StoredMessages) for item in items) == 16
    longer = history.append(Message.user("more"))
    assert [message.text for message in longer[-3:]] == ["question 9", "answer 9", "more"]
    assert len(list(history)) == 20


async def test_a_turn_writes_what_is_new_and_never_the_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "_TOGETHER", 8)
    log, written = SqliteEventLog(path), list[int]()
    keep = log.store_folds

    def counted(context_id: str, folds: Any, *, version: int) -> None:
        written.append(sum(fold.runs for fold in folds))
        keep(context_id, folds, version=version)

    monkeypatch.setattr(log, "store_folds", counted)
    for n in range(40):
        await Agent(ScriptedModel(f"answer {n}"), log=log).run(f"question {n}", context_id="c")
    await log.aclose()

    # Each turn the run before it, and each eighth one those of eight.
    assert max(written) <= 1 + 8
    assert sum(written) <= 39 + 39
    [(count,)] = rows(path, "SELECT count(*) FROM folds")
    assert count < 4 + 8 + 2
    assert len((await fresh(path)).messages) == 80


async def test_a_run_that_went_on_is_folded_anew(path: Path) -> None:
    events = a_run(0)
    await write(path, [*events[:-2], events[-1].model_copy(update={"seq": 2, "state": "canceled"})], a_run(1), a_run(2))
    assert [message.text for message in (await fresh(path)).messages][:2] == ["question 0", "question 1"]

    log = SqliteEventLog(path)
    answer, end = (event.model_copy(update={"seq": event.seq + 1, "attempt": 2}) for event in events[-2:])
    await log.append("run0", [answer, end], expected_seq=2)
    await log.aclose()

    assert [message.text for message in (await fresh(path)).messages][:2] == ["question 0", "answer 0"]
    assert len((await fresh(path)).messages) == 6


@pytest.mark.parametrize("together", [2, 100])
async def test_nothing_is_left_of_a_run_that_was_removed(
    path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(conversations, "_TOGETHER", together)
    await write(path, a_run(0), a_run(1, text="PLANTED"), a_run(2), a_run(3, context_id="other", text="PLANTED too"))
    await fresh(path)
    assert rows(path, "SELECT count(*) FROM folds WHERE CAST(messages AS TEXT) LIKE '%PLANTED%'") == [(1,)]

    log = SqliteEventLog(path)
    await log.delete("run1")
    await log.aclose()

    assert rows(path, "SELECT count(*) FROM folds WHERE CAST(messages AS TEXT) LIKE '%PLANTED%'") == [(0,)]
    texts = [message.text for message in (await fresh(path)).messages]
    assert texts == ["question 0", "answer 0", "question 2", "answer 2"]


def cut(path: Path) -> None:
    rows(path, "UPDATE folds SET messages = substr(messages, 1, 20)")


def other_words(path: Path) -> None:
    rows(path, "UPDATE folds SET messages = CAST(replace(CAST(messages AS TEXT), 'answer', 'ANSWER') AS BLOB)")


def other_summary(path: Path) -> None:
    rows(path, "UPDATE folds SET summary = CAST(replace(CAST(summary AS TEXT), '\"count\":2', '\"count\":3') AS BLOB)")


def newer(path: Path) -> None:
    rows(path, "UPDATE folds SET version = version + 1, messages = 'from the future'")


def gone(path: Path) -> None:
    rows(path, "DELETE FROM folds WHERE number % 2")


@pytest.mark.parametrize("harm", [cut, other_words, other_summary, newer, gone])
async def test_what_does_not_fit_is_made_anew_of_the_events_and_kept_again(
    path: Path, harm: Callable[[Path], None]
) -> None:
    await write(path, *(a_run(n) for n in range(4)))
    expected = told(await fresh(path))
    kept = rows(path, "SELECT first, last, version, messages FROM folds ORDER BY first")
    assert len(kept) == 4
    harm(path)

    assert told(await fresh(path)) == expected

    assert rows(path, "SELECT first, last, version, messages FROM folds ORDER BY first") == kept


async def test_a_run_that_goes_on_is_not_kept(path: Path) -> None:
    await write(path, a_run(0), a_run(1)[:-1])
    assert [message.text for message in (await fresh(path)).messages][-1] == "answer 1"
    assert rows(path, "SELECT count(*) FROM folds") == [(1,)]


async def test_a_run_with_an_event_that_cannot_be_read_is_not_kept(path: Path) -> None:
    await write(path, a_run(0), a_run(1))
    rows(path, "UPDATE events SET json = '{' WHERE run = 2 AND seq = 2")
    log = SqliteEventLog(path, corrupt="skip")
    assert [message.text for message in (await conversation(log, "c", "")).messages][-1] == "question 1"
    await log.aclose()
    assert rows(path, "SELECT count(*) FROM folds") == [(1,)]


async def test_what_cannot_be_kept_costs_time_and_nothing_else(path: Path) -> None:
    await write(path, *(a_run(n) for n in range(3)))
    rows(path, "DROP TABLE folds")
    rows(path, "CREATE VIEW folds AS SELECT 0 AS number, '' AS context_id, 0 AS first, 0 AS last, 0 AS runs,"
         " 0 AS events, 0 AS version, 0 AS crc, x'' AS summary, x'' AS messages")  # fmt: skip
    assert len((await fresh(path)).messages) == 6


async def test_a_long_conversation_without_kept_folds_does_not_hold_the_event_loop(path: Path) -> None:
    await write(path, *(a_run(n) for n in range(200)))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    log = SqliteEventLog(path)
    found = await log.read_conversation("c", before="", version=0)
    turns = 0
    await conversations._add_parts(found.parts, RunState(), makes_folds=True)  # pyright: ignore[reportPrivateUsage]
    other.cancel()
    await log.aclose()
    assert turns >= 2
