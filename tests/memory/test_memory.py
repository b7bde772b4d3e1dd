"""Memories of owners over all event logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop import Agent, ConfigurationError, EventLog, MemoryEventLog, SqliteEventLog
from rxloop.errors import UnknownNote
from rxloop.memory import ImportedMessage, Memory
from rxloop.protocol.events import MemoryForgottenEvent, MemoryNotedEvent, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message
from rxloop.testing import ScriptedModel


async def chat(log: EventLog, prompt: str, answer: str = "Fine.", **options: Any) -> str:
    """Run an agent, and return the id of the run."""
    options.setdefault("owner", "ann")
    result = await Agent(ScriptedModel(answer), log=log).run(prompt, **options)
    return result.task_id


async def texts(memory: Memory, owner: str | None = "ann", **options: Any) -> list[str]:
    return [note.text for note in await memory.notes(owner, **options)]


async def test_messages_of_earlier_runs_are_found(log: EventLog) -> None:
    await chat(log, "I live near the harbour.", "Nice harbour.")
    found = await Memory(log).search("ann", "Which harbour?")
    assert {(note.origin, note.text) for note in found} == {
        ("user", "I live near the harbour."),
        ("model", "Nice harbour."),
    }


async def test_added_note_has_its_fields(log: EventLog) -> None:
    source = f"{await chat(log, 'I take the train.')}/1.1.0"
    note = await Memory(log).add("ann", "Likes trains.", kind="preference", confidence=0.5, sources=[source])
    assert (note.text, note.kind, note.origin, note.confidence) == ("Likes trains.", "preference", "program", 0.5)
    assert note.sources == (source,)
    assert await Memory(log).get("ann", note.note_id) == note


async def test_notes_are_listed_by_time_and_kind(log: EventLog) -> None:
    memory = Memory(log)
    await memory.add("ann", "A")
    await memory.add("ann", "B", kind="decision")
    assert await texts(memory) == ["A", "B"]
    assert await texts(memory, kinds=["decision"]) == ["B"]


async def test_replaced_note_is_outdated(log: EventLog) -> None:
    memory = Memory(log)
    old = await memory.add("ann", "Lives in Oslo.")
    await memory.add("ann", "Lives in Bergen.", replaces=old.note_id)
    assert await texts(memory) == ["Lives in Bergen."]
    assert [note.text for note in await memory.search("ann", "lives")] == ["Lives in Bergen."]
    assert (await memory.get("ann", old.note_id)).text == "Lives in Oslo."


async def test_note_that_a_removed_note_replaced_is_removed_too(log: EventLog) -> None:
    memory = Memory(log)
    old = await memory.add("ann", "Lives in Oslo.")
    new = await memory.add("ann", "Lives in Bergen.", replaces=old.note_id)
    assert await memory.forget("ann", new.note_id) == 2
    assert await texts(memory) == [] == await texts(Memory(log))


async def test_forgotten_note_of_the_program_is_deleted_from_the_log(log: EventLog) -> None:
    memory = Memory(log)
    note = await memory.add("ann", "A")
    assert await memory.forget("ann", note.note_id) == 1
    assert await log.list_runs() == []
    with pytest.raises(UnknownNote):
        await memory.get("ann", note.note_id)


async def test_forgetting_a_message_keeps_the_rest_of_an_imported_conversation(log: EventLog) -> None:
    memory = Memory(log)
    notes = await memory.import_conversation("ann", [ImportedMessage("A"), ImportedMessage("B")])
    assert await memory.forget("ann", notes[0].note_id) == 1
    assert await texts(memory) == ["B"] == await texts(Memory(log))


async def test_imported_conversation_is_deleted_with_its_last_message(log: EventLog) -> None:
    memory = Memory(log)
    for note in await memory.import_conversation("ann", [ImportedMessage("A"), ImportedMessage("B")]):
        await memory.forget("ann", note.note_id)
    assert [len(await log.read(record.task_id)) for record in await log.list_runs()] == [4]


async def test_forgotten_episode_stays_forgotten(log: EventLog) -> None:
    await chat(log, "I live near the harbour.")
    memory = Memory(log)
    note = (await memory.notes("ann"))[0]
    await memory.forget("ann", note.note_id)
    assert await texts(memory) == ["Fine."] == await texts(Memory(log))


async def test_notes_of_a_run_are_forgotten(log: EventLog) -> None:
    first, _ = await chat(log, "A"), await chat(log, "B")
    memory = Memory(log)
    assert await memory.forget("ann", run_id=first) == 2
    assert await texts(memory) == ["B", "Fine."] == await texts(Memory(log))


async def test_note_is_forgotten_with_the_message_that_it_is_based_on(log: EventLog) -> None:
    await chat(log, "A")
    memory = Memory(log)
    message = (await memory.notes("ann"))[0]
    await memory.add("ann", "B", sources=message.sources)
    assert await memory.forget("ann", message.note_id) == 2
    assert await texts(memory) == ["Fine."] == await texts(Memory(log))


async def test_notes_are_forgotten_by_run_and_by_source(log: EventLog) -> None:
    first, second = await chat(log, "A"), await chat(log, "B")
    memory = Memory(log)
    await memory.add("ann", "C", sources=[f"{first}/1.1.0", f"{second}/1.1.0"])
    await memory.add("ann", "D", sources=[f"{second}/1.1.0"])
    assert await memory.forget("ann", source=f"{second}/1.1.0") == 3
    assert await texts(memory) == ["A", "Fine.", "Fine."] == await texts(Memory(log))
    await memory.add("ann", "E", sources=[f"{first}/1.1.0"])
    assert await memory.forget("ann", run_id=first) == 3
    assert await texts(memory) == ["Fine."] == await texts(Memory(log))


async def test_note_is_not_based_on_a_run_of_another_owner(log: EventLog) -> None:
    memory = Memory(log)
    task_id = await chat(log, "A", owner="bob")
    with pytest.raises(ConfigurationError, match="run of the owner"):
        await memory.add("ann", "B", sources=[f"{task_id}/1.1.0"])
    assert await texts(memory) == []


async def test_notes_before_a_time_are_forgotten(log: EventLog) -> None:
    memory = Memory(log)
    await chat(log, "A")
    newest = max(note.added for note in await memory.notes("ann"))
    assert await memory.forget("ann", before=datetime.fromtimestamp((newest + 1) / 1000, UTC)) == 2
    assert await texts(memory) == []


async def test_all_notes_are_forgotten(log: EventLog) -> None:
    memory = Memory(log)
    await chat(log, "A")
    await memory.add("ann", "B")
    await memory.import_conversation("ann", [ImportedMessage("C")])
    assert await memory.forget("ann") == 4
    assert await texts(memory) == [] == await texts(Memory(log))


async def test_notes_that_are_added_after_forgetting_all_are_kept(log: EventLog) -> None:
    memory = Memory(log)
    await chat(log, "A")
    await memory.forget("ann")
    await memory.add("ann", "B")
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    await memory.import_conversation("ann", [ImportedMessage("C", time=long_ago)])
    assert await texts(memory) == ["C", "B"] == await texts(Memory(log))


async def test_note_that_is_added_in_the_millisecond_of_a_removal_is_kept(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(log)
    await chat(log, "A")
    newest = max(note.added for note in await memory.notes("ann"))
    monkeypatch.setattr("rxloop.memory.memory.time.time_ns", lambda: newest * 1_000_000)
    await memory.forget("ann")
    await memory.add("ann", "B")
    assert await texts(memory) == ["B"]


async def test_forgetting_before_a_future_time_keeps_later_notes(log: EventLog) -> None:
    memory = Memory(log)
    await chat(log, "A")
    now = datetime.now(UTC)
    await memory.forget("ann", before=now + timedelta(days=1))
    note = await memory.add("ann", "B")
    assert note.created < (now + timedelta(hours=1)).timestamp() * 1000
    assert await texts(memory) == ["B"]


@pytest.mark.parametrize("before", [None, datetime(2098, 1, 1, tzinfo=UTC)])
async def test_later_runs_are_remembered_after_forgetting_runs_with_a_wrong_clock(
    log: EventLog, before: datetime | None
) -> None:
    memory = Memory(log)
    await append(log, "run", MemoryNotedEvent(note_id="n", text="A"), timestamp=datetime(2097, 1, 1, tzinfo=UTC))
    await chat(log, "B")
    assert await memory.forget("ann", before=before) == 3
    assert await texts(memory) == [] == await texts(Memory(log))
    await chat(log, "C")
    assert await texts(memory) == ["C", "Fine."] == await texts(Memory(log))


async def test_run_of_a_users_agent_with_the_name_memory_is_not_deleted(log: EventLog) -> None:
    result = await Agent(ScriptedModel("Fine."), name="memory", log=log).run("A", owner="ann")
    memory = Memory(log)
    await memory.forget("ann")
    assert (await log.get_record(result.task_id)).state == "completed"
    assert await texts(memory) == []


async def test_imported_conversation_has_authors_and_times(log: EventLog) -> None:
    time = datetime(2026, 5, 1, tzinfo=UTC)
    memory = Memory(log)
    notes = await memory.import_conversation(
        "ann", [ImportedMessage("A", "Bob", time), ImportedMessage("x" * 5_000)], context_id="chat"
    )
    assert (notes[0].author, notes[0].created, notes[0].context_id) == ("Bob", time.timestamp() * 1000, "chat")
    assert len(notes[1].text) == 4_000
    assert {note.kind for note in notes} == {"episode"}


async def test_notes_at_an_earlier_time_are_those_that_were_current(log: EventLog) -> None:
    memory = Memory(log)
    days = [datetime(2026, 5, day, tzinfo=UTC) for day in (1, 2, 3)]
    [old] = await memory.import_conversation("ann", [ImportedMessage("Oslo", time=days[0])])
    await memory.add("ann", "Bergen", replaces=old.note_id)
    assert await texts(memory, at=days[1]) == ["Oslo"]
    assert await texts(memory, at=days[0] - timedelta(days=1)) == []
    assert await texts(memory) == ["Bergen"]


async def test_notes_of_the_asked_time_come_first(log: EventLog) -> None:
    memory = Memory(log)
    now = datetime(2026, 5, 13, tzinfo=UTC)
    for day in (5, 12):
        await memory.import_conversation("ann", [ImportedMessage(f"Harbour {day}", time=now.replace(day=day))])
    found = await memory.search("ann", "harbour last week", now=now)
    assert [note.text for note in found] == ["Harbour 5", "Harbour 12"]


async def test_result_fits_the_limits(log: EventLog) -> None:
    memory = Memory(log)
    for number in range(5):
        await memory.add("ann", f"Harbour {number} " + "x" * 100 * number)
    assert len(await memory.search("ann", "harbour", limit=2)) == 2
    assert sum(note.tokens for note in await memory.search("ann", "harbour", tokens=60)) <= 60


async def test_notes_of_a_conversation_are_excluded(log: EventLog) -> None:
    await chat(log, "Harbour one", context_id="one")
    await chat(log, "Harbour two", context_id="two")
    found = await Memory(log).search("ann", "harbour", exclude_context="one")
    assert {note.context_id for note in found} == {"two"}


async def test_owners_do_not_share_notes(log: EventLog) -> None:
    await chat(log, "Harbour of Ann", owner="ann")
    await chat(log, "Harbour of Bob", owner="bob")
    await chat(log, "Harbour of nobody", owner=None)
    memory = Memory(log)
    for owner, name in (("ann", "Ann"), ("bob", "Bob"), (None, "nobody"), ("", "nobody")):
        found = await memory.search(owner, "harbour")
        assert found[0].text == f"Harbour of {name}"
        assert len(found) == 2


async def test_runs_behind_many_runs_of_other_owners_are_found(log: EventLog) -> None:
    memory = Memory(log)
    await memory.add("ann", "A")
    await asyncio.gather(*(memory.add("bob", f"B{number}") for number in range(15)))
    assert await texts(Memory(log)) == ["A"]


async def test_note_of_another_owner_is_unknown(log: EventLog) -> None:
    memory = Memory(log)
    note = await memory.add("ann", "A")
    for call in (
        lambda: memory.get("bob", note.note_id),
        lambda: memory.forget("bob", note.note_id),
        lambda: memory.add("bob", "B", replaces=note.note_id),
    ):
        with pytest.raises(UnknownNote):
            await call()
    assert await memory.forget("bob", run_id=note.task_id) == 0
    assert await texts(memory) == ["A"]


INVALID: list[Callable[[Memory], Any]] = [
    lambda memory: memory.add("ann", ""),
    lambda memory: memory.add("ann", " \n"),
    lambda memory: memory.add("ann", "x" * 4_001),
    lambda memory: memory.add("ann", 7),  # type: ignore[arg-type]
    lambda memory: memory.add("ann", "x", kind="episode"),
    lambda memory: memory.add("ann", "x", kind="wish"),  # type: ignore[arg-type]
    lambda memory: memory.add("ann", "x", confidence=1.5),
    lambda memory: memory.add("ann", "x", confidence=float("nan")),
    lambda memory: memory.add("ann", "x", confidence="high"),  # type: ignore[arg-type]
    lambda memory: memory.add(" ann", "x"),
    lambda memory: memory.add("ann", "x", sources=["run/1.1.0"]),
    lambda memory: memory.add("ann", "x", sources=[""]),
    lambda memory: memory.import_conversation("ann", []),
    lambda memory: memory.import_conversation("ann", [ImportedMessage("A"), ImportedMessage(" ")]),
    lambda memory: memory.import_conversation("ann", [ImportedMessage("A")], context_id="a\nb"),
    lambda memory: memory.import_conversation("ann", [ImportedMessage("A", time=datetime.max.replace(tzinfo=UTC))]),
    lambda memory: memory.search("ann", "A", limit=0),
    lambda memory: memory.forget("ann", "a", run_id="b"),
    lambda memory: memory.forget("ann", run_id="a", source="b"),
    lambda memory: memory.forget("ann", before=datetime.max.replace(tzinfo=UTC), run_id="b"),
]


@pytest.mark.parametrize("call", INVALID)
async def test_invalid_argument_is_rejected_without_changes(call: Callable[[Memory], Any]) -> None:
    log = MemoryEventLog()
    memory = Memory(log)
    await memory.add("ann", "Kept")
    with pytest.raises(ConfigurationError):
        await call(memory)
    assert len(await log.list_runs()) == 1
    assert await texts(memory) == ["Kept"]


@pytest.mark.parametrize("text", ["\ud800", "\x00", "a\u202eb", "x" * 4_000, "\N{GRINNING FACE}"])
async def test_unusual_text_is_kept_or_rejected(log: EventLog, text: str) -> None:
    memory = Memory(log)
    try:
        await memory.add("ann", text)
    except ConfigurationError:
        assert await log.list_runs() == []
    else:
        assert len(await texts(Memory(log))) == 1


@pytest.mark.parametrize("call", [lambda memory: memory.get("ann", "x"), lambda memory: memory.forget("ann", "x")])
async def test_unknown_note_is_rejected(log: EventLog, call: Callable[[Memory], Any]) -> None:
    with pytest.raises(UnknownNote):
        await call(Memory(log))
    assert await log.list_runs() == []


async def test_memory_of_a_path_reads_the_sqlite_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    log = SqliteEventLog(path)
    await chat(log, "Harbour")
    memory = Memory(path)
    assert await texts(memory) == ["Harbour", "Fine."]
    await memory.aclose()
    assert (await log.list_runs())[0].owner == "ann"
    await log.aclose()


async def test_memory_of_a_log_does_not_close_it() -> None:
    log = MemoryEventLog()
    await Memory(log).aclose()
    await Memory(log).add("ann", "A")
    assert await texts(Memory(log)) == ["A"]


async def test_least_recently_used_owners_are_dropped_from_memory() -> None:
    log = MemoryEventLog()
    memory = Memory(log)
    for number in range(101):
        await memory.add(f"owner-{number}", "A")
    assert len(memory._owners) == 100
    assert await texts(memory, "owner-0") == ["A"]


def test_memory_can_be_used_in_one_event_loop_after_another() -> None:
    memory = Memory(MemoryEventLog())

    async def use() -> None:
        await asyncio.gather(*(memory.add("ann", "A") for _ in range(3)))

    for _ in range(2):
        asyncio.run(use())


async def test_log_that_ignores_an_empty_owner_does_not_mix_owners() -> None:
    class OwnLog(MemoryEventLog):
        def __init__(self) -> None:
            super().__init__()
            self.accepts_empty_owner = False

        async def list_runs(self, **query: Any) -> Any:
            query["owner"] = query.get("owner") or None
            return await super().list_runs(**query)

    log = OwnLog()
    memory = Memory(log)
    await memory.add(None, "A")
    for number in range(120):
        await memory.add("ann", f"B{number}")
    assert await texts(Memory(log), None) == ["A"]


OWNERS = ["ann", "bob", "ann:bob", "ANN", "a", "%", "ann ann", "", None]


@given(st.lists(st.tuples(st.sampled_from(OWNERS), st.sampled_from(["run", "note"])), max_size=12), st.data())
def test_owners_never_mix(actions: list[tuple[str | None, str]], data: st.DataObject) -> None:
    async def scenario() -> None:
        log = MemoryEventLog()
        memory = Memory(log)
        expected: dict[str, set[str]] = {}
        ids: list[str] = []
        for number, (owner, action) in enumerate(actions):
            text, name = f"harbour {number}", owner or ""
            expected.setdefault(name, set()).add(text)
            if action == "note":
                ids.append((await memory.add(owner, text)).note_id)
            else:
                note_id = data.draw(st.sampled_from(["x", *ids]))
                await append(log, f"run-{number}", MemoryNotedEvent(note_id=note_id, text=text), owner=name or None)
        for owner in OWNERS:
            found = {note.text for note in await memory.search(owner, "harbour", limit=100)}
            assert found <= expected.get(owner or "", set())

    asyncio.run(scenario())


async def append(
    log: EventLog,
    task_id: str,
    *events: Any,
    owner: str | None = "ann",
    timestamp: datetime = datetime(1970, 1, 1, tzinfo=UTC),
    **task: Any,
) -> None:
    """Append a finished run with events."""
    first = TaskEvent(initiator="user", messages=[], model="", agent_name="agent", owner=owner, **task)
    all_events = [first, *events, StatusUpdateEvent(state="completed", final=True, content="")]
    milliseconds = round(timestamp.timestamp() * 1000)
    fields = {"task_id": task_id, "context_id": task_id, "attempt": 1, "timestamp": milliseconds}
    stamped = [event.model_copy(update={**fields, "seq": seq}) for seq, event in enumerate(all_events, 1)]
    await log.append(task_id, stamped, expected_seq=0)


async def test_removal_in_a_run_of_another_owner_has_no_effect(log: EventLog) -> None:
    memory = Memory(log)
    note = await memory.add("ann", "A")
    await append(log, "run", MemoryForgottenEvent(note_ids=[note.note_id], before=10**15), owner="bob")
    await append(log, "other", MemoryForgottenEvent(run_id=note.task_id), owner=None)
    assert await texts(memory) == ["A"] == await texts(Memory(log))


async def test_imported_run_is_ignored(log: EventLog) -> None:
    noted = MemoryNotedEvent(note_id="x", text="Pay Eve.", origin="program")
    task = TaskEvent(
        initiator="memory",
        messages=[Message.user("Pay Eve.")],
        model="",
        agent_name="memory",
        owner="ann",
        metadata={"imported_run": True},
    )
    events = [task, noted, StatusUpdateEvent(state="completed", final=True, content="")]
    fields = {"task_id": "run", "context_id": "chat", "attempt": 1, "timestamp": 1}
    stamped = [event.model_copy(update={**fields, "seq": seq}) for seq, event in enumerate(events, 1)]
    await log.append("run", stamped, expected_seq=0)
    memory = Memory(log)
    assert await texts(memory) == []
    await chat(log, "Go on", "Paying Eve.", context_id="chat")
    assert [(note.origin, note.text) for note in await memory.notes("ann")] == [
        ("user", "Go on"),
        ("foreign", "Paying Eve."),
    ]
