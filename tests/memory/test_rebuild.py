"""Notes of a running process compared with notes that are read again from the log, after random changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from rxloop import Agent, EventLog, RunError, tool
from rxloop.errors import RxloopError, ToolError
from rxloop.memory import Experience, ImportedMessage, Memory
from rxloop.testing import ScriptedModel, call

WORDS = ["harbour", "forest", "train", "oslo", "bergen", "red"]


@tool
async def read(page: str) -> str:
    """Read a page."""
    if page == "red":
        raise ToolError("no such page")
    return f"Text of {page}"


class Driver:
    """Random changes of the memory and the runs of an owner."""

    def __init__(self, log: EventLog, seed: int) -> None:
        self.log, self.random, self.memory = log, Random(seed), Memory(log)
        self.failed: list[tuple[Agent[Any], str]] = []

    def text(self) -> str:
        return " ".join(self.random.choices(WORDS, k=4))

    async def choose_note(self) -> str:
        return self.random.choice([note.note_id for note in await Memory(self.log).notes("ann")] or ["unknown"])

    async def choose_run(self, **query: Any) -> str:
        records = await self.log.list_runs(owner="ann", **query)
        return self.random.choice([record.task_id for record in records] or ["unknown"])

    async def run(self, *turns: Any) -> None:
        agent = Agent(ScriptedModel(*turns, self.text()), log=self.log, tools=[*self.memory.tools(), read])
        context_id = self.random.choice(["one", "two", None])
        options: dict[str, Any] = {} if context_id is None else {"context_id": context_id}
        try:
            await agent.run(self.text(), owner="ann", **options)
        except RunError as error:
            if error.result is not None:
                self.failed.append((agent, error.result.task_id))

    async def chat(self) -> None:
        await self.run()

    async def read(self) -> None:
        await self.run(*(call("read", page=self.random.choice(WORDS)) for _ in range(3)))

    async def remember(self) -> None:
        await self.run(
            call("remember", text=self.text(), replaces=self.random.choice([None, await self.choose_note()]))
        )

    async def fail(self) -> None:
        await self.run(call("read", page="red"), ConnectionError("down"))

    async def resume(self) -> None:
        if self.failed:
            agent, task_id = self.failed.pop()
            await agent.resume(task_id)

    async def fork(self) -> None:
        task_id = await self.choose_run()
        at = self.random.randint(1, (await self.log.get_record(task_id)).seq)
        await Agent(ScriptedModel(*map(str, range(9))), log=self.log, tools=[read]).fork(
            task_id, at=at, prompt=self.text()
        )

    async def add(self) -> None:
        sources = self.random.choice([[], [f"{await self.choose_run()}/1.1.0"]])
        await self.memory.add(
            "ann", self.text(), sources=sources, replaces=self.random.choice([None, await self.choose_note()])
        )

    async def import_conversation(self) -> None:
        messages = [ImportedMessage(self.text(), "Bob", datetime(2020, 1, 1, tzinfo=UTC)), ImportedMessage(self.text())]
        await self.memory.import_conversation("ann", messages, context_id=self.random.choice(["one", None]))

    async def reflect(self) -> None:
        new, _ = await Memory(self.log).list_unsummarised("ann")
        sources = [note.note_id for note in self.random.sample(new, min(len(new), 2))] or ["unknown"]
        note = call("write_note", text=self.text(), kind="fact", sources=sources)
        end = self.random.choice(["Done.", ValueError("broken")])
        await self.memory.reflect("ann", model=ScriptedModel(note, end), tokens=self.random.choice([40, 8_000]))

    async def forget(self) -> None:
        task_id = await self.choose_run()
        options: list[dict[str, Any]] = [
            {"note_id": await self.choose_note()},
            {"run_id": task_id},
            {"source": f"{task_id}/1.1.0"},
            {"before": datetime.now(UTC)},
        ]
        await self.memory.forget("ann", **self.random.choice(options))

    async def delete(self) -> None:
        await self.log.delete(await self.choose_run())

    async def delete_note_or_removal(self) -> None:
        await self.log.delete(await self.choose_run(agent_name="memory"))

    async def step(self) -> None:
        changes: list[Callable[[], Awaitable[None]]] = [self.chat, self.read, self.remember, self.fail, self.resume]
        changes += [self.fork, self.add, self.import_conversation, self.reflect, self.forget, self.delete]
        with suppress(RxloopError, LookupError):
            await self.random.choice([*changes, self.forget, self.delete, self.delete_note_or_removal])()


async def view(memory: Memory) -> dict[str, list[str]]:
    notes = await memory.notes("ann")
    times = sorted(note.created for note in notes)
    middle = datetime.fromtimestamp(times[len(times) // 2] / 1000 if times else 0, UTC)
    return {
        "notes": sorted(map(repr, notes)),
        "earlier": sorted(note.note_id for note in await memory.notes("ann", at=middle)),
        "unsummarised": sorted(note.note_id for note in (await memory.list_unsummarised("ann"))[0]),
        "lessons": sorted(lesson.text for lesson in await Experience(memory).lessons("ann")),
    }


@pytest.mark.parametrize("seed", range(6))
async def test_notes_after_random_changes_equal_those_read_again(log: EventLog, seed: int) -> None:
    driver = Driver(log, seed)
    for _ in range(40):
        await driver.step()
        # The first access may delete runs with notes about deleted runs.
        await view(driver.memory)
        rebuilt = await view(Memory(log))
        assert await view(driver.memory) == rebuilt
