"""Runs that summarise messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import Agent, EventLog, MemoryEventLog, ModelRequest, Runtime, tool
from rxloop.errors import RunError
from rxloop.memory import Memory, Note
from rxloop.protocol.events import ToolCompleteEvent
from rxloop.testing import ScriptedModel, call


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
