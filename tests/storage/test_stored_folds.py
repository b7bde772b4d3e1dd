"""Stored folds of finished runs."""

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
    MessageAddedEvent,
    StatusUpdateEvent,
    TaskEvent,
    ThoughtStreamEvent,
    UsageEvent,
)
from rxloop.protocol.messages import ImagePart, TextPart, ToolCall, is_private
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


async def load_conversation(path: Path, *, before: str = "") -> RunState:
    """Load the conversation with an empty cache."""
    log = SqliteEventLog(path)
    state = await conversation(log, "c", before)
    await log.aclose()
    return state


def comparable(state: RunState) -> tuple[Any, ...]:
    messages = list(state.messages)
    return (
        [message.model_dump_json() for message in messages],
        (state.messages.size, state.messages.newest_user, state.messages.pinned),
        list(state.earlier),
        state.compressed,
        state.measured,
    )


def query_rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        result = connection.execute(query).fetchall()
        connection.commit()
        return result


def make_run(number: int, *more: Event, context_id: str = "c", text: str = "") -> list[Event]:
    """Make a run with one question, optional further events, and one answer."""
    fields: dict[str, Any] = {"attempt": 1, "task_id": f"run{number}", "context_id": context_id, "timestamp": number}
    events = [
        TaskEvent(messages=[Message.user(text or f"question {number}")], model="m", agent_name="a"),
        *more,
        ContentCompleteEvent(step="1", content=f"answer {number}", finish_reason="stop"),
        StatusUpdateEvent(state="completed", final=True),
    ]
    return [event.model_copy(update={"seq": seq, **fields}) for seq, event in enumerate(events, 1)]


async def write_runs(path: Path, *runs: list[Event]) -> None:
    log = SqliteEventLog(path)
    for events in runs:
        await log.append(events[0].task_id, events, expected_seq=0)
    await log.aclose()


async def write_all_kinds(log: MemoryEventLog) -> None:
    """Write runs with all kinds of endings, tools, questions and thoughts."""
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
    extra = make_run(9, thought, UsageEvent(step="1", input_tokens=7), compressed)
    await log.append("run9", extra, expected_seq=0)


async def test_stored_folds_equal_the_fold_of_the_events(path: Path) -> None:
    memory, log = MemoryEventLog(), SqliteEventLog(path)
    await write_all_kinds(memory)
    for record in await memory.list_runs():
        await log.append(record.task_id, await memory.read(record.task_id), expected_seq=0)
    await log.aclose()
    expected = comparable(await conversation(memory, "c", before=""))

    assert comparable(await load_conversation(path)) == expected
    [(fold_count,)] = query_rows(path, "SELECT count(*) FROM folds")
    assert fold_count == len(await memory.list_runs())
    assert comparable(await load_conversation(path)) == expected

    last = (await memory.list_runs())[-2].task_id
    assert comparable(await load_conversation(path, before=last)) == comparable(
        await conversation(memory, "c", before=last)
    )


async def test_conversation_is_the_same_for_any_grouping_of_folds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call_ = ToolCall(id="k", name="look")
    monkeypatch.setattr(run_state, "MAX_EARLIER_IDS", 10)
    monkeypatch.setattr(conversations, "MAX_EARLIER_IDS", 10)
    memory = MemoryEventLog()
    runs = [
        make_run(n, ThoughtStreamEvent(thought_id=f"t{n}", content="Hm", index=0))
        if n % 3
        else make_run(
            n, ContentCompleteEvent(step="0", content="", tool_calls=[call_.model_copy(update={"id": f"k{n}"})])
        )
        for n in range(50)
    ]
    for events in runs:
        await memory.append(events[0].task_id, events, expected_seq=0)
    await write_runs(path, *runs)
    expected = comparable(await conversation(memory, "c", before=""))
    for together in (1_000, 20, 7, 1):
        monkeypatch.setattr(conversations, "_RUNS_PER_FOLD", together)
        assert comparable(await load_conversation(path)) == expected
        assert comparable(await load_conversation(path)) == expected


async def test_stored_messages_are_parsed_when_they_are_read(path: Path) -> None:
    await write_runs(path, *(make_run(n) for n in range(10)))
    await load_conversation(path)

    history = (await load_conversation(path)).messages
    items = history._items  # pyright: ignore[reportPrivateUsage]

    assert all(isinstance(item, StoredMessages) for item in items)
    assert len(history) == 20
    assert history[3].text == "answer 1"
    assert history[-2].text == "question 9"
    assert sum(isinstance(item, StoredMessages) for item in items) == 16
    longer = history.append(Message.user("more"))
    assert [message.text for message in longer[-3:]] == ["question 9", "answer 9", "more"]
    assert len(list(history)) == 20


async def test_turn_stores_only_the_folds_of_new_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "_RUNS_PER_FOLD", 8)
    log, written = SqliteEventLog(path), list[int]()
    store_folds = log.store_folds

    def count_runs(context_id: str, folds: Any, *, version: int) -> None:
        written.append(sum(fold.runs for fold in folds))
        store_folds(context_id, folds, version=version)

    monkeypatch.setattr(log, "store_folds", count_runs)
    for n in range(40):
        await Agent(ScriptedModel(f"answer {n}"), log=log).run(f"question {n}", context_id="c")
    await log.aclose()

    # Every turn stores one run, and every eighth turn also merges eight folds.
    assert max(written) <= 1 + 8
    assert sum(written) <= 39 + 39
    [(count,)] = query_rows(path, "SELECT count(*) FROM folds")
    assert count < 4 + 8 + 2
    assert len((await load_conversation(path)).messages) == 80


async def test_resumed_run_is_folded_again(path: Path) -> None:
    events = make_run(0)
    await write_runs(
        path, [*events[:-2], events[-1].model_copy(update={"seq": 2, "state": "canceled"})], make_run(1), make_run(2)
    )
    assert [message.text for message in (await load_conversation(path)).messages][:2] == ["question 0", "question 1"]

    log = SqliteEventLog(path)
    answer, end = (event.model_copy(update={"seq": event.seq + 1, "attempt": 2}) for event in events[-2:])
    await log.append("run0", [answer, end], expected_seq=2)
    await log.aclose()

    assert [message.text for message in (await load_conversation(path)).messages][:2] == ["question 0", "answer 0"]
    assert len((await load_conversation(path)).messages) == 6


@pytest.mark.parametrize("together", [2, 100])
async def test_deleted_run_leaves_nothing_in_the_folds(
    path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(conversations, "_RUNS_PER_FOLD", together)
    await write_runs(
        path, make_run(0), make_run(1, text="PLANTED"), make_run(2), make_run(3, context_id="other", text="PLANTED too")
    )
    await load_conversation(path)
    assert query_rows(path, "SELECT count(*) FROM folds WHERE CAST(messages AS TEXT) LIKE '%PLANTED%'") == [(1,)]

    log = SqliteEventLog(path)
    await log.delete("run1")
    await log.aclose()

    assert query_rows(path, "SELECT count(*) FROM folds WHERE CAST(messages AS TEXT) LIKE '%PLANTED%'") == [(0,)]
    texts = [message.text for message in (await load_conversation(path)).messages]
    assert texts == ["question 0", "answer 0", "question 2", "answer 2"]


def truncate_messages(path: Path) -> None:
    query_rows(path, "UPDATE folds SET messages = substr(messages, 1, 20)")


def change_words(path: Path) -> None:
    query_rows(path, "UPDATE folds SET messages = CAST(replace(CAST(messages AS TEXT), 'answer', 'ANSWER') AS BLOB)")


def change_summary(path: Path) -> None:
    query_rows(
        path, "UPDATE folds SET summary = CAST(replace(CAST(summary AS TEXT), '\"count\":2', '\"count\":3') AS BLOB)"
    )


def increment_version(path: Path) -> None:
    query_rows(path, "UPDATE folds SET version = version + 1, messages = 'from the future'")


def delete_half(path: Path) -> None:
    query_rows(path, "DELETE FROM folds WHERE number % 2")


@pytest.mark.parametrize("damage", [truncate_messages, change_words, change_summary, increment_version, delete_half])
async def test_damaged_folds_are_replaced_by_folds_of_the_events(path: Path, damage: Callable[[Path], None]) -> None:
    await write_runs(path, *(make_run(n) for n in range(4)))
    expected = comparable(await load_conversation(path))
    stored = query_rows(path, "SELECT first, last, version, messages FROM folds ORDER BY first")
    assert len(stored) == 4
    damage(path)

    assert comparable(await load_conversation(path)) == expected

    assert query_rows(path, "SELECT first, last, version, messages FROM folds ORDER BY first") == stored


async def test_run_without_messages_can_be_stored(path: Path) -> None:
    run = make_run(1)
    notes = [run[0].model_copy(update={"messages": []}), run[2].model_copy(update={"seq": 2})]
    await write_runs(path, notes)
    assert not (await load_conversation(path)).messages
    await write_runs(path, make_run(2))
    for _ in range(2):
        assert len((await load_conversation(path)).messages) == 2
    assert query_rows(path, "SELECT count(*) FROM folds") == [(2,)]


async def test_fold_of_an_unfinished_run_is_not_stored(path: Path) -> None:
    await write_runs(path, make_run(0), make_run(1)[:-1])
    assert [message.text for message in (await load_conversation(path)).messages][-1] == "answer 1"
    assert query_rows(path, "SELECT count(*) FROM folds") == [(1,)]


async def test_fold_of_a_run_with_an_unreadable_event_is_not_stored(path: Path) -> None:
    await write_runs(path, make_run(0), make_run(1))
    query_rows(path, "UPDATE events SET json = '{' WHERE run = 2 AND seq = 2")
    log = SqliteEventLog(path, corrupt="skip")
    assert [message.text for message in (await conversation(log, "c", "")).messages][-1] == "question 1"
    await log.aclose()
    assert query_rows(path, "SELECT count(*) FROM folds") == [(1,)]


async def test_conversation_can_be_read_when_folds_cannot_be_stored(path: Path) -> None:
    await write_runs(path, *(make_run(n) for n in range(3)))
    query_rows(path, "DROP TABLE folds")
    query_rows(path, "CREATE VIEW folds AS SELECT 0 AS number, '' AS context_id, 0 AS first, 0 AS last, 0 AS runs,"
         " 0 AS events, 0 AS version, 0 AS crc, x'' AS summary, x'' AS messages")  # fmt: skip
    assert len((await load_conversation(path)).messages) == 6


async def test_long_conversation_without_folds_does_not_block_the_event_loop(path: Path) -> None:
    await write_runs(path, *(make_run(n) for n in range(200)))
    iterations = 0

    async def run_others() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(run_others())
    log = SqliteEventLog(path)
    records = await log.read_conversation("c", before="", version=0)
    iterations = 0
    await conversations._add_parts(records.parts, RunState(), makes_folds=True)  # pyright: ignore[reportPrivateUsage]
    other.cancel()
    await log.aclose()
    assert iterations >= 2


@pytest.mark.parametrize("is_old", [False, True])
async def test_messages_of_a_long_run_are_parsed_in_groups(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    notes = [
        MessageAddedEvent(role="user", content=f"note,\n{n}", cause="retry" if n % 7 == 0 else "steering")
        for n in range(998)
    ]
    await write_runs(path, make_run(1), make_run(2, *notes), make_run(3))
    memory = MemoryEventLog()
    for number, run in enumerate([make_run(1), make_run(2, *notes), make_run(3)], 1):
        await memory.append(f"run{number}", run, expected_seq=0)
    expected = await conversation(memory, "c", before="")
    with monkeypatch.context() as patch:
        if is_old:
            patch.setattr(conversations, "_SEPARATOR", b",")
        assert comparable(await load_conversation(path)) == comparable(expected)
    parsed, parse = list[int](), conversations._parse_messages

    def count_messages(data: bytes, private: list[int]) -> list[Message]:
        parsed.append(len(messages := parse(data, private)))
        return messages

    monkeypatch.setattr(conversations, "_parse_messages", count_messages)
    state = await load_conversation(path)
    assert state.messages[500].text == expected.messages[500].text
    assert parsed == ([1_000] if is_old else [200])
    assert comparable(state) == comparable(expected)
    assert list(map(is_private, state.messages)) == list(map(is_private, expected.messages))
    assert sum(parsed) == len(expected.messages) == 1_004
