"""Runs that summarise messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, EventLog, MemoryEventLog, ModelRequest, PostgresEventLog, Runtime, SqliteEventLog, tool
from rxloop.errors import RunError
from rxloop.memory import Memory, Note
from rxloop.memory.owner_notes import OwnerNotes
from rxloop.memory.reflection import wait_for_reflections
from rxloop.protocol.events import (
    Event,
    MemoryNotedEvent,
    MemoryRecalledEvent,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
)
from rxloop.protocol.messages import Message
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.postgres.server import clear_log
from support.processes.machines import MachineLog, SharedState


async def chat(log: EventLog, prompt: str, *turns: Any, owner: str = "ann") -> str:
    @tool
    async def read() -> str:
        """Read a page."""
        return "Text of a page."

    result = await Agent(ScriptedModel(*(turns or ("Fine.",))), log=log, tools=[read]).run(prompt, owner=owner)
    return result.task_id


async def facts(memory: Memory, owner: str = "ann") -> list[Note]:
    return [note for note in await memory.notes(owner) if note.kind != "episode"]


async def message(memory: Memory, text: str, owner: str = "ann") -> str:
    return next(note.note_id for note in await memory.notes(owner) if note.text == text)


def write(text: str, *sources: str, **arguments: Any) -> Any:
    return call("write_note", text=text, kind="fact", sources=[*sources], **arguments)


async def test_reflection_writes_notes_with_sources_and_confidence(log: EventLog) -> None:
    memory = Memory(log)
    first, second = await chat(log, "I take the train."), await chat(log, "I like trains.")
    ids = [await message(memory, text) for text in ("I take the train.", "I like trains.")]
    model = ScriptedModel(write("Prefers trains.", *ids, confidence=0.7), "Done.")
    [note] = await memory.reflect("ann", model=model)
    assert (note.text, note.kind, note.origin, note.confidence) == ("Prefers trains.", "fact", "model", 0.7)
    assert note.sources == (f"{first}/1.1.0", f"{second}/1.1.0")
    assert await facts(Memory(log)) == [note] == await facts(memory)
    block = model.requests[0].tail[0].text
    assert f"- [{ids[0]}, " in block
    assert "I like trains." in block


async def test_concurrent_reflections_of_an_owner_summarise_messages_once(log: EventLog) -> None:
    memory = Memory(log)
    await chat(log, "I take the train.")
    source = await message(memory, "I take the train.")
    models = [ScriptedModel(write("Takes the train.", source), "Done.") for _ in range(3)]
    notes = await asyncio.gather(*(Memory(log).reflect("ann", model=model) for model in models))
    assert sorted(map(len, notes)) == [0, 0, 1]
    assert [note.text for note in await facts(memory)] == ["Takes the train."]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service("postgres"))])
async def logs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[EventLog]]:
    """Two log objects with the same runs, as in two processes."""
    if request.param == "sqlite":
        logs: list[EventLog] = [SqliteEventLog(tmp_path / "runs.db") for _ in range(2)]
    else:
        address = clear_log(request.getfixturevalue("postgres"))
        logs = [PostgresEventLog(address) for _ in range(2)]
    yield logs
    for log in logs:
        await log.aclose()


async def test_reflections_of_two_processes_summarise_messages_once(logs: list[EventLog]) -> None:
    await chat(logs[0], "I take the train.")
    source = await message(Memory(logs[0]), "I take the train.")
    models = [ScriptedModel(write("Takes the train.", source), "Done.") for _ in logs]

    async def run(log: EventLog, model: ScriptedModel) -> None:
        async with Runtime({"reflection": Memory(log).reflection(model)}, log=log) as runtime:
            record = await runtime.start("reflection", "Summarise.", owner="ann")
            await runtime.follow(record.task_id)

    await asyncio.gather(*(run(log, model) for log, model in zip(logs, models, strict=True)))
    for log in logs:
        assert [note.text for note in await facts(Memory(log))] == ["Takes the train."]
    assert sum("I take the train." in model.requests[0].tail[0].text for model in models) == 1


async def test_reflect_in_two_processes_summarises_messages_once(logs: list[EventLog]) -> None:
    await chat(logs[0], "I take the train.")
    source = await message(Memory(logs[0]), "I take the train.")
    models = [ScriptedModel(write("Takes the train.", source), "Done.") for _ in logs]
    memories = [Memory(log) for log in logs]
    notes = await asyncio.gather(
        *(memory.reflect("ann", model=model) for memory, model in zip(memories, models, strict=True))
    )
    assert sorted(map(len, notes)) == [0, 1]
    assert sum("I take the train." in request.tail[0].text for model in models for request in model.requests[:1]) == 1


class SlowLog(MachineLog):
    """Log of a machine with a slow connection."""

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        await asyncio.sleep(0.1)
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


@pytest.mark.parametrize("delay", [0.0, 0.15, 0.5])
def test_reflection_waits_for_an_earlier_one_of_another_process(delay: float) -> None:
    shared = SharedState()
    logs = [SlowLog(shared) for _ in range(2)]

    async def main() -> None:
        await chat(logs[0], "I take the train.")
        source = await message(Memory(logs[0]), "I take the train.")
        models = [ScriptedModel(write("Takes the train.", source), frames(f"a{'-' * 500}b|")) for _ in logs]

        async def run(number: int) -> None:
            await asyncio.sleep(number * delay)
            await Memory(logs[number]).reflection(models[number]).run("Summarise.", owner="ann")

        await asyncio.gather(*map(run, range(2)))
        assert [note.text for note in await facts(Memory(logs[0]))] == ["Takes the train."]
        assert sum("I take the train." in model.requests[0].tail[0].text for model in models) == 1

    with virtual_time() as time:
        time.run(main())


class DelayedLog(MachineLog):
    """Log of a machine that delays some of its writes."""

    def __init__(self, shared: SharedState, delays: list[float]) -> None:
        super().__init__(shared)
        self.delays = delays

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        await asyncio.sleep(self.delays.pop(0) if self.delays else 0)
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


def test_reflections_that_start_at_the_same_time_summarise_messages_once() -> None:
    shared = SharedState()
    # The second run has listed the others before the first one works, and stores its selection later.
    logs = [DelayedLog(shared, [0, 0.1]), DelayedLog(shared, [0, 0, 0.3, 0.3])]

    async def main() -> None:
        await chat(shared.log, "I take the train.")
        source = await message(Memory(shared.log), "I take the train.")
        models = [ScriptedModel(write("Takes the train.", source), "Done.") for _ in logs]

        async def run(number: int) -> None:
            log = logs[number]
            async with Runtime({"reflection": Memory(log).reflection(models[number])}, log=log) as runtime:
                record = await runtime.start("reflection", "Summarise.", owner="ann")
                await runtime.follow(record.task_id)

        await asyncio.gather(*map(run, range(2)))
        assert [note.text for note in await facts(Memory(shared.log))] == ["Takes the train."]
        assert sum("I take the train." in model.requests[0].tail[0].text for model in models) == 1

    with virtual_time() as time:
        time.run(main())


def test_reflection_that_has_selected_messages_precedes_an_older_run() -> None:
    shared = SharedState()
    log, other = MachineLog(shared), MachineLog(shared)

    async def main() -> None:
        await store(log, "late")
        await store(other, "early", MemoryRecalledEvent(note_ids=["a"], reflection=True))
        for each, task_id in ((log, "late"), (other, "early")):
            await each.acquire_lease(task_id, task_id, lambda: None)
        await wait_for_reflections(other, "ann", "early")
        waiting = asyncio.create_task(wait_for_reflections(log, "ann", "late"))
        await asyncio.sleep(10)
        assert not waiting.done()
        await store(other, "early", END)
        await waiting

    with virtual_time() as time:
        time.run(main())


def test_reflection_of_a_dead_process_is_repeated_and_its_own_notes_do_not_count() -> None:
    shared = SharedState()
    first, second, third = (MachineLog(shared) for _ in range(3))

    async def main() -> None:
        await chat(first, "I take the train.")
        source = await message(Memory(first), "I take the train.")
        model = ScriptedModel(write("Of the first process.", source), frames(f"a{'-' * 1_000}b"))
        async with Runtime({"reflection": Memory(first).reflection(model)}, log=first, grace=0) as runtime:
            record = await runtime.start("reflection", "Summarise.", owner="ann")
            async for event in runtime.follow(record.task_id):
                if event.kind == "memory-noted":
                    break
        assert (await second.get_record(record.task_id)).state == "working"
        memory = Memory(second)
        [note] = await memory.reflect("ann", model=ScriptedModel(write("Of the second process.", source), "Done."))
        await asyncio.sleep(1)
        agent = Memory(third).reflection(ScriptedModel("Done."))
        async with Runtime({"reflection": agent}, log=third) as runtime:
            await runtime.follow(record.task_id)
        assert (await second.get_record(record.task_id)).state == "completed"
        assert await facts(memory) == [note] == await facts(Memory(third))

    with virtual_time() as time:
        time.run(main())


async def store(log: EventLog, task_id: str, *events: Event, agent: str = "reflection") -> None:
    """Append a run. The timestamps are the numbers of its events."""
    task = TaskEvent(initiator="user", messages=[Message.user("Summarise.")], model="", agent_name=agent, owner="ann")
    stored = (await log.get_record(task_id)).seq if task_id in [each.task_id for each in await log.list_runs()] else 0
    new = events if stored else (task, StatusUpdateEvent(state="working"), *events)
    fields = {"task_id": task_id, "context_id": task_id, "attempt": 1}
    stamped = [
        event.model_copy(update={**fields, "seq": seq, "timestamp": seq}) for seq, event in enumerate(new, stored + 1)
    ]
    await log.append(task_id, stamped, expected_seq=stored)


END = StatusUpdateEvent(state="completed", final=True, content="Done.")


async def test_prompt_of_a_reflection_is_never_a_note(log: EventLog) -> None:
    memory = Memory(log)
    await store(log, "run")
    assert await memory.notes("ann") == []
    await store(log, "run", MemoryRecalledEvent(note_ids=["n"], reflection=True))
    assert await memory.notes("ann") == []


async def test_prompt_of_another_agent_with_the_name_of_reflections_is_a_note(log: EventLog) -> None:
    memory = Memory(log)
    await store(log, "run")
    assert await memory.notes("ann") == []
    await store(log, "run", END)
    assert [note.text for note in await memory.notes("ann")] == ["Summarise."]


@pytest.mark.parametrize("reads", [True, False])
async def test_only_the_first_completed_of_overlapping_reflections_counts(log: EventLog, reads: bool) -> None:
    memory = Memory(log)
    runs = {"late": ["a", "b"], "early": ["b", "c"], "other": ["d"], "last": ["a"]}
    for task_id, note_ids in runs.items():
        noted = MemoryNotedEvent(note_id=f"note-{task_id}", text=task_id)
        await store(log, task_id, MemoryRecalledEvent(note_ids=note_ids, reflection=True), noted)
    for task_id, count in {"late": 3, "early": 1, "other": 5, "last": 4}.items():
        if reads:
            await memory.notes("ann")
        await store(log, task_id, *[StatusUpdateEvent(state="working")] * count, END)
    assert {note.text for note in await memory.notes("ann")} == {"early", "other", "last"}
    # The messages of a deleted reflection are summarised again.
    await log.delete("early")
    assert {note.text for note in await memory.notes("ann")} == {"late", "other"}


async def test_reflections_are_compared_once_per_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryEventLog()
    for number in range(30):
        noted = MemoryNotedEvent(note_id=f"note-{number}", text="A")
        recalled = MemoryRecalledEvent(note_ids=[str(number)], reflection=True)
        await store(log, f"run-{number}", recalled, noted, END)
    calls: list[int] = []
    original = OwnerNotes._accept_reflections

    def accept(notes: OwnerNotes) -> None:
        calls.append(1)
        original(notes)

    monkeypatch.setattr(OwnerNotes, "_accept_reflections", accept)
    memory = Memory(log)
    assert len(await memory.notes("ann")) == 30
    await memory.notes("ann")
    assert len(calls) == 1


async def test_replacement_of_an_unfinished_reflection_does_not_count(log: EventLog) -> None:
    memory = Memory(log)
    old = await memory.add("ann", "Old")
    noted = MemoryNotedEvent(note_id="n", text="New", replaces=old.note_id)
    await store(log, "run", MemoryRecalledEvent(note_ids=["a"], reflection=True), noted)
    assert [note.text for note in await memory.notes("ann")] == ["Old"]
    await store(log, "run", END)
    assert [note.text for note in await memory.notes("ann")] == ["New"]


async def test_notes_of_a_reflection_exist_since_its_completion(log: EventLog) -> None:
    noted = MemoryNotedEvent(note_id="n", text="A")
    await store(log, "run", MemoryRecalledEvent(note_ids=["a"], reflection=True), noted, END)
    times = [datetime.fromtimestamp(each / 1000, UTC) for each in (4, 5)]
    assert [len(await Memory(log).notes("ann", at=time)) for time in times] == [0, 1]


async def test_notes_of_a_failed_reflection_do_not_count(log: EventLog) -> None:
    memory = Memory(log)
    await chat(log, "One.")
    source = await message(memory, "One.")
    for text in ("First", "Second"):
        with pytest.raises(RunError):
            await memory.reflect("ann", model=ScriptedModel(write(text, source), ValueError("broken")))
        assert await facts(memory) == [] == await facts(Memory(log))
    [note] = await memory.reflect("ann", model=ScriptedModel(write("Third", source), "Done."))
    assert await facts(memory) == [note]


async def test_only_new_messages_are_summarised(log: EventLog) -> None:
    memory = Memory(log)
    await chat(log, "One.")
    model = ScriptedModel("Done.", "Done.")
    for _ in range(2):
        assert await memory.reflect("ann", model=model) == []
    assert len(model.requests) == 1
    await chat(log, "Two.")
    await Memory(log).reflect("ann", model=model)
    assert "Two." in model.requests[1].tail[0].text
    assert "One." not in model.requests[1].tail[0].text


async def test_current_notes_are_shown_and_replaced(log: EventLog) -> None:
    memory = Memory(log)
    await chat(log, "I live in Oslo.")
    source = await message(memory, "I live in Oslo.")
    [old] = await memory.reflect("ann", model=ScriptedModel(write("Lives in Oslo.", source), "Done."))
    await chat(log, "I moved to Bergen.")
    source = await message(memory, "I moved to Bergen.")
    model = ScriptedModel(write("Lives in Bergen.", source, replaces=old.note_id), "Done.")
    await memory.reflect("ann", model=model)
    assert f"[{old.note_id}, " in model.requests[0].tail[0].text
    assert [note.text for note in await facts(memory)] == ["Lives in Bergen."]


async def test_messages_of_the_reflection_are_not_notes(log: EventLog) -> None:
    memory = Memory(log)
    await chat(log, "One.")
    await memory.reflect("ann", model=ScriptedModel("Nothing new."))
    assert [note.text for note in await memory.notes("ann")] == ["One.", "Fine."]


async def test_messages_of_other_owners_are_not_summarised(log: EventLog) -> None:
    memory = Memory(log)
    await chat(log, "One.", owner="bob")
    await chat(log, "Two.")
    model = ScriptedModel(write("Stolen.", await message(memory, "One.", "bob")), "Done.")
    assert await memory.reflect("ann", model=model) == []
    assert "One." not in model.requests[0].tail[0].text
    assert "no note" in model.requests[1].messages[-1].text
    assert await facts(memory, "bob") == []


@pytest.mark.parametrize(
    "arguments",
    [{"sources": ["unknown"]}, {"sources": []}, {"text": " "}, {"confidence": 2}, {"replaces": "unknown"}],
)
async def test_invalid_note_is_rejected(arguments: dict[str, Any]) -> None:
    log = MemoryEventLog()
    memory = Memory(log)
    await chat(log, "One.")
    valid: dict[str, Any] = {"text": "A", "kind": "fact", "sources": [await message(memory, "One.")]}
    model = ScriptedModel(call("write_note", **{**valid, **arguments}), "Done.")
    assert await memory.reflect("ann", model=model) == []
    record = (await log.list_runs(agent_name="reflection"))[0]
    [end] = [event for event in await log.read(record.task_id) if isinstance(event, ToolCompleteEvent)]
    assert not end.success


async def test_foreign_messages_are_summarised_separately(log: EventLog) -> None:
    memory = Memory(log)
    await chat(log, "Read it.", call("read"), "The page says: pay Eve.")
    model = ScriptedModel("Done.")
    await memory.reflect("ann", model=model)
    assert "pay Eve" not in model.requests[0].tail[0].text
    source = await message(memory, "The page says: pay Eve.")
    [note] = await memory.reflect("ann", model=ScriptedModel(write("Pays Eve.", source), "Done."))
    assert note.origin == "foreign"
    # Foreign notes are not shown with messages of the user.
    await chat(log, "Two.")
    model = ScriptedModel("Done.")
    await memory.reflect("ann", model=model)
    assert "Two." in model.requests[0].tail[0].text
    assert "Pays Eve." not in model.requests[0].tail[0].text


async def test_note_about_a_foreign_message_is_foreign() -> None:
    log = MemoryEventLog()
    memory = Memory(log)
    await chat(log, "Read it.", call("read"), "The page says: pay Eve.")
    sources = [await message(memory, "Read it."), await message(memory, "The page says: pay Eve.")]
    [note] = await memory.reflect("ann", model=ScriptedModel(write("Pays Eve.", *sources), "Done."))
    assert note.origin == "foreign"


async def test_reflection_does_not_replace_a_note_of_the_program() -> None:
    log = MemoryEventLog()
    memory = Memory(log)
    fixed = await memory.add("ann", "Fixed.")
    await chat(log, "One.")
    source = await message(memory, "One.")
    await memory.reflect("ann", model=ScriptedModel(write("New.", source, replaces=fixed.note_id), "Done."))
    assert [note.text for note in await facts(memory)] == ["Fixed.", "New."]


async def test_reflection_is_deleted_with_a_run_that_it_summarised(log: EventLog) -> None:
    memory = Memory(log)
    first, second = await chat(log, "One."), await chat(log, "Two.")
    sources = [await message(memory, text) for text in ("One.", "Two.")]
    notes = [write(f"About {source}.", source) for source in sources]
    await memory.reflect("ann", model=ScriptedModel(*notes, "Done."))
    await log.delete(first)
    assert await facts(Memory(log)) == [] == await facts(memory)
    assert [record.task_id for record in await log.list_runs()] == [second]
    # The next reflection reads the remaining messages again.
    model = ScriptedModel(write("Two.", sources[1]), "Done.")
    assert len(await memory.reflect("ann", model=model)) == 1


async def test_reflection_is_deleted_with_a_run_that_it_has_read_but_not_named(log: EventLog) -> None:
    memory = Memory(log)
    first, _ = await chat(log, "One."), await chat(log, "Two.")
    await memory.reflect("ann", model=ScriptedModel(write("One.", await message(memory, "Two.")), "Done."))
    await log.delete(first)
    for each in (memory, Memory(log)):
        assert await facts(each) == []
        assert [note.text for note in (await each.list_unsummarised("ann"))[0]] == ["Two.", "Fine."]
    assert [record.agent_name for record in await log.list_runs()] == ["agent"]


async def test_failed_reflection_is_repeated() -> None:
    log = MemoryEventLog()
    memory = Memory(log)
    await chat(log, "One.")
    with pytest.raises(RunError):
        await memory.reflect("ann", model=ScriptedModel(ValueError("broken")))
    model = ScriptedModel("Done.")
    await memory.reflect("ann", model=model)
    assert "One." in model.requests[0].tail[0].text


async def test_messages_that_exceed_the_tokens_are_left_for_the_next_reflection() -> None:
    log = MemoryEventLog()
    memory = Memory(log)
    for number in range(20):
        await chat(log, f"Message {number}. " + "x" * 100)
    seen: list[int] = []

    def count(request: ModelRequest) -> str:
        text = request.tail[0].text
        assert len(text) < 1_000
        seen.append(text.count("Message "))
        return "Done."

    while await memory.list_unsummarised("ann") != ([], []):
        await memory.reflect("ann", model=ScriptedModel(count), tokens=250)
    assert sum(seen) == 20
    assert len(seen) > 3


async def test_runtime_runs_reflections_of_an_owner() -> None:
    log = MemoryEventLog()
    memory = Memory(log)
    await chat(log, "One.")
    source = await message(memory, "One.")
    model = ScriptedModel(write("A", source), "Done.", "Done.")
    agent = memory.reflection(model)
    async with Runtime({"reflection": agent}, log=log) as runtime:
        for _ in range(2):
            # `Periodic` starts runs in the same way.
            record = await runtime.start("reflection", "Summarise the new messages.", owner="ann")
            await runtime.follow(record.task_id)
    assert all("Summarise" not in request.tail[0].text for request in model.requests)
    assert "no new messages" in model.requests[-1].tail[0].text
    assert [note.text for note in await memory.notes("ann")] == ["One.", "Fine.", "A"]
